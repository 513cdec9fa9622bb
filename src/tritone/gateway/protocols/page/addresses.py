"""The page at /: its files, and what it asks of the gateway beside the WebSocket. docs/applications/page.md shows it.

GET /, /page/NAME        files of the package
GET /page/models         the models to choose from
POST /page/transcribe    a recording  ->  its finished parts, a line of JSON each
POST /page/written/srt   a transcript as JSON  ->  captions

These addresses are for the page alone and change with it; programs use the other protocols.
"""

import hashlib
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import ExitStack, aclosing
from dataclasses import replace
from functools import partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from tritone.audio.files import Upload
from tritone.client import ModelInfo
from tritone.errors import InputError
from tritone.formats import write
from tritone.gateway.protocols.page.options import PageOptions
from tritone.gateway.refusal import GatewayRefusal, answer_to
from tritone.gateway.sockets import as_json, read_json
from tritone.gateway.stream_options import read_start
from tritone.transcript import Transcript

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from tritone.gateway.gateway import Gateway

PROTOCOL = "page"
FOLDER = resources.files(__package__) / "files"
CAPTIONS = ("srt", "vtt")
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Files of this address and nothing else: no inline code, no other hosts, no frames, no plugins.
POLICY = "; ".join(
    (
        "default-src 'none'",
        *(f"{kind}-src 'self'" for kind in ("script", "style", "img", "connect")),
        "media-src blob:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "content-security-policy": POLICY,
    "permissions-policy": "microphone=(self), camera=(), geolocation=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",  # asked for again with its etag: modules of two versions must not meet
}


def routes(gateway: "Gateway") -> list[BaseRoute]:
    """The page and its addresses; none where the gateway has no page."""
    if not gateway.options.of(PROTOCOL, PageOptions).page:
        return []
    files = {each.name: each.read_bytes() for each in FOLDER.iterdir() if Path(each.name).suffix in TYPES}
    return [
        Route("/", partial(_file, files, "index.html")),
        Route("/page/models", partial(_models, gateway)),
        Route("/page/transcribe", partial(_transcribe, gateway), methods=["POST"]),
        Route("/page/written/{format}", partial(_written, gateway), methods=["POST"]),
        Route("/page/{name}", partial(_file, files, "")),
    ]


async def _file(files: dict[str, bytes], name: str, request: Request) -> Response:
    name = name or request.path_params["name"]
    if name not in files:
        raise GatewayRefusal(404, f"the page has no file {name[:80]!r}")
    tag = f'"{hashlib.sha256(files[name]).hexdigest()[:32]}"'
    headers = {**HEADERS, "etag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(files[name], headers=headers, media_type=TYPES[Path(name).suffix])


async def _models(gateway: "Gateway", request: Request) -> Response:
    await gateway.admit(request.headers, request.query_params, protocol=PROTOCOL)
    models = await gateway.speech.all_models()
    options = gateway.options
    return JSONResponse(
        {
            "models": [{"name": each.name, "kind": each.kind, "searches": _searches(each)} for each in models],
            "live": options.stream_model,
            "files": options.model,
            "vad": options.vad_model,
            "turns": bool(options.turn_model),
        }
    )


def _searches(model: ModelInfo) -> list[str] | None:
    """The searches among which a request to a model may choose; None where nobody knows."""
    return list(model.searches) or (None if model.has_search and not model.decodes else [])


async def _transcribe(gateway: "Gateway", request: Request) -> Response:
    caller = await gateway.admit(request.headers, request.query_params, protocol=PROTOCOL)
    start = read_start(read_json(request.query_params.get("options", "{}")), {})
    ask = start.ask(await gateway.speech.model(start.model, "offline"))
    channels = request.query_params.get("channels", "mixed")
    if channels not in ("mixed", "each"):
        raise InputError(f"channels is mixed or each, got {channels[:80]!r}")
    if channels == "each":  # is a speaker, whoever else is asked for
        ask = replace(ask, each_channel=True, speakers=None)
    with ExitStack() as held:
        path = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="tritone-page-"))) / "recording"
        with path.open("wb") as file:
            async for chunk in request.stream():
                file.write(chunk)
        parts = gateway.speech.parts(Upload(path), ask, caller)
        # What is wrong with the request shows here, and has a status of its own.
        return _Parts(await anext(parts, None), parts, held.pop_all())


class _Parts(StreamingResponse):
    """Lines of JSON. `held` is released when the last one is sent, or the client is gone."""

    def __init__(self, first: Transcript | None, parts: AsyncGenerator[Transcript, None], held: ExitStack) -> None:
        super().__init__(self._lines(first, parts), media_type="application/x-ndjson")
        self._parts = parts
        self._held = held

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        with self._held:
            async with aclosing(self._parts):  # what is under way ends with the client
                await super().__call__(scope, receive, send)

    @staticmethod
    async def _lines(first: Transcript | None, parts: AsyncGenerator[Transcript, None]) -> AsyncIterator[str]:
        part = first
        try:
            while part is not None:
                yield as_json(part.to_dict()) + "\n"
                part = await anext(parts, None)
        except Exception as error:
            yield as_json(answer_to(error).body) + "\n"


async def _written(gateway: "Gateway", request: Request) -> Response:
    await gateway.admit(request.headers, request.query_params, protocol=PROTOCOL)
    name = request.path_params["format"]
    if name not in CAPTIONS:
        raise GatewayRefusal(404, f"captions are {' or '.join(CAPTIONS)}, not {name[:80]!r}")
    try:
        transcript = Transcript.from_dict(read_json(await request.body(), "the body"))
        return PlainTextResponse(write(name, transcript))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"the body is no transcript as this gateway writes them ({error!r:.200})") from error
