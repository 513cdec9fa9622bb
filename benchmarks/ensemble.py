"""What it costs to serve stages as models of their own, as a ratio from one run.

    python -m benchmarks.ensemble [--bundle DIR] [--runtime onnxruntime] [--cores 2] [--output FILE.json]

One server has a bundle twice, as one model and as an ensemble of python stages; both are asked for the same utterances
in turn. Without `--bundle`, one of the shipped model's size with random weights is exported first, with its stages
(needs the extra `export`). Prints every repeat, and ends by itself within two minutes.
"""

import argparse
import os
import tempfile
from pathlib import Path

from benchmarks.measure import Finding, Setup, alternate, median_ratio, save, to_markdown
from tritone.bundle import Bundle
from tritone.client import Client
from tritone.loadtest.workload.speech import Tape
from tritone.loadtest.workload.workload import speech_workload
from tritone.repository import EnsembleOptions, ModelOptions, build_repository
from tritone.server import ServerOptions, TritonServer, free_ports

CONCURRENCY = 8
COUNT = 64
SHORTEST_S, LONGEST_S = 1.0, 10.0
REPEATS = 4
FUSED, ENSEMBLE = "fused", "ensemble"
BAR = 0.8  # of the one model's throughput
TITLE = "What an ensemble costs"
INTRODUCTION = "A bundle served as one model and as an ensemble of python stages, by one server, in turn."


def ensemble_over_fused(bundle: Bundle, setup: Setup, options: ModelOptions | None = None) -> Finding:
    """Throughput of the ensemble, divided by that of the one model, through gRPC."""
    rate = bundle.manifest.sample_rate
    workload = speech_workload(f"uniform:{SHORTEST_S},{LONGEST_S}", Tape.shipped(rate), max_utterances=COUNT)
    audio = workload.waveforms
    seconds = sum(map(len, audio)) / rate
    http, grpc, metrics = free_ports(3)
    ports = ServerOptions(http_port=http, grpc_port=grpc, metrics_port=metrics, drain_s=1)
    with tempfile.TemporaryDirectory(prefix="tritone-bench-") as folder:
        for name, layout in ((FUSED, None), (ENSEMBLE, EnsembleOptions())):
            common = {"names": [name], "modes": "offline", "options": options, "layout": layout, "link": True}
            build_repository([bundle.path], folder, **common)  # type: ignore[arg-type]
        with TritonServer(folder, ports) as server, Client(server.grpc_address) as client:

            def texts(model: str) -> list[str]:
                return [result.text for result in client.transcribe(audio, model, concurrency=CONCURRENCY)]

            if (said := texts(ENSEMBLE)) != texts(FUSED) or len(set(said)) < COUNT // 4:
                raise SystemExit("the two layouts say different things, or the same to everything: nothing is timed")
            sides = {f"{name} s": lambda name=name: texts(name) for name in (FUSED, ENSEMBLE)}
            rows = alternate(sides, REPEATS)
    ratio, basis = median_ratio(rows, f"{FUSED} s", f"{ENSEMBLE} s")
    for row in rows:
        row |= {f"{ENSEMBLE} RTFx": seconds / row[f"{ENSEMBLE} s"], "ratio": row[f"{FUSED} s"] / row[f"{ENSEMBLE} s"]}
    return Finding(
        key="ensemble",
        title=f"throughput of an ensemble of python stages ÷ one model, through gRPC at concurrency {CONCURRENCY}",
        value=ratio,
        bar=BAR,
        sense="at least",
        setup=setup,
        rows=rows,
        notes=[
            basis,
            f"{len(audio)} utterances of {SHORTEST_S:g} to {LONGEST_S:g} s, {seconds:.0f} s of audio a repeat.",
            "All texts of both sides were equal.",
        ],
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", help="folder of a bundle with stages; one with random weights if not given")
    parser.add_argument("--runtime", default="onnxruntime", help="of its graphs (default: onnxruntime)")
    parser.add_argument("--cores", type=int, default=2, help="CPU cores for everything together (default: 2)")
    parser.add_argument("--output", type=Path, help="JSON file; a page is written beside it")
    arguments = parser.parse_args()
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < arguments.cores:
        parser.error(f"--cores {arguments.cores}: this process may use {len(usable)}")
    os.sched_setaffinity(0, usable[: arguments.cores])  # the server inherits it
    with tempfile.TemporaryDirectory(prefix="tritone-bench-") as folder:
        if arguments.bundle is None:
            from benchmarks.models.wenet import ModelSize, random_bundle

            runtimes = (arguments.runtime,)
            bundle = random_bundle(ModelSize(), Path(folder) / "b", runtimes=runtimes, streaming=False, stages=True)
        else:
            bundle = Bundle.open(arguments.bundle)
        setup = Setup.here(bundle.manifest.name, "benchmarks.ensemble")
        finding = ensemble_over_fused(bundle, setup, ModelOptions(runtime=arguments.runtime))
    print(finding, flush=True)
    if arguments.output is not None:
        page = to_markdown(save([finding], arguments.output), TITLE, INTRODUCTION)
        arguments.output.with_suffix(".md").write_text(page, encoding="utf-8")
    return 0 if finding.is_met else 1


if __name__ == "__main__":
    raise SystemExit(main())
