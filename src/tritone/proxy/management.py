"""The metrics port: metrics, health and drains, for those who run the server and not for its clients.

GET /metrics     the proxy's metrics, then Triton's
GET /v2/health/live, /v2/health/ready     as at the HTTP port; here they need no TLS and no free connection
GET /drain       {"state": "serving", "requests": 0, "streams": 0}
POST /drain      {"state": "leaving"}, with the key of locked APIs; answers as GET does
"""

import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from tritone.net.http_server import HttpServer, Receive, Response, Scope, Send
from tritone.net.limits import LeastRate
from tritone.net.refusal import BAD_REQUEST, NOT_PASSED, RefusedError
from tritone.proxy.gate import STATES, Gate
from tritone.proxy.request import Request, serve

METRICS, LIVE, READY, DRAIN = "/metrics", "/v2/health/live", "/v2/health/ready", "/drain"
MAX_BODY_BYTES = 1024
PAGE = "text/plain; version=0.0.4; charset=utf-8"
SHUTDOWN_S = 4.0  # for a scrape that waits for Triton
LOG = logging.getLogger(__name__)


class ManagementSide:
    """A server for the operators of a proxy, in a running event loop.

    Args:
        ready: answers whether Triton and the proxy are ready, as the HTTP port does.
        metrics: the page of metrics.
    """

    def __init__(
        self, gate: Gate, ready: Callable[[], Awaitable[Response]], metrics: Callable[[], Awaitable[str]]
    ) -> None:
        self._gate = gate
        self._ready = ready
        self._metrics = metrics
        self._server = HttpServer(self._app, idle_s=gate.options.limits.idle_s)

    async def start(self, host: str, port: int) -> None:
        await self._server.start(host=host, port=port)

    async def stop(self) -> None:
        await self._server.stop(SHUTDOWN_S)

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        await serve(self._gate, scope, receive, send, self._answer)

    async def _answer(self, request: Request) -> Response:
        asked = (request.method, request.path)
        if asked == ("GET", METRICS):
            return Response(body=(await self._metrics()).encode(), headers={"content-type": PAGE})
        if asked == ("GET", LIVE):
            return Response()
        if asked == ("GET", READY):
            return await self._ready()
        if asked == ("GET", DRAIN):
            return self._drain_state()
        if asked == ("POST", DRAIN):
            self._gate.require_key("drain", request.headers.get(self._gate.options.key_header.lower()))
            self._gate.state = await _wanted_state(request, self._gate.options.limits.body_rate)
            found = (self._gate.state, len(self._gate.streams), self._gate.in_flight)
            LOG.warning("tritone: the server is %s, with %d open streams and %d requests in flight", *found)
            return self._drain_state()
        raise RefusedError(NOT_PASSED, f"{request.method[:20]} {request.path[:200]!r} is not served here")

    def _drain_state(self) -> Response:
        gate = self._gate
        wanted = {"state": gate.state, "requests": gate.in_flight, "streams": len(gate.streams)}
        return Response.of_json(wanted)


async def _wanted_state(request: Request, rate: LeastRate) -> str:
    upload = request.upload(max_bytes=MAX_BODY_BYTES, rate=rate)
    body = b"".join([part async for part in upload.parts()])
    with suppress(ValueError, RecursionError):
        wanted = json.loads(body)
        if isinstance(wanted, dict) and wanted.keys() == {"state"} and wanted["state"] in STATES:
            return str(wanted["state"])
    raise RefusedError(BAD_REQUEST, f'the body must be {{"state": S}} with S one of {", ".join(STATES)}')
