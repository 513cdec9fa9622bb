"""Folders of compiled code, which runs with the rights of whoever opens it: only this user can have written them.

root()/PROGRAM/STAMP/...    calls of a program, for the versions and the device of a stamp
root()/kernels/STAMP/...    kernels of Triton's compiler
"""

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from tritone.paths import cache_folder

TRUSTED = (0,)  # users beside our own: root may do anything in any case
WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def root(cache: Path | None = None) -> Path:
    """The folder of all that is compiled, in the cache folder of this user or another one."""
    return (cache or cache_folder()) / "compiled"


def kernels_of(root: Path, stamp: Mapping[str, str]) -> Path:
    """The folder of kernels for a stamp, in the folder of all that is compiled."""
    return root / "kernels" / stamp_digest(stamp)


def stamp_digest(stamp: Mapping[str, str]) -> str:
    """A name for a stamp."""
    return digest(json.dumps(stamp, sort_keys=True))[:16]


def digest(text: str) -> str:
    """The SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def make_private(root: Path, *folders: Path) -> None:
    """Make folders, for this user alone."""
    root.parent.mkdir(parents=True, exist_ok=True)
    for folder in (root, *folders):
        folder.mkdir(mode=0o700, exist_ok=True)


def distrust(path: Path) -> str | None:
    """Why a file or folder must not be believed; None if only this user or root can have written it."""
    found = os.lstat(path)
    if stat.S_ISLNK(found.st_mode):
        return f"{path} is a link"
    if found.st_uid not in (os.geteuid(), *TRUSTED):
        return f"{path} belongs to user {found.st_uid}, not to {os.geteuid()} who would run it"
    if found.st_mode & WRITABLE_BY_OTHERS:
        return f"others can write to {path}, so its code could be anybody's: chmod go-w, if nobody has"
    return None
