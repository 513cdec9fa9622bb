"""One acoustic model on every runtime that is here, in the layout of NVIDIA's Jasper tables.

    python -m benchmarks.jasper --runtimes onnxruntime,torch,torchscript [--precisions fp32,bf16] [--device cuda]
    python -m benchmarks.jasper --from docs/performance/jasper-cpu    # writes the page again, measures nothing

Whole utterances of equal length in batches of one size, as NVIDIA measured them. The bare network is the acoustic graph
on features that are ready in memory; the pipeline takes waveforms and gives transcripts. Both run in turn on the same
audio. Weights are random: speed does not depend on what a network has learnt. Writes report.json, report.md and a plot
for each length of audio.
"""

import argparse
import gc
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import CALM_PERCENT, ROOT, Bystanders, timed_in_turn
from benchmarks.models.random_bundle import RANDOM_BUNDLES
from tritone.bundle import Bundle
from tritone.bundle.manifest import Artifact
from tritone.loadtest.workload.speech import Tape
from tritone.pipelines import open_offline
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.searching.ctc import CtcSearching
from tritone.report.plots import COLOURS, MARKERS, label_axes, legend, new_figure, png
from tritone.report.stamp import Stamp
from tritone.report.table import Column, Table
from tritone.runtime import obstacle, open_graph
from tritone.search.options import SearchOptions

Row = dict[str, Any]

SECONDS = "2,7,16.7"
BATCHES = "1,2,4,8"
MAX_TRIES = 3  # of a point that foreign processes disturb
BAR = 0.90  # of the pipeline's throughput, as a share of the bare network's
NVIDIA = {"onnxruntime": "ONNX Runtime", "torch": "PyTorch", "torchscript": "TorchScript", "tensorrt": "TensorRT"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", default="10x5dr", help="10x5dr (Jasper) or 15x5 (QuartzNet)")
    parser.add_argument("--runtimes", default="onnxruntime,torch,torchscript")
    parser.add_argument(
        "--precisions", default="fp32", help="fp32, fp16, bf16 or several; each runtime has some of them"
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--seconds", default=SECONDS, help="lengths of audio")
    parser.add_argument("--batches", default=BATCHES)
    parser.add_argument("--repeats", type=int, default=5, help="of every time: its median counts")
    parser.add_argument("--most-s", type=float, default=30.0, help="no more repeats of a point after this long")
    parser.add_argument("--output", type=Path, help="folder of the page (default: docs/performance/jasper-DEVICE)")
    parser.add_argument("--bundles", type=Path, default=RANDOM_BUNDLES)
    parser.add_argument("--from", dest="source", type=Path, help="write the page of this folder again")
    given = parser.parse_args()
    output = given.source or given.output or ROOT / "docs" / "performance" / f"jasper-{given.device.split(':')[0]}"
    if not given.source:
        output.mkdir(parents=True, exist_ok=True)
        _measure(given, output / "report.json")
    _write(json.loads((output / "report.json").read_text(encoding="utf-8")), output)
    print(f"wrote {output}")


def _measure(given: argparse.Namespace, path: Path) -> None:
    """Measure all points; the file is complete after each, so that an end by Ctrl-C keeps what there is."""
    from benchmarks.models.jasper import random_bundle
    from benchmarks.models.random_bundle import kept_bundle

    runtimes, precisions = given.runtimes.split(","), given.precisions.split(",")
    name = f"jasper-{given.blocks}-{'-'.join((*runtimes, *precisions))}"
    folder = given.bundles / name
    options: dict[str, Any] = {"name": name, "runtimes": runtimes, "precisions": precisions, "stages": True}
    bundle = kept_bundle(folder, lambda: random_bundle(given.blocks, folder, **options))
    content: dict[str, Any] = {
        "blocks": given.blocks,
        "device": given.device,
        "stamp": asdict(Stamp.here("python -m benchmarks.jasper " + " ".join(_arguments(given)))),
        "rows": [],
    }
    for artifact in bundle.artifacts("encoder"):
        if reason := obstacle(artifact.runtime, given.device):
            print(f"{artifact.runtime} is left out: {reason}", flush=True)
            continue
        for row in _points(bundle, artifact, given):
            print(", ".join(f"{key} {value}" for key, value in row.items()), flush=True)
            content["rows"].append(row)
            path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        gc.collect()


def _arguments(given: argparse.Namespace) -> list[str]:
    names = ("blocks", "runtimes", "precisions", "device", "seconds", "batches", "repeats", "most_s")
    return [part for name in names for part in (f"--{name.replace('_', '-')}", str(getattr(given, name)))]


def _points(bundle: Bundle, artifact: Artifact, given: argparse.Namespace) -> Iterator[Row]:
    rate, rng = bundle.manifest.sample_rate, np.random.default_rng(1)
    tape = Tape.shipped(rate)
    lengths = [float(part) for part in given.seconds.split(",")]
    chosen: dict[str, Any] = {"runtime": artifact.runtime, "precision": artifact.precision}
    pipeline = open_offline(bundle, placement=Placement(**chosen, device=given.device), max_audio_s=max(lengths) + 1)
    network, features = (
        open_graph(bundle.file(bundle.artifacts(role, **chosen)[0].files[0]), given.device)
        for role in ("acoustic", "features")
    )
    outputs = CtcSearching(bundle, network).outputs([SearchOptions()])
    for seconds in lengths:
        for batch in map(int, given.batches.split(",")):
            audio = [tape.cut(round(seconds * rate), rng) for _ in range(batch)]
            counts = np.full(batch, len(audio[0]) + bundle.manifest.encoder.tail_samples)
            block = np.zeros((batch, counts[0]), np.float32)
            block[:, : len(audio[0])] = audio
            (ready,) = features({"waveform": block, "num_samples": counts}, ["features"])
            feed = {"features": ready, "num_samples": counts}
            for _ in range(MAX_TRIES):
                with Bystanders() as bystanders:
                    bare_s, pipeline_s = timed_in_turn(
                        partial(network, feed, outputs),
                        partial(pipeline.recognize, audio),
                        warm_ups=1 if given.device == "cpu" else 4,
                        repeats=given.repeats,
                        most_s=given.most_s,
                    )
                if bystanders.percent <= CALM_PERCENT:
                    break
            yield {
                **chosen,
                "seconds": seconds,
                "batch": batch,
                "bare_ms": round(1000 * bare_s, 3),
                "pipeline_ms": round(1000 * pipeline_s, 3),
                "throughput": round(batch / pipeline_s, 4),
                "ratio": round(bare_s / pipeline_s, 4),
                "others": bystanders.percent,
            }


def _write(content: Mapping[str, Any], output: Path) -> None:
    rows: list[Row] = content["rows"]
    systems = list(dict.fromkeys(_system(row) for row in rows))
    least = min(row["ratio"] for row in rows)
    lines = [
        f"# {'Jasper' if content['blocks'].endswith('dr') else 'QuartzNet'} {content['blocks']} on {content['device']}",
        "",
        "Random weights; whole utterances of one length in each batch, one batch after the other, in process. The",
        "tables have the layout of those that NVIDIA published for its Jasper deployment. Raw figures are in",
        "[report.json](report.json).",
        "",
        _summary(content["stamp"]),
        "",
        f"Pipeline ÷ bare network: the least of {len(rows)} points is {least:.3f} (asked for: at least {BAR:g} at",
        f"every point, {'met' if least >= BAR else 'NOT MET'}). The pipeline takes waveforms and gives transcripts,",
        "the bare network is the acoustic graph on features that lie ready, as it was exported. The pipeline's network",
        "is compiled code where `tritone compile` has made it on this machine.",
        "",
        _compared("Throughput comparison", rows, systems, "throughput", 2, "inf/s"),
        _compared("Latency comparison: milliseconds a batch", rows, systems, "pipeline_ms", 1, "ms"),
        _compared("Pipeline ÷ bare network", rows, systems, "ratio", 3, ""),
    ]
    for seconds in dict.fromkeys(row["seconds"] for row in rows):
        name = f"static-{seconds:g}s.png"
        (output / name).write_bytes(_plot([row for row in rows if row["seconds"] == seconds], systems, seconds))
        lines += [f"![Throughput against latency, {seconds:g} s]({name})", ""]
    (output / "report.md").write_text("\n".join(lines), encoding="utf-8")


def _summary(fields: Mapping[str, Any]) -> str:
    stamp = Stamp(**fields)
    return f"`{stamp.command}`, {stamp.summary()}"


def _system(row: Mapping[str, Any]) -> str:
    return f"{NVIDIA[row['runtime']]} {row['precision']}"


def _compared(title: str, rows: Sequence[Row], systems: Sequence[str], field: str, digits: int, unit: str) -> str:
    """A row for each length and batch, a column for each runtime; of throughput the speedups over the others too."""
    columns = [Column("seconds", "Audio length in seconds", digits=1), Column("batch", "Batch size")]
    columns += [Column(system, system, digits=digits, unit=unit) for system in systems]
    pairs = [(one, other) for one in systems[:1] for other in systems[1:]] if field == "throughput" else []
    columns += [Column(f"{one}/{other}", f"{one}/{other} speedup", digits=2) for one, other in pairs]
    points: dict[tuple[float, int], Row] = {}
    for row in rows:
        point = points.setdefault((row["seconds"], row["batch"]), {"seconds": row["seconds"], "batch": row["batch"]})
        point[_system(row)] = row[field]
    for point in points.values():
        for one, other in pairs:
            if one in point and other in point:
                point[f"{one}/{other}"] = point[one] / point[other]
    return Table(title, columns, list(points.values())).to_markdown()


def _plot(rows: Sequence[Row], systems: Sequence[str], seconds: float) -> bytes:
    figure, (axes,) = new_figure(
        f"Throughput against latency, {seconds:g} s of audio",
        subtitle="one line for each runtime, one point for each batch size",
    )
    for index, system in enumerate(systems):
        found = [row for row in rows if _system(row) == system]
        x, y = [row["pipeline_ms"] for row in found], [row["throughput"] for row in found]
        axes.plot(x, y, color=COLOURS[index % len(COLOURS)], marker=MARKERS[index % len(MARKERS)], label=system)
        for row in found:
            axes.annotate(
                str(row["batch"]), (row["pipeline_ms"], row["throughput"]), xytext=(4, 4), textcoords="offset points"
            )
    label_axes(axes, "latency of a batch (ms)", "throughput (inferences/s)")
    axes.set_ylim(bottom=0)
    legend(axes)
    return png(figure)


if __name__ == "__main__":
    main()
