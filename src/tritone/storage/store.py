"""What all storage offers: files below one folder are listed, read, written and deleted."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from tritone.storage.entry import Entry

Advance = Callable[[int], None]  # called with the bytes that have come or gone since the last call


class Store(Protocol):
    """A folder in storage, or on this machine. Names are relative to it, with slashes. Thread-safe.

    Errors are `StorageError` (it cannot be used like this), and `StorageUnreachableError` (try again).
    """

    @property
    def title(self) -> str:
        """The address or the path of the folder."""
        ...

    def entries(self, folder: str = "") -> Sequence[Entry]:
        """All files below a folder of it, checked by `entry.checked`; names are relative to the store. None: empty."""
        ...

    def read(self, name: str, limit: int) -> bytes | None:
        """The content of a small file; None if there is none. `StorageError` if it is larger than `limit` bytes."""
        ...

    def download(self, entry: Entry, part: Path, advance: Advance) -> str | None:
        """Add to `part` what it lacks of a file, which is complete afterwards.

        Returns:
            The sha256 that the storage keeps of the file, if it does.

        Raises:
            StorageError: the file is not the one that was listed any more.
        """
        ...

    def sha256(self, entry: Entry) -> str | None:
        """The checksum of a file that is there; None if it is not known without reading it from afar."""
        ...

    def upload(self, name: str, source: Path, sha256: str, advance: Advance) -> None:
        """Write a file at once or not at all, with its checksum beside it."""
        ...

    def write(self, name: str, content: bytes, *, new: bool = False) -> bool:
        """Write a small file at once; with `new` only if there is none, else False is returned."""
        ...

    def delete(self, names: Sequence[str]) -> None:
        """Delete files; one that is not there is no error."""
        ...
