"""From what was seen of streams to figures.

    StreamOptions, rows of chunks, texts  ->  StreamRun  ->  Measurement

A chunk belongs to the measured time if it was due in it, and so does everything that hangs on its answer.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tritone.client.stream import DEFAULT_CHUNK_MS
from tritone.evaluate.normalize import Normalization
from tritone.loadtest.findings.result import Latency, Measurement, ServerSide, Streaming
from tritone.loadtest.requests.windows import WindowPlan
from tritone.loadtest.senders.wire import Target
from tritone.loadtest.streams.pacing import Column, Kind, Pace
from tritone.loadtest.workload.answers import judge
from tritone.loadtest.workload.workload import Workload

MAX_SPREAD_S = 10.0  # over which starts are spread if not told otherwise
NEGLIGIBLE = 0.02  # of a chunk: latencies that differ by less are the same to a listener

Rows = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class StreamOptions:
    """How streams are played and measured.

    `start_spread_s`: starts are spread evenly over this time, each at random in its part, so that chunks and ends of
    streams come evenly; None is the mean length of the audio, at least 5 chunks and at most `MAX_SPREAD_S`.
    `timeout_s`: for one answer. `drain_s`: for answers that are late when the measured time is over. `processes`: that
    play; None takes as many as cores and load call for. `connections`: of each process (gRPC). `metrics_url`: of the
    server's Prometheus metrics, None tries port 8002. `normalization`: of texts and references for the word error rate.
    """

    chunk_ms: float = DEFAULT_CHUNK_MS
    start_spread_s: float | None = None
    windows: WindowPlan = field(default_factory=WindowPlan)
    timeout_s: float = 30.0
    drain_s: float = 5.0
    processes: int | None = None
    connections: int = 1
    seed: int = 0
    metrics_url: str | None = None
    normalization: Normalization | None = None

    def __post_init__(self) -> None:
        if self.start_spread_s is not None and not 0 <= self.start_spread_s < float("inf"):
            raise ValueError(f"start_spread_s must not be negative, got {self.start_spread_s}")
        if self.processes is not None and not 1 <= self.processes <= 256:
            raise ValueError(f"processes must be 1 to 256, got {self.processes}")
        if self.connections < 1:
            raise ValueError(f"connections must be at least 1, got {self.connections}")
        if self.drain_s < 0:
            raise ValueError(f"drain_s must not be negative, got {self.drain_s}")
        if not 0 < self.chunk_ms < float("inf"):
            raise ValueError(f"chunk_ms must be above 0, got {self.chunk_ms}")
        if not 0 < self.timeout_s < float("inf"):
            raise ValueError(f"timeout_s must be above 0, got {self.timeout_s}")

    @property
    def pace(self) -> Pace:
        return Pace(chunk_s=self.chunk_ms / 1000, timeout_s=self.timeout_s, drain_s=self.drain_s)

    def spread_s(self, workload: Workload) -> float:
        """The time over which starts are spread."""
        if self.start_spread_s is not None:
            return self.start_spread_s
        return min(MAX_SPREAD_S, max(5 * self.chunk_ms / 1000, workload.mean_s))

    def window_s(self, streams: int) -> float:
        """Length of a window. Streams come by the clock, so it is known how long its requests take."""
        plan = self.windows
        return min(plan.max_window_s, max(plan.window_s, plan.min_requests * self.chunk_ms / 1000 / streams))


@dataclass(frozen=True, kw_only=True)
class StreamRun:
    """What was seen in the measured time, from `begin` to `end` in `perf_counter` seconds.

    `rows`: (chunks, `pacing.Column`) of all that was due in it; their errors count in `messages`. `texts`: (utterance,
    text) -> streams that ended with it. `windows`: when each ended. `cpu_s`: CPU time that the generator took.
    `is_cut_short`: it ended before its time, which a note tells more of; `is_interrupted`: by Ctrl-C.
    """

    target: Target
    workload: Workload
    streams: int
    options: StreamOptions
    processes: int
    begin: float
    end: float
    rows: Rows
    messages: Sequence[str] = ()
    texts: Counter[tuple[int, str]] = field(default_factory=Counter)
    windows: Sequence[float] = ()
    cpu_s: float = 0.0
    server: ServerSide | None = None
    notes: Sequence[str] = ()
    is_cut_short: bool = False
    is_interrupted: bool = False

    @property
    def wall_s(self) -> float:
        return self.end - self.begin

    def measurement(self) -> Measurement:
        """The figures."""
        rows = self.rows
        errors, is_open, is_final = failures(rows), has(rows, Kind.OPEN), has(rows, Kind.FINAL)
        failed = (errors >= 0) & ~has(rows, Kind.UNSENT)
        good = (errors < 0) & ~is_open
        late = errors < 0  # how late is known, or at least how late it was when nobody waited any more
        late_s = rows[:, Column.RECEIVED] - rows[:, Column.DUE]
        sent_late_s = np.maximum(0.0, rows[:, Column.SENT] - rows[:, Column.READY])[good | failed]
        first = good & has(rows, Kind.FIRST_TEXT)
        streaming = Streaming(
            streams=self.streams,
            chunk_ms=self.options.chunk_ms,
            first_partial=Latency.of((rows[:, Column.RECEIVED] - rows[:, Column.BEGIN])[first]),
            first_partial_chunk=Latency.of(late_s[first]),
            chunk=Latency.of(late_s[late & ~is_final]),
            final=Latency.of(late_s[late & is_final]),
            in_time=_share(good & (late_s <= self.options.pace.chunk_s)),
            drift_ms=1000 * float(sent_late_s.max(initial=0.0)),
            textless=int((good & has(rows, Kind.TEXTLESS)).sum()),
            unanswered=int(is_open.sum()),
            held_back=_share(rows[:, Column.READY] > rows[:, Column.DUE]),
        )
        requests = int((good | failed).sum())
        verdict = judge(self.texts, self.workload, self.options.normalization)
        agree = windows_agree(cut_windows(rows, [self.begin, *self.windows]), self.options)
        found = Measurement(
            model=self.target.model,
            protocol=self.target.endpoint.protocol,
            loop="streaming",
            load=self.streams,
            seconds=self.workload.seconds,
            wall_s=self.wall_s,
            requests=requests,
            utterances=int((good & is_final).sum()),
            audio_s=float(rows[good, Column.AUDIO_S].sum()),
            errors={self.messages[index]: int(count) for index, count in Counter(errors[failed]).most_common()},
            latency=Latency.of(late_s[late]),
            client_ms=1000 * self.cpu_s / max(1, requests),
            client_cpu=self.cpu_s / self.wall_s,
            client_processes=self.processes,
            windows=len(self.windows),
            server=self.server,
            streaming=streaming,
            sent_late=Latency.of(sent_late_s),
            wer=verdict.wer,
            wer_words=verdict.wer_words,
            different_texts=verdict.different_texts,
        )
        stable = agree and not (found.has_drifted or streaming.unanswered or self.is_cut_short)
        notes = [*self.notes, *self._remarks(found, agree), *verdict.notes, *self.workload.notes]
        return replace(found, stable=stable, notes=notes)

    def _remarks(self, found: Measurement, agree: bool) -> list[str]:
        told, streaming = [], found.streaming
        assert streaming is not None
        if not (agree or self.is_cut_short):
            told.append(
                f"not stable: answers a second or p95 of the last {self.options.windows.stable_windows} of "
                f"{len(self.windows)} windows differ by more than {self.options.windows.tolerance:.0%} from their mean"
            )
        if found.has_drifted and found.sent_late:
            told.append(
                f"the generator sent chunks late by itself: p99 {found.sent_late.p99_ms:.1f} ms, the worst "
                f"{streaming.drift_ms:.1f} ms; use more processes, or a machine with free cores"
            )
        if streaming.unanswered:
            told.append(
                f"{streaming.unanswered} chunks had no answer when the run ended; they count as late as they were then"
            )
        if streaming.textless:
            told.append(f"{streaming.textless} of {found.utterances} streams ended without any text")
        if not self.texts:
            told.append("no stream ended in the measured time, so there is no final text to check")
        return told


def failures(rows: Rows) -> npt.NDArray[np.int64]:
    """Of each row the number of its error, -1 of none."""
    return rows[:, Column.ERROR].astype(np.int64)


def has(rows: Rows, kind: Kind) -> npt.NDArray[np.bool_]:
    """Whether rows are of a kind."""
    return (rows[:, Column.KIND].astype(np.int64) & kind) > 0


def cut_windows(rows: Rows, edges: Sequence[float]) -> list[tuple[float, Rows]]:
    """Cut rows at times: (seconds, rows that were due) of each window."""
    due = rows[:, Column.DUE]
    return [(high - low, rows[(due >= low) & (due < high)]) for low, high in pairwise(edges)]


def windows_agree(windows: Sequence[tuple[float, Rows]], options: StreamOptions) -> bool:
    """Whether the last windows, (seconds, rows) each, agree in good answers per second and in p95 of their latency.

    A fiftieth of a chunk is no difference: on an idle server p95 is a few milliseconds, and restless.
    """
    plan = options.windows
    if len(windows) < plan.stable_windows:
        return False
    rates, p95_s = [], []
    for seconds, rows in windows[-plan.stable_windows :]:
        good = rows[(failures(rows) < 0) & ~has(rows, Kind.OPEN)]
        if not len(good):
            return False
        rates.append(len(good) / seconds)
        p95_s.append(float(np.percentile(good[:, Column.RECEIVED] - good[:, Column.DUE], 95)))
    slack_s = max(plan.tolerance * float(np.mean(p95_s)), NEGLIGIBLE * options.pace.chunk_s)
    return _within(rates, plan.tolerance * float(np.mean(rates))) and _within(p95_s, slack_s)


def _within(values: Sequence[float], slack: float) -> bool:
    return bool((np.abs(np.array(values) - np.mean(values)) <= slack).all())


def _share(which: npt.NDArray[np.bool_]) -> float:
    return float(which.mean()) if len(which) else 0.0
