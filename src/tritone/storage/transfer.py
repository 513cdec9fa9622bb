"""Many files from or to a store, several at once. What a broken transfer left is used by the next one.

download(store, entries, folder, parts)  ->  complete, checked files in `folder`, and their sha256
upload(store, files)                     ->  objects with their checksums; those that are there already stay
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TypeVar

from tritone.errors import StorageError
from tritone.paths import explained, sha256_of
from tritone.storage.checksum import fault_of
from tritone.storage.entry import Entry
from tritone.storage.progress import transfer
from tritone.storage.store import Advance, Store

Item = TypeVar("Item")
Answer = TypeVar("Answer")

AT_ONCE = 8  # files


@dataclass(frozen=True, kw_only=True)
class Upload:
    """A file of this machine that is to be stored under a name."""

    name: str
    source: Path
    sha256: str

    @property
    def size(self) -> int:
        """Its size in bytes."""
        return self.source.stat().st_size


def download(
    store: Store, entries: Sequence[Entry], folder: Path, parts: Path, *, task: str | None = None
) -> dict[str, str]:
    """Read files into `folder`; those that are there with the right size were checked before, and stay.

    Args:
        parts: folder for what is not complete yet; kept when it fails, to go on from there.
        task: what progress is called; the title of the store if not given.

    Returns:
        The sha256 of each file, by its name.

    Raises:
        StorageError, StorageUnreachableError: as of `Store`; or a file is not what its checksums say.
        OperatorError: it cannot be written here.
    """

    def one(entry: Entry, advance: Advance) -> tuple[str, str]:
        target = folder / entry.name
        if target.is_file() and target.stat().st_size == entry.size:
            advance(entry.size)
            return entry.name, sha256_of(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        # Of another content of that name nothing is used.
        part = parts / hashlib.sha256(f"{entry.name}\0{entry.etag}\0{entry.size}".encode()).hexdigest()[:32]
        part.touch()
        kept = store.download(entry, part, advance) if entry.size else None
        if fault := fault_of(part, entry, kept):
            part.unlink()
            raise StorageError(
                f"{store.title}: {entry.name} is damaged: {fault}. Try again; if it stays so, push the file again"
            )
        digest = sha256_of(part)
        os.replace(part, target)
        return entry.name, digest

    try:
        parts.mkdir(parents=True, exist_ok=True)
        found = _all(entries, one, task or store.title, sum(entry.size for entry in entries))
    except OSError as error:
        raise explained(error, f"cannot write files of {store.title} to {folder}") from error
    return dict(found)


def upload(store: Store, files: Sequence[Upload], present: Mapping[str, Entry], *, task: str | None = None) -> int:
    """Write files to a store; returns how many were not there yet.

    Args:
        present: what the store has, by name. A file of the same size whose checksum the store knows is not sent again.
        task: what progress is called; the title of the store if not given.
    """

    def one(file: Upload, advance: Advance) -> int:
        there = present.get(file.name)
        if there is not None and there.size == file.size and store.sha256(there) == file.sha256:
            advance(file.size)
            return 0
        store.upload(file.name, file.source, file.sha256, advance)
        return 1

    try:
        return sum(_all(files, one, task or store.title, sum(file.size for file in files)))
    except OSError as error:
        raise explained(error, f"cannot read files for {store.title}") from error


def _all(items: Sequence[Item], one: Callable[[Item, Advance], Answer], task: str, num_bytes: int) -> Iterable[Answer]:
    """Work on items side by side, in any order; the first error ends all of it."""
    stop = Event()
    with transfer(task, len(items), num_bytes) as shown, ThreadPoolExecutor(AT_ONCE, "tritone-storage") as pool:

        def advance(count: int) -> None:
            if stop.is_set():
                raise StorageError("another file failed")  # nobody sees this one
            shown.advance(count)

        futures = [pool.submit(one, item, advance) for item in items]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:  # also when Ctrl-C ended the waiting
            stop.set()
            unfinished = [future for future in futures if not future.cancel() and not future.done()]
            wait(unfinished)
        failed = [error for future in futures if not future.cancelled() and (error := future.exception())]
        if failed:
            raise next((error for error in failed if str(error) != "another file failed"), failed[0])
        return [future.result() for future in futures]
