"""What happens around every request and connection, whatever its protocol: limits, errors, metrics, log and trace.

It is ASGI middleware of its own, since it counts bodies as they come, and is around WebSockets, too. The log has
neither audio nor text, and no query, which may have a key.
"""

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

import anyio
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tritone.gateway.refusal import ErrorAnswer, GatewayRefusal, answer_to
from tritone.gateway.visit import REQUEST_ID, VISIT, Visit, id_of
from tritone.net.http_server import is_lost, when_lost
from tritone.net.upload import Upload

if TYPE_CHECKING:
    from tritone.gateway.gateway import Gateway

ACCESS = logging.getLogger("tritone.gateway.access")
MAX_PATH = 200  # characters of it in the log
LEFT = 499  # of a request or gRPC call that its client has left, or whose connection is gone; no error
UNCOUNTED = ("/health/", "/metrics")
AWAY = {429: 1013, 502: 1013, 503: 1013, 504: 1013, 500: 1011}  # "try again later", "internal error" of RFC 6455


DENIAL = "websocket.http.response"  # of ASGI: a WebSocket that is refused may have an answer of HTTP


def error_response(answer: ErrorAnswer) -> JSONResponse:
    """An error as the gateway's own protocols word it."""
    return JSONResponse(answer.body, answer.status, headers=answer.headers)


def close_code(answer: ErrorAnswer) -> int:
    """The code by which a WebSocket is closed for an error."""
    return AWAY.get(answer.status, 1008)


class Visits:
    """The middleware."""

    def __init__(self, app: ASGIApp, gateway: "Gateway") -> None:
        self._app = app
        self._gateway = gateway
        self._limits = gateway.options.limits
        self._in_flight = 0
        self._uploads: Counter[str] = Counter()  # bodies that are not whole, by address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"].startswith(UNCOUNTED):
            await self._app(scope, receive, send)
            return
        visit, is_http = Visit(id=id_of(Headers(scope=scope))), scope["type"] == "http"
        client, method = (scope.get("client") or ("",))[0], scope.get("method", "WEBSOCKET")
        with visiting(self._gateway, visit, client=client, method=method, path=scope["path"], timed=is_http):
            await self._visited(visit, scope, receive, send)

    async def _visited(self, visit: Visit, scope: Scope, receive: Receive, send: Send) -> None:
        own_header = (REQUEST_ID.encode(), visit.id.encode())
        is_http = scope["type"] == "http"
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            if message["type"].endswith("http.response.start"):
                visit.status = message["status"]
                message = {**message, "headers": [*message.get("headers", ()), own_header]}
            elif message["type"] == "websocket.close" and not started:
                visit.status = visit.status or message.get("code", 1000)
            elif message["type"] == "websocket.accept":
                visit.status = 101
                message = {**message, "headers": [*message.get("headers", ()), own_header]}
            started = True
            await send(message)

        try:
            with self._gateway.traces.request(scope):
                if is_http:
                    await self._http(scope, receive, sending)
                else:
                    await self._socket(scope, receive, sending)
        except Exception as error:
            answer = answer_to(error)
            visit.status = answer.status
            if not started and (is_http or DENIAL in scope.get("extensions", {})):
                response = visit.wording(error, answer) if visit.wording else error_response(answer)
                await response(scope, receive, sending)
            elif not is_http:
                await _closed(sending, answer)
            else:
                raise  # the server breaks the connection off, by which the client knows

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        limits = self._limits
        if self._in_flight >= limits.max_requests:
            raise GatewayRefusal(503, f"{self._in_flight} requests are in flight here, the most there may be", 1.0)
        upload = Upload(scope, receive, max_bytes=limits.max_body_bytes, rate=limits.body_rate)
        address = (scope.get("client") or ("",))[0]
        is_answered = False
        coming = not upload.is_whole
        if coming and self._uploads[address] >= limits.max_uploads:
            raise GatewayRefusal(
                503, f"{self._uploads[address]} bodies are coming from {address}, the most there may be", 1.0
            )

        async def receiving() -> Message:
            nonlocal coming
            message = await upload.receive()
            if coming and upload.is_whole:
                coming = False
                self._uploaded(address)
            return message

        async def answering(message: Message) -> None:
            nonlocal is_answered
            is_answered = is_answered or (
                message["type"] == "http.response.body" and not message.get("more_body", False)
            )
            await send(message)

        def left() -> None:
            """End the work for a client that goes before its answer is whole."""
            if not is_answered:
                scope_of_work.cancel()

        self._in_flight += 1
        self._uploads[address] += coming
        try:
            with anyio.fail_after(limits.request_s) as scope_of_work, when_lost(scope, left):
                await self._app(scope, receiving, answering)
            if is_lost(scope) and not is_answered and (visit := VISIT.get()) is not None:
                visit.status = LEFT
        except TimeoutError as error:
            message = f"the request took more than {limits.request_s:g} s, the longest time; send less at once"
            raise GatewayRefusal(408, message) from error
        finally:
            self._in_flight -= 1
            if coming:
                self._uploaded(address)

    def _uploaded(self, address: str) -> None:
        self._uploads[address] -= 1
        if not self._uploads[address]:
            del self._uploads[address]

    async def _socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Close a connection on which nothing has come for too long."""
        idle_s, received_at = self._limits.idle_s, time.monotonic()
        loop = asyncio.get_running_loop()
        closing: list[asyncio.Task[None]] = []

        async def listening() -> Message:
            nonlocal received_at
            message = await receive()
            received_at = time.monotonic()
            return message

        timer: asyncio.TimerHandle | None = None

        def look() -> None:
            nonlocal timer
            left_s = received_at + idle_s - time.monotonic()
            if left_s > 0:
                timer = loop.call_later(left_s, look)
                return
            answer = ErrorAnswer(status=408, code="idle", message=f"nothing came for {idle_s:g} s")
            closing.append(asyncio.ensure_future(_closed(send, answer)))

        look()
        try:
            await self._app(scope, listening, send)
        finally:
            if timer is not None:
                timer.cancel()


@contextmanager
def visiting(gateway: "Gateway", visit: Visit, *, client: str, method: str, path: str, timed: bool) -> Iterator[None]:
    """Around a visit, which is counted at its end and written to the log. `timed`: whether its time has a meaning."""
    token, since = VISIT.set(visit), time.monotonic()
    try:
        yield
    finally:
        VISIT.reset(token)
        took_s = time.monotonic() - since
        failed = (visit.status >= 400 and visit.status != LEFT) or bool(visit.code)
        outcome = "ok" if not failed else "refused" if visit.refused or 400 <= visit.status < 500 else "failed"
        gateway.metrics.requests.labels(visit.protocol, outcome).inc()
        if visit.refused:
            gateway.metrics.refusals.labels(visit.protocol, visit.code).inc()
        if timed:
            gateway.metrics.seconds.labels(visit.protocol).observe(took_s)
        if ACCESS.isEnabledFor(logging.INFO):
            line = {
                "time": datetime.now().astimezone().isoformat(timespec="milliseconds"),
                "id": visit.id,
                "client": client,
                "caller": visit.name,
                "protocol": visit.protocol,
                "method": method,
                "path": path[:MAX_PATH],
                "status": visit.status,
                "error": visit.code,
                "seconds": round(took_s, 4),
                "model": visit.model,
                "audio_s": round(visit.audio_s, 3),
            }
            ACCESS.info("%s", json.dumps(line))


async def _closed(send: Send, answer: ErrorAnswer) -> None:
    """Close a WebSocket for an error; nothing happens if it is closed already."""
    try:
        # The reason of a close frame has at most 123 bytes.
        reason = f"{answer.code}: {answer.message}".encode()[:120].decode(errors="ignore")
        await send({"type": "websocket.close", "code": close_code(answer), "reason": reason})
    except (RuntimeError, OSError):
        pass
