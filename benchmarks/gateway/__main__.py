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
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import psutil

from benchmarks.gateway.model import OFFLINE, STREAMING, counting
from benchmarks.gateway.send import SAMPLE_RATE
from benchmarks.joined import write_audio
from benchmarks.measure import ROOT, Bystanders, Finding, Setup, save, to_markdown
from tritone.client import Client
from tritone.server import TritonServer, free_ports

FILES = 40
BOUNDARY = "the-end-of-a-part"
FORM = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
OUTPUT = ROOT / "docs" / "performance" / "gateway.json"
TITLE = "What the gateway costs"
INTRODUCTION = """\
Latencies of chunks of live streams through the gateway's WebSocket and by gRPC directly, and of files through REST
and by gRPC, in turn, with a model that does nothing: what is left is the gateway, the transports and Triton. The
gateway has one core for itself. "others %" is how much of the cores foreign processes took during a round: above a few
percent a figure is only indicative. Written by `python -m benchmarks.gateway`; raw rows are in
[gateway.json](gateway.json)."""


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
        findings = [run.one_stream(), run.one_file(), run.many_streams()]
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

    def one_file(self) -> Finding:
        """What the gateway adds to the median latency of a file of ten seconds, in milliseconds."""
        rows: list[dict[str, Any]] = []
        noise = np.random.default_rng(0).normal(0, 0.1, 10 * SAMPLE_RATE).astype(np.float32)
        head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="ten.wav"\r\n\r\n'
        with TemporaryDirectory() as folder, Client(self._server.grpc_address) as client:
            path = Path(folder, "ten.wav")
            write_audio(path, [noise], SAMPLE_RATE)
            body = head.encode() + path.read_bytes() + f"\r\n--{BOUNDARY}--\r\n".encode()
            connection = HTTPConnection("127.0.0.1", self._port, timeout=60)
            for _ in range(self._arguments.rounds):
                took: dict[str, list[float]] = {"gateway": [], "direct": []}
                with Bystanders() as others:
                    for _ in range(FILES):
                        begun = time.perf_counter()
                        client.transcribe(path, OFFLINE, details=True).get()
                        between = time.perf_counter()
                        connection.request("POST", "/v1/audio/transcriptions", body, FORM)
                        answer = connection.getresponse()
                        assert json.loads(answer.read())["text"] == "chunk 1", answer.status
                        took["gateway"].append(time.perf_counter() - between)
                        took["direct"].append(between - begun)
                row = {f"{how} p50 ms": 1000 * median(each) for how, each in took.items()}
                rows.append(row | {"others %": others.percent})
                print(", ".join(f"{name} {value:.4g}" for name, value in rows[-1].items()), flush=True)
            connection.close()
        return Finding(
            key="file-added-ms",
            title="gateway's part of the p50 latency of a file of 10 s, ms",
            value=median(row["gateway p50 ms"] - row["direct p50 ms"] for row in rows),
            bar=10.0,
            sense="at most",
            setup=self._setup,
            rows=rows,
            notes=[
                "A WAV file of 16 bits at 16 kHz, posted to /v1/audio/transcriptions, and sent by `Client.transcribe`, "
                f"in turn; {FILES} of each in a round. Both decode it and ask for words."
            ],
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
            row["gateway µs/chunk"] = 1e6 * used / through["sent"]
            row["gateway core %"] = 100 * used / through["wall_s"]
            rows.append(row | {"others %": others.percent})
            print(", ".join(f"{name} {value:.4g}" for name, value in rows[-1].items()), flush=True)
        return rows

    def _send(self, how: str, address: str, streams: int, core: int) -> dict[str, Any]:
        options = (how, address, str(streams), f"{self._arguments.seconds}", f"{self._arguments.chunk_ms}", str(core))
        command = [sys.executable, "-m", "benchmarks.gateway.send", *options]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, encoding="utf-8", check=True)
        found: dict[str, Any] = json.loads(done.stdout)
        return found


@contextmanager
def _gateway(server: TritonServer, core: int, chunk_ms: float) -> Iterator[tuple[int, psutil.Process]]:
    (port,) = free_ports(1)
    options = (
        "--port",
        str(port),
        "--url",
        f"http://{server.http_address}",
        "--stream-model",
        STREAMING,
        "--model",
        OFFLINE,
    )
    command = [sys.executable, "-c", "from tritone.cli.main import app; app()", "gateway", *options]
    command += ["--chunk-ms", f"{chunk_ms}", "--no-access-log"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8") as process:
        os.sched_setaffinity(process.pid, {core})
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("Serving on")
            yield port, psutil.Process(process.pid)
        finally:
            process.terminate()


if __name__ == "__main__":
    sys.exit(main())
