"""One request by HTTP as the proxy sees it: its head, its body within limits, and the end of work nobody waits for.

await serve(gate, scope, receive, send, function)
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Protocol

from tritone.net.connections import as_peer
from tritone.net.http_server import Receive, Response, Scope, Send, is_lost, when_lost
from tritone.net.limits import LeastRate
from tritone.net.refusal import RefusedError
from tritone.net.upload import Upload
from tritone.proxy.gate import Gate

LOG = logging.getLogger(__name__)


class Answerable(Protocol):
    """An answer, which is an ASGI application, too: a `Response`, or one that is sent as it comes."""

    @property
    def status(self) -> int: ...

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


class Request:
    """A request. `path`: as it was sent, but without what is behind a question mark; header names are in lower case."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.scope = scope
        self._receive = receive
        self.method: str = scope["method"]
        self.path: str = scope["raw_path"].decode("ascii")
        # of a header that is there twice, the first
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])}
        self.peer = as_peer(scope["client"]) if scope["client"] else ("", 0)

    def all(self, name: str) -> list[str]:
        """All values of a header."""
        wanted = name.encode("latin-1")
        return [value.decode("latin-1") for header, value in self.scope["headers"] if header == wanted]

    def upload(self, *, max_bytes: int, rate: LeastRate) -> Upload:
        """The body; raises `RefusedError` for a length that is too large."""
        return Upload(self.scope, self._receive, max_bytes=max_bytes, rate=rate)


async def serve(
    gate: Gate,
    scope: Scope,
    receive: Receive,
    send: Send,
    answer: Callable[[Request], Awaitable[Answerable]],
    count: Callable[[str], None] = lambda outcome: None,
) -> None:
    """Send what a function answers; it is cancelled when the client goes. `count` gets how the request ended."""
    request, task = Request(scope, receive), asyncio.current_task()
    assert task is not None
    gate.connections.begin(request.peer)
    try:
        with when_lost(scope, task.cancel):
            response: Answerable = await answer(request)
        outcome = "ok" if response.status < 400 else "failed"
    except RefusedError as refusal:
        outcome, response = refusal.reason.name, error_response(refusal.reason.http, str(refusal), refusal.hints)
    except (asyncio.CancelledError, ConnectionError):
        if not is_lost(scope):
            raise
        count("cancelled")
        return  # nobody waits for the answer
    except Exception:
        LOG.exception("the proxy failed")
        outcome, response = "failed", error_response(500, "the proxy failed; its log says more", {})
    finally:
        gate.connections.end(request.peer)
    count(outcome)

    async def sent(message: MutableMapping[str, Any]) -> None:
        gate.connections.end(request.peer)  # it is the client that is waited for now, and may be for ever
        try:
            await send(message)
        finally:
            gate.connections.begin(request.peer)

    gate.connections.begin(request.peer)
    try:
        await response(scope, receive, sent)
    finally:
        gate.connections.end(request.peer)


def error_response(status: int, message: str, headers: Mapping[str, str]) -> Response:
    """An error as Triton words it."""
    return Response.of_json({"error": message}, status, headers)
