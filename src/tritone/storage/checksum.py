"""Checksums of files: sha256 as we and stores keep it, and the sha1 by which git names a content."""

import hashlib
from pathlib import Path

from tritone.paths import sha256_of
from tritone.storage.entry import Entry


def fault_of(path: Path, entry: Entry, kept: str | None = None) -> str | None:
    """What is wrong with a file that was read as `entry` says; None if nothing is, as far as it is known.

    Args:
        kept: a sha256 that is known besides that of the entry.
    """
    if (size := path.stat().st_size) != entry.size:
        return f"it has {size} bytes, not {entry.size}"
    seen = sha256_of(path)
    for wanted in (entry.sha256, kept):
        if wanted is not None and wanted.lower() != seen:
            return f"its sha256 is {seen}, not {wanted}"
    if entry.git_blob is not None:
        with path.open("rb") as file:
            named = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
            found = hashlib.file_digest(file, lambda: named).hexdigest()
        if found != entry.git_blob:
            return f"its hash of git is {found}, not {entry.git_blob}"
    return None
