"""Running independent graph calls side by side.

On a CPU, calls that share the cores finish sooner than the same calls one after the other, each on all cores: much of a
small network (normalisation, activations, moving of caches) does not spread over threads, and every layer waits for the
slowest one.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Crew:
    """`size` threads that work through a list; with one of them, or one item, the caller does it all."""

    def __init__(self, size: int) -> None:
        """Take the number of calls to make at once, at least 1 (see `Graph.concurrency`)."""
        if size < 1:
            raise ValueError(f"a crew has at least 1 thread, got {size}")
        self.size = size
        self._pool = ThreadPoolExecutor(size, thread_name_prefix="graph-call") if size > 1 else None

    def map(self, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Call `work` with every item, in any order; give the results in the items' order.

        When calls fail, all of them have come to an end before the error of the first is raised.
        """
        if self._pool is None or len(items) < 2:
            return [work(item) for item in items]
        futures = [self._pool.submit(work, item) for item in items]
        wait(futures)
        return [future.result() for future in futures]
