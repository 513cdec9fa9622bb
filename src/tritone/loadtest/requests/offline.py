"""Load tests of requests of utterances or other inputs: so many in flight or a second, until the figures hold still.

Target, Workload or Inputs, load  ->  processes that send  ->  windows  ->  Measurement

measure_closed(target, workload, 16)                  # 16 requests in flight
measure_open(target, workload, 40.0, "poisson")       # 40 requests a second
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tritone.client.transport import EMBEDDING
from tritone.loadtest.findings.result import Latency, Loop, Measurement, ServerSide
from tritone.loadtest.findings.statistics import Look, ServerWatch, server_side
from tritone.loadtest.options import TENSORS, LoadOptions, WindowPlan
from tritone.loadtest.processes.fleet import Fleet
from tritone.loadtest.requests.arrivals import Arrivals
from tritone.loadtest.requests.loops import ClosedJob, LoadJob, OpenJob, Unanswered
from tritone.loadtest.requests.windows import End, Event, Recorder, Tick
from tritone.loadtest.senders.wire import Target
from tritone.loadtest.workload.answers import Verdict, judge, judge_embeddings
from tritone.loadtest.workload.inputs import Inputs
from tritone.loadtest.workload.workload import Workload

CONCURRENCY_OF_A_PROCESS = 32
RATE_OF_A_PROCESS = 500.0  # requests per second
BUSY = 0.85  # of a core, from which on a generator process may be what is measured
BACKLOG_S = 10.0  # of arrivals that may wait for their answer
MIN_BACKLOG = 64  # requests
MAX_BACKLOG_BYTES = 2**29  # of messages that gRPC or the kernel may hold
KEPT_UP = 0.95  # of the offered rate that must come back
LATE_MS = 10.0  # by which p99 of the requests may be sent late
PATIENCE_S = 30.0  # beyond a tick in which a worker must report

OnWindow = Callable[[Tick], None]


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a measurement. `measurement` holds what was seen so far; None if nothing had been."""

    def __init__(self, measurement: Measurement | None) -> None:
        super().__init__("interrupted")
        self.measurement = measurement


def measure_closed(
    target: Target,
    workload: Workload | Inputs,
    concurrency: int,
    options: LoadOptions | None = None,
    *,
    on_window: OnWindow | None = None,
) -> Measurement:
    """Keep a number of requests in flight and measure.

    Args:
        target: an offline model, or any for its own inputs.
        workload: what to send.
        concurrency: requests in flight, all processes together.
        options: how.
        on_window: called with every window as it ends.

    Raises:
        ValueError: the arguments do not fit together.
        OperatorError: a process of the generator failed.
        Interrupted: Ctrl-C; it carries what was measured.
    """
    options = options or LoadOptions()
    if concurrency < 1:
        raise ValueError(f"concurrency must be at least 1, got {concurrency}")
    count = min(concurrency, options.processes_for(concurrency / CONCURRENCY_OF_A_PROCESS))
    jobs = [
        ClosedJob(**share, concurrency=concurrency // count + (share["index"] < concurrency % count))
        for share in _shares(target, workload, options, count)
    ]
    plan = replace(
        options.windows,
        warmup_requests=max(options.windows.warmup_requests, concurrency),
        min_requests=max(options.windows.min_requests, 2 * concurrency),
    )
    return _Measuring(target, workload, options, plan, "closed", concurrency, on_window).run(jobs)


def measure_open(
    target: Target,
    workload: Workload | Inputs,
    rate: float,
    arrivals: Arrivals = "poisson",
    options: LoadOptions | None = None,
    *,
    on_window: OnWindow | None = None,
) -> Measurement:
    """Send a number of requests per second, whatever becomes of them, and measure.

    It ends by itself when more requests wait for their answer than 10 seconds bring, and says that the server cannot
    keep up.

    Args:
        target, workload, options, on_window: as for `measure_closed`.
        rate: requests per second, all processes together.
        arrivals: "constant" (evenly spaced) or "poisson" (as from many independent users).

    Raises: as `measure_closed`.
    """
    options = options or LoadOptions()
    if not 0 < rate < float("inf"):
        raise ValueError(f"rate must be a number of requests per second above 0, got {rate}")
    count = options.processes_for(rate / RATE_OF_A_PROCESS)
    request_bytes = workload.mean_bytes(target.bytes_per_sample) * options.batch_size
    backlog = min(max(MIN_BACKLOG, BACKLOG_S * rate), max(1.0, MAX_BACKLOG_BYTES / max(1.0, request_bytes)))
    most = max(1, round(backlog / count))
    jobs = [
        OpenJob(**share, rate=rate, arrivals=arrivals, processes=count, max_in_flight=most)
        for share in _shares(target, workload, options, count)
    ]
    plan = replace(
        options.windows,
        warmup_requests=max(options.windows.warmup_requests, 1),
        judge_throughput=options.windows.judge_throughput and arrivals == "constant",
    )
    return _Measuring(target, workload, options, plan, arrivals, rate, on_window).run(jobs)


class _Measuring:
    """One measurement: its processes, its windows, the server's counters, and remarks."""

    def __init__(
        self,
        target: Target,
        workload: Workload | Inputs,
        options: LoadOptions,
        plan: WindowPlan,
        loop: Loop,
        load: float,
        on_window: OnWindow | None,
    ) -> None:
        self._target = target
        self._workload = workload
        self._options = options
        self._plan = plan
        self._loop: Loop = loop
        self._load = load
        self._on_window = on_window
        self._recorder = Recorder(plan, options.timeout_s)
        self._looks: list[Look | None] = []  # before the first window, and after each
        self._open: list[float] = []  # when those requests began that had no answer at the end
        self._stopped_at = 0.0

    def run(self, jobs: Sequence[LoadJob]) -> Measurement:
        with ServerWatch(self._target, self._options.metrics_url) as watch:
            try:
                with Fleet(jobs) as fleet:
                    fleet.begin()
                    while self._recorder.end is None:
                        self._advance(fleet, watch)
                    self._stop(fleet)
            except KeyboardInterrupt as interrupt:
                raise Interrupted(self._partial(watch, len(jobs))) from interrupt
        return self._measurement(list(self._recorder.windows), len(jobs), self._notes_of_the_end())

    def _advance(self, fleet: Fleet, watch: ServerWatch) -> None:
        tick, *others = fleet.receive(self._options.report_s + PATIENCE_S)
        for other in others:
            tick.absorb(other)
        event = self._recorder.add(tick)
        if event is None:
            return
        self._looks.append(watch.look())
        if event is Event.WINDOW and self._on_window is not None:
            self._on_window(self._recorder.windows[-1])

    def _stop(self, fleet: Fleet) -> None:
        for messages in fleet.stop(self._options.drain_s + PATIENCE_S):
            for message in messages:
                if isinstance(message, Unanswered):
                    self._open += message.started
                    self._stopped_at = message.at

    def _partial(self, watch: ServerWatch, processes: int) -> Measurement | None:
        seen = self._recorder.seen()
        if not seen:
            return None
        if not self._recorder.windows:
            self._looks.append(watch.look())
        return self._measurement(seen, processes, [f"interrupted after {self._recorder.num_windows} windows"])

    def _measurement(self, windows: Sequence[Tick], processes: int, notes: Sequence[str]) -> Measurement:
        total = Tick(windows[0].begin, windows[0].begin)
        for window in windows:
            total.absorb(window)
        stuck = self._stuck(total)
        if stuck:
            total.add_error("no answer: in flight during the whole measurement", stuck)
        if total.overrun:
            total.add_error("no answer: still waiting when sending was stopped", total.overrun)
        if isinstance(self._workload, Inputs):
            verdict = Verdict()  # nobody knows what is right
        elif self._target.output == EMBEDDING:
            verdict = judge_embeddings(total.embeddings)
        else:
            verdict = judge(total.texts, self._workload, self._options.normalization)
        server, about_server = self._server_side(len(windows), total)
        cpu_s = sum(total.cpu_s.values())
        return Measurement(
            model=self._target.model,
            protocol=self._target.endpoint.protocol,
            loop=self._loop,
            load=self._load,
            batch_size=self._options.batch_size,
            samples=self._target.samples,
            seconds=self._workload.seconds,
            wall_s=total.wall_s,
            requests=total.requests,
            utterances=total.utterances,
            audio_s=total.audio_s,
            errors=dict(total.errors.most_common()),
            latency=Latency.of(total.latencies),
            client_ms=1000 * cpu_s / max(1, total.requests),
            client_cpu=cpu_s / total.wall_s,
            client_processes=processes,
            windows=len(windows),
            stable=self._recorder.end is End.STABLE,
            server=server,
            sent_late=Latency.of(total.lateness),
            output=self._target.output,
            first_answer=Latency.of(total.firsts),
            answers=total.answers / max(1, len(total.latencies)) if self._target.usage == "answers" else None,
            **verdict.figures(),
            notes=[*notes, *self._notes_of_the_load(total), *about_server, *verdict.notes, *self._workload.notes],
        )

    def _stuck(self, total: Tick) -> int:
        """How many requests were in flight all the time, and longer than others take."""
        longest_s = max(total.latencies, default=0.0)
        return sum(started < total.begin and self._stopped_at - started > 2 * longest_s for started in self._open)

    def _server_side(self, num_windows: int, total: Tick) -> tuple[ServerSide | None, list[str]]:
        if len(self._looks) < 2:
            return None, ["it ended in the warm-up, so what the server counted is not known"]
        before, after = self._looks[max(0, len(self._looks) - 1 - num_windows)], self._looks[-1]
        in_flight = self._load if self._loop == "closed" else 0.0
        return server_side(before, after, total.requests, max(20.0, in_flight, 0.2 * total.requests / total.wall_s))

    def _notes_of_the_end(self) -> list[str]:
        recorder, plan = self._recorder, self._plan
        last = recorder.windows[-1]
        if recorder.end is End.UNSTABLE:
            what = "throughput or p95" if plan.judge_throughput else "p95"
            return [
                f"not stable: {what} of the last {plan.needed} of {recorder.num_windows} windows differ by "
                f"more than {plan.tolerance:.0%} from their mean"
            ]
        if recorder.end is End.OVERRUN:
            return [
                f"the server cannot keep up with {self._load:g} requests/s: {last.overrun} waited for their answer "
                "when sending was stopped"
            ]
        if recorder.end is End.FAILING:
            return ["no request succeeded for a whole window, so the measurement ended early"]
        return []

    def _notes_of_the_load(self, total: Tick) -> list[str]:
        notes = []
        busiest = max(total.cpu_s.values(), default=0.0) / total.wall_s
        if busiest >= BUSY:
            notes.append(
                f"the load generator used {busiest:.2f} of a core per process: the figures may be its own limit; use "
                "more processes"
            )
        if total.unscored:
            notes.append(f"{total.unscored} answers were not compared: too many different texts")
        if self._loop == "closed":
            return notes
        missing = total.sent - total.requests
        if self._recorder.end is not End.OVERRUN and missing > max(10.0, (1 - KEPT_UP) * total.sent):
            notes.append(
                f"the server cannot keep up: {total.requests} of the {total.sent} requests that were sent came back"
            )
        if total.lateness and 1000 * (late_s := float(np.percentile(total.lateness, 99))) > LATE_MS:
            notes.append(
                f"the load generator sent requests late, p99 {1000 * late_s:.1f} ms; that counts as latency. Use more "
                "processes, or a machine with free cores"
            )
        return notes


def _shares(target: Target, workload: Workload | Inputs, options: LoadOptions, count: int) -> Iterator[dict[str, Any]]:
    """The common arguments of both loops' jobs: each process sends its part of the pool."""
    if target.streaming:
        raise ValueError(f"model '{target.model}' is for streams; this load is of whole utterances")
    if isinstance(workload, Inputs) != (target.output == TENSORS):
        raise ValueError(f"the workload is not what model '{target.model}' is to be sent, audio or its own inputs")
    if isinstance(workload, Workload) and workload.sample_rate != target.sample_rate:
        raise ValueError(
            f"the workload has {workload.sample_rate} Hz, model '{target.model}' wants {target.sample_rate} Hz"
        )
    pool = list(enumerate(workload.pool))
    for index in range(count):
        share = pool[index::count] or [pool[index % len(pool)]]
        yield {"index": index, "target": target, "pool": share, "options": options}
