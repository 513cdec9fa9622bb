"""Files of a folder in storage, as a listing describes them; and what a listing may be like."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from tritone.errors import StorageError
from tritone.storage.address import check_name

MAX_FILES = 50_000


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A file: its name relative to the folder, with slashes, and what is known of its content.

    `etag`: changes with the content. `sha256`: of the content, where the storage knows it; `git_blob`: the hash that
    git gives it, of files of the hub that have no sha256.
    """

    name: str
    size: int  # bytes
    etag: str = ""
    modified: datetime | None = None
    sha256: str | None = None
    git_blob: str | None = None


def checked(entries: Iterable[Entry], folder: object) -> list[Entry]:
    """The entries of a listing by name, once all of them can be files below one folder.

    Raises:
        StorageError: a name leads out of the folder or is unfit, is there twice, or is file and folder at once; a size
            is negative; or there are more than `MAX_FILES`.
    """
    found: dict[str, Entry] = {}
    folders: set[str] = set()
    for entry in entries:
        if entry.name.endswith("/") and entry.size == 0:
            continue  # consoles write such objects for empty folders
        fault = check_name(entry.name)
        if fault is None and entry.name in found:
            fault = "it is listed twice"
        if fault is None and entry.size < 0:
            fault = f"its size is {entry.size}"
        if fault is not None:
            raise StorageError(f"{folder}: the file {entry.name[:200]!r} cannot be used: {fault}")
        found[entry.name] = entry
        parts = entry.name.split("/")
        folders.update("/".join(parts[:count]) for count in range(1, len(parts)))
        if len(found) > MAX_FILES:
            raise StorageError(f"{folder} has more than {MAX_FILES} files; name the folder of a bundle or a repository")
    if both := sorted(folders & found.keys()):
        raise StorageError(f"{folder}: {both[0][:200]!r} is a file and a folder at once, which no disk can hold")
    return [found[name] for name in sorted(found)]
