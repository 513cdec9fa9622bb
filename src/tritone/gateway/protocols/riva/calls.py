"""What happens around every call of gRPC, as `visits.py` has it for HTTP: errors, metrics, log and trace."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import grpc

from tritone.gateway.refusal import answer_to
from tritone.gateway.visit import REQUEST_ID, Visit, id_of
from tritone.gateway.visits import LEFT, visiting
from tritone.net.connections import peer_of

if TYPE_CHECKING:
    from tritone.gateway.gateway import Gateway

HEALTH = "/grpc.health.v1."  # asked all day long, and not counted
STATUS = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    413: grpc.StatusCode.OUT_OF_RANGE,
    415: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    502: grpc.StatusCode.UNAVAILABLE,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
"""What statuses of HTTP are called in gRPC; all others are INTERNAL."""

Context = Any  # grpc.aio.ServicerContext
Handler = Callable[[Any, Context], Awaitable[Any]]


def headers_of(context: Context) -> dict[str, str]:
    """The metadata of a call that is text, by names in lower case."""
    return {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}


class Calls:
    """The calls of one gateway."""

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway

    def visit(self, path: str, handler: Handler, *, is_unary: bool = True) -> Handler:
        """The handler of calls to `path`, whose errors end the call with a status and a sentence."""

        async def handled(request: Any, context: Context) -> Any:
            headers, client = headers_of(context), peer_of(context)[0]
            visit = Visit(status=200, id=id_of(headers))
            context.set_trailing_metadata(((REQUEST_ID, visit.id),))
            with ExitStack() as around:
                if not path.startswith(HEALTH):
                    around.enter_context(
                        visiting(self._gateway, visit, client=client, method="GRPC", path=path, timed=is_unary)
                    )
                try:
                    with self._gateway.traces.span(path, headers):
                        return await handler(request, context)
                except asyncio.CancelledError:
                    visit.status = LEFT
                    raise
                except Exception as error:
                    answer = answer_to(error)
                    visit.status = answer.status
                    hints = ((REQUEST_ID, visit.id), *answer.headers.items())
                    await context.abort(STATUS.get(answer.status, grpc.StatusCode.INTERNAL), answer.message, hints)

        return handled
