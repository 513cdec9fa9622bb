"""Windows of a measurement: what was answered in them, and when the last ones agree.

    ticks of every process  ->  Recorder: warm-up, window, window, ...  ->  the last windows are the measurement

A server needs time until its caches are warm and its queue is as long as it will be. Figures count once a few windows
in a row agree in throughput and in p95, which is how NVIDIA's perf_analyzer decides too.
"""

from array import array
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from tritone.loadtest.options import WindowPlan
from tritone.loadtest.workload.embeddings import Embeddings

MAX_TEXTS = 50_000  # different (utterance, text) pairs that a window keeps
MAX_KINDS = 100  # of errors
OTHER = "other errors"
SLACK_S = 0.0005  # by which p95 may always differ: a millisecond is hardly measured to 10 %
COLD_S = 30.0  # that a server may take longer than a request's time limit until it is warm
EPSILON_S = 0.02  # ticks end a little early or late


@dataclass
class Tick:
    """Everything that one process, or several together, saw in some time. Times are `perf_counter` seconds."""

    begin: float
    end: float
    latencies: "array[float]" = field(default_factory=lambda: array("d"))  # of answered requests
    firsts: "array[float]" = field(default_factory=lambda: array("d"))  # the same until the first of many answers
    lateness: "array[float]" = field(default_factory=lambda: array("d"))  # from when requests were due to their sending
    texts: Counter[tuple[int, str]] = field(default_factory=Counter)  # (utterance, text) -> how often it was answered
    embeddings: Embeddings = field(default_factory=Embeddings)  # of models that give no text
    errors: Counter[str] = field(default_factory=Counter)
    utterances: int = 0
    answers: int = 0  # of models that answer any number of times, or that are not speech
    audio_s: float = 0.0
    sent: int = 0  # requests, answered or not
    unscored: int = 0  # texts beyond `MAX_TEXTS`
    cpu_s: dict[int, float] = field(default_factory=dict)  # CPU time of each process, by its index
    overrun: int = 0  # requests that waited for their answer when the rate was given up

    @property
    def requests(self) -> int:
        """Requests that came back, failed or not."""
        return len(self.latencies) + self.errors.total()

    @property
    def wall_s(self) -> float:
        return self.end - self.begin

    def add_text(self, utterance: int, text: str, times: int = 1) -> None:
        key = (utterance, text)
        if key in self.texts or len(self.texts) < MAX_TEXTS:
            self.texts[key] += times
        else:
            self.unscored += times

    def add_error(self, error: str, times: int = 1) -> None:
        known = error in self.errors or len(self.errors) < MAX_KINDS
        self.errors[error if known else OTHER] += times

    def absorb(self, other: "Tick") -> None:
        """Add what another process saw at the same time, or what was seen next."""
        self.begin = min(self.begin, other.begin)
        self.end = max(self.end, other.end)
        self.latencies.extend(other.latencies)
        self.firsts.extend(other.firsts)
        self.lateness.extend(other.lateness)
        for (utterance, text), times in other.texts.items():
            self.add_text(utterance, text, times)
        self.embeddings.absorb(other.embeddings)
        for error, times in other.errors.items():
            self.add_error(error, times)
        for name in ("utterances", "answers", "audio_s", "sent", "unscored", "overrun"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for process, seconds in other.cpu_s.items():
            self.cpu_s[process] = self.cpu_s.get(process, 0.0) + seconds


class Event(Enum):
    """The part of a measurement that a tick completed."""

    WARM = "warm-up"
    WINDOW = "window"


class End(Enum):
    """Why a measurement is over."""

    STABLE = "the last windows agree"
    UNSTABLE = "the last of so many windows, and still they do not agree"
    OVERRUN = "the server does not keep up with the rate"
    FAILING = "no request succeeds"


class Recorder:
    """Makes windows of ticks, which it takes in the order of time.

    Attributes:
        windows: the last of those that are full, at most as many as must agree.
        num_windows: how many there were in all.
        end: why it is over; None while it is not.
    """

    def __init__(self, plan: WindowPlan, timeout_s: float) -> None:
        self.windows: deque[Tick] = deque(maxlen=plan.needed)
        self.num_windows = 0
        self.end: End | None = None
        self._plan = plan
        self._timeout_s = timeout_s
        self._is_warm = False
        self._current: Tick | None = None
        self._silent_s = 0.0  # in windows in which nothing succeeded

    def add(self, tick: Tick) -> Event | None:
        """Take the next tick, and return what it completed."""
        if self._current is None:
            self._current = tick
        else:
            self._current.absorb(tick)
        if tick.overrun:
            self.end = End.OVERRUN
            return self._close()
        if self._is_warm:
            return self._close() if self._is_full(self._current) else None
        if self._warms_up(self._current):
            return None
        self._is_warm = True
        self._current = None
        return Event.WARM

    def seen(self) -> list[Tick]:
        """The windows if it ends now: the last full ones, else the one that was started."""
        if self.windows:
            return list(self.windows)
        return [self._current] if self._is_warm and self._current is not None and self._current.requests else []

    def _warms_up(self, warmup: Tick) -> bool:
        plan = self._plan
        if warmup.wall_s >= plan.warmup_s + self._timeout_s + COLD_S:
            return False
        return warmup.requests < plan.warmup_requests or warmup.wall_s < plan.warmup_s

    def _is_full(self, window: Tick) -> bool:
        if window.wall_s < self._plan.window_s - EPSILON_S:
            return False
        return window.requests >= self._plan.min_requests or window.wall_s >= self._plan.longest_s - EPSILON_S

    def _close(self) -> Event:
        assert self._current is not None
        window, self._current = self._current, None
        self.windows.append(window)
        self.num_windows += 1
        self._silent_s = 0.0 if window.latencies else self._silent_s + window.wall_s
        if self.end is not None:
            return Event.WINDOW
        if not window.latencies and (window.errors or self._silent_s > self._timeout_s):
            self.end = End.FAILING
        elif is_stable(self._plan, self.windows):
            self.end = End.STABLE
        elif self.num_windows >= self._plan.max_windows:
            self.end = End.UNSTABLE
        return Event.WINDOW


def is_stable(plan: WindowPlan, windows: Iterable[Tick]) -> bool:
    """Whether the last windows agree. Windows in which nothing succeeded never do."""
    last = list(windows)[-plan.needed :]
    if not all(window.latencies for window in last):
        return False
    rates = [len(window.latencies) / window.wall_s for window in last]
    p95_s = [float(np.percentile(window.latencies, 95)) for window in last]
    return windows_agree(plan, rates, p95_s, plan.tolerance * float(np.mean(p95_s or 0)) + SLACK_S)


def windows_agree(plan: WindowPlan, rates: Sequence[float], p95_s: Sequence[float], slack_s: float) -> bool:
    """Whether answers per second are within the plan's tolerance of their mean, and p95 latencies within a slack."""
    if len(rates) < plan.needed:
        return False
    is_steady = _within(rates, plan.tolerance * float(np.mean(rates))) or not plan.judge_throughput
    return is_steady and _within(p95_s, slack_s)


def _within(values: Sequence[float], slack: float) -> bool:
    return bool((np.abs(np.array(values) - np.mean(values)) <= slack).all())
