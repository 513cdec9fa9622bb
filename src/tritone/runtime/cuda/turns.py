"""Turns on a GPU: of all processes that compute on it, a few calls at once, in the order in which they asked.

    permit = Turns(device).take()  ->  work is issued to a stream  ->  permit.release(stream)

A GPU that processes share divides its time among all that have work for it, or under CUDA's Multi-Process Service runs
their kernels among each other; then each call takes as long as all together. Two or three fill the gaps of each other,
more only push each other out of the caches. A permit is a lock on a file, so what a process holds when it dies is free;
and what a process holds for longer than calls take, because it or its work hangs, is taken away from it.
"""

import ctypes
import fcntl
import logging
import os
import stat
import tempfile
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch

from tritone.paths import lock_alone
from tritone.runtime.cuda.driver import after

LOGGER = logging.getLogger(__name__)
AT_ONCE, AT_ONCE_WITH_MPS = 2, 3
MPS_FOLDER = "/tmp/nvidia-mps"  # of its pipes, where the environment names no other
PATIENCE_S = 1.0  # for a call that has a permit
POLL_S = 5e-5
VARIABLE = "TRITONE_GPU_TURNS"  # environment variable: calls at once; 0 is as many as there are


class Turns:
    """The permits of one GPU, shared by all processes of a user on this machine. May be used from several threads."""

    def __init__(self, name: str, at_once: int = AT_ONCE, folder: Path | None = None) -> None:
        """Take what names the GPU on this machine, and how many calls may compute on it at once.

        Args:
            folder: of the locks; by default one of this user in the folder for temporary files.

        Raises:
            OSError: the folder cannot be made, or belongs to somebody else, or others may write to it.
        """
        folder = folder or Path(tempfile.gettempdir()) / f"tritone-turns-{os.geteuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        found = os.lstat(folder)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise PermissionError(f"{folder} is not a folder that only user {os.geteuid()} may write to")
        self._name, self._at_once = name, at_once
        self._gate, *self._permits = (
            str(folder / f"{name}-{each}") for each in ("gate", *range(at_once))
        )  # text, as paths take as long to make as locks
        self._is_without_files = False

    def take(self) -> "Permit":
        """Wait for a permit. Those that wait queue up at a gate, and the first of them for the oldest permit.

        Once the files are gone or cannot be locked, this process waits no more.
        """
        if self._is_without_files:
            return Permit(None)
        try:
            gate = _opened(self._gate)
            try:
                fcntl.flock(gate, fcntl.LOCK_EX)
                mark = os.pread(gate, 1, 0)
                number = mark[0] % self._at_once if mark else 0
                os.pwrite(gate, bytes([(number + 1) % self._at_once]), 0)
                return Permit(self._locked(self._permits[number]))
            finally:
                os.close(gate)
        except OSError as error:
            LOGGER.warning("calls on GPU %s take no turns any more: %s", self._name, error)
            self._is_without_files = True
            return Permit(None)

    def _locked(self, place: str) -> int:
        """The file of a permit, locked once it is given back. If it never is, there is a new file from now on."""
        until = time.monotonic() + PATIENCE_S
        file = _opened(place)
        try:
            while not lock_alone(file):
                if time.monotonic() > until:
                    LOGGER.warning(
                        "a call on GPU %s has not ended for %g s; others go on without it", self._name, PATIENCE_S
                    )
                    with suppress(FileNotFoundError):
                        os.unlink(place)
                    late, file = file, _opened(place)
                    os.close(late)
                time.sleep(POLL_S)  # a lock that is waited for could not be given up
            return file
        except BaseException:
            os.close(file)
            raise


class Permit:
    """The right to compute; released once, by whichever of the two comes first."""

    def __init__(self, file: int | None) -> None:
        """Take the locked file; None holds nothing."""
        self._file = file

    def release(self, stream: torch.cuda.Stream | None = None) -> None:
        """Give it back: at once, or when all that was issued to a stream until now has been computed.

        Then the driver's own thread closes the file, so that it waits for no thread of Python.
        """
        file, self._file = self._file, None
        if file is None:
            return
        if stream is None or not after(stream, _close(), file):
            os.close(file)


def _opened(place: str) -> int:
    return os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


@cache
def _close() -> ctypes.c_void_p:
    """The C library's `close`, whose argument, an int, comes where that of a host function does, a pointer."""
    return ctypes.cast(ctypes.CDLL(None).close, ctypes.c_void_p)


@cache
def turns_of(device: torch.device) -> Turns | None:
    """The turns of a CUDA device; None where the environment asks for none, or files cannot be locked."""
    pipes = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", MPS_FOLDER))
    at_once = AT_ONCE_WITH_MPS if (pipes / "control").exists() else AT_ONCE
    with suppress(ValueError):
        at_once = int(os.environ.get(VARIABLE, at_once))
    if at_once < 1:
        return None
    try:
        return Turns(str(torch.cuda.get_device_properties(device).uuid), min(at_once, 255))
    except OSError as error:
        LOGGER.warning("calls of several processes on %s do not take turns: %s", device, error)
        return None
