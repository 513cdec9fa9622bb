"""Stalls of the machine, and what repeats a test that failed because of one.

A machine that others use may stand still for a second: each deadline of that second passes, and Triton gives up on the
processes of models, which end. No test can be written so that it holds through that and still has deadlines. So a
process for each core ticks, and a test that fails after a tick came late is repeated, on servers whose models are
loaded again. One that fails without a stall is not, nor one that fails again.
"""

import logging
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from weakref import WeakSet

import pytest

from tritone.errors import TritoneError
from tritone.server import TritonServer
from tritone.server.watch import ModelWatch

VARIABLE = "TRITONE_TEST_STALLS"  # the file of the run, which its workers read
REPEATS = 3
TICK_S = 0.02
LATE_S = 0.2  # a tick that comes so late is a stall
# Ends with the process that started it. One line for each stall: when it ended, by the monotonic clock, and how long.
TICKER = f"""
import os, sys, time
os.sched_setaffinity(0, {{int(sys.argv[2])}})
parent = os.getppid()
with open(sys.argv[1], "a", buffering=1, encoding="utf-8") as file:
    before = time.monotonic()
    while os.getppid() == parent:
        time.sleep({TICK_S})
        now = time.monotonic()
        if now - before > {LATE_S}:
            file.write(f"{{now:.3f}} {{now - before:.3f}}\\n")
        before = now
"""


class Stalls:
    """The stalls of this run that this worker has not made good yet."""

    def __init__(self) -> None:
        self._servers: WeakSet[TritonServer] = WeakSet()
        self._made_good = time.monotonic()

    def watch(self, server: TritonServer) -> None:
        """Take a server whose models are to be loaded again after a stall."""
        self._servers.add(server)

    def made_good(self) -> bool:
        """Whether there was a stall since the last time; what it broke of the servers of this worker works again."""
        ended = [float(line.split()[0]) for line in self._file.read_text(encoding="utf-8").splitlines()]
        if not any(each > self._made_good for each in ended):
            return False
        for server in list(self._servers):
            _revive(server)
        self._made_good = time.monotonic()
        return True

    @property
    def _file(self) -> Path:
        return Path(os.environ[VARIABLE])


STALLS = Stalls()


def start() -> "list[subprocess.Popen[bytes]]":
    """Begin to look for stalls; `stop` ends the processes that this returns, and so does the end of this one."""
    number, file = tempfile.mkstemp(prefix="tritone-stalls-")
    os.close(number)
    os.environ[VARIABLE] = file
    command = [sys.executable, "-I", "-S", "-c", TICKER, file]
    return [subprocess.Popen([*command, str(core)]) for core in os.sched_getaffinity(0)]


def stop(tickers: "list[subprocess.Popen[bytes]]") -> None:
    """End what `start` started."""
    for each in tickers:
        each.kill()
        each.wait()
    Path(os.environ.pop(VARIABLE)).unlink()


def repeat(item: pytest.Item) -> None:
    """Have a test repeated where it fails after a stall."""
    item.add_marker(pytest.mark.flaky(reruns=REPEATS, condition=STALLS.made_good))


def _revive(server: TritonServer) -> None:
    warn = logging.getLogger(__name__).warning
    try:
        if server.has_crashed:
            warn("a server ended while the machine stood still; it is started again")
            server.stop()
            server.start()
        elif server.options.has_control and server.children():
            watch = ModelWatch(server, warn)
            watch.look()
            watch.wait()
    except TritoneError as error:
        warn(f"the models of a server could not be loaded again: {error}")
