"""Errors in OpenAI's form: {"error": {"message", "type", "param", "code"}}, for HTTP and for events of a session.

The client package makes its classes of the status: 400 BadRequestError, 401 AuthenticationError, 404 NotFoundError, 429
RateLimitError, from 500 on InternalServerError, which it sends again.
"""

from typing import Any

from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse

from tritone.gateway.callers import Caller
from tritone.gateway.gateway import Gateway
from tritone.gateway.refusal import ErrorAnswer
from tritone.gateway.visit import VISIT

CODES = {"unauthorized": "invalid_api_key", "rate_limited": "rate_limit_exceeded"}
"""The gateway's code words that OpenAI has others for."""


def error_object(answer: ErrorAnswer) -> dict[str, Any]:
    """What a client gets about an error, with OpenAI's code words."""
    return {**answer.body["error"], "code": CODES.get(answer.code, answer.code)}


def error_response(error: BaseException, answer: ErrorAnswer) -> JSONResponse:
    """The HTTP answer about an error."""
    return JSONResponse({"error": error_object(answer)}, answer.status, answer.headers)


async def admitted(gateway: Gateway, connection: HTTPConnection, protocol: str) -> Caller:
    """Who asks; errors of the request are worded as OpenAI words them. Raises `GatewayRefusal` if it may not ask."""
    visit = VISIT.get()
    if visit is not None:
        visit.wording = error_response
    return await gateway.admit(connection.headers, connection.query_params, protocol=protocol)
