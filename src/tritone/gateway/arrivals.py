"""When the latest audio of a live stream came.

Arrivals.at(time_s)  ->  when that place of the audio had come, for latencies
"""

import time
from collections import deque

MARKS = 512


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
