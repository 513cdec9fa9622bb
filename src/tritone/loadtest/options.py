"""Options of a load test. Their help is that of `tritone bench`."""

from dataclasses import dataclass, field

from tritone.client.defaults import DEFAULT_CHUNK_MS
from tritone.container import usable_cpus
from tritone.evaluate.normalize import Normalization
from tritone.options.fields import check_bounds, option

TENSORS = "tensors"  # the `output` of targets and measurements of models that are not speech
MAX_PROCESSES = 16
LEAST_TICK_S = 0.1  # between reports, unless `tick_s` is less
WINDOWS_LONGER = 5.0  # times its length that a window with few requests may last


@dataclass(frozen=True, kw_only=True)
class WindowPlan:
    """How long is measured: a warm-up, then windows until the last ones agree."""

    warmup_s: float = option(2.0, "Warm-up before each point, in seconds.", least=0)
    warmup_requests: int = 1  # that must have come back, too
    window_s: float = option(3.0, "Length of a window of measurement, in seconds.", flags=("--measure-s",))
    max_window_s: float | None = None  # of a window with fewer than `min_requests`; None is five times `window_s`
    min_requests: int = 50
    stable_windows: int = 3  # in a row that must agree, or all if there are fewer
    max_windows: int = option(10, "Most windows of a point before it counts as unstable.", least=1)
    tolerance: float = option(
        0.10, "Largest deviation of stable windows from their mean, in percent.", flags=("--stability",), percent=True
    )
    judge_throughput: bool = True  # whether they must agree in throughput too, which arrivals drawn by chance do not

    def __post_init__(self) -> None:
        if self.warmup_s < 0 or not 0 < self.window_s <= self.longest_s:
            raise ValueError(
                "warmup_s must not be negative and window_s must be above 0 and at most max_window_s, got "
                f"{self.warmup_s}, {self.window_s} and {self.longest_s}"
            )
        check_bounds(self)
        if self.stable_windows < 1:
            raise ValueError(f"stable_windows must be at least 1, got {self.stable_windows}")
        if not 0 < self.tolerance < 1:
            raise ValueError(f"tolerance must be between 0 and 1, got {self.tolerance}")

    @property
    def longest_s(self) -> float:
        """How long a window may last."""
        return WINDOWS_LONGER * self.window_s if self.max_window_s is None else self.max_window_s

    @property
    def needed(self) -> int:
        """How many windows in a row must agree."""
        return min(self.stable_windows, self.max_windows)


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """How a load test is done, of whole utterances or of streams."""

    windows: WindowPlan = field(default_factory=WindowPlan)
    timeout_s: float = option(60.0, "Limit of one request, in seconds.")
    processes: int | None = option(None, "Processes of the generator; chosen by load and cores if not given.")
    seed: int = option(0, "Seed of everything random: lengths, files, arrivals.", least=0)
    metrics_url: str | None = option(None, "The server's Prometheus metrics; port 8002 is tried if not given.")
    # Of texts and references, for the word error rate.
    normalization: Normalization = field(
        default_factory=Normalization,
        metadata={
            "help": {
                "case": "For the WER: treatment of letter case.",
                "punctuation": "For the WER: treatment of punctuation.",
                "units": "For the WER: units to count, as for `tritone evaluate`.",
            }
        },
    )
    batch_size: int = 1  # utterances in one request, padded to the longest
    chunk_ms: float = option(DEFAULT_CHUNK_MS, "Of streams: audio sent at a time, in ms.", least=1)
    # Starts of streams are spread evenly over this time, each at random in its part, so that chunks and ends come
    # evenly; None is the mean length of the audio, at least 5 chunks and at most 10 s.
    start_spread_s: float | None = None
    tick_s: float = 0.5  # longest time between reports of a process
    drain_s: float = 5.0  # how long late answers are waited for at the end

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}")
        if self.processes is not None and not 1 <= self.processes <= 256:
            raise ValueError(f"processes must be 1 to 256, got {self.processes}")
        check_bounds(self)
        for name in ("timeout_s", "tick_s"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")
        for name in ("drain_s", "start_spread_s"):
            if not 0 <= (getattr(self, name) or 0.0) < float("inf"):
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")

    @property
    def report_s(self) -> float:
        """Time between reports of a process: no longer than a window, which ends with a report."""
        return min(self.tick_s, max(LEAST_TICK_S, self.windows.window_s))

    @property
    def chunk_s(self) -> float:
        return self.chunk_ms / 1000

    def processes_for(self, wanted: float) -> int:
        """How many processes send: as given, or as many as the load calls for and the cores allow."""
        if self.processes is not None:
            return self.processes
        # Half of the cores: the server may be on this machine, and a generator that waits for a core measures that.
        return max(1, min(-int(-wanted // 1), usable_cpus() // 2, MAX_PROCESSES))
