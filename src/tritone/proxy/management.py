"""The metrics port: metrics, health and drains, for those who run the server and not for its clients.

GET /metrics     the proxy's metrics, then Triton's
GET /v2/health/live, /v2/health/ready     as at the HTTP port; here they need no TLS and no free connection
GET /drain       {"state": "serving", "requests": 0, "streams": 0}
POST /drain      {"state": "leaving"}, with the key of locked APIs; answers as GET does
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from aiohttp import web

from tritone.net.refusal import BAD_REQUEST, NOT_PASSED, TOO_LARGE, RefusedError
from tritone.proxy.gate import STATES, Gate
from tritone.proxy.http import WHO, error_response, peer_of

METRICS, LIVE, READY, DRAIN = "/metrics", "/v2/health/live", "/v2/health/ready", "/drain"
MAX_BODY_BYTES = 1024
SHUTDOWN_S = 4.0  # for a scrape that waits for Triton
LOG = logging.getLogger(__name__)


class ManagementSide:
    """A server for the operators of a proxy, in a running event loop.

    Args:
        ready: answers whether Triton and the proxy are ready, as the HTTP port does.
        metrics: the page of metrics.
    """

    def __init__(
        self, gate: Gate, ready: Callable[[], Awaitable[web.Response]], metrics: Callable[[], Awaitable[str]]
    ) -> None:
        self._gate = gate
        self._ready = ready
        self._metrics = metrics
        self._listener: asyncio.Server | None = None
        self._web: web.Server | None = None

    async def start(self, host: str, port: int) -> None:
        idle_s = self._gate.options.limits.idle_s
        self._web = web.Server(self._handle, access_log=None, keepalive_timeout=idle_s)
        self._listener = await asyncio.get_running_loop().create_server(self._web, host, port)

    async def stop(self) -> None:
        if self._listener is not None:
            self._listener.close()
        if self._web is not None:
            await self._web.shutdown(SHUTDOWN_S)

    async def _handle(self, request: web.BaseRequest) -> web.Response:
        peer = peer_of(request)
        self._gate.connections.begin(peer)
        try:
            return await self._answer(request)
        except RefusedError as refusal:
            return error_response(refusal.reason.http, str(refusal), refusal.hints)
        finally:
            self._gate.connections.end(peer)

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        asked = (request.method, request.raw_path)
        if asked == ("GET", METRICS):
            return web.Response(text=await self._metrics(), headers=WHO)
        if asked == ("GET", LIVE):
            return web.Response(headers=WHO)
        if asked == ("GET", READY):
            return await self._ready()
        if asked == ("GET", DRAIN):
            return self._drain_state()
        if asked == ("POST", DRAIN):
            self._gate.require_key("drain", request.headers.get(self._gate.options.key_header))
            self._gate.state = await _wanted_state(request)
            found = (self._gate.state, len(self._gate.streams), self._gate.in_flight)
            LOG.warning("tritone: the server is %s, with %d open streams and %d requests in flight", *found)
            return self._drain_state()
        raise RefusedError(NOT_PASSED, f"{request.method[:20]} {request.raw_path[:200]!r} is not served here")

    def _drain_state(self) -> web.Response:
        gate = self._gate
        told = {"state": gate.state, "requests": gate.in_flight, "streams": len(gate.streams)}
        return web.json_response(told, headers=WHO)


async def _wanted_state(request: web.BaseRequest) -> str:
    body = await request.content.read(MAX_BODY_BYTES + 1)
    if len(body) > MAX_BODY_BYTES:
        raise RefusedError(TOO_LARGE, f"the body has more than {MAX_BODY_BYTES} bytes")
    with suppress(ValueError, RecursionError):
        told = json.loads(body)
        if isinstance(told, dict) and told.keys() == {"state"} and told["state"] in STATES:
            return str(told["state"])
    raise RefusedError(BAD_REQUEST, f'the body must be {{"state": S}} with S one of {", ".join(STATES)}')
