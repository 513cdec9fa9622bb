"""Limits of requests before a door sees them: the size of bodies, and the time and number of requests.

It is ASGI middleware of its own, since it must count bodies as they come and leave WebSockets alone.
"""

from typing import TYPE_CHECKING

import anyio
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tritone.gateway.refusal import GatewayRefusal

if TYPE_CHECKING:
    from tritone.gateway.gateway import Gateway


class RequestGuard:
    """Refuses what is too large, too slow or too much at once."""

    def __init__(self, app: ASGIApp, gateway: "Gateway") -> None:
        self._app = app
        self._limits = gateway.options.limits
        self._in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(("/health/", "/metrics")):
            await self._app(scope, receive, send)
            return
        limits = self._limits
        if self._in_flight >= limits.max_requests:
            raise GatewayRefusal(503, f"{self._in_flight} requests are in flight here, the most there may be", 1.0)
        declared = Request(scope).headers.get("content-length", "0")
        if declared.isdigit() and int(declared) > limits.max_body_bytes:
            raise self._too_large()
        counted = 0

        async def counting() -> Message:
            nonlocal counted
            message = await receive()
            counted += len(message.get("body", b""))
            if counted > limits.max_body_bytes:
                raise self._too_large()
            return message

        self._in_flight += 1
        try:
            with anyio.fail_after(limits.request_s):
                await self._app(scope, counting, send)
        except TimeoutError as error:
            message = f"the request took more than {limits.request_s:g} s, the longest time; send less at once"
            raise GatewayRefusal(408, message) from error
        finally:
            self._in_flight -= 1

    def _too_large(self) -> GatewayRefusal:
        return GatewayRefusal(413, f"the body has more than {self._limits.max_body_mb:g} MB, the largest size")
