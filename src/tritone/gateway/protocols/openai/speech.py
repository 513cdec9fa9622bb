"""OpenAI's `/v1/audio/speech`: texts become audio files or events, sent sentence by sentence.

    {"model", "voice", "input", "response_format", "speed", "stream_format"}  ->  audio, or speech.audio.delta events

Source: https://platform.openai.com/docs/api-reference/audio/createSpeech.
"""

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from tritone.audio.encoder import FORMATS, MIME_TYPES, SpeechEncoder, SpeechFormat
from tritone.audio.spoken import Spoken
from tritone.errors import InputError, TritoneError
from tritone.gateway.callers import Caller
from tritone.gateway.gateway import Gateway
from tritone.gateway.protocols.openai.errors import error_object
from tritone.gateway.protocols.openai.request import NOTICE
from tritone.gateway.refusal import FieldError, GatewayRefusal, answer_to
from tritone.gateway.sockets import read_json

MAX_INPUT = 4096  # characters, as OpenAI's
MAX_BODY = 12 * MAX_INPUT + 65536  # bytes; a character may be two escapes of six
LEAST_SPEED, MOST_SPEED = 0.25, 4.0
PCM_RATE = 24000  # Hz; files of other formats say their own
FIELDS = ("model", "input", "voice", "instructions", "response_format", "speed", "stream_format")
EVENTS = "text/event-stream"


@dataclass(frozen=True, kw_only=True)
class SpeechRequest:
    """What a client asks. `ignored`: fields that have no influence here, and why."""

    text: str
    model: str
    voice: str
    format: SpeechFormat = "mp3"
    speed: float = 1.0
    stream_format: Literal["audio", "sse"] = "audio"
    ignored: Mapping[str, str]

    @classmethod
    def read(cls, body: bytes) -> "SpeechRequest":
        """Read the JSON of a request.

        Raises:
            InputError: it is no object.
            FieldError: a field is missing or unknown, or has a value that cannot be used.
        """
        found = read_json(body, "the body")
        if unknown := sorted(set(found) - set(FIELDS)):
            raise FieldError(unknown[0][:80], f"is unknown; there are {', '.join(FIELDS)}")
        given = {name: value for name, value in found.items() if value is not None}
        text = _text(given, "input")
        if len(text) > MAX_INPUT:
            raise FieldError("input", f"has {len(text):,} characters, at most {MAX_INPUT:,} are allowed")
        if not text.strip():
            raise FieldError("input", "is empty; send the text to speak")
        if isinstance(voice := given.get("voice"), dict) and set(voice) == {"id"}:
            given["voice"] = voice["id"]
        speed = given.get("speed", 1.0)
        if isinstance(speed, bool) or not isinstance(speed, int | float) or not LEAST_SPEED <= speed <= MOST_SPEED:
            raise FieldError("speed", f"must be a number from {LEAST_SPEED:g} to {MOST_SPEED:g}, got {str(speed)[:40]}")
        ignored = {"instructions": "voices here follow none"} if given.get("instructions") else {}
        return cls(
            text=text,
            model=_text(given, "model"),
            voice=_text(given, "voice"),
            format=_one_of(given, "response_format", FORMATS, "mp3"),
            speed=float(speed),
            stream_format=_one_of(given, "stream_format", ("audio", "sse"), "audio"),
            ignored=ignored,
        )

    @property
    def notices(self) -> dict[str, str]:
        """Headers of the answer about what had no influence."""
        return {NOTICE: "; ".join(f"{name}: {why}" for name, why in self.ignored.items())} if self.ignored else {}


async def speak(gateway: Gateway, request: Request, caller: Caller) -> Response:
    """Answer a request for speech."""
    asked = SpeechRequest.read(await _body(request))
    try:
        voice = await gateway.speech.voices.find(asked.model, asked.voice)
    except InputError as error:
        raise FieldError("voice", str(error)) from error
    spoken = gateway.speech.voices.speak(asked.text, voice, caller, speed=asked.speed)
    data = _data(spoken, asked, voice.info.sample_rate)
    try:
        first = await anext(data)  # what fails before the first sound has a status of its own
    except BaseException:
        await data.aclose()
        raise
    if asked.stream_format == "sse":
        return _Sound(_events(first, data), data, EVENTS, {"cache-control": "no-cache", **asked.notices})
    return _Sound(_plain(first, data), data, MIME_TYPES[asked.format], asked.notices)


async def list_voices(gateway: Gateway, request: Request, caller: Caller) -> Response:
    """The voices by the names that requests may have; no address of OpenAI's, but one that other servers have."""
    found = [
        {"id": each.name, "name": each.name, "model": each.info.name, "language": each.language}
        for each in await gateway.speech.voices.all()
    ]
    return JSONResponse({"voices": found})


class _Sound(StreamingResponse):
    """A body that grows; when it is sent, or the client has gone, nothing more is spoken."""

    def __init__(
        self, body: AsyncIterator[bytes], data: AsyncGenerator[bytes, None], kind: str, headers: Mapping[str, str]
    ) -> None:
        super().__init__(body, media_type=kind, headers=dict(headers))
        self._data = data

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._data):
            await super().__call__(scope, receive, send)


async def _data(
    spoken: AsyncGenerator[Spoken, None], asked: SpeechRequest, sample_rate: int
) -> AsyncGenerator[bytes, None]:
    """The file as it grows; each part is not empty."""
    encoder = SpeechEncoder(asked.format, sample_rate, rate=PCM_RATE if asked.format == "pcm" else None)
    async with aclosing(spoken):
        async for part in spoken:
            if data := await asyncio.to_thread(encoder.add, part.waveform):
                yield data
    if data := await asyncio.to_thread(encoder.end):
        yield data


async def _plain(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for data in rest:
        yield data


async def _events(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield _delta(first)
    try:
        async for data in rest:
            yield _delta(data)
    except TritoneError as error:  # the status is sent already
        yield _event({"error": error_object(answer_to(error))})
        return
    # Texts have no tokens here.
    yield _event(
        {"type": "speech.audio.done", "usage": dict.fromkeys(("input_tokens", "output_tokens", "total_tokens"), 0)}
    )


def _delta(data: bytes) -> bytes:
    return _event({"type": "speech.audio.delta", "audio": b64encode(data).decode()})


def _event(fields: Mapping[str, Any]) -> bytes:
    return f"data: {json.dumps(fields, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


async def _body(request: Request) -> bytes:
    found = bytearray()
    async for chunk in request.stream():
        found += chunk
        if len(found) > MAX_BODY:
            raise GatewayRefusal(
                413, f"the body has more than {MAX_BODY} bytes, which no text of {MAX_INPUT} characters has"
            )
    return bytes(found)


def _text(given: Mapping[str, Any], name: str) -> str:
    if name not in given:
        raise FieldError(name, "is missing")
    if not isinstance(given[name], str):
        raise FieldError(name, f"must be text, got {str(given[name])[:40]}")
    return str(given[name])


def _one_of(given: Mapping[str, Any], name: str, known: tuple[Any, ...], usual: Any) -> Any:
    value = given.get(name, usual)
    if value not in known:
        raise FieldError(name, f"must be one of {', '.join(known)}, got {str(value)[:40]!r}")
    return value
