"""The families that are known: ours, a folder each with a `family.py`, and those of other packages.

    recognise(Path("my-model"))  ->  Checkpoint(family="wenet", ...)
    family("wenet")              ->  Family

Code of other packages may fail, or never end, on files that nobody has tried: that is logged in a sentence that names
the package, and all else works.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from threading import Thread
from typing import Any

from tritone import families as ours
from tritone.errors import BundleError, ExportError, TritoneError
from tritone.families.family import Checkpoint, Family
from tritone.families.foreign import Foreign, foreign_form
from tritone.families.seen import TORCH, Seen
from tritone.options.fields import described
from tritone.pages import all_pages

LOOK_S = 10.0  # for one family of another package to say whether a file is its own
PICKLED = ("*.tar", "*.pkl", "*.pickle", "*.pt", "*.pth", "*.ckpt", "pytorch_model*.bin")
_LOG = logging.getLogger(__name__)


@cache
def families() -> Mapping[str, Family]:
    """All families by name: ours, then those of other packages."""
    return all_pages(Family, ours)


def family(name: str) -> Family:
    """The family of a name; raises `KeyError` if there is none."""
    return families()[name]


def recognise(path: Path) -> Checkpoint:
    """Say what a file or folder is.

    Raises:
        BundleError: it is nothing that a command exports, or something of it is missing; says what.
    """
    if (known := foreign_form(path)) is not None:
        raise BundleError(f"{path} cannot be exported: {known.sentence}")
    seen = Seen.of(path)
    checkpoint = _of_families(seen)
    if isinstance(checkpoint, Foreign):
        raise BundleError(f"{path} cannot be exported: {checkpoint.sentence}")
    if checkpoint is not None:
        return checkpoint
    if seen.is_folder:
        check_type(seen.config, path)
        return recognise(_only_file(seen))
    if not seen.is_like(*TORCH, "*.pt2", *pickles()):
        raise BundleError(
            f"{path} is a file of a kind that no command exports: known are .onnx, .pt2, TorchScript (.pt, .ts), "
            f"checkpoints of torch (.pt, .pth, .ckpt) and {', '.join(sorted(pickles() - {*TORCH}))}"
        )
    dotted = sorted(word for word in seen.words if "." in word and " " not in word)
    raise BundleError(
        f"{path} is a checkpoint of torch whose toolkit is not known by its tensors "
        f"({', '.join(each[:60] for each in dotted[:3]) or 'it has none'}). `tritone export FAMILY` with its options "
        f"reads those of {', '.join(families())}"
    )


def export_elsewhere(name: str, folder: Path, choices: Mapping[str, Any]) -> Any:
    """The report of the export of another family, if a folder that was given to one is that one's; else None.

    Args:
        name: of the family that was asked.
        folder: what it was given, under whatever name.
        choices: all that was given to it.

    Raises:
        ExportError: an option is given that the other family has not; or as of its export.
        MissingDependencyError: that export needs a package that is not installed.
    """
    seen = Seen.of(folder)
    try:
        if family(name).recognise(seen):
            return None
    except BundleError:
        return None  # its export says what is wrong
    try:
        checkpoint = _of_families(seen)
    except BundleError as error:
        raise ExportError(str(error)) from error
    if not isinstance(checkpoint, Checkpoint) or not (other := family(checkpoint.family)).options:
        return None
    asked, known = described(family(name).option_class), described(other.option_class)
    given = {key: value for key, value in choices.items() if value != folder}
    if unfit := [
        key for key, value in given.items() if key in asked and key not in known and value != asked[key].default
    ]:
        flags = ", ".join(asked[each].flag for each in unfit)
        raise ExportError(
            f"{folder} is {checkpoint.what}, as `tritone export {other.name}` reads it, which has no {flags}: leave "
            f"{'it' if len(unfit) == 1 else 'them'} out"
        )
    shared = {key: value for key, value in given.items() if (key in known or key == "progress") and value is not None}
    return other.exporter(checkpoint.arguments)(**{**shared, **checkpoint.arguments})


def foreign(path: Path) -> Foreign | None:
    """What a file or folder is that no family reads, though its form is known; None for all else."""
    try:
        found = foreign_form(path) or _of_families(Seen.of(path))
    except TritoneError:  # of a family to which it belongs
        return None
    return found if isinstance(found, Foreign) else None


def refuse_foreign(path: Path) -> None:
    """Refuse a file or folder in such a form.

    Raises:
        ExportError: says what it is and what would be needed.
    """
    if (known := foreign(path)) is not None:
        raise ExportError(f"{path} cannot be exported: {known.sentence}")


def check_type(config: Mapping[str, Any], where: object) -> None:
    """Refuse a model of transformers, by its `config.json`, that no command exports.

    Raises:
        BundleError: says of which type it is, and which there are.
    """
    kind = config.get("model_type")
    types = [each for one in families().values() for each in one.types]
    if kind is not None and str(kind) not in types:
        raise BundleError(
            f"{where} is a model of transformers of type {str(kind)[:80]!r}, which no command exports. Those that are "
            f"exported are {', '.join(types)}"
        )


def pickles() -> frozenset[str]:
    """Patterns of the names of files that families read, and in which code can hide; it is not run."""
    return frozenset(each for one in families().values() for each in one.pickles)


def is_pickled(name: str) -> bool:
    """Does a file of this name hold a pickle?"""
    return any(fnmatchcase(name.rpartition("/")[2].lower(), pattern) for pattern in (*PICKLED, *pickles()))


def _of_families(seen: Seen) -> Checkpoint | Foreign | None:
    for each in sorted(families().values(), key=lambda each: each.order):
        said = _bounded(each, seen) if each.interface else each.recognise(seen)
        if said is not None:
            return _completed(said, each) if isinstance(said, Checkpoint) else said
    return None


def _completed(checkpoint: Checkpoint, of: Family) -> Checkpoint:
    first = (
        next((each.field for each in described(of.option_class).values() if each.argument), "") if of.options else ""
    )
    return replace(
        checkpoint,
        family=of.name,
        first=checkpoint.first or (first if first in checkpoint.arguments else ""),
        extra=of.extra if checkpoint.extra is None else checkpoint.extra,
        int8=of.int8 if checkpoint.int8 is None else checkpoint.int8,
    )


def _bounded(family: Family, seen: Seen) -> Checkpoint | Foreign | None:
    """What a family of another package says, whose code may raise anything, or never end."""
    said: list[Checkpoint | Foreign | BundleError | None] = []

    def ask() -> None:
        try:
            said.append(family.recognise(seen))
        except BundleError as error:
            said.append(error)
        except Exception as error:
            _LOG.warning(
                f"{family.package}, which has the family {family.name!r}, failed on {seen.path}: "
                f"{type(error).__name__}: {str(error)[:200]}. It is not asked; notify its makers"
            )
            said.append(None)

    asking = Thread(target=ask, daemon=True)
    asking.start()
    asking.join(LOOK_S)
    if not said:
        _LOG.warning(
            f"{family.package}, which has the family {family.name!r}, has not said in {LOOK_S:g} s what {seen.path} "
            "is. It is not waited for; notify its makers"
        )
        return None
    if isinstance(said[0], BundleError):
        raise said[0]
    return said[0]


def _only_file(seen: Seen) -> Path:
    """The one file of a folder that may be a model.

    Raises:
        BundleError: there is none, or several; says what a folder of each toolkit holds.
    """
    own = sorted(pickles() - {*TORCH})
    single = next((found for each in ((*own,), ("*.pt2",), ("*.onnx",), TORCH) if (found := seen.some(*each))), [])
    if len(single) == 1:
        return single[0]
    some = ", ".join(seen.names[:6]) + (" ..." if len(seen.names) > 6 else "")
    why = f"several models ({', '.join(each.name for each in single[:4])}): name one of them" if single else "no model"
    layouts = ", ".join(each.layout for each in families().values() if each.layout)
    raise BundleError(
        f"{seen.path} holds {why}. It has {some or 'no files'}; needed is a bundle (manifest.json), a model "
        f"repository, or a folder as a toolkit writes it: {layouts}"
    )
