"""The HTTP side: routes of the v2 protocol, bodies within limits, and errors as Triton words them.

aiohttp request  ->  route  ->  (inference: gate)  ->  Triton  ->  response
"""

import asyncio
import json
import re
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from tritone.errors import hinted_s
from tritone.net.connections import as_peer
from tritone.net.refusal import BAD_REQUEST, DOWN, NOT_PASSED, TOO_LARGE, TOO_SLOW, RefusedError, retry_hints
from tritone.proxy.checks import check_name, outward
from tritone.proxy.gate import Gate, Passage
from tritone.proxy.json_body import most_unpacked, read_inference, read_json, unpacked, write_json
from tritone.proxy.owners import Owner
from tritone.proxy.upstream import Answer, HttpUpstream

HEADER_LENGTH = "Inference-Header-Content-Length"
READ_BYTES = 256 << 10  # of a body at once
READY_TIMEOUT_S = 5.0  # of Triton, as for gRPC
LINGER_S = 1.0  # how long the rest of a refused body is read, so that the client reads the refusal
LARGE = 256 << 10  # bytes of a body whose unpacking or parsing leaves the loop
ACCEPTED_ENCODING = re.compile(r"[A-Za-z0-9*,;=. -]{1,256}")
WHO = {"Server": "tritone"}  # and not which versions of what
PASSED_BACK = ("content-type", "content-encoding", "inference-header-content-length")

MODEL = r"/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[^/]*))?"
INFER = re.compile(MODEL + "/infer")
OPEN = re.compile(rf"/v2/?|/v2/models/stats|{MODEL}(?:/ready|/config|/stats)?")
# What changes the server or shows its inside.
LOCKED = {
    "shared-memory": re.compile(
        r"/v2/(systemsharedmemory|cudasharedmemory)(/region/[^/]+)?/(status|register|unregister)"
    ),
    "control": re.compile(r"/v2/repository/(index|models/[^/]+/(load|unload))"),
    "logging": re.compile(r"/v2/logging"),
    "trace": re.compile(rf"/v2/trace/setting|{MODEL}/trace/setting"),
}


class HttpSide:
    """A server for HTTP clients, in a running event loop."""

    def __init__(self, gate: Gate, upstream: HttpUpstream, grpc_is_ready: Callable[[], Awaitable[bool]]) -> None:
        self._gate = gate
        self._grpc_is_ready = grpc_is_ready
        self._upstream = upstream
        self._listener: asyncio.Server | None = None
        self._web: web.Server | None = None

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        loop = asyncio.get_running_loop()
        server = self._web = web.Server(self._handle, handler_cancellation=True)
        limits = self._gate.options.limits

        def connection() -> asyncio.Protocol:
            return _Connection(
                server,
                loop=loop,
                keepalive_timeout=limits.idle_s,
                access_log=None,
                auto_decompress=False,  # it knows no limit
                lingering_time=LINGER_S,
                read_bufsize=READ_BYTES,
                gate=self._gate,
            )

        handshake_s = None if tls is None else limits.body_grace_s
        self._listener = await loop.create_server(
            connection, host, port, ssl=tls, backlog=128, ssl_handshake_timeout=handshake_s
        )

    async def stop(self) -> None:
        if self._listener is not None:
            self._listener.close()
        if self._web is not None:
            transports = [each.transport for each in self._web.connections]
            await self._web.shutdown(LINGER_S)
            for each in transports:
                if each is not None:
                    each.abort()  # `close` waits for clients to read
            await asyncio.sleep(0)  # connections are closed in the next round of the loop

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        peer = peer_of(request)
        self._gate.connections.begin(peer)
        outcome = "cancelled"
        try:
            response = await self._answer(request, peer)
            outcome = "ok" if response.status < 400 else "failed"
        except RefusedError as refusal:
            outcome = refusal.reason.name
            response = error_response(refusal.reason.http, str(refusal), refusal.hints)
            if not request.content.is_eof():
                response.force_close()
        except ConnectionError:  # of the client, in the middle of its request: nobody reads the answer
            response = error_response(400, "the connection broke", {})
            response.force_close()
        finally:
            self._gate.connections.end(peer)
            self._gate.outcomes["http", outcome] += 1
        return response

    async def _answer(self, request: web.BaseRequest, peer: tuple[str, int]) -> web.Response:
        # What is behind a question mark means nothing to Triton, and nothing that was not checked is sent on.
        method, path = request.method, request.raw_path.partition("?")[0]
        if path == "/v2/health/live" and method == "GET":
            return web.Response(headers=WHO)
        if path == "/v2/health/ready" and method == "GET":
            return await self.ready()
        if method == "POST" and (found := INFER.fullmatch(path)):
            return await self._infer(request, peer, found["model"], found["version"] or "")
        headers: dict[str, str] = {}
        locked = next((api for api, paths in LOCKED.items() if paths.fullmatch(path)), None)
        if locked and method in ("GET", "POST"):
            name = self._gate.options.key_header
            self._gate.require_key(locked, request.headers.get(name))
            headers[name] = self._gate.options.key
            if path.startswith("/v2/repository/models/"):
                self._gate.models.forget()
        elif not (OPEN.fullmatch(path) and method == "GET"):
            raise RefusedError(NOT_PASSED, f"{method[:20]} {path[:200]!r} is not served here")
        elif (found := re.match(MODEL, path)) and path != "/v2/models/stats":
            check_name(found["model"], found["version"] or "")
            if path.endswith("/ready") and self._gate.why_not_ready is not None:
                raise RefusedError(DOWN, f"not ready: {self._gate.why_not_ready}", self._gate.options.drain_hint_s)
        async with self._body(request) as body:
            if body:
                body = write_json(read_json(body, self._gate.options.limits))
                headers["Content-Type"] = "application/json"
            return _passed(await self._upstream.request(method, path, headers, body))

    async def ready(self) -> web.Response:
        """The answer about readiness; raises `RefusedError` while the server starts, ends or does not answer."""
        if (why := self._gate.why_not_ready) is not None:
            raise RefusedError(DOWN, f"not ready: {why}", self._gate.options.drain_hint_s)
        try:
            asked = self._upstream.request("GET", "/v2/health/ready", {})
            answer = await asyncio.wait_for(asked, READY_TIMEOUT_S)
            if answer.status == 200 and not await self._grpc_is_ready():
                raise RefusedError(DOWN, "not ready: gRPC does not get through", self._gate.options.retry_after_s)
            return _passed(answer)
        except TimeoutError as error:
            raise RefusedError(DOWN, "not ready: Triton does not answer", self._gate.options.retry_after_s) from error

    async def _infer(self, request: web.BaseRequest, peer: tuple[str, int], model: str, version: str) -> web.Response:
        gate = self._gate
        limits = gate.options.limits
        check_name(model, version)
        header_length = _header_length(request)
        async with self._body(request) as body:
            size = len(body) if header_length is None else header_length
            if size > len(body):
                raise RefusedError(BAD_REQUEST, f"{HEADER_LENGTH} is {size}, but the body has {len(body)} bytes")
            reading = (model, version, body, header_length, limits)
            inference = read_inference(*reading) if size <= LARGE else await asyncio.to_thread(read_inference, *reading)
            passage = await gate.enter(
                inference,
                Owner.of(request.headers, peer, connected=False),
                trusted=gate.may_share_memory(request.headers.get(gate.options.key_header)),
                tail_bytes=len(body) - size,
            )
            asking = self._ask(request, passage, body, header_length)
            answer = await gate.carry(passage, asking, lambda answer: answer.status == 200)
        return _passed(answer, passage)

    async def _ask(self, request: web.BaseRequest, passage: Passage, body: bytes, header_length: int | None) -> Answer:
        inference = passage.inference
        size = len(body) if header_length is None else header_length
        body, length = passage.encoded() if size <= LARGE else await asyncio.to_thread(passage.encoded)
        header_length = None if header_length is None else length
        headers = {"Content-Type": "application/octet-stream" if header_length is not None else "application/json"}
        if header_length is not None:
            headers[HEADER_LENGTH] = str(header_length)
        accepted = request.headers.get("Accept-Encoding", "")
        if ACCEPTED_ENCODING.fullmatch(accepted):
            headers["Accept-Encoding"] = accepted
        version = f"/versions/{inference.version}" if inference.version else ""
        return await self._upstream.request("POST", f"/v2/models/{inference.model}{version}/infer", headers, body)

    @asynccontextmanager
    async def _body(self, request: web.BaseRequest) -> AsyncIterator[bytes]:
        """The body, unpacked, within the limits of size and time. Inside, its bytes count as buffered."""
        limits, content = self._gate.options.limits, request.content
        if not request.body_exists:
            yield b""
            return
        if (request.content_length or 0) > limits.max_body_bytes:
            raise _too_large(limits.max_body_bytes)
        counted = 0
        try:
            if request.headers.get("Expect", "").lower() == "100-continue":
                await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                request.writer.output_size = 0
            begun, parts = time.monotonic(), []
            while not content.at_eof():
                if content.is_eof():  # all of it is here
                    part = content.read_nowait(-1)
                else:
                    left_s = begun + limits.body_rate.allowed_s(counted) - time.monotonic()
                    part = await asyncio.wait_for(content.readany(), left_s)
                counted += len(part)
                self._gate.buffer(len(part))
                parts.append(part)
                if counted > limits.max_body_bytes:
                    raise _too_large(limits.max_body_bytes)
            body = parts[0] if len(parts) == 1 else b"".join(parts)
            encoding = request.headers.get("Content-Encoding", "").strip().lower()
            if encoding not in ("", "identity"):
                binary = HEADER_LENGTH in request.headers
                most = limits.max_body_bytes if binary else min(limits.max_json_bytes, limits.max_body_bytes)
                reserved = most_unpacked(len(body), most)  # before it is there
                counted += reserved
                self._gate.buffer(reserved)
                body = await asyncio.to_thread(unpacked, body, encoding, most)
            yield body
        except TimeoutError as error:
            told = limits.body_rate.broken("the body", counted, time.monotonic() - begun)
            raise RefusedError(TOO_SLOW, told) from error
        except web.RequestPayloadError as error:
            raise RefusedError(BAD_REQUEST, f"the body is damaged: {str(error)[:200]}") from error
        finally:
            self._gate.buffer(-counted)


class _Connection(web.RequestHandler):
    """One connection; what is no HTTP is answered in JSON, and written to no log."""

    __slots__ = ("_gate",)

    def __init__(self, manager: web.Server, *, gate: Gate, **others: Any) -> None:
        super().__init__(manager, **others)
        self._gate = gate

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if address := transport.get_extra_info("peername"):
            self._gate.connections.opened(as_peer(address), transport.get_extra_info("socket"))

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        if status == 500:
            self.logger.error("the proxy failed", exc_info=exc)
        text = "the proxy failed; its log says more" if status == 500 else f"this is no HTTP request: {message}"
        response = error_response(status, text[:300], {})
        response.force_close()
        return response


def _header_length(request: web.BaseRequest) -> int | None:
    values = request.headers.getall(HEADER_LENGTH, [])
    if not values:
        return None
    if len(values) > 1 or not re.fullmatch("[0-9]{1,12}", values[0]):
        raise RefusedError(BAD_REQUEST, f"{HEADER_LENGTH} must be one whole number, got {', '.join(values)[:80]!r}")
    return int(values[0])


def peer_of(request: web.BaseRequest) -> tuple[str, int]:
    """Host and port of a request's client."""
    transport = request.transport
    address = None if transport is None else transport.get_extra_info("peername")
    return as_peer(address) if address else ("", 0)


def _too_large(limit: int) -> RefusedError:
    return RefusedError(TOO_LARGE, f"the body has more than {limit} bytes, the largest size. Send less at once.")


def _passed(answer: Answer, passage: Passage | None = None) -> web.Response:
    if answer.status >= 400 and (message := answer.error):
        told = outward(message if passage is None else passage.told(message))
        busy = retry_hints(hinted_s(told) or 1.0) if answer.status in (429, 503) else {}
        return error_response(answer.status, told, busy)
    headers = {name: answer.headers[name] for name in PASSED_BACK if name in answer.headers}
    return web.Response(status=answer.status, body=answer.body, headers=headers | WHO)


def error_response(status: int, message: str, headers: Mapping[str, str]) -> web.Response:
    """An error as Triton words it."""
    return web.Response(
        status=status,
        body=json.dumps({"error": message}).encode(),
        headers={**headers, **WHO},
        content_type="application/json",
    )
