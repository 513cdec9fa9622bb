"""A folder of this machine as a `Store`: a repository can be pushed to a disk that servers share."""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from tritone.errors import StorageError
from tritone.paths import explained, sha256_of
from tritone.storage.entry import Entry, checked
from tritone.storage.store import Advance


class FolderStore:
    """See `Store`. Files are written beside their place and renamed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def title(self) -> str:
        return str(self.folder)

    def entries(self, folder: str = "") -> Sequence[Entry]:
        """See `Store`. Links are followed to files and folders that they name, as a server does."""
        found = []
        for root, _, files in os.walk(self.folder / folder, followlinks=True):
            for file in files:
                path = Path(root, file)
                with suppress(FileNotFoundError):  # gone meanwhile, or a link to nothing
                    seen = path.stat()
                    modified = datetime.fromtimestamp(seen.st_mtime, UTC)
                    name = path.relative_to(self.folder).as_posix()
                    found.append(Entry(name=name, size=seen.st_size, etag=str(seen.st_mtime_ns), modified=modified))
        return checked(found, self.title)

    def read(self, name: str, limit: int) -> bytes | None:
        try:
            with (self.folder / name).open("rb") as file:
                content = file.read(limit + 1)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if len(content) > limit:
            raise StorageError(f"{self.folder / name} has more than {limit} bytes, which it should not")
        return content

    def download(self, entry: Entry, part: Path, advance: Advance) -> str | None:
        shutil.copyfile(self.folder / entry.name, part)
        advance(entry.size)
        return None

    def sha256(self, entry: Entry) -> str | None:
        return sha256_of(self.folder / entry.name)

    def upload(self, name: str, source: Path, sha256: str, advance: Advance) -> None:
        with self._written(name) as beside:
            shutil.copyfile(source, beside)
            if sha256_of(beside) != sha256:
                raise StorageError(f"{source} changed while it was copied to {self.folder}; push it again")
            advance(beside.stat().st_size)

    def write(self, name: str, content: bytes, *, new: bool = False) -> bool:
        try:
            with self._written(name, new=new) as beside:
                beside.write_bytes(content)
        except FileExistsError:
            return False
        return True

    def delete(self, names: Sequence[str]) -> None:
        for name in names:
            path = self.folder / name
            path.unlink(missing_ok=True)
            for folder in path.parents:  # which a store of objects does not have either
                if folder == self.folder or self.folder not in folder.parents:
                    break
                try:
                    folder.rmdir()
                except OSError as error:
                    if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                        raise
                    break

    @contextmanager
    def _written(self, name: str, *, new: bool = False) -> Iterator[Path]:
        target = self.folder / name
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            descriptor, beside = tempfile.mkstemp(prefix=".writing.", dir=target.parent)
        except OSError as error:
            raise explained(error, f"cannot write {target}") from error
        os.close(descriptor)
        try:
            os.chmod(beside, 0o644)
            yield Path(beside)
            if new:
                os.link(beside, target)  # fails if it is there, at once for all who try
            else:
                os.replace(beside, target)
        except FileExistsError:
            raise
        except OSError as error:
            raise explained(error, f"cannot write {target}") from error
        finally:
            Path(beside).unlink(missing_ok=True)
