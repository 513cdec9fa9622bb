"""Memory of this machine that a server can read, in which the tensors of requests lie in place of the message.

    open_region("system" | "cuda" | "cuda:1", bytes)  ->  Region: name, registration, write, close
    Room(bytes)                                       ->  take and give back stretches of it

A region of system memory is a file in /dev/shm that only this user can read. Every region has a file there that is
locked as long as its process lives, so that what a process left behind when it was killed can be found and removed.
"""

import fcntl
import mmap
import os
import secrets
import weakref
from abc import ABC, abstractmethod
from bisect import insort
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tritone.errors import OperatorError

Memory = Literal["system", "cuda"]

FOLDER = Path("/dev/shm")
PREFIX = "tritone-client-"  # then the process and a random number
ALIGNMENT = 256  # bytes; what CUDA's own allocations have
STEP = 16 << 20  # bytes of system memory that are reserved at a time


class Region(ABC):
    """A region: `name` is what the server knows it by, `size` is in bytes, `memory` says which kind it is."""

    memory: Memory
    name: str
    size: int

    @property
    @abstractmethod
    def registration(self) -> Mapping[str, Any]:
        """The fields of the request that makes it known to a server; bytes for what JSON has as base64."""

    @abstractmethod
    def write(self, offset: int, array: Any) -> None:
        """Copy an array to an offset.

        Raises:
            OSError: the machine has no memory for it.
        """

    @abstractmethod
    def close(self) -> None:
        """Free it. A second time nothing happens."""


def open_region(memory: str, size: int) -> Region:
    """Open a region of `size` bytes: "system", "cuda", or "cuda:N" of the GPU N.

    Raises:
        ValueError: there is no such kind of memory.
        OperatorError: this machine has none of it, or the package that reaches it is missing.
    """
    check_memory(memory)
    remove_abandoned()
    if memory == "system":
        return SystemRegion(size)
    from tritone.client.cuda import CudaRegion  # its package is large, and few need it

    return CudaRegion(size, int(memory.partition(":")[2] or 0))


def check_memory(memory: str) -> str:
    """The kind of shared memory that is asked for, if there is such a kind; raises `ValueError` otherwise."""
    kind, colon, device = memory.partition(":")
    if memory != "system" and (kind != "cuda" or bool(colon) != device.isdecimal()):
        raise ValueError(f"shared_memory must be 'system', 'cuda' or 'cuda:N', got {memory!r}")
    return memory


class SystemRegion(Region):
    """A file in /dev/shm. Its memory is reserved as it is written to."""

    memory: Memory = "system"

    def __init__(self, size: int) -> None:
        self.size = size
        self._claim = Claim(size)
        self.name = self._claim.name
        self._map = mmap.mmap(self._claim.descriptor, size)
        self._reserved = 0

    @property
    def registration(self) -> Mapping[str, Any]:
        return {"key": f"/{self.name}", "offset": 0, "byte_size": self.size}

    def write(self, offset: int, array: Any) -> None:
        end = offset + array.nbytes
        if end > self._reserved:
            # A page that the machine does not have would end this process, or the server.
            reserved = min(self.size, -(-end // STEP) * STEP)
            os.posix_fallocate(self._claim.descriptor, self._reserved, reserved - self._reserved)
            self._reserved = reserved
        target = np.frombuffer(self._map, array.dtype, array.size, offset).reshape(array.shape)
        np.copyto(target, array)

    def close(self) -> None:
        self._claim.close()


class Claim:
    """A file of `size` bytes in /dev/shm that is locked while this process lives.

    It is removed when it is closed, when nobody has it any more, and at the end of the process.
    """

    def __init__(self, size: int) -> None:
        self.name = f"{PREFIX}{os.getpid()}-{secrets.token_hex(8)}"
        path, hidden = FOLDER / self.name, FOLDER / f".{self.name}"
        try:
            self.descriptor = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise OperatorError(f"no shared memory: {path} cannot be made: {error.strerror}") from error
        self._remove = weakref.finalize(self, _remove, path, self.descriptor, os.getpid())
        os.ftruncate(self.descriptor, size)
        # Others look for the name, and would take a file that is not locked for one that was left behind.
        fcntl.flock(self.descriptor, fcntl.LOCK_EX)
        hidden.rename(path)

    def close(self) -> None:
        self._remove()


def is_abandoned(name: str) -> bool:
    """Whether the process that made a region has ended; of other users' regions that is not known."""
    try:
        descriptor = os.open(FOLDER / name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        return isinstance(error, FileNotFoundError)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def remove_abandoned() -> None:
    """Remove the files of processes that have ended."""
    for path in FOLDER.glob(f"{PREFIX}*"):
        if is_abandoned(path.name):
            with suppress(OSError):
                path.unlink()


def _remove(path: Path, descriptor: int, owner: int) -> None:
    if os.getpid() == owner:  # a child that was forked leaves its parent's alone
        with suppress(OSError):
            path.unlink()
        os.close(descriptor)


class Room:
    """Free and taken stretches of a region of `size` bytes; the first that is large enough is taken."""

    def __init__(self, size: int) -> None:
        self._free = [(0, size)]  # offset and bytes, by offset

    def take(self, num_bytes: int) -> int | None:
        """The offset of a stretch, None if there is no room for it."""
        needed = _rounded(num_bytes)
        for index, (offset, size) in enumerate(self._free):
            if size >= needed:
                self._free[index : index + 1] = [(offset + needed, size - needed)] if size > needed else []
                return offset
        return None

    def give(self, offset: int, num_bytes: int) -> None:
        """Give a stretch back that `take` returned for so many bytes."""
        insort(self._free, (offset, _rounded(num_bytes)))
        joined: list[tuple[int, int]] = []
        for start, size in self._free:
            if joined and sum(joined[-1]) == start:
                joined[-1] = (joined[-1][0], joined[-1][1] + size)
            else:
                joined.append((start, size))
        self._free = joined


def _rounded(num_bytes: int) -> int:
    return max(1, -(-num_bytes // ALIGNMENT)) * ALIGNMENT
