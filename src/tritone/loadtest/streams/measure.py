"""Load tests of live streams: whether a server keeps up with a number of microphones, how late and how right it is.

    measure_streams(target, workload, 200)     # 200 streams are open at any time

Warm-up lasts until all streams are open, and a little longer. Then windows are measured until the last ones agree. At
the end the answers that are due are waited for, and the streams are ended.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from time import perf_counter

import numpy as np

from tritone.errors import InputError
from tritone.loadtest.findings.result import Measurement
from tritone.loadtest.findings.statistics import Look, ServerWatch, server_side
from tritone.loadtest.options import LoadOptions
from tritone.loadtest.processes.fleet import Fleet
from tritone.loadtest.requests.offline import Interrupted
from tritone.loadtest.requests.windows import Tick
from tritone.loadtest.senders.wire import Target
from tritone.loadtest.streams.job import StreamJob, StreamTick
from tritone.loadtest.streams.pacing import GOODBYE_S, Column, Kind
from tritone.loadtest.streams.run import Rows, StreamRun, cut_windows, failures, has, rows_agree
from tritone.loadtest.workload.workload import Workload

CHUNKS_OF_A_PROCESS = 400.0  # a second; a quarter of what one can do, so that it is never late
MAX_SPREAD_S = 10.0  # over which starts are spread if not said otherwise
SETTLE_S = 0.5  # after a window, until most of its answers are there
LEAST_S = 0.1  # of measured time
PATIENCE_S = 20.0  # beyond every time limit, until a process of the generator counts as dead

OnWindow = Callable[[Tick], None]


def measure_streams(
    target: Target,
    workload: Workload,
    streams: int,
    options: LoadOptions | None = None,
    *,
    on_window: OnWindow | None = None,
) -> Measurement:
    """Keep a number of streams open for some time and measure.

    Args:
        target: a streaming model.
        workload: what is spoken, at the model's rate.
        streams: how many are open at any time, from 1.
        options: how.
        on_window: called with every window as it ends; answers that are late then are not in it.

    Raises:
        InputError: the model takes no streams, or the audio does not fit it.
        OperatorError: a process of the generator failed.
        Interrupted: Ctrl-C; it carries what was measured.
    """
    run = play_streams(target, workload, streams, options, on_window=on_window)
    if run.is_interrupted:
        raise Interrupted(run.measurement())
    return run.measurement()


def play_streams(
    target: Target,
    workload: Workload,
    streams: int,
    options: LoadOptions | None = None,
    *,
    on_window: OnWindow | None = None,
) -> StreamRun:
    """Do as `measure_streams`, and return all that was seen.

    Ctrl-C in the measured time ends the run, which then `is_interrupted`. Before that time it raises `Interrupted`,
    without a measurement.
    """
    options = options or LoadOptions()
    jobs = share_out(target, workload, streams, options)
    interrupted: float | None = None
    first: Future[Look | None] | None = None
    last: Look | None = None
    try:
        # The counters are read in another thread: the server may take its time, and workers must be listened to.
        with ServerWatch(target, options.metrics_url) as watch, ThreadPoolExecutor(1) as aside, Fleet(jobs) as fleet:
            seen = _Seen(fleet.begin(), jobs, streams, options, on_window)
            try:
                while not seen.is_complete(perf_counter()):
                    seen.add(fleet.receive(options.timeout_s + PATIENCE_S))
                    if first is None and perf_counter() >= seen.begin:
                        first = aside.submit(watch.look)
            except KeyboardInterrupt:
                interrupted = perf_counter()
            with suppress(KeyboardInterrupt):  # a second one does not wait for answers and goodbyes
                last = aside.submit(watch.look).result() if first is not None else None
                for ticks in fleet.stop(options.timeout_s + options.drain_s + GOODBYE_S + PATIENCE_S):
                    seen.add(ticks)
    except KeyboardInterrupt as early:
        raise Interrupted(None) from early
    if interrupted is not None and interrupted < seen.begin + LEAST_S:
        raise Interrupted(None)
    return seen.run(target, workload, first.result() if first is not None else None, last, interrupted)


def share_out(target: Target, workload: Workload, streams: int, options: LoadOptions) -> list[StreamJob]:
    """Share streams and utterances out over processes.

    Raises:
        InputError: the model takes no streams, or the audio does not fit it.
    """
    if streams < 1:
        raise ValueError(f"there must be at least 1 stream, got {streams}")
    if not target.streaming:
        raise InputError(f"model '{target.model}' takes whole utterances; streams need a streaming model")
    if workload.sample_rate != target.sample_rate:
        raise InputError(
            f"the audio has {workload.sample_rate} Hz, model '{target.model}' needs {target.sample_rate} Hz"
        )
    spoken = [(index, waveform) for index, waveform in enumerate(workload.waveforms) if len(waveform)]
    if not spoken:
        raise InputError("none of the recordings has any samples; streams need something to say")
    rng = np.random.default_rng(options.seed)
    spread_s = start_spread_s(options, workload)
    processes = min(streams, options.processes_for(streams / options.chunk_s / CHUNKS_OF_A_PROCESS))
    starts = (np.arange(streams) + rng.uniform(0, 1, streams)) / streams * spread_s
    indices = rng.permutation(len(spoken))
    shares = [indices[number::processes] if len(indices) >= processes else indices for number in range(processes)]
    return [
        StreamJob(
            target=target,
            utterances=[spoken[index] for index in share],
            order=range(len(share)),
            starts=[float(start) for start in starts[number::processes]],
            score_after_s=spread_s + options.chunk_s + options.windows.warmup_s,
            options=options,
            seed=options.seed + number,
        )
        for number, share in enumerate(shares)
    ]


def start_spread_s(options: LoadOptions, workload: Workload) -> float:
    """The time over which the starts of streams are spread."""
    if options.start_spread_s is not None:
        return options.start_spread_s
    return min(MAX_SPREAD_S, max(5 * options.chunk_s, workload.mean_s))


def stream_window_s(options: LoadOptions, streams: int) -> float:
    """Length of a window. Streams come by the clock, so it is known how long its requests take."""
    plan = options.windows
    return min(plan.longest_s, max(plan.window_s, plan.min_requests * options.chunk_s / streams))


class _Seen:
    """Gathers what the processes saw, and decides when enough has been measured."""

    def __init__(
        self,
        start: float,
        jobs: Sequence[StreamJob],
        streams: int,
        options: LoadOptions,
        on_window: OnWindow | None,
    ) -> None:
        self.begin = start + jobs[0].score_after_s
        self._start = start
        self._processes = len(jobs)
        self._streams = streams
        self._options = options
        self._on_window = on_window
        self._window_s = stream_window_s(options, streams)
        self._rows: list[Rows] = []
        self._messages: list[str] = []
        self._texts: Counter[tuple[int, str]] = Counter()
        self._notes: dict[str, None] = {}
        self._spent: list[tuple[float, float, float]] = []  # begin, end, CPU seconds of each tick
        self._judged = 0  # windows
        self._ended: float | None = None  # when the streams ended by themselves

    def add(self, ticks: Sequence[StreamTick]) -> None:
        for tick in ticks:
            self._rows.append(self._translated(tick))
            self._texts.update(tick.texts)
            self._spent.append((tick.begin, tick.end, tick.cpu_s))
            self._notes.update(dict.fromkeys(tick.notes))
            if tick.ended is not None:
                self._ended = min(tick.ended, self._ended or tick.ended)

    def is_complete(self, now: float) -> bool:
        """Whether to end now: the last windows agree and a stream has ended in them, or there is no time for more."""
        if self._ended is not None:
            return True
        count = self._count(now - SETTLE_S)
        if count == self._judged:
            return False
        edges = [self.begin, *self._boundaries(count)]
        windows = cut_windows(self._between(edges[0], edges[-1]), edges)
        if self._on_window is not None:
            for number in range(self._judged, count):
                self._on_window(_as_tick(edges[number], edges[number + 1], windows[number][1], self._messages))
        self._judged = count
        is_enough = bool(self._texts) and rows_agree(windows, self._options)
        return is_enough or count >= self._options.windows.max_windows

    def run(
        self, target: Target, workload: Workload, first: Look | None, last: Look | None, interrupted: float | None
    ) -> StreamRun:
        """All that was seen. `first`, `last`: the server's counters; `interrupted`: when, if it was."""
        notes, begin = list(self._notes), self.begin
        cut = min((when for when in (self._ended, interrupted) if when is not None), default=None)
        windows = self._boundaries(self._judged if cut is None else self._count(cut))
        end = windows[-1] if cut is None else cut
        if interrupted is not None:
            notes.append(f"interrupted after {max(0.0, end - begin):.1f} s of measured time")
        if self._ended is not None and end < begin + self._options.timeout_s + self._window_s:
            # What went wrong may have started while the streams were opened.
            begin, end, windows = self._start, max(end, self._start + LEAST_S), []
            notes.append("the run ended so early that the figures are of all of it, with the warm-up")
        elif early := _count_failed(self._between(self._start, begin)):
            notes.append(f"{early} requests failed in the warm-up, before the measured time")
        rows = self._between(begin, end)
        # Requests that the server was done with in that time, whenever they were due. A stream that failed is ended by
        # one more request.
        handled = self._between(begin, end, Column.RECEIVED)
        ours = int((~has(handled, Kind.UNSENT)).sum()) + _count_failed(handled)
        slack = 20 + 2 * len(rows) / (end - begin)  # a look takes a moment, in which requests go on
        server, about_server = server_side(first, last, ours, slack)
        return StreamRun(
            target=target,
            workload=workload,
            streams=self._streams,
            options=self._options,
            processes=self._processes,
            begin=begin,
            end=end,
            rows=rows,
            messages=self._messages,
            texts=self._texts,
            windows=windows,
            cpu_s=self._cpu(begin, end) * (end - begin),
            server=server,
            notes=[*notes, *about_server],
            is_cut_short=cut is not None,
            is_interrupted=interrupted is not None,
        )

    def _count(self, now: float) -> int:
        return min(self._options.windows.max_windows, max(0, int((now - self.begin) / self._window_s)))

    def _boundaries(self, count: int) -> list[float]:
        return [self.begin + number * self._window_s for number in range(1, count + 1)]

    def _between(self, begin: float, end: float, column: Column = Column.DUE) -> Rows:
        rows = np.concatenate([np.zeros((0, len(Column))), *self._rows])
        return rows[(rows[:, column] >= begin) & (rows[:, column] < end)]

    def _translated(self, tick: StreamTick) -> Rows:
        """Rows whose errors are indices of our messages, not of the process's own."""
        for message in tick.messages:
            if message not in self._messages:
                self._messages.append(message)
        indices = np.array([self._messages.index(message) for message in tick.messages] + [-1])  # -1, no error, is last
        rows = tick.rows.copy()
        rows[:, Column.ERROR] = indices[failures(rows)]
        return rows

    def _cpu(self, begin: float, end: float) -> float:
        """Share of one core that all processes together took."""
        until = end + self._options.tick_s
        inside = [(till - since, used) for since, till, used in self._spent if begin <= since and till <= until]
        wall_s = sum(seconds for seconds, _ in inside)
        return self._processes * sum(used for _, used in inside) / wall_s if wall_s else 0.0


def _count_failed(rows: Rows) -> int:
    return int(((failures(rows) >= 0) & ~has(rows, Kind.UNSENT)).sum())


def _as_tick(begin: float, end: float, rows: Rows, messages: Sequence[str]) -> Tick:
    errors = failures(rows)
    tick = Tick(begin, end)
    good = rows[errors < 0]
    tick.latencies.extend(good[:, Column.RECEIVED] - good[:, Column.DUE])
    tick.lateness.extend(np.maximum(0.0, rows[:, Column.SENT] - rows[:, Column.READY]))
    tick.audio_s = float(good[:, Column.AUDIO_S].sum())
    tick.sent = len(rows)
    tick.utterances = int(has(good, Kind.FINAL).sum())
    for index, times in Counter(errors[(errors >= 0) & ~has(rows, Kind.UNSENT)].tolist()).items():
        tick.add_error(messages[index], times)
    return tick
