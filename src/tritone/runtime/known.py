"""The runtimes that are known: ours, a folder each with a `runtime.py`, and those of other packages.

runtimes()                 ->  all of them by name
find("onnxruntime")        ->  Runtime; None if there is none
fitting(Path("a.onnx"))    ->  the Runtime of a file
"""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from tritone import runtime as ours
from tritone.errors import BundleError
from tritone.pages import all_pages, built_in
from tritone.runtime.runtime import Runtime


@cache
def runtimes() -> Mapping[str, Runtime]:
    """All runtimes by name, in their order."""
    return dict(sorted(all_pages(Runtime, ours).items(), key=lambda each: each[1].order))


@cache
def find(name: str) -> Runtime | None:
    """The runtime of a name; None if there is none."""
    return _first(lambda each: each.name == name)


def programs_of(name: str) -> str:
    """What the files of a runtime are, if they are code; empty if they are data, or there is no such runtime."""
    found = find(name)
    return "" if found is None else found.programs


def check_runtime(name: str) -> Runtime:
    """The runtime of a name; raises `ValueError` if there is none."""
    if (found := find(name)) is None:
        raise ValueError(f"runtime must be one of {', '.join(runtimes())}, got {name!r}")
    return found


def fitting(path: Path, name: str | None = None) -> Runtime:
    """The runtime of a file: the one that was asked for by name, or else by the file's suffix.

    Raises:
        BundleError: it is no file of the runtime that was asked for.
        ValueError: there is no such runtime, or none has such files.
    """
    if name:
        asked = check_runtime(name)
        if asked.suffix != path.suffix:
            raise BundleError(
                f"{path} is no graph for runtime {name}, whose files are {asked.suffix}. Do not use this bundle unless "
                "you know who made it; export the model again."
            )
        return asked
    if (own := _own(path.suffix)) is None:
        suffixes = dict.fromkeys(each.suffix for each in runtimes().values())
        raise ValueError(f"graphs are files {', '.join(suffixes)}, of the runtimes that are here; got {path}")
    return own


def graphs_of(name: str | None) -> str | None:
    """The runtime whose graphs a runtime runs: its own, or those of another where it is `named`."""
    asked = find(name) if name else None
    own = _own(asked.suffix) if asked is not None and asked.named else asked
    return name if own is None else own.name


def _own(suffix: str) -> Runtime | None:
    return _first(lambda each: each.suffix == suffix and not each.named)


def _first(fits: Callable[[Runtime], bool]) -> Runtime | None:
    """The first that fits, ours before others. Pages behind it are not imported: few processes use two runtimes."""
    for each in built_in(Runtime, ours):
        if fits(each):
            return each
    return next(filter(fits, runtimes().values()), None)
