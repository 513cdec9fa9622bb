"""OpenAI REST: `/v1/audio/transcriptions`, `/v1/audio/translations`, `/v1/audio/speech` and `/v1/models`.

multipart form  ->  JSON, plain text, subtitles, or server-sent events
"""

import asyncio
import json
import shutil
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from python_multipart.multipart import parse_options_header
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from tritone.audio.files import Upload
from tritone.errors import TritoneError
from tritone.formats import write
from tritone.gateway.callers import Caller
from tritone.gateway.gateway import Gateway
from tritone.gateway.protocols.openai import answers
from tritone.gateway.protocols.openai.deltas import Deltas
from tritone.gateway.protocols.openai.errors import admitted, error_object
from tritone.gateway.protocols.openai.request import TranscriptionRequest
from tritone.gateway.protocols.openai.speech import list_voices, speak
from tritone.gateway.refusal import FieldError, GatewayRefusal, answer_to
from tritone.transcript import Transcript, joined

MAX_FIELDS = 1000  # keywords are one each
MAX_FIELD_BYTES = 64 * 1024
IN_MEMORY = 1 << 20  # bytes of a file up to which it is not written to disk
OWNER = "tritone"

Endpoint = Callable[[Request, Caller], Awaitable[Response]]


def rest_routes(gateway: Gateway) -> list[BaseRoute]:
    """The routes of HTTP."""

    async def models(request: Request, caller: Caller) -> Response:
        return JSONResponse({"object": "list", "data": await _models(gateway)})

    async def model(request: Request, caller: Caller) -> Response:
        name = request.path_params["model"]
        for each in await _models(gateway):
            if each["id"] == name:
                return JSONResponse(each)
        with suppress(GatewayRefusal):
            await gateway.speech.model(name, "offline")  # one that is only not ready now is another error
        raise GatewayRefusal(404, f"there is no model {name[:80]!r}; GET /v1/models lists them", code="model_not_found")

    async def transcriptions(request: Request, caller: Caller) -> Response:
        return await _transcribe(gateway, request, caller, translate=False)

    async def translations(request: Request, caller: Caller) -> Response:
        return await _transcribe(gateway, request, caller, translate=True)

    def route(path: str, method: str, endpoint: Endpoint) -> Route:
        async def serve(request: Request) -> Response:
            return await endpoint(request, await admitted(gateway, request, "openai"))

        return Route(path, serve, methods=[method])

    return [
        route("/v1/models", "GET", models),
        route("/v1/models/{model:path}", "GET", model),
        route("/v1/audio/transcriptions", "POST", transcriptions),
        route("/v1/audio/translations", "POST", translations),
        route("/v1/audio/speech", "POST", partial(speak, gateway)),
        route("/v1/audio/voices", "GET", partial(list_voices, gateway)),
    ]


class _EventStream(StreamingResponse):
    """Server-sent events, with what they hold until the last of them is sent or the client has gone."""

    def __init__(self, events: AsyncIterator[str], held: AsyncExitStack, headers: Mapping[str, str]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"cache-control": "no-cache", **headers})
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._held:
            await super().__call__(scope, receive, send)


async def _transcribe(gateway: Gateway, request: Request, caller: Caller, *, translate: bool) -> Response:
    async with AsyncExitStack() as stack:
        fields, file = await stack.enter_async_context(_form(request))
        wanted = TranscriptionRequest.read(fields)
        info = await gateway.speech.model(wanted.model, "offline")
        has_vad = wanted.vad_filter and await gateway.speech.activity(info.sample_rate, streaming=True) is not None
        ask, notices = wanted.ask(info, translate=translate, has_vad=has_vad), wanted.notices(info, has_vad=has_vad)
        audio = await stack.enter_async_context(_content(file))
        if not wanted.stream:
            answer = _answer(await gateway.speech.transcribe(audio, ask, caller), wanted)
            answer.headers.update(notices)
            return answer
        growing = wanted.response_format != "diarized_json" and not wanted.logprobs
        events = events_of(gateway.speech.parts(audio, ask, caller, growing=growing), wanted)
        stack.push_async_callback(events.aclose)
        first = await anext(events)  # what fails before the first text has a status of its own
        return _EventStream(_sent(first, events), stack.pop_all(), notices)


def _answer(transcript: Transcript, wanted: TranscriptionRequest) -> Response:
    name = wanted.response_format
    if name == "json":
        return JSONResponse(answers.plain(transcript, logprobs=wanted.logprobs))
    if name == "verbose_json":
        chosen = {"words": wanted.words, "segments": wanted.segments}
        return JSONResponse(answers.verbose(transcript, language=wanted.language, **chosen))
    if name == "diarized_json":
        return JSONResponse(answers.diarized(transcript))
    return PlainTextResponse(write(name, transcript))


async def events_of(
    parts: AsyncGenerator[Transcript, None], wanted: TranscriptionRequest
) -> AsyncGenerator[dict[str, Any], None]:
    """The events of a recording: a delta for each part that is finished or grew, and the whole text at the end."""
    text, num_sent, log_probs, deltas = "", 0, [], Deltas()
    async with aclosing(parts):
        async for part in parts:
            longer = joined(text, part.text)
            delta = deltas.final(longer) if part.is_final else deltas.partial(longer, len(longer))
            event: dict[str, Any] = {"type": "transcript.text.delta", "delta": delta}
            text = longer if part.is_final else text
            if wanted.logprobs:
                event["logprobs"] = answers.log_probs(part.tokens)
                log_probs += event["logprobs"]
            if event["delta"]:
                yield event
            if wanted.response_format == "diarized_json":
                segments = answers.diarized_segments(part, num_sent)
                num_sent += len(segments)
                for each in segments:
                    yield each
    done: dict[str, Any] = {"type": "transcript.text.done", "text": text}
    yield done | ({"logprobs": log_probs} if wanted.logprobs else {})


async def _sent(first: dict[str, Any], rest: AsyncIterator[dict[str, Any]]) -> AsyncIterator[str]:
    yield _line(first)
    try:
        async for event in rest:
            yield _line(event)
    except TritoneError as error:  # the status is sent already
        yield _line({"error": error_object(answer_to(error))})


def _line(event: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(event, ensure_ascii=False, separators=(',', ':'))}\n\n"


@asynccontextmanager
async def _form(request: Request) -> AsyncIterator[tuple[list[tuple[str, str]], UploadFile]]:
    """The fields of a form and its file."""
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    if kind != b"multipart/form-data":
        raise FieldError("body", "must be multipart/form-data with the audio as file")
    if (charset := options.get(b"charset", b"utf-8").lower()) not in (b"utf-8", b"utf8", b"us-ascii"):
        raise FieldError("body", f"has texts in {charset[:80].decode('latin-1')!r}; UTF-8 is needed")
    try:
        form = await request.form(max_files=1, max_fields=MAX_FIELDS, max_part_size=MAX_FIELD_BYTES)
    except HTTPException as error:
        raise FieldError("body", f"cannot be read: {error.detail}") from error
    try:
        file = form.get("file")
        if not isinstance(file, UploadFile) or not file.size:
            raise FieldError("file", "is missing or empty; send the audio as a file of the form")
        yield [(name, value) for name, value in form.multi_items() if isinstance(value, str)], file
    finally:
        await form.close()


@asynccontextmanager
async def _content(file: UploadFile) -> AsyncIterator[bytes | Upload]:
    """The audio: its bytes, or what is on disk while the block runs."""
    if (file.size or 0) <= IN_MEMORY:
        yield await file.read()
        return
    with tempfile.NamedTemporaryFile(prefix="tritone-") as copy:
        await asyncio.to_thread(shutil.copyfileobj, file.file, copy)
        copy.flush()
        yield Upload(Path(copy.name))


async def _models(gateway: Gateway) -> list[dict[str, Any]]:
    """The models in OpenAI's form, and the names that clients may use for them; nobody knows when they were created."""
    models = await gateway.speech.all_models()
    kinds = {each.name: each.kind for each in models if each.kind in ("offline", "streaming", "synthesis")}
    named = {"object": "model", "created": 0, "owned_by": OWNER}
    own = [{"id": name, **named, "kind": kind} for name, kind in kinds.items()]
    return own + [{"id": name, **named, "kind": "alias"} for name in gateway.options.aliases]
