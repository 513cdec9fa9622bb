"""Every graph of a bundle on every device that is here: does it say the same, and how fast is it?

    python -m benchmarks.runtimes --bundle DIR [--device cuda] [--batches 1,8,32] [--seconds 2,7,16.7] [--output FILE]

Correctness comes first: log-probabilities and texts are compared with the bundle's first fp32 graph on the CPU. Then
the bare graph (arrays in host memory in, what greedy search needs out) and the pipeline around it are timed on the
same batches, and the streaming pipeline on one step of many streams. Prints the tables; FILE.json keeps them, FILE.md
shows them.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.measure import timed_in_turn
from tritone.audio.waveform import Waveform
from tritone.bundle import Bundle
from tritone.bundle.manifest import Artifact
from tritone.loadtest.workload.speech import Tape
from tritone.pipelines import Step, open_offline, open_streaming
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.searching.ctc import CtcSearching
from tritone.report.stamp import Stamp
from tritone.report.table import Cell, Column, Table
from tritone.runtime import obstacle, open_graph
from tritone.search.options import SearchOptions

Row = dict[str, Cell]

UTTERANCES = 64  # whose texts are compared
SHORTEST_S, LONGEST_S = 1.0, 8.0
WARM_UPS = 4  # calls of the same shapes, before which a GPU's are not recorded

KEYS = [Column("runtime", "runtime"), Column("precision", "precision"), Column("device", "device")]
AGREEMENT = [
    *KEYS,
    Column("mean", "mean difference of log-probs"),
    Column("largest", "largest"),
    Column("texts", "equal texts", digits=1, unit="%", scale=100),
    Column("open_s", "opened", digits=2, unit="s"),
]
OFFLINE = [
    *KEYS,
    Column("seconds", "audio", unit="s"),
    Column("batch", "batch"),
    Column("graph_ms", "graph", digits=2, unit="ms"),
    Column("pipeline_ms", "pipeline", digits=2, unit="ms"),
    Column("ratio", "graph ÷ pipeline", digits=2),
    Column("rtfx", "pipeline RTFx", digits=0),
]
STREAMING = [
    *KEYS,
    Column("streams", "streams a step"),
    Column("step_ms", "step", digits=2, unit="ms"),
    Column("capacity", "streams in real time", digits=0),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", default="demo-asr", help="shipped bundle or folder (default: demo-asr)")
    parser.add_argument("--device", help="cpu, cuda, cuda:N or several (default: cuda where it is, else cpu)")
    parser.add_argument("--runtime", help="only this one")
    parser.add_argument("--batches", default="1,8,32", help="batch sizes, and streams of a step")
    parser.add_argument("--seconds", default="2,7,16.7", help="lengths of audio")
    parser.add_argument("--output", type=Path, help="FILE.json; the page is written beside it")
    arguments = parser.parse_args()
    bundle, stamp = Bundle.open(arguments.bundle), Stamp.here()
    batches = [int(part) for part in arguments.batches.split(",")]
    lengths = [float(part) for part in arguments.seconds.split(",")]
    has_gpu = any(obstacle(runtime, "cuda") is None for runtime in bundle.runtimes)
    devices = (arguments.device or ("cuda" if has_gpu else "cpu")).split(",")
    chosen = list(_chosen(bundle, devices, arguments.runtime))
    if not chosen:
        parser.error("nothing of this bundle can run on these devices")
    reference = _Reference(bundle)
    tables = [
        Table(
            "Agreement with float32 on the CPU", AGREEMENT, [_agreement(bundle, *each, reference) for each in chosen]
        ),
        Table(
            "Whole utterances", OFFLINE, [row for each in chosen for row in _offline(bundle, *each, lengths, batches)]
        ),
    ]
    if bundle.has("streaming_encoder"):
        rows = [row for each in chosen for row in _streaming(bundle, *each, batches)]
        tables.append(Table("Streams", STREAMING, rows))
    page = "\n".join([f"# {bundle.manifest.name}", "", stamp.summary(), "", *(table.to_markdown() for table in tables)])
    print(page)
    if arguments.output:
        rows_of = {table.title: table.rows for table in tables}
        content = {"bundle": bundle.manifest.name, "stamp": asdict(stamp), "tables": rows_of}
        arguments.output.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        arguments.output.with_suffix(".md").write_text(page, encoding="utf-8")


def _chosen(bundle: Bundle, devices: Sequence[str], runtime: str | None) -> Iterator[tuple[Artifact, str]]:
    for artifact in bundle.artifacts("encoder", runtime):  # an unknown one has no graphs
        for device in devices:
            if (reason := obstacle(artifact.runtime, device)) is None:
                yield artifact, device
            else:
                print(f"{artifact.runtime} on {device} is left out: {reason}", flush=True)


def _names(artifact: Artifact, device: str) -> Row:
    return {"runtime": artifact.runtime, "precision": artifact.precision, "device": device}


def _placement(artifact: Artifact, device: str) -> Placement:
    return Placement(device=device, runtime=artifact.runtime, precision=artifact.precision)


class _Reference:
    """Audio, and what the bundle's first fp32 graph says of it on the CPU."""

    def __init__(self, bundle: Bundle) -> None:
        rate, rng = bundle.manifest.sample_rate, np.random.default_rng(0)
        tape = Tape.shipped(rate)
        seconds = rng.uniform(SHORTEST_S, LONGEST_S, UTTERANCES)
        self.audio = [tape.cut(round(length * rate), rng) for length in seconds]
        self.inputs = _block(bundle, self.audio[:8])
        path = bundle.artifact("encoder", precision="fp32")
        self.log_probs, self.num_frames = open_graph(path)(self.inputs, ["log_probs", "num_frames"])
        self.texts = [
            each.text for each in open_offline(bundle, placement=Placement(precision="fp32")).recognize(self.audio)
        ]


def _agreement(bundle: Bundle, artifact: Artifact, device: str, reference: _Reference) -> Row:
    start = perf_counter()
    graph = open_graph(bundle.file(artifact.files[0]), device)
    open_s = perf_counter() - start
    log_probs, num_frames = graph(reference.inputs, ["log_probs", "num_frames"])
    if not np.array_equal(num_frames, reference.num_frames):
        raise SystemExit(f"{artifact.files[0]} on {device} counts other frames than the reference")
    valid = np.arange(log_probs.shape[1]) < num_frames[:, None]
    difference = np.abs(log_probs - reference.log_probs)[valid]
    found = open_offline(bundle, placement=_placement(artifact, device)).recognize(reference.audio)
    equal = [one.text == text for one, text in zip(found, reference.texts, strict=True)]
    return {
        **_names(artifact, device),
        "mean": float(difference.mean()),
        "largest": float(difference.max()),
        "texts": float(np.mean(equal)),
        "open_s": open_s,
    }


def _offline(
    bundle: Bundle, artifact: Artifact, device: str, lengths: Sequence[float], batches: Sequence[int]
) -> Iterator[Row]:
    rate, rng = bundle.manifest.sample_rate, np.random.default_rng(1)
    tape = Tape.shipped(rate)
    pipeline = open_offline(bundle, placement=_placement(artifact, device), max_audio_s=max(lengths) + 1)
    graph = open_graph(bundle.file(artifact.files[0]), device)
    outputs = CtcSearching(bundle, graph).outputs([SearchOptions()])
    for seconds in lengths:
        for batch in batches:
            audio = [tape.cut(round(seconds * rate), rng) for _ in range(batch)]
            inputs = _block(bundle, audio)
            graph_s, pipeline_s = timed_in_turn(
                partial(graph, inputs, outputs), partial(pipeline.recognize, audio), warm_ups=WARM_UPS
            )
            yield {
                **_names(artifact, device),
                "seconds": seconds,
                "batch": batch,
                "graph_ms": 1000 * graph_s,
                "pipeline_ms": 1000 * pipeline_s,
                "ratio": graph_s / pipeline_s,
                "rtfx": batch * seconds / pipeline_s,
            }


def _streaming(bundle: Bundle, artifact: Artifact, device: str, batches: Sequence[int]) -> Iterator[Row]:
    settings = bundle.manifest.streaming
    assert settings is not None
    rate, rng = bundle.manifest.sample_rate, np.random.default_rng(2)
    tape = Tape.shipped(rate)
    shift = settings.shift_samples
    pipeline = open_streaming(
        bundle, placement=_placement(artifact, device), capacity=max(batches), max_batch=max(batches)
    )
    for streams in batches:
        slots = [pipeline.open() for _ in range(streams)]
        # Then every further step has exactly one window of each stream to run.
        pipeline.advance([Step(slot, tape.cut(settings.window_samples, rng)) for slot in slots])
        audio = [tape.cut(shift, rng) for _ in slots]
        steps = [Step(slot, samples) for slot, samples in zip(slots, audio, strict=True)]
        (step_s,) = timed_in_turn(partial(pipeline.advance, steps), warm_ups=WARM_UPS)
        for slot in slots:
            pipeline.close(slot)
        yield {
            **_names(artifact, device),
            "streams": streams,
            "step_ms": 1000 * step_s,
            "capacity": streams * shift / rate / step_s,
        }


def _block(bundle: Bundle, audio: Sequence[Waveform]) -> dict[str, Any]:
    """A batch as the pipeline makes it: with the bundle's tail, padded to the longest."""
    lengths = np.array([len(waveform) + bundle.manifest.encoder.tail_samples for waveform in audio])
    block = np.zeros((len(audio), lengths.max()), dtype=np.float32)
    for row, waveform in zip(block, audio, strict=True):
        row[: len(waveform)] = waveform
    return {"waveform": block, "num_samples": lengths}


if __name__ == "__main__":
    main()
