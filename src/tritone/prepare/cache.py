"""Exports kept in the user's cache: each made once, complete or not at all.

CACHE/models/                          CACHE is $TRITONE_CACHE, or tritone/ in $XDG_CACHE_HOME or ~/.cache
    NAME-KEY/bundle/, about.json       an export, and what it was made of and why it is as it is
    NAME-KEY.lock                      held by who makes it; others wait
    NAME-KEY.partial/                  what somebody is making, or was when the process was killed: started again

KEY stands for the files that were read, the options and Tritone's version. An entry takes its place by one rename.
Beyond `$TRITONE_CACHE_GB` those that were not used for longest are removed, but for those that a process uses.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritone.bundle import Bundle
from tritone.errors import BundleError, OperatorError, TritoneError
from tritone.paths import CACHE, cache_folder, explained, lock_alone
from tritone.storage.cache import limit_bytes, locked
from tritone.storage.in_use import hold, release

ABOUT, BUNDLE, PARTIAL = "about.json", "bundle", ".partial"


@dataclass(frozen=True)
class Entry:
    """One export. `about`: what it was made of, by what, and why in this precision."""

    path: Path
    about: Mapping[str, Any]

    @property
    def bundle(self) -> Path:
        return self.path / BUNDLE

    @property
    def bytes(self) -> int:
        return sum(each.stat().st_size for each in self.path.rglob("*") if each.is_file())


def folder() -> Path:
    """Where exports are kept."""
    return cache_folder() / "models"


def cached() -> list[Entry]:
    """All exports that are kept, the last used first."""
    found = [entry for path in folder().glob(f"*/{ABOUT}") if (entry := _read(path.parent)) is not None]
    return sorted(found, key=lambda entry: (entry.path / ABOUT).stat().st_mtime, reverse=True)


def find(name: str) -> Entry | None:
    """The export of this name, whole and unaltered, kept for this process; None if there is none.

    One that is damaged counts as none.
    """
    entry = _read(folder() / name)
    if entry is None:
        return None
    try:
        hold(entry.path / ABOUT)
        Bundle.open(entry.bundle).verify()
    except (OSError, BundleError):
        release(entry.path / ABOUT)
        return None
    return entry


def make(name: str, write: Callable[[Path], Mapping[str, Any]], waiting: str) -> Entry:
    """The export of a name, made if it is not there; two processes make it once.

    Args:
        write: writes a bundle to the path that it gets, in a folder on the cache's disk that is its own and is removed
            afterwards; returns what is to be known of it.
        waiting: is logged where another process makes it.

    Raises:
        OperatorError: the cache cannot be written.
        TritoneError: what `write` raises; nothing of it is kept.
    """
    top = folder()
    try:
        top.mkdir(parents=True, exist_ok=True)
        with locked(top / f"{name}.lock", waiting):
            if (entry := find(name)) is not None:  # another process made it meanwhile
                return entry
            partial = top / f"{name}{PARTIAL}"
            shutil.rmtree(partial, ignore_errors=True)  # of one that was killed
            partial.mkdir()
            try:
                about = write(partial / BUNDLE)
                for each in partial.iterdir():
                    if each.name != BUNDLE:
                        shutil.rmtree(each) if each.is_dir() else each.unlink()
                (partial / ABOUT).write_text(json.dumps(about, indent=1), encoding="utf-8")
                _synced(partial)
                shutil.rmtree(top / name, ignore_errors=True)  # damaged, or it would have been found
                os.replace(partial, top / name)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
            entry = find(name)
    except OSError as error:
        raise explained(error, f"cannot keep an export in {top} ({CACHE} names another folder)") from error
    if entry is None:
        raise OperatorError(f"{top / name} was changed by another process; try again")
    _tidy(entry)
    return entry


def clear(names: Callable[[Entry], bool] = lambda entry: True) -> tuple[list[Entry], list[Entry]]:
    """Remove exports, and what killed processes left; returns those that are gone and those that are in use."""
    gone: list[Entry] = []
    used: list[Entry] = []
    for entry in cached():
        if names(entry):
            (gone if _remove(entry) else used).append(entry)
    for partial in folder().glob(f"*{PARTIAL}"):
        with _unused(partial.with_name(f"{partial.name.removesuffix(PARTIAL)}.lock")) as free:
            if free:
                shutil.rmtree(partial, ignore_errors=True)
    return gone, used


def _read(path: Path) -> Entry | None:
    with suppress(OSError, ValueError):
        about = json.loads((path / ABOUT).read_bytes())
        if isinstance(about, dict):
            return Entry(path, about)
    return None


def _remove(entry: Entry) -> bool:
    """Whether nobody used it, and it is gone."""
    with _unused(entry.path / ABOUT) as free:
        if free:
            gone = entry.path.with_name(f".{entry.path.name}.gone")
            shutil.rmtree(gone, ignore_errors=True)
            os.replace(entry.path, gone)  # at once: nobody sees half of it
            shutil.rmtree(gone, ignore_errors=True)
        return free


@contextmanager
def _unused(path: Path) -> Iterator[bool]:
    try:
        handle = path.open("rb")
    except OSError:
        yield not path.exists()
        return
    with handle:
        yield lock_alone(handle)


def _tidy(current: Entry) -> None:
    entries = cached()
    sizes = {entry.path: entry.bytes for entry in entries}
    total = sum(sizes.values())
    for entry in reversed(entries):
        if total <= limit_bytes():
            return
        if entry.path != current.path:
            with suppress(OSError, TritoneError):
                total -= sizes[entry.path] if _remove(entry) else 0


def _synced(top: Path) -> None:
    """Have data on the disk before they take their place: a rename may survive a power cut that they do not."""
    for path in [each for each in top.rglob("*") if each.is_file()]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
