"""Speaker models of published size: what serving leaves of the bare network, in the form of WeSpeaker's own table.

    python -m benchmarks.speaker [--device cpu|cuda] [--sizes resnet34,ecapa_c512] [--runtime onnxruntime]
    python -m benchmarks.speaker --from docs/performance/speaker-cpu    # writes the page again, measures nothing

Utterances of 2.02 s (200 frames). Bare, in this process, in batches of 64 of features that lie ready: the bundle's
acoustic graph, and the plain network without masks, as upstream exports it, in the same runtime; the faster one counts.
Served: a real Triton over gRPC, single utterances, so many clients that each wait for their answer, in a process of
their own. Both take turns in one run. Weights are random: speed does not depend on what a network has learnt. Writes
report.json and report.md.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.measure import CALM_PERCENT, MIN_CALM, ROOT, Bystanders, is_calm, text_row, timed_in_turn
from benchmarks.models.random_bundle import RANDOM_BUNDLES
from tritone.bundle import Bundle
from tritone.client import Client
from tritone.loadtest.options import LoadOptions, WindowPlan
from tritone.loadtest.plans.build_options import BuildOptions
from tritone.loadtest.plans.generator import find_target
from tritone.loadtest.plans.serving import serve_bundle
from tritone.loadtest.requests.offline import measure_closed
from tritone.loadtest.senders.wire import Target
from tritone.loadtest.workload.embeddings import cosine
from tritone.loadtest.workload.speech import Tape
from tritone.loadtest.workload.workload import Workload
from tritone.report.stamp import Stamp
from tritone.report.table import Column, Table
from tritone.runtime import open_graph
from tritone.runtime.graph import Array

Row = dict[str, Any]
Call = Callable[[], Array]

SAMPLES = 32_320  # 2.02 s, the utterances of upstream's table
BATCH = 64
CPU_BATCH = 8  # as fast as 64 there, and answers come sooner
BARS = {"cpu": 0.90, "cuda": 0.80}  # of the bare network's throughput
ALIKE = {"fp32": 0.9999, "fp16": 0.999, "bf16": 0.99}  # cosine with the bare network's embedding
UPSTREAM = """\
| WeSpeaker's table, one T4, fp16 | engine alone (utt/s) | concurrency | throughput (utt/s) | avg (ms) | p99 (ms) |
| --- | ---: | ---: | ---: | ---: | ---: |
| ResNet34 | 2546 | 200 | 2033 | 98 | 111 |
| ResNet34 | 2546 | 400 | 2010 | | |
| ECAPA c512 | 3389 | 200 | 2647 | 75 | 111 |
| ECAPA c512 | 3389 | 400 | 2726 | | |
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="resnet34,ecapa_c512", help="some of benchmarks/models/speaker.py's")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--runtime", default="onnxruntime", help="onnxruntime, torch or torchscript")
    parser.add_argument("--precision", default="fp32", help="fp32, fp16 or bf16")
    parser.add_argument("--concurrency", default="200,400")
    parser.add_argument("--rounds", type=int, default=3, help="of bare, then served")
    parser.add_argument("--bare-s", type=float, default=10.0, help="how long bare networks are measured in a round")
    parser.add_argument("--served-s", type=float, default=30.0, help="how long a load is measured in a round")
    parser.add_argument("--warmup-s", type=float, default=5.0, help="of a load; the first answer to each client too")
    parser.add_argument("--instances", type=int, help="default: 2")
    parser.add_argument("--threads", type=int, help="of an instance; default: the cores among the instances")
    parser.add_argument("--max-batch-size", type=int, help="default: 8 on a CPU, 64 on a GPU")
    parser.add_argument("--preferred", default="", help="batch sizes worth waiting for, such as 64")
    parser.add_argument("--queue-delay-ms", type=float, default=5.0)
    parser.add_argument("--processes", type=int, help="of the generator (default: 1 on a CPU, 4 with a GPU)")
    parser.add_argument("--compiled", action=argparse.BooleanOptionalAction, default=True, help="torch.compile too")
    parser.add_argument("--cores", type=int, help="CPU cores for everything together (default: all)")
    parser.add_argument("--output", type=Path, help="folder of the page (default: docs/performance/speaker-DEVICE)")
    parser.add_argument("--bundles", type=Path, default=RANDOM_BUNDLES)
    parser.add_argument("--from", dest="source", type=Path, help="write the page of this folder again")
    given = parser.parse_args()
    output = given.source or given.output or ROOT / "docs" / "performance" / f"speaker-{given.device}"
    if not given.source:
        output.mkdir(parents=True, exist_ok=True)
        if given.cores:
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: given.cores])
        _measure(given, output / "report.json")
    page = _page(json.loads((output / "report.json").read_text(encoding="utf-8")))
    (output / "report.md").write_text(page, encoding="utf-8")
    print(page)


def _measure(given: argparse.Namespace, path: Path) -> None:
    """Measure all points; the file is complete after each, so that an end by Ctrl-C keeps what there is."""
    from benchmarks.models.speaker import kept_speaker

    options = _options(given)
    content: dict[str, Any] = {
        "device": given.device,
        "runtime": given.runtime,
        "precision": given.precision,
        "serving": {
            "instances": options.instances,
            "threads": options.threads or "the cores shared",
            "max_batch_size": options.max_batch_size,
            "preferred_batch_sizes": list(options.preferred_batch_sizes),
            "queue_delay_ms": options.queue_delay_ms,
        },
        "cores": len(os.sched_getaffinity(0)),
        "stamp": asdict(Stamp.here("python -m benchmarks.speaker " + " ".join(_arguments(given)))),
        "rows": [],
    }
    for size in given.sizes.split(","):
        bundle = kept_speaker(size, given.bundles, given.runtime, given.precision)
        for row in _points(size, bundle, options, given):
            print(text_row(row), flush=True)
            content["rows"].append(row)
            path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _arguments(given: argparse.Namespace) -> list[str]:
    left_out = ("output", "bundles", "source", "compiled")
    pairs = [(name, value) for name, value in vars(given).items() if name not in left_out and value not in (None, "")]
    words = [part for name, value in pairs for part in (f"--{name.replace('_', '-')}", str(value))]
    return words if given.compiled else [*words, "--no-compiled"]


def _options(given: argparse.Namespace) -> BuildOptions:
    on_cpu = given.device == "cpu"
    instances = given.instances or 2
    return BuildOptions(
        instances=instances,
        threads=given.threads or (max(1, len(os.sched_getaffinity(0)) // instances) if on_cpu else 0),
        device="cpu" if on_cpu else "gpu",
        runtime=given.runtime,
        precision=given.precision,
        max_batch_size=given.max_batch_size or (CPU_BATCH if on_cpu else BATCH),
        preferred_batch_sizes=tuple(int(part) for part in given.preferred.split(",") if part),
        queue_delay_ms=given.queue_delay_ms,
        max_audio_s=10.0,
    )


def _points(size: str, bundle: Bundle, options: BuildOptions, given: argparse.Namespace) -> Iterator[Row]:
    rate, rng = bundle.manifest.sample_rate, np.random.default_rng(1)
    tape = Tape.shipped(rate)
    audio = np.stack([tape.cut(SAMPLES, rng) for _ in range(BATCH)])
    bare = _bare_networks(size, bundle, audio, given)
    expected = bare["acoustic"]()
    for name, call in bare.items():
        _require_alike(call(), expected, f"the network '{name}'", given.precision)
    workload = Workload(seconds=f"{SAMPLES / rate:g}", sample_rate=rate, waveforms=list(audio))
    with _serving(bundle, options) as (target, client, metrics_url):
        served = [each.vector for each in client.embed(list(audio), sample_rate=rate)]
        _require_alike(np.stack(served), expected, "the server", given.precision)
        for turn in range(given.rounds):
            for load in map(int, given.concurrency.split(",")):
                with Bystanders() as bystanders:
                    seconds = timed_in_turn(*bare.values(), repeats=3, enough_s=given.bare_s, most_s=3 * given.bare_s)
                    found = measure_closed(target, workload, load, _load_options(given, metrics_url))
                if found.failed or found.latency is None:
                    raise SystemExit(f"{found.failed} of {found.requests} requests failed: {dict(found.errors)}")
                alone = {name: BATCH / each for name, each in zip(bare, seconds, strict=True)}
                yield {
                    "size": size,
                    "round": turn + 1,
                    "concurrency": load,
                    **{f"bare {name} utt/s": round(each, 2) for name, each in alone.items()},
                    "served utt/s": round(found.throughput, 2),
                    "ratio": round(found.throughput / max(alone.values()), 4),
                    "of acoustic": round(found.throughput / alone["acoustic"], 4),
                    "mean ms": round(found.latency.mean_ms, 1),
                    "p50 ms": round(found.latency.p50_ms, 1),
                    "p99 ms": round(found.latency.p99_ms, 1),
                    "batch": round(found.server.mean_batch, 1) if found.server else 0.0,
                    "queue ms": round(found.server.queue_ms, 1) if found.server else 0.0,
                    "generator cores": round(found.client_cpu, 3),
                    "cores": len(os.sched_getaffinity(0)),
                    "least cosine": round(found.least_cosine or 0.0, 6),
                    "measured s": round(found.wall_s, 1),
                    "others %": bystanders.percent,
                }


def _load_options(given: argparse.Namespace, metrics_url: str) -> LoadOptions:
    window = WindowPlan(
        warmup_s=given.warmup_s,
        window_s=given.served_s,
        max_window_s=2 * given.served_s,
        min_requests=1,
        stable_windows=1,
        max_windows=1,
    )
    processes = given.processes or (1 if given.device == "cpu" else 4)
    return LoadOptions(windows=window, timeout_s=300.0, processes=processes, metrics_url=metrics_url)


@contextmanager
def _serving(bundle: Bundle, options: BuildOptions) -> Iterator[tuple[Target, Client, str]]:
    with (
        serve_bundle(bundle.path, options, mode="offline") as served,
        Client(f"grpc://{served.grpc_address}") as client,
    ):
        yield find_target(client, None, streaming=False), client, served.metrics_url


# --- The bare networks ----------------------------------------------------------------------------------------------


def _bare_networks(size: str, bundle: Bundle, audio: Array, given: argparse.Namespace) -> dict[str, Call]:
    """Calls that embed the batch: by the acoustic graph ("acoustic"), and by the plain network in one form or two."""
    counts = np.full(len(audio), audio.shape[1])
    chosen = {"runtime": given.runtime, "precision": given.precision}
    features, acoustic = (
        open_graph(bundle.file(bundle.artifacts(role, **chosen)[0].files[0]), given.device)
        for role in ("features", "acoustic")
    )
    (ready,) = features({"waveform": audio, "num_samples": counts}, ["features"])
    feed = {"features": ready, "num_samples": counts}
    calls: dict[str, Call] = {"acoustic": lambda: acoustic(feed, ["embeddings"])[0]}
    try:
        return calls | (
            _plain_onnx(size, ready) if given.runtime == "onnxruntime" else _plain_torch(size, ready, given)
        )
    except ValueError as error:  # has no plain form
        print(f"{size}: {error}", flush=True)
        return calls


def _plain_onnx(size: str, ready: Array) -> dict[str, Call]:
    """The plain network in onnxruntime with its own defaults, as upstream runs it."""
    import onnxruntime

    from benchmarks.models.plain_speaker import PlainNetwork, write_onnx
    from benchmarks.models.speaker import config_of, parse_config, random_network

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = len(os.sched_getaffinity(0))  # it would count cores that this process may not use
    with tempfile.TemporaryDirectory(prefix="tritone-bench-") as folder:
        path = Path(folder) / "plain.onnx"
        write_onnx(PlainNetwork(random_network(parse_config(config_of(size)))), path, ready.shape[1], ready.shape[2])
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return {"plain": lambda: session.run(["embs"], {"feats": ready})[0]}


def _plain_torch(size: str, ready: Array, given: argparse.Namespace) -> dict[str, Call]:
    """The plain network in torch, as it is ("plain") and compiled for its shapes. Features lie on the device."""
    import torch

    from benchmarks.models.plain_speaker import PlainNetwork
    from benchmarks.models.speaker import config_of, parse_config, random_network
    from tritone.families.export.precision import DTYPES
    from tritone.runtime.cuda.queue import EXACT

    network = PlainNetwork(random_network(parse_config(config_of(size)))).to(given.device, DTYPES[given.precision])
    features = torch.from_numpy(ready).to(given.device)

    def run(form: Callable[[Any], Any]) -> Array:
        with torch.inference_mode(), EXACT:
            found: Array = form(features).float().cpu().numpy()  # which waits for the device
        return found

    forms: dict[str, Call] = {"plain": partial(run, network)}
    if given.compiled:
        mode = "default" if given.device == "cpu" else "reduce-overhead"  # CUDA graphs
        forms["plain compiled"] = partial(run, torch.compile(network, dynamic=False, mode=mode))
    return forms


def _require_alike(found: Array, expected: Array, who: str, precision: str) -> None:
    cosines = [cosine(one, other) for one, other in zip(found, expected, strict=True)]
    if min(cosines) < ALIKE[precision]:
        raise SystemExit(
            f"{who} gives other embeddings than the acoustic graph (least cosine {min(cosines):.5f}), so nothing is "
            "timed"
        )


# --- The page -------------------------------------------------------------------------------------------------------


def _page(content: Mapping[str, Any]) -> str:
    rows: Sequence[Row] = content["rows"]
    bar = BARS[content["device"]]
    points = [_point([row for row in rows if _key(row) == key]) for key in dict.fromkeys(map(_key, rows))]
    least = min(point["ratio"] for point in points)
    stamp = Stamp(**content["stamp"])
    serving = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in content["serving"].items() if value)
    notes = [
        f"Utterances of 2.02 s over gRPC, {content['runtime']} {content['precision']}, random weights. Served with "
        f"{serving}.",
        "Engine alone: the bare network at batch 64 in process, features ready in memory; the acoustic graph of the "
        "bundle, and the plain network without masks as upstream runs it, in the same arithmetic (float32 "
        "without TF32). The ratio is to the fastest of them, and beside it to the bundle's own.",
        f"The generator shares the {content['cores']} cores with the server: its part of them is told, and the last "
        "column has the ratio to what the bare network would do on the cores that it leaves.",
        f"Every figure is the median of its rounds ({_calmness(rows)}).",
    ]
    verdict = f"Least ratio: **{least:.3f}** (asked for: at least {bar:g}, {'met' if least >= bar else 'NOT MET'})."
    title = f"# Speaker models on {content['device']}: served beside the bare network"
    summary = f"`{stamp.command}`, {stamp.summary()}"
    raw = Table("Every round", [Column(name, name) for name in rows[0]], rows).to_markdown()
    return "\n\n".join([title, verdict, *notes, summary, _table(points), UPSTREAM, raw])


def _key(row: Row) -> tuple[str, int]:
    return row["size"], row["concurrency"]


def _calmness(rows: Sequence[Row]) -> str:
    calm = sum(map(is_calm, rows))
    return f"{calm} of {len(rows)} were calm: others took at most {CALM_PERCENT:g} % of the cores"


def _point(rows: Sequence[Row]) -> Row:
    """The medians of a point's rounds; of the calm ones alone if there are enough."""
    calm = [row for row in rows if is_calm(row)]
    rows = calm if len(calm) >= MIN_CALM else rows
    point: Row = {name: value for name, value in rows[0].items() if isinstance(value, str)}
    point |= {name: median(row[name] for row in rows) for name, value in rows[0].items() if not isinstance(value, str)}
    point["net"] = median(row["ratio"] / (1 - row["generator cores"] / row["cores"]) for row in rows)
    return point


def _table(points: Sequence[Row]) -> str:
    bare = [name for name in points[0] if name.startswith("bare ")]
    columns = [
        Column("size", "model"),
        *(Column(name, f"engine alone: {name[5:-6]}", digits=1, unit="utt/s") for name in bare),
        Column("concurrency", "concurrency"),
        Column("served utt/s", "throughput", digits=1, unit="utt/s"),
        Column("mean ms", "avg latency", digits=0, unit="ms"),
        Column("p99 ms", "p99", digits=0, unit="ms"),
        Column("batch", "mean batch", digits=1),
        Column("ratio", "served ÷ engine", digits=3),
        Column("of acoustic", "served ÷ acoustic", digits=3),
        Column("generator cores", "generator", digits=3, unit="cores"),
        Column("net", "served ÷ engine on the rest", digits=3),
    ]
    return Table("Served and alone", columns, points).to_markdown()


if __name__ == "__main__":
    main()
