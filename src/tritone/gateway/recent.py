"""The latest audio of a live stream, and when it came.

RecentAudio.between(begin, end)  ->  samples of the stream by their position
Arrivals.at(time_s)              ->  when that place of the audio had come, for latencies
"""

import time
from collections import deque

import numpy as np

from tritone.audio.waveform import Samples, widened

MARKS = 512


class RecentAudio:
    """The last seconds of a stream's audio. Positions are samples from its start."""

    def __init__(self, sample_rate: int, kept_s: float) -> None:
        self.kept_s = kept_s
        self.end = 0
        self._begin = 0
        self._limit = round(kept_s * sample_rate)
        self._parts: deque[Samples] = deque()

    def add(self, samples: Samples) -> None:
        if not samples.size:
            return
        self._parts.append(samples)
        self.end += samples.size
        while self.end - self._begin - self._parts[0].size >= self._limit:
            self._begin += self._parts.popleft().size

    def between(self, begin: int, end: int) -> tuple[Samples, int]:
        """What is kept of a stretch: (samples,), and where it begins."""
        begin = max(begin, self._begin)
        found, at = [], self._begin
        for part in self._parts:
            cut = part[max(0, begin - at) : max(0, end - at)]
            if cut.size:
                found.append(cut)
            at += part.size
        if not found:
            return np.zeros(0, np.float32), min(begin, self.end)
        if any(each.dtype != found[0].dtype for each in found):
            found = [widened(each) for each in found]
        return np.concatenate(found), begin


class Arrivals:
    """When the latest audio of a stream came, by `time.monotonic`."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, float]] = deque(maxlen=MARKS)

    def add(self, received_s: float) -> None:
        """So much of the audio has come by now."""
        self._marks.append((received_s, time.monotonic()))

    def at(self, time_s: float) -> float | None:
        """When the audio at this time had come; None if that is too long ago, or has not come."""
        if not self._marks or (self._marks[0][0] > time_s > 0 and len(self._marks) == MARKS):
            return None
        return next((came for received_s, came in self._marks if received_s >= time_s), None)
