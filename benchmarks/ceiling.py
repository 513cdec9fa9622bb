"""How much load can the generator make? Asked of models that do nothing, with perf_analyzer's own ceiling beside it.

    python -m benchmarks.ceiling [--perf-analyzer FILE] [--protocols grpc,http] [--repeats 3]

The server does its part of the work on the same cores, so that the generator alone could do more. Prints every repeat,
writes its findings to docs/performance/load-generator.json and the page beside it, and exits 1 when a bar is not met.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.echo import OFFLINE, SAMPLE_RATE, STREAMING, echoing
from benchmarks.load_generator import add_options, use_cores, write
from benchmarks.measure import CALM_PERCENT, Bystanders, Cell, Finding, Setup, is_calm
from benchmarks.served import MODEL, serving
from tritone.bench.perf_analyzer import PerfAnalyzer, find_perf_analyzer
from tritone.bench.perf_input import write_inputs
from tritone.bench.plan import Point
from tritone.bundle import Bundle
from tritone.client.endpoint import Endpoint, Protocol
from tritone.errors import OperatorError
from tritone.loadtest.findings.result import Measurement
from tritone.loadtest.options import LoadOptions, WindowPlan
from tritone.loadtest.requests.offline import measure_closed
from tritone.loadtest.senders.wire import Target
from tritone.loadtest.streams.measure import measure_streams
from tritone.loadtest.workload.speech import Tape
from tritone.loadtest.workload.workload import Workload, speech_workload
from tritone.server import TritonServer

SECONDS = ("0.64", "2", "5", "10")
CONCURRENCY = 32
UTTERANCES = 8
BAR = 5.0  # times what the demo model answers on the same cores
STREAMS = (100, 200, 400, 800, 1600)
STREAM_BAR = 400
CHUNK_MS = 640.0
STREAM_S = "10"
IN_TIME, SENT_LATE_MS = 0.99, 20.0  # a count of streams is borne with so many chunks in time, and p99 sent so late
WINDOWS = WindowPlan(warmup_s=1.0, window_s=1.5, max_windows=5)
STREAM_WINDOWS = WindowPlan(warmup_s=1.0, window_s=3.0, max_windows=4)


def ceiling(
    echo: TritonServer,
    protocol: Protocol,
    demo: dict[str, float],
    binary: Path | None,
    setup: Setup,
    repeats: int,
) -> Finding:
    """The most requests per second over one protocol, for several lengths; `demo` is the demo model's RTFx for each."""
    rows: list[dict[str, Cell]] = []
    for seconds in SECONDS:
        workload = _workload(seconds)
        with tempfile.TemporaryDirectory(prefix="tritone-ceiling-") as folder:
            (inputs,) = write_inputs(
                workload.waveforms, Path(folder), sample_rate=SAMPLE_RATE, streaming=False, as_base64=True
            )
            target = _target(echo, protocol, OFFLINE)
            theirs = PerfAnalyzer(target=target, inputs=inputs, binary=binary, seconds=seconds, windows=WINDOWS)
            for _ in range(repeats):
                with Bystanders() as bystanders:
                    own = measure_closed(target, workload, CONCURRENCY, _options(echo))
                    other = theirs.measure(Point(loop="closed", load=CONCURRENCY)) if binary else None
                rows.append(
                    {
                        "utterance s": seconds,
                        "own /s": _checked(own).throughput,
                        "own MB/s": own.throughput * workload.mean_s * SAMPLE_RATE * 4 / 1e6,
                        "own p95 ms": _p95(own),
                        "own cores": own.client_cpu,
                        "perf_analyzer /s": _checked(other).throughput if other else "-",
                        "perf_analyzer p95 ms": _p95(other) if other else "-",
                        "own ÷ demo model": own.rtfx / demo[seconds],
                        "others %": bystanders.percent,
                    }
                )
    calm = [row for row in rows if is_calm(row)] or rows
    lengths = [each for each in SECONDS if any(row["utterance s"] == each for row in calm)]
    ratios = {
        each: median(float(row["own ÷ demo model"]) for row in calm if row["utterance s"] == each) for each in lengths
    }
    worst = min(ratios, key=lambda each: ratios[each])
    return Finding(
        key=f"ceiling-{protocol}",
        title=f"the most the generator asks for over {protocol} ÷ what {setup.bundle} answers on the same cores",
        value=ratios[worst],
        bar=BAR,
        sense="at least",
        setup=setup,
        rows=rows,
        notes=[
            f"The value is the worst length's, {worst} s; medians of the repeats that were calm (others at most "
            f"{CALM_PERCENT:g} %), or of all where none was. A do-nothing model at concurrency {CONCURRENCY}.",
            f"{setup.bundle} at the same concurrency, seconds of audio per second: "
            + ", ".join(f"{demo[each]:.0f} with {each} s" for each in SECONDS)
            + ".",
            '"own cores" is the CPU time of the generator per second; the server takes the rest.',
        ],
    )


def stream_ceiling(echo: TritonServer, setup: Setup) -> Finding:
    """The most paced streams that the generator plays in time."""
    workload = _workload(STREAM_S)
    target = _target(echo, "grpc", STREAMING, streaming=True)
    rows: list[dict[str, Cell]] = []
    borne = 0
    for count in STREAMS:
        options = LoadOptions(
            chunk_ms=CHUNK_MS, windows=STREAM_WINDOWS, metrics_url=f"http://{echo.options.address('metrics')}/metrics"
        )
        with Bystanders() as bystanders:
            found = _checked(measure_streams(target, workload, count, options))
        assert found.streaming is not None
        late_ms = found.sent_late.p99_ms if found.sent_late else 0.0
        rows.append(
            {
                "streams": count,
                "chunks /s": found.requests / found.wall_s,
                "in time %": 100 * found.streaming.in_time,
                "sent late p99 ms": late_ms,
                "drift ms": found.streaming.drift_ms,
                "own cores": found.client_cpu,
                "others %": bystanders.percent,
            }
        )
        if found.streaming.in_time < IN_TIME or late_ms > SENT_LATE_MS:
            break
        borne = count
    return Finding(
        key="ceiling-streams",
        title="live streams that the generator plays to a do-nothing model without being late",
        value=float(borne),
        bar=STREAM_BAR,
        sense="at least",
        setup=setup,
        rows=rows,
        notes=[
            f"Chunks of {CHUNK_MS:g} ms over gRPC. A count is borne with at least {IN_TIME:.0%} of the chunks answered "
            f"before the next was spoken, and 99 % of them sent at most {SENT_LATE_MS:g} ms late by the generator's "
            "own doing; tried in these steps, until one is not borne.",
        ],
    )


def demo_rtfx(server: TritonServer, protocol: Protocol) -> dict[str, float]:
    """What the served model answers at the same concurrency, seconds of audio per second, by length of utterances."""
    target = _target(server, protocol, MODEL)
    return {
        seconds: _checked(measure_closed(target, _workload(seconds), CONCURRENCY, _options(server))).rtfx
        for seconds in SECONDS
    }


def _options(server: TritonServer) -> LoadOptions:
    return LoadOptions(windows=WINDOWS, metrics_url=f"http://{server.options.address('metrics')}/metrics")


def _target(server: TritonServer, protocol: Protocol, model: str, streaming: bool = False) -> Target:
    address = server.grpc_address if protocol == "grpc" else server.http_address
    endpoint = Endpoint.parse(address, protocol)
    return Target(endpoint=endpoint, model=model, sample_rate=SAMPLE_RATE, streaming=streaming)


def _workload(seconds: str) -> Workload:
    return speech_workload(seconds, Tape.shipped(SAMPLE_RATE), max_utterances=UTTERANCES)


def _checked(found: Measurement) -> Measurement:
    if found.failed or not found.requests:
        raise SystemExit(f"{found.model}: {found.failed} requests failed: {dict(found.errors)}")
    return found


def _p95(found: Measurement) -> float:
    return found.latency.p95_ms if found.latency else float("nan")


def _binary(path: Path | None) -> Path | None:
    try:
        return find_perf_analyzer(path)
    except OperatorError as error:
        if path is not None:
            raise
        print(f"without perf_analyzer: {error}", file=sys.stderr)
        return None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", default="demo-asr", help="what to compare with (default: demo-asr)")
    parser.add_argument("--only", default="requests,streams", help="some of requests,streams (default: both)")
    add_options(parser, repeats=3)
    options = parser.parse_args(arguments)
    use_cores(parser, options.cores)
    binary = _binary(options.perf_analyzer)
    bundle = Bundle.open(options.bundle)
    setup = Setup.here(bundle.manifest.name, "benchmarks.ceiling")
    protocols: list[Protocol] = options.protocols.split(",")
    findings: list[Finding] = []

    def add(finding: Finding) -> None:
        print(finding, flush=True)
        findings.append(finding)
        write([finding], options.output)

    demo: dict[Protocol, dict[str, float]] = {}
    if "requests" in options.only.split(","):
        with serving(bundle, "offline") as server:
            demo = {protocol: demo_rtfx(server, protocol) for protocol in protocols}
    with echoing() as echo:
        for protocol, rates in demo.items():
            add(ceiling(echo, protocol, rates, binary, setup, options.repeats))
        if "streams" in options.only.split(","):
            add(stream_ceiling(echo, setup))
    return 0 if all(finding.is_met for finding in findings) else 1


if __name__ == "__main__":
    sys.exit(main())
