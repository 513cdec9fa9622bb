"""Many live streams at once: does the server keep up with microphones?

The streams are those of `tritone bench`: see `loadtest.streams.measure` for how they are played and what latency counts
from. What is added here: every final text is compared with that of the pipeline in process, and who used the cores is
told.
"""

import threading
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import psutil

from benchmarks.measure import CALM_PERCENT, Cell, Finding, Setup, busy_s, is_calm, percentiles, tree_cpu_s
from benchmarks.served import MODEL, serving
from tritone.audio.waveform import Waveform
from tritone.bundle import Bundle
from tritone.client import Endpoint
from tritone.loadtest.options import LoadOptions, WindowPlan
from tritone.loadtest.senders.wire import Target
from tritone.loadtest.streams.measure import play_streams
from tritone.loadtest.streams.pacing import Column
from tritone.loadtest.streams.run import StreamRun, cut_windows
from tritone.loadtest.workload.speech import Tape
from tritone.loadtest.workload.workload import Workload
from tritone.pipelines import Step, open_streaming
from tritone.server import TritonServer

STREAMS = 200
CHUNK_S = 0.64
STREAM_S = 20.48  # 32 chunks
RAMP_S = 3.2  # starts are spread over this time
WARM_UP_S = 0.5  # after the first chunk of the last stream
WINDOWS = 4  # of a measurement, which is as long as a stream
DISTINCT = 16  # different recordings; streams share them
FEWER = (50, 100)  # for comparison, once each
REPEATS, MAX_REPEATS = 3, 6  # calm ones with all streams, and how many are tried to get them
SAMPLE_S = 0.25  # between two looks at who uses the cores


def concurrent_streams(bundle: Bundle, setup: Setup) -> Finding:
    """Run live streams; the value is the share of chunks answered before the stream's next chunk was spoken."""
    rate = bundle.manifest.sample_rate
    rng = np.random.default_rng(0)
    tape = Tape.shipped(rate)
    audio = [tape.cut(round(STREAM_S * rate), rng) for _ in range(DISTINCT)]
    workload = Workload(
        seconds=f"{STREAM_S:g}",
        sample_rate=rate,
        waveforms=audio,
        references=_texts(bundle, audio, round(CHUNK_S * rate)),
    )
    rows: list[dict[str, Cell]] = []
    with serving(bundle) as server:
        rows += [_run(server, count, workload) for count in FEWER]
        full: list[dict[str, Cell]] = []
        while sum(map(is_calm, full)) < REPEATS and len(full) < MAX_REPEATS:
            full.append(_run(server, STREAMS, workload))
    rows += full
    calm = [row for row in full if is_calm(row)]
    basis = f"{len(calm)} of {len(full)} repeats with {STREAMS} streams were calm (others at most {CALM_PERCENT:g} %)"
    basis += ": only those count." if calm else ": all count, and the figure is only indicative."
    return Finding(
        key="streams",
        title=f"{STREAMS} live streams: share of chunks answered before the next was spoken",
        value=min(float(row["in time %"]) for row in calm or full) / 100,
        bar=0.99,
        sense="at least",
        setup=setup,
        rows=rows,
        notes=[
            basis,
            f"Streams of {STREAM_S:g} s in chunks of {CHUNK_S * 1000:g} ms by the clock, starts over {RAMP_S:g} s; "
            "when one ends the next begins. Latency counts from the moment when a chunk's last sample was spoken. The "
            "value is the worst repeat's.",
            f"Drift: median latency of the last quarter of the {STREAM_S:g} s minus that of the second quarter; a "
            "server that does not keep up drifts by seconds. Latencies and CPU are of the time in which all streams "
            "were open.",
            "Sent late: p99 of what the generator itself was late with.",
            "CPU in percent of all cores: server with its stubs, load generator (on the same cores), other processes.",
            "Every final text equals that of the pipeline in process.",
        ],
    )


def _run(server: TritonServer, count: int, workload: Workload) -> dict[str, Cell]:
    target = Target(
        endpoint=Endpoint.parse(f"grpc://{server.grpc_address}"),
        model=f"{MODEL}-streaming",
        sample_rate=workload.sample_rate,
        streaming=True,
    )
    windows = WindowPlan(
        warmup_s=WARM_UP_S, window_s=STREAM_S / WINDOWS, min_requests=1, stable_windows=WINDOWS, max_windows=WINDOWS
    )
    options = LoadOptions(
        chunk_ms=1000 * CHUNK_S, start_spread_s=RAMP_S, windows=windows, processes=1, seed=count, drain_s=60
    )
    with _CpuMeter(server.pid) as cpu:
        run = play_streams(target, workload, count, options)
    found = run.measurement()
    if found.failed:
        raise SystemExit(f"{found.failed} of {found.requests} chunks failed: {dict(found.errors)}")
    _check_texts(run)
    late_s = [rows[:, Column.RECEIVED] - rows[:, Column.DUE] for _, rows in cut_windows(run.rows, _edges(run))]
    told = percentiles(1000 * np.concatenate(late_s))
    assert found.streaming is not None
    assert found.sent_late is not None
    return {
        "streams": count,
        "in time %": 100 * found.streaming.in_time,
        "p50 ms": told["p50"],
        "p95 ms": told["p95"],
        "p99 ms": told["p99"],
        "max ms": told["max"],
        "drift ms": 1000 * float(np.median(late_s[-1]) - np.median(late_s[1])),
        "sent late ms": found.sent_late.p99_ms,
        "chunks": found.requests,
        "mean batch": found.server.mean_batch if found.server else 0.0,
        **cpu.percent(run.begin, run.end),
    }


def _edges(run: StreamRun) -> list[float]:
    return [run.begin, *run.windows]


def _check_texts(run: StreamRun) -> None:
    expected = run.workload.references
    if not run.texts:
        raise SystemExit("no stream ended in the measured time, so no text can be compared")
    wrong = [(recording, text) for recording, text in run.texts if text != expected[recording]]
    if wrong:
        raise SystemExit(
            f"{sum(run.texts[each] for each in wrong)} of {run.texts.total()} streams have another text than the "
            f"pipeline in process; the first: {wrong[0][1]!r}, expected {expected[wrong[0][0]]!r}"
        )


@dataclass(frozen=True)
class _Sample:
    """CPU seconds until `when`: of the server with its stubs, of all our processes, and of everybody."""

    when: float
    server_s: float
    ours_s: float
    busy_s: float


@dataclass
class _CpuMeter:
    """Who used the cores while inside `with`; it looks every `SAMPLE_S`, so that any part of that time can be told."""

    server: int
    samples: list[_Sample] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "_CpuMeter":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(SAMPLE_S):
            self.samples.append(_Sample(time.perf_counter(), tree_cpu_s(self.server), tree_cpu_s(), busy_s()))

    def percent(self, begin: float, end: float) -> dict[str, Cell]:
        """Shares of all cores between two times of `perf_counter`."""
        times = [sample.when for sample in self.samples]
        first, last = self.samples[bisect_left(times, begin)], self.samples[bisect_left(times, end) - 1]
        unit = 100 / ((last.when - first.when) * (psutil.cpu_count() or 1))
        server, ours = last.server_s - first.server_s, last.ours_s - first.ours_s
        used = {
            "server %": server * unit,
            "generator %": (ours - server) * unit,
            "others %": round(max(0.0, (last.busy_s - first.busy_s - ours) * unit), 1),
        }
        return {**used, "left %": max(0.0, 100 - sum(used.values()))}


def _texts(bundle: Bundle, audio: Sequence[Waveform], chunk: int) -> list[str]:
    pipeline = open_streaming(bundle, capacity=len(audio))
    slots = [pipeline.open() for _ in audio]
    texts: list[str] = []
    for begin in range(0, len(audio[0]), chunk):
        final = begin + chunk >= len(audio[0])
        steps = [Step(slot, wave[begin : begin + chunk], final) for slot, wave in zip(slots, audio, strict=True)]
        texts = [transcript.text for transcript in pipeline.advance(steps)]
    return texts
