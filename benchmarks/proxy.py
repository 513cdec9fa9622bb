"""What the proxy costs, as ratios from one run: through it and directly, in turn, with the same client and server.

    python -m benchmarks.proxy [--bundle demo-asr|DIR] [--output FILE.json]

A model that does nothing shows what a request costs; a real one, what that means. The proxy has a process of its own,
as under `tritone serve`. Prints every repeat, and writes the JSON with its conditions and the page beside it (FILE.md).
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from benchmarks import echo
from benchmarks.measure import ROOT, Finding, Setup, alternate, median_ratio, save, to_markdown
from benchmarks.served import MODEL, serving
from tritone.audio.waveform import Waveform
from tritone.bundle import Bundle
from tritone.client import Client
from tritone.loadtest.workload.speech import Tape
from tritone.loadtest.workload.workload import speech_workload
from tritone.server import TritonServer, free_ports

COUNTS = {"echo": 300, MODEL: 80}  # utterances of a repeat
SHORTEST_S, LONGEST_S = 1.0, 10.0
REPEATS = 3
# What is measured: model, requests at once, and how much longer it may take through the proxy.
SIDES = (("echo", 1, 2.0), ("echo", 8, 2.0), (MODEL, 8, 1.1))
OUTPUT = ROOT / "docs" / "performance" / "proxy.json"
TITLE = "What the proxy costs"
INTRODUCTION = """\
Time through the proxy ÷ time directly, both in turn on the same audio, after a warm-up; all texts were equal. Client,
proxy and server share the cores, so the ratio is the worst that a machine of this size can have. "others %" is how much
of the cores foreign processes took during a repeat: above a few percent a figure is only indicative. Written by
`python -m benchmarks.proxy`; raw rows are in [proxy.json](proxy.json)."""
PROXY = """
import sys
from tritone.proxy import Proxy, ProxyOptions
http, grpc, upstream_http, upstream_grpc = sys.argv[1:]
with Proxy(ProxyOptions(host="127.0.0.1", http_port=int(http), grpc_port=int(grpc),
                        upstream_http=upstream_http, upstream_grpc=upstream_grpc)):
    print(flush=True)
    sys.stdin.read()
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", default="demo-asr", help="shipped bundle or folder (default: demo-asr)")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="JSON file; the page is written beside it")
    parser.add_argument("--cores", type=int, default=2, help="CPU cores for everything together (default: 2)")
    arguments = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.cores])  # the others inherit it
    bundle = Bundle.open(arguments.bundle)
    findings = []
    for model, started in (("echo", echo.echoing()), (MODEL, serving(bundle, "offline"))):
        with started as server:
            for name, concurrency, bar in SIDES:
                if name == model:
                    for protocol in ("grpc", "http"):
                        findings.append(_compare(server, bundle, name, protocol, concurrency, bar))
                        print(findings[-1], flush=True)
    arguments.output.with_suffix(".md").write_text(
        to_markdown(save(findings, arguments.output), TITLE, INTRODUCTION), encoding="utf-8"
    )
    return 0 if all(finding.is_met for finding in findings) else 1


def _compare(server: TritonServer, bundle: Bundle, model: str, protocol: str, concurrency: int, bar: float) -> Finding:
    audio = _utterances(bundle.manifest.sample_rate, COUNTS[model])
    direct = server.grpc_address if protocol == "grpc" else server.http_address
    with (
        _proxying(server) as (addresses, process),
        Client(direct, protocol=protocol) as near,
        Client(addresses[protocol], protocol=protocol) as far,
    ):

        def texts(client: Client) -> list[str]:
            return [result.text for result in client.transcribe(audio, model, concurrency=concurrency)]

        if texts(near) != texts(far):
            raise SystemExit(f"{model}, {protocol}: texts through the proxy differ, so nothing is timed")
        rows = alternate({"direct s": lambda: texts(near), "proxy s": lambda: texts(far)}, REPEATS)
        before = sum(process.cpu_times()[:2])
        texts(far)
        cpu_us = (sum(process.cpu_times()[:2]) - before) / len(audio) * 1e6
    ratio, basis = median_ratio(rows, "proxy s", "direct s")
    for row in rows:
        row |= {
            "ratio": row["proxy s"] / row["direct s"],
            "added us": (row["proxy s"] - row["direct s"]) / len(audio) * 1e6,
        }
    what = "a model that does nothing" if model == "echo" else bundle.manifest.name
    return Finding(
        key=f"{model}-{protocol}-{concurrency}",
        title=f"time through the proxy ÷ directly: {what}, {protocol}, concurrency {concurrency}",
        value=ratio,
        bar=bar,
        sense="at most",
        setup=Setup.here(bundle.manifest.name, "benchmarks.proxy"),
        rows=rows,
        notes=[
            basis,
            f"{len(audio)} utterances of {SHORTEST_S:g} to {LONGEST_S:g} s a repeat. The proxy used {cpu_us:.0f} µs of "
            "CPU time for each.",
        ],
    )


@contextmanager
def _proxying(server: TritonServer) -> Iterator[tuple[dict[str, str], psutil.Process]]:
    http, grpc = free_ports(2)
    arguments = (str(http), str(grpc), server.http_address, server.grpc_address)
    with subprocess.Popen(
        [sys.executable, "-c", PROXY, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdout.readline()
        yield {"http": f"127.0.0.1:{http}", "grpc": f"127.0.0.1:{grpc}"}, psutil.Process(process.pid)
        process.stdin.close()


def _utterances(sample_rate: int, count: int) -> Sequence[Waveform]:
    tape = Tape.shipped(sample_rate)
    return speech_workload(f"uniform:{SHORTEST_S},{LONGEST_S}", tape, max_utterances=count).waveforms


if __name__ == "__main__":
    sys.exit(main())
