"""Recordings cut into shards for many workers, whose results come back in any order, or are lost with a worker.

    paths  ->  Shard(start, paths), ...  ->  the results of its blocks  ->  results to be yielded

A block is what a model in this process gets together. Shards are whole blocks, so every batch has the same recordings
as on one machine, and its results are the same to the last bit. A worker returns block after block; if it dies, only
what it has not returned is given out again.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic

from tritone.errors import OperatorError
from tritone.result import AnyResult

MAX_BLOCKS = 8  # of a shard; between two of them a worker reads nothing ahead
AHEAD_SHARDS = 8  # of each worker: how far results may be ahead of the one that is next in order
MAX_DEATHS = 3  # of workers over a block, until its recordings are tried one by one, and over one of these


@dataclass(frozen=True, order=True)
class Shard:
    """Work for one worker: recordings from index `start` on, as paths."""

    start: int
    paths: tuple[str, ...]


class Shards(Generic[AnyResult]):
    """What is to be done, what is being done, and which results are next. Nothing here knows what a worker is."""

    def __init__(
        self, paths: Sequence[str], *, block: int, workers: int, result: type[AnyResult], ordered: bool = True
    ) -> None:
        """Begin with all paths to do.

        Args:
            block: recordings that a worker's model gets together.
            workers: that share the work; shards become smaller towards the end, so that all end together.
            result: made for a recording over which workers die.
            ordered: yield results in the order of the paths, not as they come.
        """
        self._paths = paths
        self._block = block
        self._workers = workers
        self._result = result
        self._ordered = ordered
        self._fresh = 0  # the first path that was never given out
        self._again: list[Shard] = []  # given out and lost; a heap
        self._doing: dict[Shard, int] = {}  # -> how many of its paths are done
        self._deaths: dict[int, int] = {}  # by the start of a block
        self._waiting: dict[int, AnyResult] = {}  # results that are not next yet
        self._next = 0
        self.left = len(paths)
        """Recordings without a result."""

    def take(self) -> Shard | None:
        """The next work; None while there is none to give out."""
        if self._again:
            shard = heapq.heappop(self._again)
        else:
            ahead = AHEAD_SHARDS * MAX_BLOCKS * self._block * self._workers
            if self._fresh >= len(self._paths) or (self._ordered and self._fresh - self._next >= ahead):
                return None
            blocks = -(-(len(self._paths) - self._fresh) // self._block)
            size = self._block * max(1, min(MAX_BLOCKS, blocks // (2 * self._workers)))
            shard = Shard(self._fresh, tuple(self._paths[self._fresh : self._fresh + size]))
            self._fresh += len(shard.paths)
        self._doing[shard] = 0
        return shard

    def done(self, shard: Shard, results: Sequence[AnyResult]) -> list[AnyResult]:
        """Take the results of a shard's next block, indexed from 0; returns those that may be yielded now."""
        first = shard.start + self._doing[shard]
        self._doing[shard] += len(results)
        if self._doing[shard] >= len(shard.paths):
            del self._doing[shard]
        return self._ready([replace(each, index=first + place) for place, each in enumerate(results)])

    def lost(self, shard: Shard, why: str) -> list[AnyResult]:
        """Give out again what a worker that died has not returned.

        Returns:
            What may be yielded: a recording that is given up, because workers died over it again and again.
        """
        done = self._doing.pop(shard, len(shard.paths))
        start, paths = shard.start + done, shard.paths[done:]
        if not paths:
            return []
        head, rest = paths[: self._block], paths[self._block :]
        deaths = self._deaths[start] = self._deaths.get(start, 0) + 1
        if rest:
            heapq.heappush(self._again, Shard(start + len(head), rest))
        if deaths < MAX_DEATHS:
            heapq.heappush(self._again, Shard(start, head))
            return []
        del self._deaths[start]
        if len(head) > 1:
            for place, path in enumerate(head):
                heapq.heappush(self._again, Shard(start + place, (path,)))
            return []
        error = OperatorError(
            f"{head[0]}: {deaths} workers died while they computed it, the last one so: {why}. Had they enough memory?"
        )
        return self._ready([self._result(index=start, source=head[0], error=error)])

    def _ready(self, results: Sequence[AnyResult]) -> list[AnyResult]:
        self.left -= len(results)
        if not self._ordered:
            return list(results)
        self._waiting.update((each.index, each) for each in results)
        ready = []
        while self._next in self._waiting:
            ready.append(self._waiting.pop(self._next))
            self._next += 1
        return ready
