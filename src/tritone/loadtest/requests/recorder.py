"""From ticks to the windows that count: warm-up first, then windows until they agree, or until it is no use."""

from collections import deque
from enum import Enum

from tritone.loadtest.requests.windows import Tick, WindowPlan

COLD_S = 30.0  # that a server may take longer than a request's time limit until it is warm


class Event(Enum):
    """What a tick completed."""

    WARM = "warm-up"
    WINDOW = "window"


class End(Enum):
    """Why a measurement is over."""

    STABLE = "the last windows agree"
    UNSTABLE = "the last of so many windows, and still they do not agree"
    OVERRUN = "the server does not keep up with the rate"
    FAILING = "no request succeeds"


class Recorder:
    """Takes ticks in the order of time.

    Attributes:
        windows: the last of those that are full, at most as many as must agree.
        num_windows: how many there were in all.
        end: why it is over; None while it is not.
    """

    def __init__(self, plan: WindowPlan, timeout_s: float) -> None:
        self.windows: deque[Tick] = deque(maxlen=plan.stable_windows)
        self.num_windows = 0
        self.end: End | None = None
        self._plan = plan
        self._timeout_s = timeout_s
        self._is_warm = False
        self._current: Tick | None = None
        self._silent_s = 0.0  # in windows in which nothing succeeded

    @property
    def is_warm(self) -> bool:
        return self._is_warm

    def add(self, tick: Tick) -> Event | None:
        """Take the next tick; gives what it completed."""
        if self._current is None:
            self._current = tick
        else:
            self._current.absorb(tick)
        if tick.overrun:
            self.end = End.OVERRUN
            return self._close()
        if not self._is_warm:
            max_s = self._plan.warmup_s + self._timeout_s + COLD_S
            if not self._plan.is_warm(self._current, max_s):
                return None
            self._is_warm = True
            self._current = None
            return Event.WARM
        return self._close() if self._plan.is_full(self._current) else None

    def seen(self) -> list[Tick]:
        """What there is to tell if it ends now: the last full windows, else what began to be one."""
        if self.windows:
            return list(self.windows)
        return [self._current] if self._is_warm and self._current is not None and self._current.requests else []

    def _close(self) -> Event:
        assert self._current is not None
        window, self._current = self._current, None
        self.windows.append(window)
        self.num_windows += 1
        if self.end is not None:
            return Event.WINDOW
        if window.latencies:
            self._silent_s = 0.0
        else:
            self._silent_s += window.wall_s
        if not window.latencies and (window.errors or self._silent_s > self._timeout_s):
            self.end = End.FAILING
        elif self._plan.is_stable(self.windows):
            self.end = End.STABLE
        elif self.num_windows >= self._plan.max_windows:
            self.end = End.UNSTABLE
        return Event.WINDOW
