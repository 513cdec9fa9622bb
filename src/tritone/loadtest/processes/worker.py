"""A process that sends load. One Python process tops out at a few thousand requests per second, so there are several.

    Fleet (fleet.py)  --job, time to begin, STOP-->  worker  --READY, messages, OVER or FAILED-->  Fleet

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
from enum import Enum
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, Protocol

CUT = 1  # exit code of a worker whose line was cut
MAX_FILES = 65536


class Signal(Enum):
    """What is sent beside a job's own messages; with FAILED comes the traceback."""

    READY = "the worker is prepared"
    STOP = "end the work"
    OVER = "the job is over"
    FAILED = "the job raised"


class Job(Protocol):
    """The work of a worker. It must be picklable."""

    def run(self, link: "Link") -> None:
        """Prepare, call `link.ready()`, then work and report until `link.stopping` is set."""
        ...


class Link:
    """A worker's line to the process that started it."""

    def __init__(self, connection: "Connection[Any, Any]") -> None:
        self.stopping = threading.Event()
        self._connection = connection
        self._begin: SimpleQueue[float] = SimpleQueue()
        threading.Thread(target=self._listen, name="tritone-bench-link", daemon=True).start()

    def ready(self) -> float:
        """Report that all is prepared, and wait for the time at which work begins, in `perf_counter` seconds.

        `perf_counter` counts from the same moment in all processes of a machine.
        """
        gc.collect()
        gc.freeze()  # what was prepared need not be looked at again while the clock runs
        self.report(Signal.READY)
        return self._begin.get()

    def report(self, message: object) -> None:
        """Send a message."""
        try:
            self._connection.send(message)
        except OSError:
            os._exit(CUT)

    def _listen(self) -> None:
        try:
            while True:
                message = self._connection.recv()
                if message is Signal.STOP:
                    self.stopping.set()
                    message = time.perf_counter()
                self._begin.put(message)
        except (EOFError, OSError):
            # The process that started this is gone. Nothing is left that anybody would wait for.
            os._exit(CUT)


def main(descriptor: str) -> None:
    """Run the job that comes over a descriptor."""
    # Ctrl-C in a terminal reaches every process of it; the one that started this decides when to end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _allow_connections()
    connection: Connection[Any, Any] = Connection(int(descriptor))
    try:
        job: Job = connection.recv()
    except (EOFError, OSError):
        sys.exit(CUT)
    link = Link(connection)
    try:
        job.run(link)
        link.report(Signal.OVER)
    except BaseException:
        link.report((Signal.FAILED, traceback.format_exc()))
        raise SystemExit(CUT) from None


def _allow_connections() -> None:
    # HTTP takes a connection for each request in flight, and many systems allow 1024 files unless they are asked.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_FILES if hard == resource.RLIM_INFINITY else min(MAX_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
