"""Addresses of folders in storage: text or path  ->  Address, or None for a path of this machine.

s3://bucket/folder    gs://bucket/folder    az://container/folder    hf://owner/name[@revision][/folder]
"""

import os
import re
from dataclasses import dataclass, replace

from tritone.errors import InputError

OBJECT_STORES = {"s3": "bucket", "gs": "bucket", "az": "container"}
SCHEMES = (*OBJECT_STORES, "hf")
# pathlib makes one slash of two, and commands may have made a path of an address.
WRITTEN = re.compile(r"(?P<scheme>[A-Za-z0-9]+):/{1,2}(?P<rest>.*)", re.DOTALL)
PLACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
DEFAULT_REVISION = "main"
MAX_NAME = 1024  # bytes of an object's name, as of S3
MAX_PART = 255  # bytes of a file's name


@dataclass(frozen=True)
class Address:
    """A folder in storage.

    `place`: bucket, container, or owner/name of a repository of the hub. `path`: the folder in it, "" for all of it.
    `revision`: of the hub, a branch, a tag or a commit.
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
    """Read an address; None for a path of this machine, and for schemes that are none of `SCHEMES`.

    Raises:
        InputError: it is one, but names no bucket or repository, or has parts that no file can have.
    """
    text = os.fspath(path)
    found = WRITTEN.fullmatch(text)
    if found is None or found["scheme"].lower() not in SCHEMES or os.path.isdir(f"{found['scheme']}:"):
        return None
    scheme, rest = found["scheme"].lower(), found["rest"].strip("/")
    if scheme == "hf":
        return _hub(text, rest)
    place, _, folder = rest.partition("/")
    if not PLACE.fullmatch(place):
        what = OBJECT_STORES[scheme]
        raise InputError(
            f"{text[:200]!r} names no {what}; write {scheme}://{what.upper()}/FOLDER. Credentials are taken from the "
            "environment."
        )
    return Address(scheme, place, _folder(text, folder))


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


def _hub(text: str, rest: str) -> Address:
    owner, _, rest = rest.partition("/")
    name, _, folder = rest.partition("/")
    name, at, revision = name.partition("@")
    if not (PLACE.fullmatch(owner) and PLACE.fullmatch(name)) or (at and not REVISION.fullmatch(revision)):
        raise InputError(
            f"{text[:200]!r} names no repository of the hub; write hf://OWNER/NAME, or hf://OWNER/NAME@TAG"
        )
    return Address("hf", f"{owner}/{name}", _folder(text, folder), revision or DEFAULT_REVISION)


def _folder(text: str, folder: str) -> str:
    folder = folder.strip("/")
    if folder and (fault := check_name(folder)):
        raise InputError(f"{text[:200]!r}: the folder cannot be used: {fault}")
    return folder
