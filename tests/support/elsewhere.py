"""A server of others in a thread, which speaks OpenAI's transcription API and two Realtime APIs, and records all.

    with Elsewhere() as there:
        UpstreamOptions(name="whisper", url=there.url)
        there.next.append(Response.of_json({...}, 503))      answers to come, before its own
        there.seen                                           what was asked

It "hears" the loud parts of a recording: the n-th step of eight of their level is its word, so that every word can be
told from the audio that was sent (`said`). `gateway_of` and `client_of` are gateways in front of such servers, and
`raw_server` is a port whose connections a function serves.
"""

import asyncio
import base64
import io
import json
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import openai
import soundfile
from starlette.applications import Starlette
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from tritone.gateway import GatewayOptions
from tritone.gateway.server import GatewayServer
from tritone.gateway.upstreams.options import UpstreamOptions
from tritone.net.fetch import fetch
from tritone.net.http_server import HttpServer, Response
from tritone.net.loop_thread import LoopThread
from tritone.net.websockets import ClientProtocol

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight")
RATE = 16000
Answer = Response | Callable[[Request], Awaitable[Any]]


def said(*words: int, word_s: float = 1.0, pause_s: float = 0.5, rate: int = RATE) -> npt.NDArray[np.float32]:
    """Audio (samples,) in which these words are said, by their numbers from 1 to 8, with a pause after each."""
    pause = np.zeros(round(pause_s * rate), np.float32)
    parts = [part for word in words for part in (np.full(round(word_s * rate), word / 10, np.float32), pause)]
    return np.concatenate([pause, *parts])


def heard(samples: npt.NDArray[Any], rate: int) -> list[dict[str, Any]]:
    """The words of audio with their times."""
    levels = np.rint(np.abs(samples[:: rate // 100]) * 10).astype(int)  # a step is 10 ms
    edges = np.flatnonzero(np.diff(levels, prepend=0, append=0))
    return [
        {"word": WORDS[levels[start]], "start": start / 100, "end": end / 100}
        for start, end in pairwise(edges)
        if levels[start] and end - start > 5  # what is shorter is the edge of another
    ]


def wav(samples: npt.NDArray[Any], rate: int = RATE) -> tuple[str, bytes]:
    """A file of audio for OpenAI's client."""
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format="WAV", subtype="PCM_16")
    return "speech.wav", file.getvalue()


@dataclass
class Asked:
    """One request: `fields` in their order; `events` of a WebSocket, without audio, of which there is `audio_s`."""

    path: str
    headers: dict[str, str]
    fields: list[tuple[str, str]] = field(default_factory=list)
    file: bytes = b""
    query: dict[str, str] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    audio_s: float = 0.0

    def field_of(self, name: str) -> str | None:
        return dict(self.fields).get(name)


class Elsewhere:
    """See the top of this file. `next`: answers in place of its own, each for one request."""

    def __init__(self) -> None:
        self.seen: list[Asked] = []
        self.next: list[Answer] = []
        self.at_once = 0  # requests under way, the most of them
        self.realtime_error: dict[str, Any] | None = None  # an event in place of the last text
        self.drops = False  # whether connections of WebSockets end at their first audio
        self._under_way = 0
        self._thread = LoopThread("elsewhere")
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> Self:
        self._thread.submit(self._start).result(20)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.close(lambda: self._server.stop(0.0))

    async def _start(self) -> None:
        routes = [
            Route("/v1/audio/transcriptions", self._transcribe, methods=["POST"]),
            Route("/v1/audio/translations", self._transcribe, methods=["POST"]),
            WebSocketRoute("/v1/realtime", self._realtime),
        ]
        self._server = HttpServer(Starlette(routes=routes), idle_s=5.0, ws=ClientProtocol)
        await self._server.start(host="127.0.0.1", port=self.port)
        assert self._server._listener is not None
        self.port = self._server._listener.sockets[0].getsockname()[1]

    async def _transcribe(self, request: Request) -> Any:
        self._under_way += 1
        self.at_once = max(self.at_once, self._under_way)
        try:
            async with request.form() as form:
                file = form["file"]
                assert isinstance(file, UploadFile)
                data = await file.read()
                fields = [(name, value) for name, value in form.multi_items() if isinstance(value, str)]
            self.seen.append(Asked(request.url.path, dict(request.headers), fields, data))
            if self.next:
                answer = self.next.pop(0)
                return answer if isinstance(answer, Response) else await answer(request)
            return Response.of_json(self._answer(dict(fields), data))
        finally:
            self._under_way -= 1

    @staticmethod
    def _answer(fields: dict[str, str], data: bytes) -> dict[str, Any]:
        samples, rate = soundfile.read(io.BytesIO(data), dtype="float32")
        words = heard(samples, rate)
        text = " ".join(each["word"] for each in words)
        if fields["response_format"] == "json":
            return {"text": text, "usage": {"type": "duration", "seconds": round(len(samples) / rate)}}
        segments = [
            {"id": n, "seek": 0, "text": f" {each['word']}", "start": each["start"], "end": each["end"], "tokens": [n]}
            | {"temperature": 0.0, "avg_logprob": -0.25, "compression_ratio": 1.5, "no_speech_prob": None}
            for n, each in enumerate(words)
        ]
        whole = {"duration": f"{len(samples) / rate}", "language": "en", "text": text, "segments": segments}
        return whole | {"words": words if fields["model"].startswith("whisper") else None}

    async def _realtime(self, socket: WebSocket) -> None:
        """OpenAI's where the query asks for an intent, else vLLM's."""
        await socket.accept()
        asked = Asked("/v1/realtime", dict(socket.headers), query=dict(socket.query_params))
        self.seen.append(asked)
        talk = self._as_openai if "intent" in asked.query else self._as_vllm
        with suppress(WebSocketDisconnect):
            await talk(socket, asked)

    async def _next(self, socket: WebSocket, asked: Asked, parts: list[npt.NDArray[Any]], rate: int) -> dict[str, Any]:
        """The next event that is no audio, which is put into `parts`."""
        while True:
            event: dict[str, Any] = json.loads(await socket.receive_text())
            if event["type"] != "input_audio_buffer.append":
                asked.events.append(event)
                return event
            if self.drops:
                await socket.close(1011)
                raise WebSocketDisconnect(1011)
            parts.append(np.frombuffer(base64.b64decode(event["audio"]), "<i2") / np.float32(32768))
            asked.audio_s += parts[-1].size / rate

    async def _as_openai(self, socket: WebSocket, asked: Asked) -> None:
        parts: list[npt.NDArray[Any]] = []
        rate, number = 24000, 0
        await socket.send_json({"type": "session.created", "session": {}})
        while True:
            event = await self._next(socket, asked, parts, rate)
            if event["type"] == "session.update":
                await socket.send_json({"type": "session.updated", "session": event["session"]})
                continue
            if self.realtime_error is not None:
                await socket.send_json(self.realtime_error)
                continue
            words = [each["word"] for each in _heard(parts, rate)]
            parts.clear()
            number += 1
            of = {"item_id": f"item_{number}"}
            texts = "conversation.item.input_audio_transcription."
            await socket.send_json({"type": "input_audio_buffer.committed", **of})
            for n, word in enumerate(words):
                await socket.send_json({"type": f"{texts}delta", "delta": word if n == 0 else f" {word}", **of})
            await socket.send_json({"type": f"{texts}completed", "transcript": " ".join(words), **of})

    async def _as_vllm(self, socket: WebSocket, asked: Asked) -> None:
        parts: list[npt.NDArray[Any]] = []
        await socket.send_json({"type": "session.created", "id": "sess-1", "created": 1})
        while True:
            event = await self._next(socket, asked, parts, RATE)
            if not event.get("final"):
                continue
            if self.realtime_error is not None:
                await socket.send_json(self.realtime_error)
                continue
            words = [each["word"] for each in _heard(parts, RATE)]
            for n, word in enumerate(words):
                await socket.send_json({"type": "transcription.delta", "delta": word if n == 0 else f" {word}"})
            await socket.send_json({"type": "transcription.done", "text": " ".join(words), "usage": None})


def _heard(parts: Sequence[npt.NDArray[Any]], rate: int) -> list[dict[str, Any]]:
    return heard(np.concatenate(parts), rate) if parts else []


async def never(request: Request) -> Any:
    """An answer that does not come while its client waits."""
    while not await request.is_disconnected():
        await asyncio.sleep(0.01)
    return Response(204)


@contextmanager
def gateway_of(*upstreams: UpstreamOptions, triton: str = "none", **options: Any) -> Iterator[GatewayServer]:
    with GatewayServer(GatewayOptions(triton=triton, port=0, upstreams=upstreams, **options)).background() as running:
        yield running


@contextmanager
def client_of(*upstreams: UpstreamOptions, **options: Any) -> Iterator[openai.OpenAI]:
    with gateway_of(*upstreams, **options) as running:
        url = f"http://127.0.0.1:{running.port}/v1"
        with openai.OpenAI(base_url=url, api_key="any", timeout=60, max_retries=0) as client:
            yield client


def metrics(client: openai.OpenAI) -> dict[str, float]:
    lines = fetch(f"{str(client.base_url).removesuffix('/v1/')}/metrics", timeout_s=20).body.decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if line.startswith("tritone_gateway_upstream"))
    return {name.removeprefix("tritone_gateway_upstream_"): float(value) for name, value in pairs}


Talk = Callable[[socket.socket], None]


@contextmanager
def raw_server(talk: Talk) -> Iterator[str]:
    """A port whose connections are served by a function each, in threads."""
    listener = socket.create_server(("127.0.0.1", 0))
    open_now: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            open_now.append(connection)
            threading.Thread(target=_quiet, args=(talk, connection), daemon=True).start()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
        for each in open_now:
            with suppress(OSError):  # its function has ended
                each.shutdown(socket.SHUT_RDWR)


def _quiet(talk: Talk, connection: socket.socket) -> None:
    try:
        with connection:
            talk(connection)
    except OSError:
        pass
