"""What a pipeline has computed: seconds of audio and of padding, calls of the network, and where the time went.

    CallWork (one graph call)  ->  WorkLog  ->  Work

A pipeline writes the log whether anybody reads it or not: a few additions for each graph call.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class CallWork:
    """One graph call. `audio` and `padding` in samples, over all rows; times in seconds.

    `total_s`: with filling the block and reading the outputs, so at least `network_s + search_s`.
    """

    audio: int
    padding: int
    network_s: float
    search_s: float
    total_s: float


@dataclass(frozen=True, kw_only=True)
class Work:
    """Work of a pipeline, in seconds. Whatever the network computed that is not audio counts as padding.

    `network_s` and `search_s` are time by the clock, also where several graph calls ran at once.
    """

    audio_s: float = 0.0
    padding_s: float = 0.0
    calls: int = 0
    network_s: float = 0.0
    search_s: float = 0.0

    def __add__(self, other: "Work") -> "Work":
        return Work(
            audio_s=self.audio_s + other.audio_s,
            padding_s=self.padding_s + other.padding_s,
            calls=self.calls + other.calls,
            network_s=self.network_s + other.network_s,
            search_s=self.search_s + other.search_s,
        )


class WorkLog:
    """Sums up work until somebody takes it. May be used from several threads."""

    def __init__(self, sample_rate: int) -> None:
        """Take the pipeline's sample rate, in Hz."""
        self._sample_rate = sample_rate
        self._lock = threading.Lock()
        self._work = Work()

    def add(self, calls: Sequence[CallWork], wall_s: float) -> None:
        """Count graph calls that together took `wall_s` seconds by the clock."""
        # Calls side by side share that time: each phase gets its share of it.
        spent = sum(call.total_s for call in calls)
        share = wall_s / spent if spent else 0.0
        work = Work(
            audio_s=sum(call.audio for call in calls) / self._sample_rate,
            padding_s=sum(call.padding for call in calls) / self._sample_rate,
            calls=len(calls),
            network_s=share * sum(call.network_s for call in calls),
            search_s=share * sum(call.search_s for call in calls),
        )
        with self._lock:
            self._work += work

    def add_search(self, wall_s: float) -> None:
        """Count time spent on the search apart from graph calls, as at the end of an utterance."""
        with self._lock:
            self._work += Work(search_s=wall_s)

    def take(self) -> Work:
        """Give the work since the last call of this method, and forget it."""
        with self._lock:
            work, self._work = self._work, Work()
        return work
