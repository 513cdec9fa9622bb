"""The latest audio of a live stream.

RecentAudio.between(begin, end)  ->  samples of the stream by their position
"""

from collections import deque

import numpy as np

from tritone.audio.waveform import Samples, widened


class RecentAudio:
    """The last seconds of a stream's audio. Positions are samples from its start."""

    def __init__(self, sample_rate: int, kept_s: float) -> None:
        self.sample_rate, self.kept_s = sample_rate, kept_s
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

    def during(self, start_s: float, end_s: float) -> Samples:
        """What is kept between two times of the stream, in seconds: (samples,)."""
        return self.between(round(start_s * self.sample_rate), round(end_s * self.sample_rate))[0]

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
