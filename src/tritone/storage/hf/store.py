"""A repository of models on the Hugging Face hub as a `Store` that can be read, through huggingface_hub.

That package knows the hub's tokens (HF_TOKEN), mirrors (HF_ENDPOINT) and ways of transfer, and goes on with a broken
download. The hub keeps a hash of every file, so all of them are checked.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import huggingface_hub
from huggingface_hub import HfApi, errors

from tritone.errors import StorageError, StorageUnreachableError, TritoneError
from tritone.storage.address import Address
from tritone.storage.checksum import fault_of
from tritone.storage.entry import Entry, checked
from tritone.storage.hf.scheme import SCHEME
from tritone.storage.store import Advance

Answer = TypeVar("Answer")

HUB_FOLDER = "hub"  # beside the parts of downloads


class HubStore:
    """See `Store`. The revision is resolved to a commit once, so all files are of one commit."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._endpoint = os.environ.get("HF_ENDPOINT") or None  # read now: the package reads it when it is imported
        self._api = HfApi(endpoint=self._endpoint)
        huggingface_hub.utils.disable_progress_bars()  # transfers are shown by ours

    @property
    def title(self) -> str:
        return str(self.address)

    @cached_property
    def commit(self) -> str:
        """What the revision is."""
        info = self._asked(
            lambda: self._api.repo_info(self.address.place, revision=self.address.revision), "find the revision"
        )
        return str(info.sha)

    @cached_property
    def _listing(self) -> Sequence[Entry]:
        return self.entries()

    def entries(self, folder: str = "") -> Sequence[Entry]:
        path = "/".join(part for part in (self.address.path, folder) if part)
        commit = self.commit
        top = f"{self.address.path}/" if self.address.path else ""

        def listed() -> Iterator[Entry]:
            tree: Any = self._api.list_repo_tree(self.address.place, path or None, recursive=True, revision=commit)
            for item in tree:
                if isinstance(item, huggingface_hub.hf_api.RepoFile):
                    lfs = item.lfs
                    yield Entry(
                        name=item.path.removeprefix(top),
                        size=item.size,
                        etag=lfs.sha256 if lfs else item.blob_id,
                        sha256=lfs.sha256 if lfs else None,
                        git_blob=None if lfs else item.blob_id,
                    )

        return self._asked(lambda: checked(listed(), self.title), "list it")

    def read(self, name: str, limit: int) -> bytes | None:
        entry = next((each for each in self._listing if each.name == name), None)
        if entry is None:
            return None
        if entry.size > limit:
            raise StorageError(f"{self.address / name} has more than {limit} bytes, which it should not")
        with TemporaryDirectory(prefix="tritone-hub-") as folder:
            path = Path(folder, "file")
            path.touch()
            if entry.size:
                self.download(entry, path, lambda count: None)
            if fault := fault_of(path, entry):
                raise StorageError(f"{self.address / name} is damaged: {fault}. Try again")
            return path.read_bytes()

    def download(self, entry: Entry, part: Path, advance: Advance) -> str | None:
        path = f"{self.address.path}/{entry.name}" if self.address.path else entry.name

        def get() -> str:
            return huggingface_hub.hf_hub_download(
                self.address.place,
                path,
                revision=self.commit,
                local_dir=part.parent / HUB_FOLDER,  # where a broken download goes on
                endpoint=self._endpoint,
            )

        os.replace(self._asked(get, f"read {entry.name}"), part)
        advance(entry.size)
        return None

    def sha256(self, entry: Entry) -> str | None:
        return entry.sha256

    def upload(self, name: str, source: Path, sha256: str, advance: Advance) -> None:
        raise self._read_only()

    def write(self, name: str, content: bytes, *, new: bool = False) -> bool:
        raise self._read_only()

    def delete(self, names: Sequence[str]) -> None:
        raise self._read_only()

    def _read_only(self) -> StorageError:
        return StorageError(f"{self.title}: {SCHEME.read_only.format(place=self.address.place)}")

    def _asked(self, ask: Callable[[], Answer], task: str) -> Answer:
        try:
            return ask()
        except TritoneError:
            raise
        except errors.GatedRepoError as error:  # one that is not found, to the package
            raise StorageError(
                f"{self.title}: its owner lets those in who have asked: do so at https://huggingface.co/"
                f"{self.address.place}, and give your token as HF_TOKEN"
            ) from error
        except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.EntryNotFoundError) as error:
            raise StorageError(
                f"{self.title}: the hub has no such repository, revision or file, or it is private: give a token as "
                f"HF_TOKEN ({_first_line(error)})"
            ) from error
        except (errors.HfHubHTTPError, OSError, errors.LocalEntryNotFoundError) as error:
            status = getattr(getattr(error, "response", None), "status_code", 500)
            if status in (401, 403):
                raise StorageError(f"{self.title}: the hub refused to {task}: give a token as HF_TOKEN") from error
            raise StorageUnreachableError(
                f"{self.title}: cannot {task}: {_first_line(error)}. Try again: what has come is kept"
            ) from error
        except Exception as error:  # its HTTP library's own, which differs by version
            raise StorageUnreachableError(f"{self.title}: cannot {task}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:300]
