"""The figures of a streaming load test.

    LoadOptions, rows of chunks, texts  ->  StreamRun  ->  Measurement

A chunk belongs to the measured time if it was due in it, and so does everything that hangs on its answer.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tritone.loadtest.findings.result import Latency, Measurement, ServerSide, Streaming
from tritone.loadtest.options import LoadOptions
from tritone.loadtest.requests.windows import windows_agree
from tritone.loadtest.senders.wire import Target
from tritone.loadtest.streams.pacing import Column, Kind
from tritone.loadtest.workload.answers import judge
from tritone.loadtest.workload.workload import Workload

NEGLIGIBLE = 0.02  # of a chunk: latencies that differ by less are the same to a listener

Rows = npt.NDArray[np.float64]  # (chunks, `pacing.Column`)


@dataclass(frozen=True, kw_only=True)
class StreamRun:
    """Everything seen in the measured time, from `begin` to `end` in `perf_counter` seconds."""

    target: Target
    workload: Workload
    streams: int
    options: LoadOptions
    processes: int
    begin: float
    end: float
    rows: Rows  # of all that was due in this time; their errors are indices of `messages`
    messages: Sequence[str] = ()
    texts: Counter[tuple[int, str]] = field(default_factory=Counter)  # (utterance, text) -> streams that ended with it
    windows: Sequence[float] = ()  # when each ended
    cpu_s: float = 0.0  # that the generator took
    server: ServerSide | None = None
    notes: Sequence[str] = ()
    is_cut_short: bool = False  # it ended before its time; a note says why
    is_interrupted: bool = False  # by Ctrl-C

    @property
    def wall_s(self) -> float:
        return self.end - self.begin

    def measurement(self) -> Measurement:
        """The figures."""
        rows = self.rows
        errors, is_open, is_final = failures(rows), has(rows, Kind.OPEN), has(rows, Kind.FINAL)
        failed = (errors >= 0) & ~has(rows, Kind.UNSENT)
        good = (errors < 0) & ~is_open
        late = errors < 0  # how late is known, or at least how late it was when the run ended
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
            in_time=_share(good & (late_s <= self.options.chunk_s)),
            drift_ms=1000 * float(sent_late_s.max(initial=0.0)),
            textless=int((good & has(rows, Kind.TEXTLESS)).sum()),
            unanswered=int(is_open.sum()),
            held_back=_share(rows[:, Column.READY] > rows[:, Column.DUE]),
        )
        requests = int((good | failed).sum())
        verdict = judge(self.texts, self.workload, self.options.normalization)
        agree = rows_agree(cut_windows(rows, [self.begin, *self.windows]), self.options)
        found = Measurement(
            model=self.target.model,
            protocol=self.target.endpoint.protocol,
            loop="streaming",
            load=self.streams,
            samples=self.target.samples,
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
            **verdict.figures(),
        )
        stable = agree and not (found.has_drifted or streaming.unanswered or self.is_cut_short)
        remarks = self._remarks(found, streaming, agree)
        return replace(found, stable=stable, notes=[*self.notes, *remarks, *verdict.notes, *self.workload.notes])

    def _remarks(self, found: Measurement, streaming: Streaming, agree: bool) -> list[str]:
        remarks, plan = [], self.options.windows
        if not (agree or self.is_cut_short):
            remarks.append(
                f"not stable: answers a second or p95 of the last {plan.needed} of {len(self.windows)} windows differ "
                f"by more than {plan.tolerance:.0%} from their mean"
            )
        if found.has_drifted and found.sent_late:
            remarks.append(
                f"the generator sent chunks late by itself: p99 {found.sent_late.p99_ms:.1f} ms, the worst "
                f"{streaming.drift_ms:.1f} ms; use more processes, or a machine with free cores"
            )
        if streaming.unanswered:
            remarks.append(
                f"{streaming.unanswered} chunks had no answer when the run ended; they count as late as they were then"
            )
        if streaming.textless:
            remarks.append(f"{streaming.textless} of {found.utterances} streams ended without any text")
        if not self.texts:
            remarks.append("no stream ended in the measured time, so there is no final text to check")
        return remarks


def failures(rows: Rows) -> npt.NDArray[np.int64]:
    """Index of each row's error message, -1 if it has none."""
    return rows[:, Column.ERROR].astype(np.int64)


def has(rows: Rows, kind: Kind) -> npt.NDArray[np.bool_]:
    """Whether rows are of a kind."""
    return (rows[:, Column.KIND].astype(np.int64) & kind) > 0


def cut_windows(rows: Rows, edges: Sequence[float]) -> list[tuple[float, Rows]]:
    """Cut rows at times: (seconds, rows that were due) of each window."""
    due = rows[:, Column.DUE]
    return [(high - low, rows[(due >= low) & (due < high)]) for low, high in pairwise(edges)]


def rows_agree(windows: Sequence[tuple[float, Rows]], options: LoadOptions) -> bool:
    """Whether the last windows, (seconds, rows) each, agree in good answers per second and in p95 of their latency.

    A fiftieth of a chunk is no difference: on an idle server p95 is a few milliseconds, and restless.
    """
    plan = options.windows
    rates, p95_s = [], []
    for seconds, rows in windows[-plan.needed :]:
        good = rows[(failures(rows) < 0) & ~has(rows, Kind.OPEN)]
        if not len(good):
            return False
        rates.append(len(good) / seconds)
        p95_s.append(float(np.percentile(good[:, Column.RECEIVED] - good[:, Column.DUE], 95)))
    slack_s = max(plan.tolerance * float(np.mean(p95_s or 0)), NEGLIGIBLE * options.chunk_s)
    return windows_agree(plan, rates, p95_s, slack_s)


def _share(which: npt.NDArray[np.bool_]) -> float:
    return float(which.mean()) if len(which) else 0.0
