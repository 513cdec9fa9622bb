"""Paths of files and folders: on this machine's file system, for storage elsewhere (s3://...) is not supported yet."""

import os
import re
from pathlib import Path

from tritone.errors import InputError, TritoneError

ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
COLLAPSED = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")  # what pathlib makes of it


def local(path: str | os.PathLike[str], error: type[TritoneError] = InputError) -> Path:
    """The path, if it is one of this machine.

    Raises:
        TritoneError: it has a scheme, such as s3://bucket/folder; of the class `error`.
    """
    text = os.fspath(path)
    found = ADDRESS.match(text) or COLLAPSED.match(text)
    if found is None or os.path.isdir(f"{found[1]}:"):  # a folder may be called so
        return Path(path)
    raise error(not_supported(text, found[1]))


def not_supported(text: str, scheme: str) -> str:
    """The message about a path with a scheme."""
    return (
        f"{text}: storage with the scheme {scheme}:// is not supported yet. Give a path on this machine: copy files "
        "to be read there first, and files that were written away afterwards; or mount the storage as a folder."
    )
