"""Buckets of objects as a `Store`, through obstore.

obstore is one wheel without dependencies for S3, Google Cloud Storage and Azure, with multipart uploads, conditional
writes and checksums; it takes addresses and credentials from the environment by the names that the makers' own tools
use (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_NAME, ...).
"""

import os
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import obstore
from obstore import exceptions
from obstore.store import from_url

from tritone.errors import StorageError, StorageUnreachableError
from tritone.storage.address import Address, scheme_of
from tritone.storage.entry import Entry, checked
from tritone.storage.objects.page import ObjectScheme
from tritone.storage.store import Advance

Answer = TypeVar("Answer")

PART = 8 * 2**20  # bytes of an upload in parts; S3 takes 10,000 of them
CHUNK = 2**20  # bytes of a download that are written at once
SHA256 = "sha256"  # metadata of what we wrote: x-amz-meta-sha256 and the like
ATTEMPTS = 6  # without a byte between them
PAUSE_S, LONGEST_PAUSE_S = 0.2, 10.0
# obstore sends again what a server refuses in passing; what breaks later is ours to send again.
RETRY: Any = {
    "max_retries": 4,
    "retry_timeout": timedelta(minutes=3),
    "backoff": {"init_backoff": timedelta(seconds=PAUSE_S), "max_backoff": timedelta(seconds=LONGEST_PAUSE_S)},
}


class ObjectStore:
    """See `Store`."""

    def __init__(self, address: Address) -> None:
        """Raises `StorageError` if the environment makes no sense to obstore."""
        self.address = address
        scheme = scheme_of(address)
        assert isinstance(scheme, ObjectScheme)
        self._credentials = scheme.credentials
        options: Any = scheme.options(os.environ)
        # HTTP without TLS is for servers that the environment names; the makers' own have TLS.
        client: Any = {"allow_http": True, "timeout": "10m", "connect_timeout": "10s", "read_timeout": "60s"}
        try:
            self._store: Any = from_url(
                f"{address.scheme}://{address.place}", config=options, client_options=client, retry_config=RETRY
            )
        except exceptions.BaseError as error:
            raise StorageError(
                f"{address}: the environment does not say how to reach it ({_message(error)}). Set {self._credentials}."
            ) from error

    @property
    def title(self) -> str:
        return str(self.address)

    def entries(self, folder: str = "") -> Sequence[Entry]:
        prefix = "/".join(part for part in (self.address.path, folder) if part)

        def listed() -> Iterator[Entry]:
            for batch in obstore.list(self._store, prefix=prefix or None, chunk_size=1000):
                for meta in batch:
                    yield Entry(
                        name=self._relative(meta["path"]),
                        size=meta["size"],
                        etag=meta["e_tag"] or "",
                        modified=meta["last_modified"],
                    )

        return self._patiently(lambda: checked(listed(), self.title), "list it")

    def read(self, name: str, limit: int) -> bytes | None:
        def read() -> bytes | None:
            try:
                answer = obstore.get(self._store, self._key(name))
            except (exceptions.NotFoundError, FileNotFoundError):
                return None
            if answer.meta["size"] > limit:
                raise StorageError(f"{self.address / name} has more than {limit} bytes, which it should not")
            return bytes(answer.bytes())

        return self._patiently(read, f"read {name}")

    def download(self, entry: Entry, part: Path, advance: Advance) -> str | None:
        have = part.stat().st_size if part.exists() else 0
        if have > entry.size:
            part.unlink()
            have = 0
        advance(have)
        kept: str | None = None
        options: Any = {"if_match": entry.etag} if entry.etag else {}
        failures = 0
        with part.open("ab") as file:
            while have < entry.size:
                before = have
                try:
                    answer = obstore.get(
                        self._store,
                        self._key(entry.name),
                        options=options | ({"range": {"offset": have}} if have else {}),
                    )
                    kept = answer.attributes.get(SHA256)
                    if answer.range != (have, entry.size):
                        raise exceptions.GenericError(f"it answered with the bytes {answer.range}, not {have} and on")
                    for block in answer.stream(min_chunk_size=CHUNK):
                        if have + len(block) > entry.size:
                            raise exceptions.GenericError(f"more than {entry.size} bytes came")
                        file.write(block)
                        have += len(block)
                        advance(len(block))
                    if have < entry.size:
                        raise exceptions.GenericError(f"the connection ended after {have} of {entry.size} bytes")
                except exceptions.PreconditionError as error:
                    raise StorageError(
                        f"{self.address / entry.name} was changed while it was read; read it again, and push to "
                        "another folder next time, or with `tritone repo push`"
                    ) from error
                except ERRORS as error:
                    failures = 0 if have > before else failures + 1
                    if failures >= ATTEMPTS or not _passing(error):
                        raise self._explained(error, f"read {entry.name}") from error
                    _pause(failures)
            file.flush()
            os.fsync(file.fileno())
        return kept

    def sha256(self, entry: Entry) -> str | None:
        def ask() -> str | None:
            answer = obstore.get(self._store, self._key(entry.name), options={"head": True})
            found = answer.attributes.get(SHA256)
            return found if found is None or answer.meta["size"] == entry.size else None

        return self._patiently(ask, f"look at {entry.name}")

    def upload(self, name: str, source: Path, sha256: str, advance: Advance) -> None:
        def put() -> None:
            sent = 0

            def blocks() -> Iterator[bytes]:
                nonlocal sent
                with source.open("rb") as file:
                    while block := file.read(PART):
                        yield block
                        sent += len(block)
                        advance(len(block))

            try:
                # A file of one part is one request; in parts it is shown how far it is.
                small = source.stat().st_size <= PART
                content = source.read_bytes() if small else blocks()
                obstore.put(self._store, self._key(name), content, attributes={SHA256: sha256}, chunk_size=PART)
            except BaseException:
                advance(-sent)  # all of it is sent again
                raise
            advance(source.stat().st_size - sent)

        self._patiently(put, f"write {name}")

    def write(self, name: str, content: bytes, *, new: bool = False) -> bool:
        def put() -> bool:
            try:
                obstore.put(self._store, self._key(name), content, mode="create" if new else "overwrite")
            except exceptions.AlreadyExistsError:
                return False
            return True

        return self._patiently(put, f"write {name}")

    def delete(self, names: Sequence[str]) -> None:
        for start in range(0, len(names), 1000):
            keys = [self._key(name) for name in names[start : start + 1000]]
            self._patiently(partial(self._delete, keys), "delete files")

    def _delete(self, keys: Sequence[str]) -> None:
        with suppress(exceptions.NotFoundError, FileNotFoundError):
            obstore.delete(self._store, keys)

    def _key(self, name: str) -> str:
        return f"{self.address.path}/{name}" if self.address.path else name

    def _relative(self, key: str) -> str:
        folder = f"{self.address.path}/" if self.address.path else ""
        if not key.startswith(folder):
            raise StorageError(f"{self.title}: the listing names {key[:200]!r}, which is not in that folder")
        return key[len(folder) :]

    def _patiently(self, ask: Callable[[], Answer], task: str) -> Answer:
        """Ask again where the connection breaks; the answer."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return ask()
            except ERRORS as error:
                if attempt == ATTEMPTS or not _passing(error):
                    raise self._explained(error, task) from error
                _pause(attempt)
        raise AssertionError

    def _explained(self, error: Exception, task: str) -> Exception:
        if isinstance(error, StorageError):
            return error
        why = _message(error)
        advice = f"Credentials and the server's address come from the environment: {self._credentials}."
        if isinstance(error, FORBIDDEN) or _status(error) in ("401", "403"):
            return StorageError(f"{self.title}: no permission to {task} ({why}). {advice}")
        if isinstance(error, (exceptions.NotFoundError, FileNotFoundError)) or _status(error) == "404":
            return StorageError(f"{self.title}: cannot {task}: there is nothing ({why})")
        if _passing(error):
            return StorageUnreachableError(
                f"{self.title}: cannot {task}: no connection, or it broke {ATTEMPTS} times ({why}). Try again: what "
                f"has come is kept. {advice}"
            )
        return StorageError(f"{self.title}: cannot {task}: {why}. {advice}")


ERRORS = (exceptions.BaseError, FileNotFoundError, PermissionError)  # of obstore; a full disk is another matter
FORBIDDEN = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError, PermissionError)
LASTING = (
    *FORBIDDEN,
    exceptions.NotFoundError,
    exceptions.PreconditionError,
    exceptions.InvalidPathError,
    exceptions.NotSupportedError,
    exceptions.UnknownConfigurationKeyError,
)


def _message(error: Exception) -> str:
    """The words of an error without what is for obstore's developers."""
    return " ".join(str(error).partition("Debug source:")[0].split())[:400]


def _passing(error: Exception) -> bool:
    """Whether the same request may succeed later."""
    lasting = _status(error).startswith("4") and _status(error) not in ("408", "429")
    return not lasting and not isinstance(error, (*LASTING, FileNotFoundError))


def _status(error: Exception) -> str:
    """The status of HTTP that obstore has no error of its own for, as it tells it; "" if there is none."""
    found = re.search(r"status code: (\d{3})", str(error))
    return found[1] if found else ""


def _pause(failures: int) -> None:
    time.sleep(min(LONGEST_PAUSE_S, PAUSE_S * 2**failures) * random.uniform(0.5, 1.0))
