"""A process that makes load. One Python process tops out at a few thousand requests per second, so there are several.

    Fleet (fleet.py)  --job, begin, stop-->  worker  --ready, messages-->  Fleet

A worker lives only as long as the process that started it: it ends as soon as its line is cut.
"""

import gc
import os
import resource
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, Protocol

CUT = 1  # exit code of a worker whose line was cut
MAX_FILES = 65536


class Job(Protocol):
    """What a worker does. It must be picklable."""

    def run(self, link: "Link") -> None:
        """Prepare, call `link.ready()`, then work and tell until `link.stopping` is set."""
        ...


@dataclass(frozen=True)
class Ready:
    """The worker is prepared."""


@dataclass(frozen=True)
class Begin:
    """Work begins at this time of `perf_counter`, which counts from the same moment in all processes of a machine."""

    at: float


@dataclass(frozen=True)
class Stop:
    """Work ends."""


@dataclass(frozen=True)
class Failed:
    """The worker's job raised; `trace` is the traceback."""

    trace: str


@dataclass(frozen=True)
class Over:
    """The worker's job is over."""


class Link:
    """A worker's line to the process that started it."""

    def __init__(self, connection: "Connection[Any, Any]") -> None:
        self.stopping = threading.Event()
        self._connection = connection
        self._begin: SimpleQueue[float] = SimpleQueue()
        threading.Thread(target=self._listen, name="tritone-bench-link", daemon=True).start()

    def ready(self) -> float:
        """Say so, and wait for the time at which work begins, in `perf_counter` seconds."""
        gc.collect()
        gc.freeze()  # what was prepared need not be looked at again while the clock runs
        self.tell(Ready())
        return self._begin.get()

    def tell(self, message: object) -> None:
        try:
            self._connection.send(message)
        except OSError:
            os._exit(CUT)

    def _listen(self) -> None:
        try:
            while True:
                message = self._connection.recv()
                if isinstance(message, Begin):
                    self._begin.put(message.at)
                elif isinstance(message, Stop):
                    self.stopping.set()
                    self._begin.put(time.perf_counter())
        except (EOFError, OSError):
            # Whoever started this is gone. Nobody waits for anything that could still be tidied up here.
            os._exit(CUT)


def main(descriptor: int) -> None:
    """Run the job that comes over a descriptor."""
    # Ctrl-C in a terminal reaches every process of it; when to end is for the one that started this to say.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _allow_connections()
    connection: Connection[Any, Any] = Connection(descriptor)
    try:
        job: Job = connection.recv()
    except (EOFError, OSError):
        sys.exit(CUT)
    link = Link(connection)
    try:
        job.run(link)
        link.tell(Over())
    except BaseException:
        link.tell(Failed(traceback.format_exc()))
        raise SystemExit(CUT) from None


def _allow_connections() -> None:
    # HTTP takes a connection for each request in flight, and many systems allow 1024 files unless they are asked.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_FILES if hard == resource.RLIM_INFINITY else min(MAX_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
