"""Addresses of folders in storage: text or path  ->  Address, or None for a path of this machine.

s3://bucket/folder    hf://owner/name[@revision][/folder]    and what else the schemes of `known.py` read
"""

import os
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tritone.errors import InputError
from tritone.later import later
from tritone.paths import not_supported

if TYPE_CHECKING:
    from tritone.storage import known
    from tritone.storage.scheme import Scheme
else:
    known = later("schemes")

# pathlib makes one slash of two, and commands may have made a path of an address.
WRITTEN = re.compile(r"(?P<scheme>[A-Za-z0-9]+):/{1,2}(?P<rest>.*)", re.DOTALL)
DEFAULT_REVISION = "main"  # of places that have revisions
MAX_NAME = 1024  # bytes of an object's name, as of S3
MAX_PART = 255  # bytes of a file's name


@dataclass(frozen=True)
class Address:
    """A folder in storage.

    `place`: what holds it, such as a bucket, or owner/name of a repository of the hub. `path`: the folder in it, "" for
    all of it. `revision`: where places have such, a branch, a tag or a commit.
    """

    scheme: str
    place: str
    path: str = ""
    revision: str = ""

    def __truediv__(self, name: str) -> "Address":
        return replace(self, path=f"{self.path}/{name}" if self.path else name)

    @property
    def name(self) -> str:
        """The last part of it."""
        return (self.path or self.place).rpartition("/")[2]

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision not in ("", DEFAULT_REVISION) else ""
        return f"{self.scheme}://{self.place}{revision}{f'/{self.path}' if self.path else ''}"


def parse(path: str | os.PathLike[str]) -> Address | None:
    """Read an address; None for a path of this machine, and for schemes that nobody knows.

    Raises:
        InputError: it is one, but names no bucket or repository, or has parts that no file can have.
    """
    text = os.fspath(path)
    found = WRITTEN.fullmatch(text)
    if found is None or os.path.isdir(f"{found['scheme']}:") or (scheme := known.scheme(found["scheme"])) is None:
        return None
    parts = re.fullmatch(scheme.pattern, found["rest"].strip("/"), re.DOTALL)
    if parts is None:
        raise InputError(
            f"{text[:200]!r} names no {scheme.place}; write {scheme.written}. Credentials are taken from the "
            "environment."
        )
    folder = (parts["path"] or "").strip("/")
    if folder and (fault := check_name(folder)):
        raise InputError(f"{text[:200]!r}: the folder cannot be used: {fault}")
    revision = (parts["revision"] or DEFAULT_REVISION) if "revision" in parts.groupdict() else ""
    return Address(scheme.name, parts["place"], folder, revision)


def scheme_of(address: Address) -> "Scheme":
    """The scheme of an address; raises `InputError` if nobody knows it."""
    if (found := known.scheme(address.scheme)) is None:
        raise InputError(not_supported(str(address), address.scheme))
    return found


def check_name(name: str) -> str | None:
    """Why a name from a listing cannot be a file below a folder here; None if it can."""
    parts = name.split("/")
    if not name or any(part in ("", ".", "..") for part in parts):
        return "it would lead out of its folder"
    if "\\" in name or not name.isprintable():
        return "it has characters that no file name should have"
    if len(name.encode()) > MAX_NAME or any(len(part.encode()) > MAX_PART for part in parts):
        return f"it is longer than {MAX_NAME} bytes, or a part of it than {MAX_PART}"
    return None
