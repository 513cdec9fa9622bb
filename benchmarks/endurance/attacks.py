"""Strangers at the proxy and the gateway, one kind after the other, and what a good client sees of each.

name  ->  function of Front, which goes on until it is told to stop  ->  p50 and p99 of good requests, how many failed
"""

import gzip
import io
import json
import socket
import struct
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import grpc
import numpy as np
import soundfile

from benchmarks.endurance.deployment import COMMAND, START_TIMEOUT_S, Deployment
from benchmarks.endurance.load import RIGHT, WRONG, Load, Outcome
from benchmarks.endurance.parts import Part, PartOptions, attacked, say, small_tasks
from benchmarks.measure import Finding
from tritone.server import free_ports

STRANGER = "127.0.0.2"  # limits are by address, and the good client has another
AIM_S = 2.0  # of a good request's p99 under attack
INFER = b"/inference.GRPCInferenceService/ModelInfer"
GOOD_SENDERS = 2
RATE = 16000


@dataclass
class Front:
    """What strangers can reach, as host and port. `over`: they are to end."""

    http: tuple[str, int]
    grpc: tuple[str, int]
    gateway: tuple[str, int]
    over: threading.Event = field(default_factory=threading.Event)


def _connected(address: tuple[str, int], timeout_s: float = 5.0) -> socket.socket:
    return socket.create_connection(address, timeout_s, (STRANGER, 0))


def _held(front: Front, address: tuple[str, int], count: int, head: bytes, drop: bytes) -> None:
    """Hold connections that have sent a head, and one more byte a second; those that are closed are opened anew."""
    held: list[socket.socket] = []
    while not front.over.is_set():
        with suppress(OSError):
            while len(held) < count and not front.over.is_set():
                held.append(_connected(address))
                held[-1].sendall(head)
        for each in list(held):
            try:
                each.sendall(drop)
            except OSError:
                each.close()
                held.remove(each)
        front.over.wait(1.0)
    for each in held:
        each.close()


def _post(address: tuple[str, int], path: str, body: bytes, headers: Mapping[str, str] | None = None) -> None:
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    with suppress(OSError), _connected(address, 30.0) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)
        while connection.recv(65536):
            pass


def _again(front: Front, act: Callable[[], None], threads: int = 4) -> None:
    def work() -> None:
        while not front.over.is_set():
            act()

    workers = [threading.Thread(target=work, daemon=True) for _ in range(threads)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()


def _packed(text: bytes) -> Callable[[Front], None]:
    body = gzip.compress(text, 9)
    path, headers = "/v2/models/demo-asr/infer", {"Content-Encoding": "gzip"}
    return lambda front: _again(front, lambda: _post(front.http, path, body, headers))


def _nobody(front: Front) -> None:
    front.over.wait()


def _slow_bodies(front: Front) -> None:
    _held(
        front,
        front.http,
        200,
        b"POST /v2/models/demo-asr/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 9000000\r\n\r\n",
        b"x",
    )


def _half_heads(front: Front) -> None:
    _held(front, front.http, 300, b"GET /v2/health/live HTTP/1.1\r\nX: ", b"x")


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """A frame of HTTP/2 (RFC 9113, section 4.1)."""
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def _call_head() -> bytes:
    """The head of a call, as literals without a table (RFC 7541, section 6.2.2)."""
    fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", INFER), (b":authority", b"x")]
    fields += [(b"content-type", b"application/grpc"), (b"te", b"trailers")]
    return b"".join(b"\0" + b"".join(bytes((len(each),)) + each for each in pair) for pair in fields)


def _calls(count: int, begin: bytes) -> Callable[[Front], None]:
    """Calls on connections of a hundred each, of which `begin` of a message is sent and no more."""

    def attack(front: Front) -> None:
        head = _call_head()
        while not front.over.is_set():
            with ExitStack() as held, suppress(OSError):
                for _ in range(count // 100):
                    connection = held.enter_context(_connected(front.grpc))
                    frames = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", _frame(4, 0, 0, b"")]
                    for number in range(100):
                        frames.append(_frame(1, 4, 2 * number + 1, head))
                        if begin:
                            frames.append(_frame(0, 0, 2 * number + 1, begin))
                    connection.sendall(b"".join(frames))
                front.over.wait(5.0)

    return attack


def _hidden_fields(front: Front) -> None:
    """Messages whose map of parameters has an entry with an unknown field, which readers take differently."""

    def of(number: int, content: bytes) -> bytes:
        return bytes((number << 3 | 2, len(content))) + content

    entry = of(1, b"classification") + of(2, b"\x10\x05") + of(7, b"hidden")
    message = of(1, b"demo-asr") + of(6, of(1, b"TRANSCRIPTS") + of(2, entry))
    with grpc.insecure_channel(f"{front.grpc[0]}:{front.grpc[1]}") as channel:
        call = channel.unary_unary(INFER.decode())

        def send() -> None:
            with suppress(grpc.RpcError):
                call(message, timeout=10)

        _again(front, send)


def _slow_uploads(front: Front) -> None:
    head = b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=B\r\n"
    _held(front, front.gateway, 300, head + b"Content-Length: 9000000\r\n\r\n--B\r\n", b"x")


def _gateway_half_heads(front: Front) -> None:
    _held(front, front.gateway, 300, b"GET /health/live HTTP/1.1\r\nX: ", b"x")


def _silent_sockets(front: Front) -> None:
    """WebSockets that send wrong messages for ever and never read what they are told."""
    head = (
        b"GET /v1/realtime HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    text = b'{"type": "nothing"}'
    _held(front, front.gateway, 50, head, (b"\x81" + bytes((0x80 | len(text),)) + b"\0\0\0\0" + text) * 200)


def _recordings_without_a_client(front: Front) -> None:
    """Ten minutes of noise in FLAC, whose sender goes as soon as all of it is sent."""
    noise = (np.random.default_rng(0).standard_normal(60 * RATE) * 300).astype(np.int16)
    file = io.BytesIO()
    soundfile.write(file, np.tile(noise, 10), RATE, format="FLAC")
    body, kind = _form(file.getvalue())
    head = f"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"

    def send() -> None:
        with suppress(OSError), _connected(front.gateway, 30.0) as connection:
            connection.sendall(head.encode() + body)
            front.over.wait(0.5)

    _again(front, send, threads=2)


ATTACKS: Mapping[str, Callable[[Front], None]] = {
    "none": _nobody,
    "proxy: slow bodies": _slow_bodies,
    "proxy: half-sent heads": _half_heads,
    "proxy: 16 KB that unpack to escapes": _packed(b'{"inputs": "' + b"\\\\" * (8 << 20) + b'"}'),
    "proxy: small parts of JSON": _packed(b'{"inputs": [' + b"[1]," * (4 << 20) + b"1]}"),
    "proxy: half-sent messages": _calls(1000, b"\0" + struct.pack(">I", 60 << 20) + bytes(500)),
    "proxy: calls without a message": _calls(4200, b""),
    "proxy: fields hidden in a map": _hidden_fields,
    "gateway: slow uploads": _slow_uploads,
    "gateway: half-sent heads": _gateway_half_heads,
    "gateway: sockets that never read": _silent_sockets,
    "gateway: recordings without a client": _recordings_without_a_client,
}


def _form(audio: bytes) -> tuple[bytes, str]:
    head = b'--B\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    model = b'--B\r\nContent-Disposition: form-data; name="model"\r\n\r\ndemo-asr\r\n'
    return model + head + audio + b"\r\n--B--\r\n", "multipart/form-data; boundary=B"


@contextmanager
def _gateway(deployment: Deployment) -> Iterator[int]:
    (port,) = free_ports(1)
    command = [*COMMAND, "gateway", "--url", f"http://{deployment.http}", "--port", str(port), "--no-access-log"]
    with deployment.log_path.open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready", timeout=5):
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the gateway did not start: {deployment.log_tail(5)}")
            time.sleep(0.1)
        yield port
    finally:
        process.terminate()
        process.wait(30)


def _upload(port: int, body: bytes, kind: str) -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/audio/transcriptions", body, {"Content-Type": kind})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(json.load(answer)["text"])


def _uploads(port: int, recordings: Sequence[tuple[bytes, str]], over: threading.Event, found: list[Outcome]) -> None:
    body_of = [(_form(audio), text) for audio, text in recordings]
    number = 0
    while not over.is_set():
        (body, kind), text = body_of[number % len(body_of)]
        number += 1
        sent, verdict, message = time.monotonic(), RIGHT, ""
        try:
            heard = _upload(port, body, kind)
            verdict, message = (RIGHT, "") if heard == text else (WRONG, f"{heard!r}, not {text!r}")
        except (OSError, ValueError, KeyError) as error:
            verdict, message = type(error).__name__, str(error)
        ended = time.monotonic()
        asked: dict[str, Any] = {"model": "demo-asr", "protocol": "gateway", "sent": sent, "answered": ended}
        found.append(Outcome(**asked, verdict=verdict, message=message))
        over.wait(0.02)


def attacks(options: PartOptions) -> Part:
    """Each kind of stranger in turn, beside good clients of the proxy and of the gateway."""
    tasks, _ = small_tasks(options.seed)
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    seconds = options.minutes * 60 / len(ATTACKS)
    with (
        attacked(replace(options, serve_args=(*options.serve_args, "--proxy"))) as (deployment, gauges),
        _gateway(deployment) as port,
    ):
        urls = [f"grpc://{deployment.grpc}", f"http://{deployment.http}"]
        recordings = []
        for task in [each for each in tasks if each.model == "demo-asr"][:6]:
            file = io.BytesIO()
            soundfile.write(file, task.waveform, RATE, format="WAV", subtype="FLOAT")
            recordings.append((file.getvalue(), _upload(port, *_form(file.getvalue()))))
        for name, attack in list(ATTACKS.items())[options.start : options.start + options.count]:
            front = Front(_address(deployment.http), _address(deployment.grpc), ("127.0.0.1", port))
            over, uploaded = threading.Event(), list[Outcome]()
            stranger = threading.Thread(target=attack, args=(front,), daemon=True)
            uploader = threading.Thread(target=_uploads, args=(port, recordings, over, uploaded), daemon=True)
            stranger.start()
            with Load(urls, [(tasks, GOOD_SENDERS)], seed=options.seed, timeout_s=60) as load:
                uploader.start()
                time.sleep(seconds)
                load.stop()
            over.set()
            uploader.join(90)
            front.over.set()
            stranger.join(30)
            for label, outcomes in (("proxy", load.outcomes), ("gateway", uploaded)):
                rows.append({"attack": name, "asked": label, **_row(outcomes)})
                bad = [each for each in outcomes if each.verdict != RIGHT]
                notes += [f"{name}, {label}: {each.verdict}: {each.message[:200]}" for each in bad[:3]]
                say(str(rows[-1]))
            if not deployment.is_alive():
                notes.append(f"the server ended under {name}: {deployment.log_tail(6)}")
                break
    lost = sum(row["failed"] + row["wrong"] for row in rows)
    total = sum(row["good requests"] for row in rows)
    slowest = max(row["p99 ms"] for row in rows)
    notes.append(f"the largest p99 of good requests was {slowest:g} ms; the aim is {1000 * AIM_S:g} ms")
    title = f"attacks: of {total} good requests, those that were refused, lost or wrong"
    found = Finding(
        key="attacks-lost", title=title, value=lost, bar=0, sense="at most", setup=options.setup, rows=rows, notes=notes
    )
    return Part(name="attacks", findings=[found], rows=rows, samples=gauges.to_list(), notes=notes)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


def _row(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    times = [1000 * (each.answered - each.sent) for each in outcomes] or [float("nan")]
    return {
        "good requests": len(outcomes),
        "wrong": sum(each.verdict == WRONG for each in outcomes),
        "failed": sum(each.is_error for each in outcomes),
        "p50 ms": round(float(np.percentile(times, 50)), 1),
        "p99 ms": round(float(np.percentile(times, 99)), 1),
    }
