"""One request by HTTP as the proxy sees it: its head, its body within limits, and the end of work nobody waits for.

response = await answered(gate, request, function)
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from tritone.net.connections import as_peer
from tritone.net.http_server import Receive, Response, Scope, is_lost, when_lost
from tritone.net.limits import LeastRate
from tritone.net.refusal import RefusedError
from tritone.net.upload import Upload
from tritone.proxy.gate import Gate

LOG = logging.getLogger(__name__)


class ClientGoneError(Exception):
    """The client has gone: nobody waits for an answer."""


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


async def answered(gate: Gate, request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
    """The answer of a function, which is cancelled when the client goes.

    Raises:
        RefusedError: as the function does.
        ClientGoneError: nobody waits for the answer.
    """
    task = asyncio.current_task()
    assert task is not None
    gate.connections.begin(request.peer)
    try:
        with when_lost(request.scope, task.cancel):
            return await answer(request)
    except RefusedError:
        raise
    except (asyncio.CancelledError, ConnectionError) as error:
        if is_lost(request.scope):
            raise ClientGoneError from error
        raise
    except Exception:
        LOG.exception("the proxy failed")
        return Response.of_json({"error": "the proxy failed; its log says more"}, 500)
    finally:
        gate.connections.end(request.peer)
