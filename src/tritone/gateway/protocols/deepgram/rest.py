"""Deepgram's REST: POST `/v1/listen` with a recording as its body  ->  its transcript as JSON.

The address of a recording (`{"url": ...}`) is refused: the gateway sends no requests that strangers choose.
"""

import hashlib
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from tritone.audio.files import Upload
from tritone.errors import AudioError
from tritone.gateway.announced_audio import AudioFormat, recording
from tritone.gateway.gateway import Gateway
from tritone.gateway.protocols.deepgram.answers import error_body, whole
from tritone.gateway.protocols.deepgram.request import PROTOCOL, ListenRequest
from tritone.gateway.refusal import ErrorAnswer, GatewayRefusal
from tritone.gateway.visit import VISIT, visit_id

ID_HEADER = "dg-request-id"


def routes(gateway: Gateway) -> list[BaseRoute]:
    """The route of HTTP."""

    async def listen(request: Request) -> Response:
        request_id = visit_id()
        if (visit := VISIT.get()) is not None:

            def worded(error: Exception, answer: ErrorAnswer) -> Response:
                headers = {**answer.headers, ID_HEADER: request_id}
                return JSONResponse(error_body(answer, request_id), answer.status, headers)

            visit.wording = worded
        caller = await gateway.admit(request.headers, request.query_params, protocol=PROTOCOL)
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json":
            raise GatewayRefusal(
                400, "recordings are not fetched from addresses here: send the audio itself as the body of the request"
            )
        wanted = ListenRequest.read(request.query_params.multi_items())
        info = await gateway.speech.model(wanted.model, "offline")
        async with _body(request, wanted.audio) as (audio, sha256):
            ask = wanted.ask(info)
            if wanted.utterances or wanted.paragraphs:
                ask = replace(ask, words="needed")
            if wanted.multichannel:
                found = await gateway.speech.channels(audio, ask, caller)
            else:
                found = [await gateway.speech.transcribe(audio, ask, caller)]
        answer = whole(found, wanted, request_id=request_id, sha256=sha256, model=info.name)
        return JSONResponse(answer, headers={ID_HEADER: request_id})

    return [Route("/v1/listen", listen, methods=["POST"])]


@asynccontextmanager
async def _body(request: Request, declared: AudioFormat) -> AsyncIterator[tuple[bytes | Upload, str]]:
    """The recording, its bytes or what is on disk while the block runs, and its sha256."""
    digest = hashlib.sha256()
    with tempfile.NamedTemporaryFile(prefix="tritone-") as file:
        async for piece in request.stream():
            digest.update(piece)
            file.write(piece)
        file.flush()
        path = Path(file.name)
        if not path.stat().st_size:
            raise AudioError("the request has no audio: its body is empty")
        named = declared.encoding != ""
        yield (recording(declared, path.read_bytes()) if named else Upload(path)), digest.hexdigest()
