"""Samples of a stream that wait for the next step."""

import numpy as np

from tritone.audio.waveform import Samples, Waveform, widened

MIN_CAPACITY = 4096  # samples


class SampleQueue:
    """A first-in first-out buffer of samples in one contiguous array; the cost per sample is constant, amortised."""

    def __init__(self) -> None:
        self._buffer: Waveform = np.empty(MIN_CAPACITY, dtype=np.float32)
        self._start = self._end = 0

    def __len__(self) -> int:
        return self._end - self._start

    def push(self, samples: Samples) -> None:
        """Append a copy of `samples`."""
        if self._end + len(samples) > len(self._buffer):
            self._make_room(len(samples))
        self._buffer[self._end : self._end + len(samples)] = widened(samples)
        self._end += len(samples)

    def peek(self, count: int) -> Waveform:
        """The oldest `count` samples, or all there are; a view that is valid until the next `push`."""
        return self._buffer[self._start : min(self._start + count, self._end)]

    def drop(self, count: int) -> None:
        """Forget the oldest `count` samples."""
        self._start = min(self._start + count, self._end)

    def _make_room(self, count: int) -> None:
        # Doubling what is needed makes moves rare; sizing by need also gives back what one huge chunk once took.
        waiting = self.peek(len(self))
        buffer = np.empty(max(MIN_CAPACITY, 2 * (len(waiting) + count)), dtype=np.float32)
        buffer[: len(waiting)] = waiting
        self._buffer, self._start, self._end = buffer, 0, len(waiting)
