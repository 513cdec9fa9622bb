"""Bundles of golden cases, exported in a process of its own while other tests run.

Exports are the longest part of the suite, and most other tests wait more than they compute. The process takes the
cores that others leave.
"""

import os
import tempfile
from collections.abc import Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from parity.front_end import export_case
from parity.golden_cases import Case

NICENESS = 5


class Exports:
    """Exports each case once, in the order in which they were asked for."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="exported-")
        self._pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=os.nice, initargs=(NICENESS,))
        self._bundles: dict[str, Future[Path]] = {}

    def begin(self, cases: Iterable[Case]) -> None:
        """Have cases exported, those excepted that are already."""
        for case in cases:
            if case.name not in self._bundles:
                output = Path(self._folder.name) / str(len(self._bundles)) / "bundle"
                self._bundles[case.name] = self._pool.submit(export_case, case, output)

    def __call__(self, case: Case) -> Path:
        """The bundle of a case, when it is ready."""
        self.begin([case])
        return self._bundles[case.name].result()

    def close(self) -> None:
        """End the process, when it has finished the case that it is at."""
        self._pool.shutdown(cancel_futures=True)
        self._folder.cleanup()
