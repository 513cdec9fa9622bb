"""Do two load generators that share no code agree? Our own against NVIDIA's perf_analyzer, on one served model.

    python -m benchmarks.agreement [--perf-analyzer FILE] [--protocols grpc,http] [--repeats 5]

Both measure the same points with the same audio, in turn, on the same running server. Prints every repeat, writes its
findings to docs/performance/load-generator.json and the page beside it, and exits 1 when a bar is not met.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from benchmarks.load_generator import WINDOWS, add_options, use_cores, write
from benchmarks.measure import Bystanders, Cell, Finding, Setup, is_calm
from benchmarks.served import MODEL, serving
from tritone.bench.perf_analyzer import PerfAnalyzer, find_perf_analyzer
from tritone.bench.perf_input import write_inputs
from tritone.bench.plan import Point
from tritone.bundle import Bundle
from tritone.client.endpoint import Endpoint, Protocol
from tritone.loadtest.findings.result import Measurement
from tritone.loadtest.options import LoadOptions
from tritone.loadtest.requests.offline import measure_closed
from tritone.loadtest.senders.wire import Target
from tritone.loadtest.workload.speech import Tape
from tritone.loadtest.workload.workload import Workload, speech_workload
from tritone.server import TritonServer

CONCURRENCIES = (1, 4, 16)
SECONDS = "5"
UTTERANCES = 16
BAR = 0.10
MAX_TRIES = 2  # for each calm repeat that is wanted
FIGURES: dict[str, Callable[[Measurement], float]] = {
    "throughput": lambda found: found.throughput,
    "p95": lambda found: found.latency.p95_ms if found.latency else float("nan"),
}


def agreement(
    server: TritonServer, protocol: Protocol, workload: Workload, binary: Path, setup: Setup, repeats: int
) -> list[Finding]:
    """Compare both generators over one protocol: a finding for each concurrency."""
    address = server.grpc_address if protocol == "grpc" else server.http_address
    target = Target(endpoint=Endpoint.parse(address, protocol), model=MODEL, sample_rate=workload.sample_rate)
    metrics_url = f"http://{server.options.address('metrics')}/metrics"
    findings = []
    with tempfile.TemporaryDirectory(prefix="tritone-agreement-") as folder:
        (inputs,) = write_inputs(
            workload.waveforms, Path(folder), sample_rate=workload.sample_rate, streaming=False, as_base64=True
        )
        theirs = PerfAnalyzer(
            target=target, inputs=inputs, binary=binary, seconds=SECONDS, windows=WINDOWS, metrics_url=metrics_url
        )
        options = LoadOptions(windows=WINDOWS, metrics_url=metrics_url)
        for concurrency in CONCURRENCIES:
            sides: dict[str, Callable[[], Measurement]] = {
                "own": lambda concurrency=concurrency: measure_closed(target, workload, concurrency, options),  # type: ignore[misc]
                "theirs": lambda concurrency=concurrency: theirs.measure(Point(loop="closed", load=concurrency)),  # type: ignore[misc]
            }
            rows: list[dict[str, Cell]] = []
            while sum(map(is_calm, rows)) < repeats and len(rows) < MAX_TRIES * repeats:
                rows.append(_repeat(sides, reverse=bool(len(rows) % 2)))
            findings.append(_finding(protocol, concurrency, rows, setup))
    return findings


def _repeat(sides: dict[str, Callable[[], Measurement]], *, reverse: bool) -> dict[str, Cell]:
    """Measure with both, each first in every second repeat: a machine that warms up or tires favours neither."""
    found: dict[str, Measurement] = {}
    others = 0.0
    for name in sorted(sides, reverse=reverse):
        with Bystanders() as bystanders:
            found[name] = sides[name]()
        others = max(others, bystanders.percent)  # who disturbs one side alone spoils the ratio
    for name, measurement in found.items():
        if measurement.failed:
            raise SystemExit(f"{name}: {measurement.failed} requests failed: {dict(measurement.errors)}")
    row: dict[str, Cell] = {}
    for figure, read in FIGURES.items():
        unit = "/s" if figure == "throughput" else " ms"
        values = {name: read(found[name]) for name in ("own", "theirs")}
        row |= {f"{figure} {name}{unit}": value for name, value in values.items()}
        row[f"{figure} ratio"] = values["own"] / values["theirs"]
    stable = {name: "stable" if found[name].stable else "unstable" for name in ("own", "theirs")}
    return row | stable | {"others %": others}


def _finding(protocol: Protocol, concurrency: int, rows: Sequence[dict[str, Cell]], setup: Setup) -> Finding:
    calm = [row for row in rows if is_calm(row)]
    ratios = {figure: median(float(row[f"{figure} ratio"]) for row in calm or rows) for figure in FIGURES}
    basis = f"medians of {len(calm)} calm repeats of {len(rows)}" if calm else "only indicative: no repeat was calm"
    told = ", ".join(f"{ratio:.3f} in {figure}" for figure, ratio in ratios.items())
    return Finding(
        key=f"agreement-{protocol}-{concurrency}",
        title=f"own generator ÷ perf_analyzer at concurrency {concurrency} over {protocol}: how far off 1",
        value=max(abs(ratio - 1) for ratio in ratios.values()),
        bar=BAR,
        sense="at most",
        setup=setup,
        rows=rows,
        notes=[
            f"Own ÷ perf_analyzer: {told}; {basis}. The value is the worse of them.",
            f"{UTTERANCES} utterances of {SECONDS} s in turn; windows of {WINDOWS.window_s:g} s until three of them "
            "agree, in each repeat for each of the two.",
        ],
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", default="demo-asr", help="shipped bundle or folder (default: demo-asr)")
    add_options(parser)
    arguments = parser.parse_args()
    use_cores(parser, arguments.cores)
    binary = find_perf_analyzer(arguments.perf_analyzer)
    bundle = Bundle.open(arguments.bundle)
    rate = bundle.manifest.sample_rate
    workload = speech_workload(SECONDS, Tape.shipped(rate), max_utterances=UTTERANCES)
    findings: list[Finding] = []
    with serving(bundle, "offline") as server:
        for protocol in arguments.protocols.split(","):
            setup = Setup.here(bundle.manifest.name, "benchmarks.agreement")
            found = agreement(server, protocol, workload, binary, setup, arguments.repeats)
            for finding in found:
                print(finding, flush=True)
            findings += found
            write(found, arguments.output)
    return 0 if all(finding.is_met for finding in findings) else 1


if __name__ == "__main__":
    sys.exit(main())
