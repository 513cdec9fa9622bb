"""What serving and the pipeline add to the network: throughput as ratios, both sides in turn on the same audio.

gRPC at concurrency 8 ÷ in-process pipeline on batches of 8;  in-process pipeline ÷ bare onnxruntime.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime

from benchmarks.measure import Finding, Setup, alternate, median_ratio, tree_cpu_s
from benchmarks.served import MODEL, serving
from tritone.audio.waveform import Waveform
from tritone.bundle import Bundle
from tritone.client import Client
from tritone.loadtest.findings.statistics import Look, ServerWatch
from tritone.loadtest.senders.wire import Target
from tritone.loadtest.workload.speech import Tape
from tritone.loadtest.workload.workload import speech_workload
from tritone.pipelines import OfflinePipeline, open_offline
from tritone.pipelines.graphs.batching import plan_batches
from tritone.pipelines.graphs.placement import Placement
from tritone.search import ctc_greedy

CONCURRENCY = 8
COUNT = 160
SHORTEST_S, LONGEST_S = 1.0, 10.0
REPEATS = 7


def grpc_over_pipeline(bundle: Bundle, setup: Setup) -> Finding:
    """Throughput through Triton, divided by the pipeline's own."""
    pipeline = open_offline(bundle)
    audio = _utterances(pipeline.sample_rate)
    expected = _texts(pipeline, audio)
    with serving(bundle, "offline") as server, Client(server.grpc_address) as client:

        def through_grpc() -> list[str]:
            return [result.text for result in client.transcribe(audio, MODEL, concurrency=CONCURRENCY)]

        _require_equal(through_grpc(), expected, "gRPC")
        with ServerWatch(Target.of(client.endpoint, client.model(MODEL))) as watch:
            before = watch.look() or Look()
            rows = alternate({"gRPC s": through_grpc, "pipeline s": lambda: _texts(pipeline, audio)}, REPEATS)
            size = before.until(watch.look() or before).mean_batch
        client_share = _client_share(through_grpc, server.pid)
    ratio, basis = median_ratio(rows, "pipeline s", "gRPC s")
    seconds = sum(map(len, audio)) / pipeline.sample_rate
    for row in rows:
        row |= {"gRPC RTFx": seconds / row["gRPC s"], "ratio": row["pipeline s"] / row["gRPC s"]}
    return Finding(
        key="grpc",
        title=f"throughput through gRPC at concurrency {CONCURRENCY} ÷ pipeline in process",
        value=ratio,
        bar=0.85,
        sense="at least",
        setup=setup,
        rows=rows,
        notes=[
            basis,
            _material(audio, seconds),
            f"The pipeline takes batches of {CONCURRENCY} in process; Triton formed batches of {size:.1f} on average.",
            f"The client runs on the same cores and takes {client_share:.0%} of all CPU time that the gRPC side uses.",
            "All texts of both sides were equal.",
        ],
    )


def pipeline_over_onnxruntime(bundle: Bundle, setup: Setup) -> Finding:
    """Throughput of the pipeline, divided by that of its graph alone on the same padded batches."""
    pipeline = open_offline(bundle, placement=Placement(runtime="onnxruntime"))
    audio = _utterances(pipeline.sample_rate)
    bare = _Bare(bundle, pipeline, audio)
    _require_equal(bare.texts(), _texts(pipeline, audio), "bare onnxruntime")
    rows = alternate({"pipeline s": lambda: _texts(pipeline, audio), "bare s": bare.run}, REPEATS)
    ratio, basis = median_ratio(rows, "bare s", "pipeline s")
    seconds = sum(map(len, audio)) / pipeline.sample_rate
    for row in rows:
        row |= {"pipeline RTFx": seconds / row["pipeline s"], "ratio": row["bare s"] / row["pipeline s"]}
    return Finding(
        key="pipeline",
        title="throughput of the pipeline in process ÷ bare onnxruntime",
        value=ratio,
        bar=0.90,
        sense="at least",
        setup=setup,
        rows=rows,
        notes=[
            basis,
            _material(audio, seconds),
            "Bare: `InferenceSession.run` with onnxruntime's default options (threads spin while they wait), on blocks "
            "padded beforehand, the same blocks that the pipeline makes of batches of 8, and nothing else: no padding, "
            "no search, no text.",
            "All texts of both sides were equal.",
        ],
    )


@dataclass
class _Block:
    members: list[int]
    feed: dict[str, Any]


class _Bare:
    """The graph alone. Blocks are made before the clock starts."""

    def __init__(self, bundle: Bundle, pipeline: OfflinePipeline, audio: Sequence[Waveform]) -> None:
        self._bundle = bundle
        self._session = onnxruntime.InferenceSession(str(bundle.artifact("encoder", "onnxruntime")))
        self._blocks: list[_Block] = []
        tail = bundle.manifest.encoder.tail_samples
        for start in range(0, len(audio), CONCURRENCY):
            part = audio[start : start + CONCURRENCY]
            lengths = [len(waveform) + tail for waveform in part]
            plan = plan_batches(
                lengths,
                pipeline.runner.limits,
                sample_rate=pipeline.sample_rate,
                min_samples=bundle.manifest.encoder.min_samples,
            )
            for batch in plan:
                waveform = np.zeros((len(batch.indices), batch.num_samples), dtype=np.float32)
                for row, index in zip(waveform, batch.indices, strict=True):
                    row[: len(part[index])] = part[index]
                valid = [min(lengths[index], batch.num_samples) for index in batch.indices]
                num_samples = np.array(valid, dtype=np.int64)
                members = [start + index for index in batch.indices]
                self._blocks.append(_Block(members, {"waveform": waveform, "num_samples": num_samples}))

    def run(self) -> list[Any]:
        return [self._session.run(["log_probs", "num_frames"], block.feed) for block in self._blocks]

    def texts(self) -> list[str]:
        texts = {}
        vocabulary = self._bundle.manifest.vocabulary
        assert vocabulary is not None
        for block, (log_probs, num_frames) in zip(self._blocks, self.run(), strict=True):
            found = ctc_greedy(log_probs, num_frames, vocabulary.blank_id)
            for member, tokens in zip(block.members, found, strict=True):
                texts[member] = self._bundle.vocabulary.text([token.id for token in tokens])
        return [texts[index] for index in sorted(texts)]


def _texts(pipeline: OfflinePipeline, audio: Sequence[Waveform]) -> list[str]:
    parts = (audio[start : start + CONCURRENCY] for start in range(0, len(audio), CONCURRENCY))
    return [transcript.text for part in parts for transcript in pipeline.recognize(part)]


def _require_equal(texts: Sequence[str], expected: Sequence[str], side: str) -> None:
    different = [index for index, (a, b) in enumerate(zip(texts, expected, strict=True)) if a != b]
    if different:
        index = different[0]
        raise SystemExit(
            f"{side}: {len(different)} of {len(expected)} texts differ from the pipeline's, so nothing is timed; "
            f"the first, utterance {index}: {texts[index]!r}, expected {expected[index]!r}"
        )
    if len(set(expected)) < len(expected) // 4:
        raise SystemExit(
            f"only {len(set(expected))} different texts in {len(expected)}: nothing could be seen to differ"
        )


def _client_share(work: Callable[[], object], server: int) -> float:
    everything, served = tree_cpu_s(), tree_cpu_s(server)
    work()
    everything, served = tree_cpu_s() - everything, tree_cpu_s(server) - served
    return (everything - served) / everything


def _utterances(sample_rate: int) -> Sequence[Waveform]:
    tape = Tape.shipped(sample_rate)
    return speech_workload(f"uniform:{SHORTEST_S},{LONGEST_S}", tape, max_utterances=COUNT).waveforms


def _material(audio: Sequence[Waveform], seconds: float) -> str:
    return f"{len(audio)} utterances of {SHORTEST_S:g} to {LONGEST_S:g} s, {seconds:.0f} s of audio a repeat."
