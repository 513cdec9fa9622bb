"""Recordings: POST /lines with one of any format and length  ->  its text, a line for each sentence."""

import re

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from tritone.gateway.ask import Ask
from tritone.gateway.gateway import Gateway
from tritone.gateway.refusal import ErrorAnswer
from tritone.gateway.visit import VISIT

SENTENCE_END = re.compile(r"(?<=[.?!])\s+")


def routes(gateway: Gateway) -> list[BaseRoute]:
    """The route of recordings."""

    async def transcribe(request: Request) -> Response:
        if (visit := VISIT.get()) is not None:
            visit.wording = _complaint
        caller = await gateway.admit(request.headers, request.query_params, protocol="lines")
        ask = Ask(model=request.query_params.get("model", ""))
        found = await gateway.speech.transcribe(await request.body(), ask, caller)
        return PlainTextResponse("".join(f"{line}\n" for line in SENTENCE_END.split(found.text)))

    return [Route("/lines", transcribe, methods=["POST"])]


def _complaint(error: Exception, answer: ErrorAnswer) -> Response:
    return PlainTextResponse(f"! {answer.message}\n", answer.status, answer.headers)
