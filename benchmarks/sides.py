"""Sides of a comparison, each a process of its own that has its model in memory: they take turns.

    with Side("here", [python, "-m", ...]) as side: side.work()  ->  {"wall": s, "cpu": s, "peak": MB, ...}
    serve(work)                                                      the loop of such a process

A side may run in another environment, so this module needs nothing but Python there.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any


class Side:
    """A process that has a side's model in memory."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self._process = subprocess.Popen([*command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8")
        self.name = name

    def __enter__(self) -> "Side":
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def work(self) -> dict[str, Any]:
        """What it says of a turn, with the processor seconds of it and its children."""
        from benchmarks.measure import tree_cpu_s

        before = tree_cpu_s(self._process.pid)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print("go", file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with {self._process.wait()}")
        return {**json.loads(line), "cpu": tree_cpu_s(self._process.pid) - before}


def serve(work: Callable[[], Mapping[str, Any]]) -> None:
    """Work whenever a line comes, and say how long that took, and what the work says of itself."""
    for _ in sys.stdin:
        start = time.perf_counter()
        found = work()
        took = time.perf_counter() - start
        print(json.dumps({"wall": took, "peak": _peak_mb(), **found}), flush=True)


def _peak_mb() -> float:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1e3
