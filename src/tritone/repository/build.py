"""Writing a Triton model repository from bundles.

    REPO/
      NAME/                config.pbtxt, 1/model.py, 1/bundle/...     whole utterances
      NAME-streaming/      config.pbtxt, 1/model.py, 1/bundle/...     chunk by chunk
      NAME/                config.pbtxt, 1/model.py, 1/bundle/...     embeddings of whole utterances

With a layout of stages, NAME is an ensemble of NAME-features, NAME-acoustic and NAME-decoder, see `ensemble.py`.

A speaker model is served under NAME; any other is served offline under NAME and streaming under NAME-streaming; a
streaming model that is built alone under a name of its own has exactly that name, because clients of other deployments
expect theirs. A repository needs nothing outside its folder, unless its bundles are links: language models and
hotwords are copied into it as well.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence, Set
from pathlib import Path
from typing import Literal

from tritone.backend.settings import GENERIC, STAGES
from tritone.bundle.bundle import Bundle
from tritone.errors import BundleError, OperatorError
from tritone.kinds import Mode, kind_of
from tritone.paths import explained, local
from tritone.pipelines.memory import measured
from tritone.repository.config import ModelOptions
from tritone.repository.ensemble import EnsembleOptions, ensemble
from tritone.repository.folder import BuiltModel, FolderWriter, ModelFolder, versions_of
from tritone.repository.fused import fused
from tritone.repository.generic import Platform, generic
from tritone.repository.memory import check_sum, fitted, memory_needs
from tritone.repository.models import is_ours, is_stage, steps_of
from tritone.repository.search_files import check_files, check_kind, check_search
from tritone.repository.serving import ServingOptions
from tritone.repository.stored import NAME
from tritone.storage import parse

STREAMING_SUFFIX = "-streaming"

Modes = Literal["offline", "streaming", "both"]
Check = Callable[[Path, Sequence[ModelFolder]], None]


def build_repository(
    bundles: Sequence[str | Path],
    output: str | Path,
    *,
    names: Sequence[str] | None = None,
    modes: Modes = "both",
    options: ModelOptions | None = None,
    layout: EnsembleOptions | None = None,
    serving: ServingOptions | None = None,
    platform: Platform = "tritone",
    link: bool = False,
    force: bool = False,
    measure: bool = False,
    overcommit: bool = False,
    check: Check | None = None,
) -> list[BuiltModel]:
    """Write the models of some bundles into a repository; other models in it stay as they are.

    Stages that only an ensemble asked for which is replaced are removed with it.

    Args:
        bundles: folders, or names of shipped bundles.
        output: the repository; made if it does not exist.
        names: one for each bundle; None takes them from the manifests. With `modes` "streaming" they are used as given.
        modes: "both" builds what each bundle has graphs for; the others insist. Speaker models count as offline.
        options: how to serve them, the same for all.
        layout: serve whole utterances as ensembles of stages; None makes one model of each. Streams are always that.
        serving: how generic models are served; None as their exports fixed it.
        platform: who runs generic models: Tritone, or Triton's own backends.
        link: point at the bundles instead of copying them.
        force: replace folders that Tritone did not write.
        measure: first measure what calls of a bundle take of memory, where its export did not; copies keep it.
        overcommit: write also models that need more memory than this machine has.
        check: is called with a folder of all models, complete, and what they are, before they take their places; what
            it raises leaves the repository as it was.

    Returns:
        The models written.

    Raises:
        BundleError: a bundle cannot be read, is damaged, or has no graph for a mode, a runtime or a precision that was
            asked for, none for stages, no decoder for rescoring, or streams that cannot be cut as asked for; or an
            option is for models of another kind.
        InputError: a hotword cannot be made of a bundle's tokens, or the output is not on this machine.
        OperatorError: the language model or the hotwords cannot be used, or something else is in the way at the output;
            or this machine has not the memory for the models.
        ValueError: a name is unfit or used twice, or an engine cannot take all audio that would be let in, or there is
            not enough memory for it.
    """
    local(output)
    options = options or ModelOptions()
    given = [*bundles, *([options.draft] if options.draft else [])]
    if link and (away := [str(bundle) for bundle in given if parse(bundle) is not None]):
        raise ValueError(f"{away[0]} cannot be linked to: local copies of it may be removed. Build without --link.")
    opened = [Bundle.open(bundle) for bundle in bundles]
    if not opened:
        raise ValueError("no bundle given")
    for bundle in opened:
        check_kind(options, bundle)
        kind_of(bundle).check_machine(bundle)
        bundle.verify()  # damage is reported here, not by a server that does not start
    check_files(options, opened)
    if measure and not link:
        opened = [measured(bundle) for bundle in opened]
    if names is not None and len(names) != len(opened):
        raise ValueError(f"{len(opened)} bundles need as many names, got {len(names)}")
    suffix = "" if names is not None and modes == "streaming" else STREAMING_SUFFIX
    names = list(names) if names is not None else [bundle.manifest.name for bundle in opened]
    output = Path(output)
    folders = []
    for name, bundle in zip(names, opened, strict=True):
        for mode in _modes(bundle, modes):
            check_search(options, bundle, mode)
            if mode == GENERIC:
                if layout is not None:
                    raise BundleError(f"{bundle.path} is {kind_of(bundle).noun}, of which there are no ensembles.")
                folders += generic(name, bundle, options, serving or ServingOptions(), platform)
                continue
            if platform != "tritone" or (serving or ServingOptions()).given():
                raise BundleError(
                    f"{bundle.path} is {kind_of(bundle).noun}; --platform {platform} and options of generic models are "
                    "for others. Leave them out; --layout ensemble runs networks of speech on Triton's own backends."
                )
            if mode != "streaming" and layout is not None:
                folders += ensemble(name, bundle, fitted(options, bundle, mode), layout)
            else:
                chosen = fitted(options, bundle, mode)
                folders += fused(name + (suffix if mode == "streaming" else ""), mode, bundle, chosen)
    return write_models(folders, output, link=link, force=force, overcommit=overcommit, check=check)


def write_models(
    folders: Sequence[ModelFolder],
    output: Path,
    *,
    link: bool = False,
    force: bool = False,
    overcommit: bool = False,
    check: Check | None = None,
) -> list[BuiltModel]:
    """Write models into a repository, all of them or none; arguments and errors as of `build_repository`."""
    _check_names(folders, output, force)
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OperatorError(f"cannot make the folder {output}: {error.strerror}. Choose another one.") from error
    try:
        return _write(folders, output, FolderWriter(link=link), overcommit=overcommit, check=check)
    except OSError as error:
        raise explained(error, f"cannot write the repository {output}") from error


def _write(
    folders: Sequence[ModelFolder], output: Path, writer: FolderWriter, *, overcommit: bool, check: Check | None
) -> list[BuiltModel]:
    built = []
    # Everything is written beside its place first: a failure leaves the repository as it was.
    with tempfile.TemporaryDirectory(prefix=".tritone-build-", dir=output) as temporary:
        for folder in folders:
            writer.write(folder, Path(temporary) / folder.name)
            if folder.mode == GENERIC:
                _keep_versions(output / folder.name, Path(temporary) / folder.name)
                _check_versions(folder, Path(temporary) / folder.name)
        if check is not None:
            check(Path(temporary), folders)
        if not overcommit:
            check_sum(memory_needs(temporary))
        for name in _orphans({folder.name for folder in folders}, output):
            os.rename(output / name, Path(temporary) / f".old.{name}")
        for folder in folders:
            path = output / folder.name
            # No model is called like this: names start with a letter or a digit.
            _replace(Path(temporary) / folder.name, path, Path(temporary) / f".old.{folder.name}")
            built.append(BuiltModel(folder.name, folder.mode, path))
    return built


def _keep_versions(before: Path, new: Path) -> None:
    """Take over the versions of a model that its new folder does not have."""
    if is_ours(before):
        written = {path.name for path in versions_of(new)}
        for version in versions_of(before):
            if version.name not in written:
                shutil.copytree(version, new / version.name, symlinks=True, copy_function=_linked)


def _check_versions(model: ModelFolder, folder: Path) -> None:
    there = sorted(int(path.name) for path in versions_of(folder))
    if missing := [each for each in model.config.version_policy.specific.versions if each not in there]:
        raise OperatorError(
            f"{model.name}: --version-policy names version {', '.join(map(str, missing))}, but there "
            f"{'is' if len(there) == 1 else 'are'} {', '.join(map(str, there))}. Build the others first "
            "(--model-version N), or choose latest:N or all."
        )


def _linked(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # not every file system can
        shutil.copyfile(source, target)


def _modes(bundle: Bundle, modes: Modes) -> list[Mode]:
    kind = kind_of(bundle)
    if modes == "streaming" and "streaming" not in kind.encoders:
        raise BundleError(f"{bundle.path} is {kind.noun}: {kind.does}, of whole inputs alone, and has no streams.")
    # Whatever is not streaming takes whole inputs, as offline does.
    wanted = [mode for mode in kind.encoders if modes == "both" or (mode == "streaming") == (modes == "streaming")]
    found = [mode for mode in wanted if bundle.has(kind.encoders[mode])]
    if found:
        return found
    if modes == "both":
        raise BundleError(f"{bundle.path} has no graph that could be served; export it again.")
    advice = " with --streaming" if modes == "streaming" else ""
    raise BundleError(f"{bundle.path} has no {modes} graph ({kind.encoders[wanted[0]]}). Export it again{advice}.")


def _orphans(names: Set[str], output: Path) -> list[str]:
    """Stages that nothing asks for once the models `names` are written: a server would load them for nothing."""
    before = {step for name in names if is_ours(output / name) for step in steps_of(output / name)}
    asked = {step for folder in output.iterdir() if folder.name not in names for step in steps_of(folder)}
    left = before - asked - names
    # Steps of an ensemble of any models have its name before their own.
    own = {name for name in left if any(name.startswith(f"{owner}-") for owner in names) and is_ours(output / name)}
    return sorted(name for name in left if NAME.fullmatch(name) and (name in own or is_stage(output / name)))


def _check_names(folders: Sequence[ModelFolder], output: Path, force: bool) -> None:
    seen: set[str] = set()
    for folder in folders:
        name = folder.name
        if not NAME.fullmatch(name):
            raise ValueError(
                f"model name {name[:220]!r}: up to 200 letters, digits, '.', '_' and '-' are allowed, the first a "
                "letter or digit. Choose one with --name."
            )
        if name in seen:
            raise ValueError(f"two models would be named {name!r}. Give each bundle a name of its own with --name.")
        seen.add(name)
        path = output / name
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            raise OperatorError(f"{path} is in the way: it is not a folder. Remove it, or choose another name.")
        if path.is_dir() and any(path.iterdir()) and not is_ours(path) and not force:
            raise OperatorError(f"{path} was not written by Tritone. Choose another name, or replace it with --force.")
        if is_ours(path) and is_stage(path) != (folder.mode in STAGES) and not force:
            kinds = ("a stage of an ensemble", "a model of its own")
            was, new = kinds if is_stage(path) else reversed(kinds)
            raise OperatorError(
                f"{path} is {was}, and {new} would take its place. Choose another name, or replace it with --force."
            )
    if output.exists() and not output.is_dir():
        raise OperatorError(f"{output} is not a folder.")
    if (output / "manifest.json").exists():
        raise OperatorError(f"{output} is a bundle; choose another folder for the repository.")


def _replace(new: Path, path: Path, old: Path) -> None:
    if path.exists():
        os.rename(path, old)
    try:
        os.rename(new, path)
    except OSError:
        if old.exists():
            os.rename(old, path)
        raise
