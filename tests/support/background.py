"""Work that tests will need, done in a process of its own while other tests run.

Exports are the longest part of the suite, and most other tests wait more than they compute. The process takes the
cores that others leave.
"""

import os
import tempfile
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

NICENESS = 5
PATIENCE_S = 900  # for all of it, on a machine that has much else to do


class Background:
    """Does each piece of work once, in the order in which they were asked for."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="background-")
        self.folder = Path(self._folder.name)
        self._pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=os.nice, initargs=(NICENESS,))
        self._work: dict[Hashable, Future[Any]] = {}

    def begin(self, name: Hashable, function: Callable[..., Any], *args: Any) -> None:
        """Have `function(*args)` done, unless it is already under this name; both must be picklable."""
        if name not in self._work:
            self._work[name] = self._pool.submit(function, *args)

    def result(self, name: Hashable) -> Any:
        """What came of it, when it is ready; raises what it raised."""
        return self._work[name].result()

    def close(self) -> None:
        """End the process, when it has finished what it is at."""
        self._pool.shutdown(cancel_futures=True)
        self._folder.cleanup()


KEY = pytest.StashKey[Background]()


def background(config: pytest.Config) -> Background:
    """The one of this run of pytest."""
    if KEY not in config.stash:
        config.stash[KEY] = Background()
        config.add_cleanup(config.stash[KEY].close)
    return config.stash[KEY]


def be_patient(item: pytest.Item) -> None:
    """Let a test wait for work in the background."""
    item.add_marker(pytest.mark.timeout(PATIENCE_S))
