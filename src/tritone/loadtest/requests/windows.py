"""Windows of a measurement: what was answered in them, and whether the last ones agree.

    ticks of every process  ->  Window, Window, ...  ->  stable?  ->  the last windows are the measurement

A server needs time until its caches are warm and its queue is as long as it will be. Figures count once a few windows
in a row agree in throughput and in p95, which is how NVIDIA's perf_analyzer decides too.
"""

from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tritone.loadtest.workload.embeddings import Embeddings

MAX_TEXTS = 50_000  # different (utterance, text) pairs that a window keeps
MAX_KINDS = 100  # of errors
OTHER = "other errors"
SLACK_MS = 0.5  # by which p95 may always differ: a millisecond is hardly measured to 10 %


@dataclass
class Tick:
    """What one process, or several together, saw in some time. Times are `perf_counter` seconds.

    `latencies` are of answered requests, `lateness` is by how much requests were sent after they were due. `texts`
    counts the answers: (utterance, text) -> times; of models that give no text there are `embeddings`. `cpu_s` is the
    CPU time that each process used, by its number.
    """

    begin: float
    end: float
    latencies: "array[float]" = field(default_factory=lambda: array("d"))
    lateness: "array[float]" = field(default_factory=lambda: array("d"))
    texts: Counter[tuple[int, str]] = field(default_factory=Counter)
    embeddings: Embeddings = field(default_factory=Embeddings)
    errors: Counter[str] = field(default_factory=Counter)
    utterances: int = 0
    audio_s: float = 0.0
    sent: int = 0  # requests, answered or not
    unscored: int = 0  # texts beyond `MAX_TEXTS`
    cpu_s: dict[int, float] = field(default_factory=dict)
    overrun: int = 0  # requests that waited for their answer when it was given up to keep the rate

    @property
    def requests(self) -> int:
        """Requests that came back, well or not."""
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
        self.lateness.extend(other.lateness)
        for (utterance, text), times in other.texts.items():
            self.add_text(utterance, text, times)
        self.embeddings.absorb(other.embeddings)
        for error, times in other.errors.items():
            self.add_error(error, times)
        self.utterances += other.utterances
        self.audio_s += other.audio_s
        self.sent += other.sent
        self.unscored += other.unscored
        self.overrun += other.overrun
        for process, seconds in other.cpu_s.items():
            self.cpu_s[process] = self.cpu_s.get(process, 0.0) + seconds


@dataclass(frozen=True, kw_only=True)
class WindowPlan:
    """How long is measured.

    Warm-up lasts `warmup_s`, and until `warmup_requests` have come back. A window ends when both `window_s` and
    `min_requests` are reached, or after `max_window_s`. The measurement ends when `stable_windows` in a row agree
    within `tolerance` of their mean, or after `max_windows`. `judge_throughput`: whether they must agree in throughput
    too; where arrivals are drawn by chance, so is the throughput.
    """

    warmup_s: float = 2.0
    warmup_requests: int = 1
    window_s: float = 3.0
    max_window_s: float = 15.0
    min_requests: int = 50
    stable_windows: int = 3
    max_windows: int = 10
    tolerance: float = 0.10
    judge_throughput: bool = True

    def __post_init__(self) -> None:
        if self.warmup_s < 0 or not 0 < self.window_s <= self.max_window_s:
            raise ValueError(
                "warmup_s must not be negative and window_s must be above 0 and at most max_window_s, got "
                f"{self.warmup_s}, {self.window_s} and {self.max_window_s}"
            )
        if not 1 <= self.stable_windows <= self.max_windows:
            raise ValueError(
                f"stable_windows must be 1 to max_windows, got {self.stable_windows} of {self.max_windows}"
            )
        if not 0 < self.tolerance < 1:
            raise ValueError(f"tolerance must be between 0 and 1, got {self.tolerance}")

    def is_warm(self, warmup: Tick, max_s: float) -> bool:
        """Whether measuring may begin; it does after `max_s` seconds in any case."""
        enough = warmup.requests >= self.warmup_requests and warmup.wall_s >= self.warmup_s
        return enough or warmup.wall_s >= max_s

    def is_full(self, window: Tick) -> bool:
        """Whether a window may end."""
        if window.wall_s < self.window_s - EPSILON_S:
            return False
        return window.requests >= self.min_requests or window.wall_s >= self.max_window_s - EPSILON_S

    def is_stable(self, windows: Iterable[Tick]) -> bool:
        """Whether the last windows agree. Windows in which nothing succeeded never do."""
        last = list(windows)[-self.stable_windows :]
        if len(last) < self.stable_windows or not all(window.latencies for window in last):
            return False
        throughput = np.array([len(window.latencies) / window.wall_s for window in last])
        p95_ms = np.array([1000 * np.percentile(window.latencies, 95) for window in last])
        return self._agree(p95_ms, SLACK_MS) and (not self.judge_throughput or self._agree(throughput))

    def _agree(self, values: npt.NDArray[np.float64], slack: float = 0.0) -> bool:
        mean = values.mean()
        return bool((abs(values - mean) <= self.tolerance * mean + slack).all())


EPSILON_S = 0.02  # ticks end a little early or late
