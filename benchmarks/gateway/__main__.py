"""What the gateway costs, as ratios and differences from one run: through it and directly, in turn.

    python -m benchmarks.gateway [--streams 300] [--chunk-ms 160] [--seconds 8] [--rounds 5] [--output FILE.json]

A model that does nothing is served, so that Triton is not what limits. The gateway has a core for itself; senders and
Triton share another one when streams go through it, and have both when they do not. Prints every round, and writes the
JSON with its conditions and the page beside it (FILE.md).
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil

from benchmarks.gateway.model import OFFLINE, STREAMING, counting
from benchmarks.measure import ROOT, Bystanders, Finding, Setup, save, to_markdown
from tritone.server import TritonServer, free_ports

OUTPUT = ROOT / "docs" / "performance" / "gateway.json"
TITLE = "What the gateway costs"
INTRODUCTION = """\
Latencies of chunks of live streams through the gateway's WebSocket and by gRPC directly, in turn, with a model that
does nothing: what is left is the gateway, the transports and Triton. The gateway has one core for itself. "others %" is
how much of the cores foreign processes took during a round: above a few percent a figure is only indicative. Written by
`python -m benchmarks.gateway`; raw rows are in [gateway.json](gateway.json)."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=300)
    parser.add_argument("--chunk-ms", type=float, default=160.0)
    parser.add_argument("--seconds", type=float, default=8.0, help="audio of each stream")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[:2]
    os.sched_setaffinity(0, {cores[-1]})  # Triton inherits it
    with counting() as server, _gateway(server, cores[0], arguments.chunk_ms) as (port, process):
        run = Run(server, port, process, cores, arguments)
        findings = [run.one_stream(), run.many_streams()]
    for each in findings:
        print(each, flush=True)
    arguments.output.with_suffix(".md").write_text(
        to_markdown(save(findings, arguments.output), TITLE, INTRODUCTION), encoding="utf-8"
    )
    return 0 if all(each.is_met for each in findings) else 1


class Run:
    """The measurements against one server and one gateway."""

    def __init__(
        self, server: TritonServer, port: int, gateway: psutil.Process, cores: list[int], arguments: argparse.Namespace
    ) -> None:
        self._server, self._port, self._gateway, self._cores = server, port, gateway, cores
        self._arguments = arguments
        self._setup = Setup.here(STREAMING, "benchmarks.gateway")

    def one_stream(self) -> Finding:
        """What the gateway adds to the median latency of a chunk of one stream, in milliseconds."""
        rows = self._rounds(1)
        added = median(row["ws p50 ms"] - row["grpc p50 ms"] for row in rows)
        return Finding(
            key="chunk-added-ms",
            title="gateway's part of the p50 latency of a chunk, ms, one stream",
            value=added,
            bar=5.0,
            sense="at most",
            setup=self._setup,
            rows=rows,
            notes=[self._notes],
        )

    def many_streams(self) -> Finding:
        """Chunk p95 of many streams through the gateway ÷ directly."""
        streams = self._arguments.streams
        rows = self._rounds(streams)
        return Finding(
            key=f"p95-ratio-{streams}",
            title=f"p95 latency of chunks of {streams} live WebSocket streams ÷ by gRPC directly, gateway on one core",
            value=median(row["ws p95 ms"] / row["grpc p95 ms"] for row in rows),
            bar=1.3,
            sense="at most",
            setup=self._setup,
            rows=rows,
            notes=[self._notes],
        )

    @property
    def _notes(self) -> str:
        return (
            f"Chunks of {self._arguments.chunk_ms:g} ms at the speed of speech, {self._arguments.seconds:g} s of audio "
            "a stream and round, PCM of 16 bits at 16 kHz; every chunk is answered by a partial text with two words."
        )

    def _rounds(self, streams: int) -> list[dict[str, Any]]:
        rows = []
        for _ in range(self._arguments.rounds):
            with Bystanders() as others:
                direct = self._send("grpc", self._server.grpc_address, streams, self._cores[0])
                before = sum(self._gateway.cpu_times()[:2])
                through = self._send("ws", f"127.0.0.1:{self._port}", streams, self._cores[-1])
                used = sum(self._gateway.cpu_times()[:2]) - before
            row: dict[str, Any] = {}
            for name, found in (("grpc", direct), ("ws", through)):
                p50, p95, p99 = np.percentile(found["latencies"], [50, 95, 99]) * 1000
                row |= {f"{name} p50 ms": float(p50), f"{name} p95 ms": float(p95), f"{name} p99 ms": float(p99)}
            row["gateway µs/chunk"] = 1e6 * used / len(through["latencies"])
            row["gateway core %"] = 100 * used / (self._arguments.seconds + 1)
            rows.append(row | {"others %": others.percent})
            print(", ".join(f"{name} {value:.4g}" for name, value in rows[-1].items()), flush=True)
        return rows

    def _send(self, how: str, address: str, streams: int, core: int) -> dict[str, Any]:
        options = (how, address, str(streams), f"{self._arguments.seconds}", f"{self._arguments.chunk_ms}", str(core))
        command = [sys.executable, "-m", "benchmarks.gateway.send", *options]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
        found: dict[str, Any] = json.loads(done.stdout)
        return found


@contextmanager
def _gateway(server: TritonServer, core: int, chunk_ms: float) -> Iterator[tuple[int, psutil.Process]]:
    (port,) = free_ports(1)
    options = ("--port", str(port), "--triton", server.grpc_address, "--stream-model", STREAMING, "--model", OFFLINE)
    command = [sys.executable, "-c", "from tritone.cli.main import app; app()", "gateway", *options]
    command += ["--chunk-ms", f"{chunk_ms}", "--no-access-log"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        os.sched_setaffinity(process.pid, {core})
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("Serving on")
            yield port, psutil.Process(process.pid)
        finally:
            process.terminate()


if __name__ == "__main__":
    sys.exit(main())
