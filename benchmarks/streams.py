"""Many live streams at once: does the server keep up with microphones?

Each stream delivers a chunk every 640 ms by the clock, starts at its own time, and sends a chunk when its last sample
has been "spoken" and the chunk before has been answered. Latency counts from the former, so that a late generator or a
late answer before it makes it worse, never better.

The load generator is one thread with a heap of due times; requests are prepared bytes, so that it takes little of the
cores that it shares with the server.
"""

import heapq
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

import grpc
import numpy as np
import psutil
from tritonclient.grpc import service_pb2 as pb

from benchmarks.measure import CALM_PERCENT, Bystanders, Cell, Finding, Setup, is_calm, percentiles, tree_cpu_s
from benchmarks.served import MODEL, batches, mean_batch, serving
from benchmarks.speech import Waveform, speech
from tritone.bundle import Bundle
from tritone.pipelines import Step, open_streaming
from tritone.server import TritonServer

STREAMS = 200
CHUNK_S = 0.64
STREAM_S = 20.48  # 32 chunks
RAMP_S = 3.2  # starts are spread over this time, not at a multiple of the chunk's
DISTINCT = 16  # different recordings; streams share them
FEWER = (50, 100)  # for comparison, once each
REPEATS, MAX_REPEATS = 3, 6  # calm ones with all streams, and how many are tried to get them
START, END = 1, 2
ANSWER_TIMEOUT_S = 60.0


@dataclass
class _Stream:
    """One microphone. `due` are the times at which its chunks have been spoken; `answered` when their texts came."""

    id: int
    recording: int
    begin: float
    next: int = 0
    answered: list[float] = field(default_factory=list)
    text: str = ""


def concurrent_streams(bundle: Bundle, setup: Setup) -> Finding:
    """Run live streams; the value is the share of chunks answered before the stream's next chunk was spoken."""
    rate = bundle.manifest.sample_rate
    rng = np.random.default_rng(0)
    audio = [speech(round(STREAM_S * rate), rate, rng) for _ in range(DISTINCT)]
    chunks = [
        [part[i : i + round(CHUNK_S * rate)] for i in range(0, len(part), round(CHUNK_S * rate))] for part in audio
    ]
    expected = _texts(bundle, chunks)
    rows: list[dict[str, Cell]] = []
    with serving(bundle) as server:
        rows += [_run(server, count, chunks, expected) for count in FEWER]
        full: list[dict[str, Cell]] = []
        while sum(map(is_calm, full)) < REPEATS and len(full) < MAX_REPEATS:
            full.append(_run(server, STREAMS, chunks, expected))
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
            f"Streams of {STREAM_S:g} s in chunks of {CHUNK_S * 1000:g} ms by the clock, starts over {RAMP_S:g} s. "
            "Latency counts from the moment when a chunk's last sample was spoken. The value is the worst repeat's.",
            "Drift: median latency of the last quarter of the chunks minus that of the second quarter; a server that "
            "does not keep up drifts by seconds. Latencies and CPU are of the time in which all streams were open.",
            "CPU in percent of all cores: server with its stubs, load generator (on the same cores), other processes.",
            "Every final text equals that of the pipeline in process.",
        ],
    )


def _run(
    server: TritonServer, count: int, chunks: Sequence[Sequence[Waveform]], expected: Sequence[str]
) -> dict[str, Cell]:
    model = f"{MODEL}-streaming"
    rng = np.random.default_rng(count)
    generator = _Generator(server.grpc_address, model, chunks)
    try:
        before = batches(server, model)
        starts = np.sort(rng.uniform(0, RAMP_S, count))
        begin = time.perf_counter() + 0.2
        # From the first chunk of the last stream to the end of the first stream all are open: that time counts.
        window = begin + starts[-1] + CHUNK_S, begin + starts[0] + STREAM_S
        with _CpuMeter(server.pid, *window) as cpu:
            streams = generator.play(begin, starts)
        sizes: Counter[int] = batches(server, model) - before
    finally:
        generator.close()
    wrong = [stream for stream in streams if stream.text != expected[stream.recording]]
    if wrong:
        raise SystemExit(
            f"{len(wrong)} of {count} streams have another text than the pipeline in process; the first: "
            f"{wrong[0].text!r}, expected {expected[wrong[0].recording]!r}"
        )
    due_and_late = sorted(
        (due, answered - due)
        for stream in streams
        for index, answered in enumerate(stream.answered)
        if window[0] <= (due := stream.begin + (index + 1) * CHUNK_S) <= window[1]
    )
    late = np.array([latency for _, latency in due_and_late])
    quarter = len(late) // 4
    told = percentiles(1000 * late)
    return {
        "streams": count,
        "in time %": 100 * float(np.mean(late <= CHUNK_S)),
        "p50 ms": told["p50"],
        "p95 ms": told["p95"],
        "p99 ms": told["p99"],
        "max ms": told["max"],
        "drift ms": 1000 * float(np.median(late[-quarter:]) - np.median(late[quarter : 2 * quarter])),
        "chunks": len(late),
        "mean batch": mean_batch(sizes),
        **cpu.percent,
    }


class _CpuMeter:
    """Who used the cores between two times of `perf_counter`, in percent, measured beside what is in `with`."""

    def __init__(self, server: int, begin: float, end: float) -> None:
        self.percent: dict[str, Cell] = {}
        self._thread = threading.Thread(target=self._measure, args=(server, begin, end))

    def __enter__(self) -> "_CpuMeter":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()

    def _measure(self, server: int, begin: float, end: float) -> None:
        time.sleep(max(0.0, begin - time.perf_counter()))
        with Bystanders() as bystanders:
            served, everything, started = tree_cpu_s(server), tree_cpu_s(), time.perf_counter()
            time.sleep(max(0.0, end - time.perf_counter()))
            served, everything = tree_cpu_s(server) - served, tree_cpu_s() - everything
            unit = 100 / ((time.perf_counter() - started) * (psutil.cpu_count() or 1))
        used = {"server %": served * unit, "generator %": (everything - served) * unit, "others %": bystanders.percent}
        self.percent = {**used, "left %": max(0.0, 100 - sum(used.values()))}


class _Generator:
    """Plays streams to a model, all from one thread."""

    def __init__(self, address: str, model: str, chunks: Sequence[Sequence[Waveform]]) -> None:
        self._channel = grpc.insecure_channel(address, [("grpc.enable_http_proxy", 0)])
        self._call = self._channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        # Protobuf fields may come in any order: the fixed part of a message and its stream part are simply joined.
        self._bodies = [[_body(model, chunk) for chunk in recording] for recording in chunks]
        self._answers: SimpleQueue[tuple[_Stream, float, grpc.Future]] = SimpleQueue()

    def play(self, begin: float, starts: Iterable[float]) -> list[_Stream]:
        """Run one stream for each start time, in seconds after `begin` (of `perf_counter`), to its end."""
        streams = [
            _Stream(id=index + 1, recording=index % len(self._bodies), begin=begin + float(start))
            for index, start in enumerate(starts)
        ]
        # (when, place in `streams`) of chunks that wait to be spoken; a stream has at most one.
        waiting = [(stream.begin + CHUNK_S, index) for index, stream in enumerate(streams)]
        heapq.heapify(waiting)
        running = len(streams)
        while running:
            while waiting and waiting[0][0] <= time.perf_counter():
                self._send(streams[heapq.heappop(waiting)[1]])
            pause = waiting[0][0] - time.perf_counter() if waiting else ANSWER_TIMEOUT_S
            try:
                stream, when, reply = self._answers.get(timeout=max(0.0, pause))
            except Empty:
                if not waiting:
                    raise SystemExit(f"{running} streams had no answer for {ANSWER_TIMEOUT_S:g} s") from None
                continue
            stream.answered.append(when)
            stream.next += 1
            if stream.next < len(self._bodies[stream.recording]):
                heapq.heappush(waiting, (stream.begin + (stream.next + 1) * CHUNK_S, stream.id - 1))
            else:
                stream.text = _text(reply.result())
                running -= 1
        return streams

    def close(self) -> None:
        self._channel.close()

    def _send(self, stream: _Stream) -> None:
        bodies = self._bodies[stream.recording]
        part = pb.ModelInferRequest()
        part.parameters["sequence_id"].int64_param = stream.id
        part.parameters["sequence_start"].bool_param = stream.next == 0
        part.parameters["sequence_end"].bool_param = stream.next == len(bodies) - 1
        future = self._call.future(bodies[stream.next] + part.SerializeToString(), timeout=ANSWER_TIMEOUT_S)
        future.add_done_callback(lambda reply: self._answers.put((stream, time.perf_counter(), reply)))


def _body(model: str, chunk: Waveform) -> bytes:
    request = pb.ModelInferRequest(model_name=model)
    for name, kind, size in (("WAV", "FP32", len(chunk)), ("WAV_LENS", "INT32", 1)):
        request.inputs.add(name=name, datatype=kind, shape=[1, size])
    request.outputs.add(name="TRANSCRIPTS")
    request.raw_input_contents.extend([chunk.tobytes(), np.array([len(chunk)], dtype=np.int32).tobytes()])
    return bytes(request.SerializeToString())


def _text(reply: bytes) -> str:
    (content,) = pb.ModelInferResponse.FromString(reply).raw_output_contents
    return bytes(content[4:]).decode("utf-8")  # a string tensor: four bytes of length before each element


def _texts(bundle: Bundle, chunks: Sequence[Sequence[Waveform]]) -> list[str]:
    pipeline = open_streaming(bundle, capacity=len(chunks))
    slots = [pipeline.open() for _ in chunks]
    texts: list[str] = []
    for step in range(len(chunks[0])):
        final = step == len(chunks[0]) - 1
        steps = [Step(slot, recording[step], final) for slot, recording in zip(slots, chunks, strict=True)]
        texts = [transcript.text for transcript in pipeline.advance(steps)]
    return texts
