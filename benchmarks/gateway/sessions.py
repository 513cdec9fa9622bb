"""What clients leave behind, and how long a final text takes, through the gateway's own WebSocket.

    python -m benchmarks.gateway.sessions --vad BUNDLE [--sessions 10000] [--repeats 10] [--output FILE.json]

A shipped model is served beside a detector of speech, of `tritone export silero`, and the gateway has a process of its
own. Clients vanish in three ways, and the metrics of the gateway and of Triton are asked until both know of no stream;
clips are played at the speed of speech, and the final text is waited for; sessions come and go, a third of them by
vanishing, and the gateway's memory is read. Prints what it finds, and writes the JSON with its conditions and the page
beside it (FILE.md).
"""

import argparse
import asyncio
import json
import re
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from benchmarks.measure import ROOT, Bystanders, Cell, Finding, Setup, percentiles, save, to_markdown
from benchmarks.served import MODEL, resident_mib, serving
from tritone.audio.files import read_audio
from tritone.audio.pcm import to_pcm
from tritone.bundle import Bundle
from tritone.corpus.clips import read_clips
from tritone.repository import ModelOptions
from tritone.server import TritonServer, free_ports

OUTPUT = ROOT / "docs" / "performance" / "gateway-sessions.json"
TITLE = "What the gateway's clients leave behind"
INTRODUCTION = """\
The gateway and Triton with the shipped model `demo-transducer` on one machine, with the clients. "others %" is how much
of the cores foreign processes took meanwhile: above a few percent a time is only indicative. Written by
`python -m benchmarks.gateway.sessions`; raw rows are in [gateway-sessions.json](gateway-sessions.json)."""
SAMPLE_RATE = 16000
PING_S = 0.9  # twice it, and what the rest takes, is within two seconds
AT_ONCE = 16
SESSION_S = 0.4  # audio of a session
CHUNK_S = 0.1
ENDPOINT_S = 0.3  # of silence after speech
PAUSE_S = 2.5  # of silence behind a clip
VAD = "detector"
VAD_SILENCE_S = 0.1  # ends speech for it
BY_VAD = {"vad": {"model": f"{VAD}-streaming", "parameters": {"min_silence_s": VAD_SILENCE_S}}}


@dataclass(frozen=True)
class Served:
    """A gateway and its Triton."""

    server: TritonServer
    port: int
    process: psutil.Process

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/v1/stream"

    def streams(self) -> float:
        """Those that the gateway or Triton knows of."""
        return _gauge(f"http://127.0.0.1:{self.port}/metrics", "streams_open") + _gauge(
            f"http://{self.server.options.address('metrics')}/metrics", "tritone_open_streams"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", default="demo-transducer", help="shipped bundle or folder")
    parser.add_argument("--vad", type=Path, required=True, help="the bundle of a detector, of `tritone export silero`")
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=10, help="clients that vanish in each way; turns of the clips")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    setup = Setup.here(arguments.bundle, "benchmarks.gateway.sessions")
    options = ModelOptions(max_streams=64, endpoint_silence_after_speech_s=ENDPOINT_S)
    findings: list[Finding] = []
    serves = serving(Bundle.open(arguments.bundle), "both", options, beside={VAD: arguments.vad})
    with serves as server, _gateway(server) as served:
        for work in (
            _vanishing(served, setup, arguments.repeats),
            _finals(served, setup, arguments.repeats),
            _memory(served, setup, arguments.sessions),
        ):
            found = asyncio.run(work)
            findings += found
            print(*found, sep="\n", flush=True)
    arguments.output.with_suffix(".md").write_text(
        to_markdown(save(findings, arguments.output), TITLE, INTRODUCTION), encoding="utf-8"
    )
    return 0 if all(each.is_met for each in findings) else 1


async def _vanishing(served: Served, setup: Setup, repeats: int) -> list[Finding]:
    rows: list[dict[str, Cell]] = []
    for how in ("closed", "reset", "silent"):
        taken = []
        with Bystanders() as others:
            for _ in range(repeats):
                taken.append(await _vanish(served, how))
        rows.append({"how": how, **_seconds(taken), "others %": others.percent})
    finding = Finding(
        key="vanished-s",
        title="until nothing is left of a client that vanished, s, the longest",
        value=max(float(row["max s"]) for row in rows),
        bar=2.0,
        sense="at most",
        setup=setup,
        rows=rows,
        notes=[
            "Until neither the gateway nor Triton has its stream. closed: the connection ends without a good-bye; "
            f"reset: it is reset; silent: the client neither reads nor answers pings (--ping-s {PING_S:g}).",
        ],
    )
    return [finding]


async def _vanish(served: Served, how: str) -> float:
    """Start a stream, vanish, and return the seconds until nothing is left."""
    client = await connect(served.url, ping_interval=None)
    await _start(client)
    for _ in range(4):  # at the speed of speech, for Triton's models do not publish every step of fast ones
        await client.send(_silence(CHUNK_S))
        await asyncio.sleep(CHUNK_S)
    while await asyncio.to_thread(served.streams) != 2:
        await asyncio.sleep(0.01)
    transport = client.transport
    begun = time.perf_counter()
    if how == "closed":
        transport.close()
    elif how == "reset":
        raw = transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()
    else:
        transport.pause_reading()
    while await asyncio.to_thread(served.streams):
        await asyncio.sleep(0.005)
    taken = time.perf_counter() - begun
    transport.abort()
    with suppress(ConnectionClosed):
        await client.wait_closed()
    return taken


async def _finals(served: Served, setup: Setup, repeats: int) -> list[Finding]:
    clips = [to_pcm(read_audio(clip.path, SAMPLE_RATE)).tobytes() for clip in read_clips()]
    told, detected, found = [], [], []
    with Bystanders() as others:
        for turn in range(repeats):
            clip = clips[turn % len(clips)]
            told.append(await _final(served, clip, says_so=True))
            detected.append(await _final(served, clip, says_so=False, **BY_VAD))
            found.append(await _final(served, clip, says_so=False))
    load: dict[str, Cell] = {"others %": others.percent}
    note = f"{repeats} clips of the demo at the speed of speech, in messages of {CHUNK_S:g} s, one stream at a time."
    return [
        Finding(
            key="final-ms",
            title="final text after the end of speech, p95, ms: the client says that it ends",
            value=percentiles(told)["p95"],
            bar=300,
            sense="at most",
            setup=setup,
            rows=[{name: value for name, value in percentiles(told).items()} | load],
            notes=[note + " From the end of the audio and the message that says so to the final text."],
        ),
        Finding(
            key="final-by-vad-ms",
            title=f"final text after the end of speech, p95, ms: silero's model finds {VAD_SILENCE_S:g} s of silence",
            value=percentiles(detected)["p95"],
            bar=300,
            sense="at most",
            setup=setup,
            rows=[{name: value for name, value in percentiles(detected).items()} | load],
            notes=[note + " From the end of speech as the model finds it, which is the time of the last final text."],
        ),
        Finding(
            key="final-by-silence-ms",
            title=f"final text after the last word, median, ms: {ENDPOINT_S:g} s of silence end the segment",
            value=median(found),
            bar=1000 * (ENDPOINT_S + 0.64 + 0.3),
            sense="at most",
            setup=setup,
            rows=[{name: value for name, value in percentiles(found).items()} | load],
            notes=[
                note + f" The rule's {ENDPOINT_S:g} s and up to a chunk of the model (0.64 s) are part of it: a "
                "model sees silence when its chunk is full."
            ],
        ),
    ]


async def _final(served: Served, clip: bytes, *, says_so: bool, **options: Any) -> float:
    """Milliseconds from the end of speech to the final text of it; `options` are of the stream."""
    async with connect(served.url) as client:
        await _start(client, **options)
        audio = clip if says_so else clip + _silence(PAUSE_S)
        begun = time.perf_counter()
        came: list[tuple[float, dict[str, Any]]] = []

        async def hear() -> None:
            async for message in client:
                event = json.loads(message)
                if event["type"] == "final" and event["text"]:
                    came.append((time.perf_counter(), event))

        hearing = asyncio.create_task(hear())
        size = 2 * round(SAMPLE_RATE * CHUNK_S)
        for index, start in enumerate(range(0, len(audio), size), 1):
            await asyncio.sleep(max(0.0, begun + index * CHUNK_S - time.perf_counter()))  # when it has been spoken
            await client.send(audio[start : start + size])
        ended = time.perf_counter()
        await client.send('{"type": "end"}')
        await hearing
    at, event = came[-1]
    return 1000 * (at - ended if says_so else at - begun - event["time_s"])


async def _memory(served: Served, setup: Setup, sessions: int) -> list[Finding]:
    """Run sessions and read the memory of the gateway after each tenth of them."""
    rows: list[dict[str, Cell]] = []
    begun = time.perf_counter()
    numbers = iter(range(sessions))
    done = lost = 0

    async def work() -> None:
        nonlocal done, lost
        for number in numbers:
            try:
                await _session(served, vanishes=number % 3 == 0)
            except (AssertionError, ConnectionClosed):  # such as a model's process that Triton gave up
                lost += 1
            done += 1
            if done % (sessions // 10) == 0:
                rows.append(
                    {
                        "sessions": done,
                        "gateway MiB": served.process.memory_info().rss / 2**20,
                        "Triton MiB": resident_mib(served.server),
                        "threads": served.process.num_threads(),
                        "files": served.process.num_fds(),
                        "s": time.perf_counter() - begun,
                    }
                )

    with Bystanders() as others:
        await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    for row in rows:
        row["others %"] = others.percent
    finding = Finding(
        key="memory-ratio",
        title=f"the gateway's memory after {sessions:,} sessions ÷ after a fifth of them",
        value=float(rows[-1]["gateway MiB"]) / float(rows[1]["gateway MiB"]),
        bar=1.03,
        sense="at most",
        setup=setup,
        rows=rows,
        notes=[
            f"{AT_ONCE} at once, {SESSION_S:g} s of audio each; every third vanishes in the middle. Streams open "
            f"afterwards: {await asyncio.to_thread(_settled, served)}; sessions that ended with an error: {lost}."
        ],
    )
    return [finding]


def _settled(served: Served) -> int:
    ends = time.perf_counter() + 2
    while served.streams() and time.perf_counter() < ends:
        time.sleep(0.01)
    return int(served.streams())


async def _session(served: Served, *, vanishes: bool) -> None:
    client = await connect(served.url, compression=None)
    await _start(client)
    for _ in range(round(SESSION_S / CHUNK_S)):
        await client.send(_silence(CHUNK_S))
    if vanishes:
        client.transport.abort()
        await client.wait_closed()
        return
    await client.send('{"type": "end"}')
    async for message in client:
        last = json.loads(message)
    assert last["type"] == "end", last


async def _start(client: ClientConnection, **options: Any) -> None:
    await client.send(json.dumps({"type": "start", "sample_rate": SAMPLE_RATE, **options}))
    ready = json.loads(await client.recv())
    assert ready["type"] == "ready", ready


def _silence(seconds: float) -> bytes:
    return bytes(2 * round(SAMPLE_RATE * seconds))


def _seconds(values: Sequence[float]) -> dict[str, Cell]:
    return {f"{name} s": value for name, value in percentiles(values).items()}


def _gauge(url: str, name: str) -> float:
    with urllib.request.urlopen(url, timeout=60) as answer:
        text = answer.read().decode()
    return sum(float(value) for value in re.findall(rf"^\w*{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE))


@contextmanager
def _gateway(server: TritonServer) -> Iterator[Served]:
    (port,) = free_ports(1)
    options = ("--port", str(port), "--url", f"http://{server.http_address}", "--stream-model", f"{MODEL}-streaming")
    command = [sys.executable, "-c", "from tritone.cli.main import app; app()", "gateway", *options]
    command += ["--ping-s", str(PING_S), "--chunk-ms", str(1000 * CHUNK_S), "--no-access-log"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8") as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("Serving on")
            yield Served(server, port, psutil.Process(process.pid))
        finally:
            process.terminate()


if __name__ == "__main__":
    sys.exit(main())
