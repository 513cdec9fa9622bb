"""Copies that this process uses: a shared lock on a file of each, which others see before they remove one."""

import fcntl
import os
from contextlib import suppress
from pathlib import Path

# Descriptors: the system closes them, which ends the locks, with the process.
_locked: dict[Path, int] = {}


def hold(path: Path) -> None:
    """Lock a file until it is released or this process ends, and note that it was used now.

    Raises:
        OSError: it cannot be read, or another process removed it.
    """
    if path not in _locked or not os.path.samestat(os.fstat(_locked[path]), path.stat()):  # it may be a new file
        release(path)
        descriptor = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            path.stat()  # fails if it was removed before the lock
        except OSError:
            os.close(descriptor)
            raise
        _locked[path] = descriptor
    with suppress(OSError):  # a cache that is only read
        os.utime(path)


def release(path: Path) -> None:
    """Use a file no more; one that is not held is left as it is."""
    if (descriptor := _locked.pop(path, None)) is not None:
        os.close(descriptor)
