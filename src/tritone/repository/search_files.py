"""Files that a model searches with beside its bundle, a language model and hotwords: checked, and copied into a
repository, when it is built; and checks of the other options of searching and embedding.

    ModelOptions.lm, .hotwords  ->  NAME/1/search/<file>
"""

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from tritone.bundle.bundle import Bundle
from tritone.errors import BundleError, InputError, OperatorError
from tritone.kinds import Mode, kind_of
from tritone.kinds.speech import SpeechKind
from tritone.options.fields import described
from tritone.pipelines.graphs.choice import asked_for
from tritone.pipelines.graphs.geometry import Geometry
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.whisper.draft import check_exact, check_pair
from tritone.pipelines.whisper.options import OF_ANY_SEARCH, DecodingOptions, check_options, read_decoding, special_of
from tritone.repository.config import PARTS, ModelOptions
from tritone.search.options import MODEL_PARAMETERS, SearchParameters, foreign_options

FOLDER = "search"  # in the version folder
DRAFT = "draft"  # in the version folder, a bundle
FILES = {"lm": "language model", "hotwords": "hotwords file"}  # options that name a file, and what the file is


def check_files(options: SearchParameters, bundles: Sequence[Bundle]) -> None:
    """Read the files that the options name, as the server will, and check that they fit the bundles' vocabularies.

    Raises:
        OperatorError: one cannot be read, or is not what it should be (`LanguageModelError`), or one that other options
            need is missing; says which and why.
        InputError: a hotword cannot be made of a bundle's tokens.
    """
    for name, what in FILES.items():
        path = getattr(options, name)
        if path and not Path(path).is_file():
            raise OperatorError(f"there is no {what} {path}; give the path of a file to {MODEL_PARAMETERS[name].flag}.")
    if options.lm and options.hotwords and Path(options.lm).name == Path(options.hotwords).name:
        raise OperatorError(
            f"the language model and the hotwords file are both called {Path(options.lm).name}; rename one."
        )
    for name in ("lm_weight", "word_bonus"):
        if getattr(options, name) and not options.lm:
            flag = MODEL_PARAMETERS[name].flag
            raise OperatorError(f"{flag} is for words of a language model, and there is none; give one with --lm")
    if not options.lm and not options.hotwords:
        return
    from tritone.pipelines.searching.phrases import Phrases
    from tritone.search.hotwords import read_hotwords_file
    from tritone.search.ngram.model import NgramModel
    from tritone.search.scoring.scorer import Scorer

    lm = NgramModel.read(Path(options.lm)) if options.lm else None
    hotwords = read_hotwords_file(Path(options.hotwords)) if options.hotwords else ()
    options.options(hotwords)
    for bundle in bundles:
        if options.search == "contextual":
            Phrases(bundle).ids(hotwords)
            continue
        spellings = [bundle.vocabulary.spelling(token) for token in range(len(bundle.vocabulary))]
        # With weight 0 it would not be looked at.
        Scorer.build(spellings, lm=lm, lm_weight=1.0, word_bonus=0.0, lm_unit=options.lm_unit, hotwords=hotwords)


def check_kind(options: ModelOptions, bundle: Bundle) -> None:
    """Check that no option is for models of another kind: speaker models do not search, and only they have windows.

    Raises:
        BundleError: one is; or a speaker model's windows are too short for it.
    """
    kind = kind_of(bundle)
    for owner, (part, owners) in PARTS.items():
        shared = OF_ANY_SEARCH if kind.options is DecodingOptions else ()
        given = [
            each.flag
            for name, each in described(part).items()
            if name not in shared and getattr(options, each.field) != each.default
        ]
        if given and kind.options is not owner:
            raise BundleError(f"{bundle.path} is {kind.noun}, and {', '.join(given)} is for {owners}; leave it out.")
    if options.decoding and kind.options is not DecodingOptions:
        flags = ", ".join(described(DecodingOptions)[name].flag for name in json.loads(options.decoding))
        raise BundleError(f"{bundle.path} is {kind.noun}, and {flags} is for Whisper models; leave it out.")
    if (special := special_of(bundle)) is not None:
        if options.compile:
            raise BundleError(f"{bundle.path} is {kind.noun}, which nothing compiles; leave out --compile.")
        try:
            check_options(read_decoding(options.whisper_decoding), special, len(bundle.vocabulary))
        except InputError as error:
            raise BundleError(f"{bundle.path}: {error}") from error
    _check_draft(options, bundle)
    if options.window_s <= 0:
        return
    least_s = bundle.manifest.encoder.min_samples / bundle.manifest.sample_rate
    if options.window_s < least_s:
        raise BundleError(
            f"{bundle.path} needs at least {least_s:.3f} s of audio; --window-s {options.window_s:g} is less."
        )


def _check_draft(options: ModelOptions, bundle: Bundle) -> None:
    """Check that the draft, if there is one, can guess what a bundle writes."""
    if not options.draft:
        if options.draft_precision:
            raise BundleError("--draft-precision is of a draft, and there is none; give one with --draft.")
        return
    draft = Bundle.open(options.draft)
    check_pair(bundle, draft)
    draft.verify()
    for role in ("encoder", "decoder"):
        asked_for(draft.artifacts(role, None, options.draft_precision or None), "", draft)  # type: ignore[arg-type]
    if options.device == "gpu":
        raise BundleError(f"{bundle.path}: a draft guesses on the CPU, but the device is gpu; leave one of them out.")
    check_exact(bundle, Placement(runtime=options.runtime or None, precision=options.precision or None))


def check_search(options: SearchParameters, bundle: Bundle, mode: Mode) -> None:
    """Check that a bundle can search, and be streamed, as the options say; those that do not search always can.

    Raises:
        BundleError: its model has no such search, an option is for other kinds of models, or its streams cannot be cut
            in these chunks.
        ValueError: a chunk size or number of left chunks is too large.
    """
    kind = kind_of(bundle)
    if not isinstance(kind, SpeechKind):
        return
    if reason := kind.obstacle(bundle, options.search):
        raise BundleError(f"{bundle.path}, --search {options.search}: {reason}.")
    if foreign := foreign_options(options, kind.name):
        flags = ", ".join(MODEL_PARAMETERS[name].flag for name in foreign)
        kinds = " or ".join(MODEL_PARAMETERS[foreign[0]].kinds)
        raise BundleError(
            f"{bundle.path} is of kind {kind.name}, and {flags} is for models of kind {kinds}; leave it out."
        )
    if mode == "streaming" and bundle.manifest.streaming is not None:
        Geometry.choose(bundle, bundle.manifest.streaming, **options.chunking())


def places(options: SearchParameters) -> dict[str, str]:
    """Where the files that the options name are in a model's version folder: option name -> path relative to it."""
    found = {name: os.path.join(FOLDER, Path(path).name) for name in FILES if (path := getattr(options, name))}
    return found | ({"draft": DRAFT} if getattr(options, "draft", "") else {})


def copy_files(options: SearchParameters, version: Path, *, link: bool) -> None:
    """Put the files that the options name into a model's version folder, where `places` says.

    Args:
        version: the folder.
        link: point at the files instead of copying them.
    """
    for name, relative in places(options).items():
        if name not in FILES:
            continue
        source, target = Path(getattr(options, name)), version / relative
        target.parent.mkdir(exist_ok=True)
        if link:
            target.symlink_to(source.resolve())
        else:
            shutil.copyfile(source, target)
