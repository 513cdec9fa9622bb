"""The HTTP side: routes of the v2 protocol, bodies within limits, and errors as Triton words them.

request  ->  route  ->  (inference: gate)  ->  Triton  ->  response
"""

import asyncio
import re
import ssl
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
from tritonclient.grpc import service_pb2 as pb

from tritone.errors import hinted_s
from tritone.net.http_server import HttpServer, Receive, Response, Scope, Send
from tritone.net.refusal import AGAIN_S, BAD_REQUEST, DOWN, NOT_PASSED, UNREADY, RefusedError, retry_hints
from tritone.proxy.checks import check_name, outward
from tritone.proxy.gate import Gate, Passage
from tritone.proxy.generation import Events, generation
from tritone.proxy.grpc import GrpcUpstream
from tritone.proxy.json_body import most_unpacked, read_inference, read_json, unpacked, write_json
from tritone.proxy.owners import Owner
from tritone.proxy.request import Answerable, Request, error_response, serve
from tritone.proxy.upstream import Answer, HttpUpstream

HEADER_LENGTH = "inference-header-content-length"
READY_TIMEOUT_S = 5.0  # of Triton, as for gRPC
LINGER_S = 1.0  # for requests that are not answered when the proxy ends
LARGE = 256 << 10  # bytes of a body whose unpacking or parsing leaves the loop
ACCEPTED_ENCODING = re.compile(r"[A-Za-z0-9*,;=. -]{1,256}")
PASSED_BACK = ("content-type", "content-encoding", "inference-header-content-length")

MODEL = r"/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[^/]*))?"
INFER = re.compile(MODEL + "/infer")
GENERATE = re.compile(MODEL + "/generate_stream")
OPEN = re.compile(rf"/v2/?|/v2/models/stats|{MODEL}(?:/ready|/config|/stats)?")
LOAD = re.compile(r"/v2/repository/models/(?P<model>[^/]+)/load")
LOAD_ERRORS = {grpc.StatusCode.INTERNAL: 500, grpc.StatusCode.NOT_FOUND: 404, grpc.StatusCode.UNAVAILABLE: 503}
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

    def __init__(self, gate: Gate, upstream: HttpUpstream, grpc_upstream: GrpcUpstream) -> None:
        self._gate = gate
        self._grpc = grpc_upstream
        self._upstream = upstream
        self._server = HttpServer(self._app, idle_s=gate.options.limits.idle_s, connections=gate.connections)

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        # so many connections are accepted at once, before those that are too many are shut
        await self._server.start(host=host, port=port, tls=tls, backlog=128)

    async def stop(self) -> None:
        await self._server.stop(LINGER_S)

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        def count(outcome: str) -> None:
            self._gate.outcomes["http", outcome] += 1

        await serve(self._gate, scope, receive, send, self._answer, count)

    async def _answer(self, request: Request) -> Answerable:
        # What is behind a question mark means nothing to Triton, and nothing that was not checked is sent on.
        method, path = request.method, request.path
        if path == "/v2/health/live" and method == "GET":
            return Response()
        if path == "/v2/health/ready" and method == "GET":
            return await self.ready()
        if method == "POST" and (found := INFER.fullmatch(path)):
            return await self._infer(request, found["model"], found["version"] or "")
        if method == "POST" and (found := GENERATE.fullmatch(path)):
            return await self._generate(request, found["model"], found["version"] or "")
        headers: dict[str, str] = {}
        model = ""
        locked = next((api for api, paths in LOCKED.items() if paths.fullmatch(path)), None)
        if locked and method in ("GET", "POST"):
            name = self._gate.options.key_header
            self._gate.require_key(locked, request.headers.get(name.lower()))
            headers[name] = self._gate.options.key
            if path.startswith("/v2/repository/models/"):
                self._gate.models.forget()
        elif not (OPEN.fullmatch(path) and method == "GET"):
            raise RefusedError(NOT_PASSED, f"{method[:20]} {path[:200]!r} is not served here")
        elif (found := re.match(MODEL, path)) and path != "/v2/models/stats":
            model = found["model"]
            check_name(model, found["version"] or "")
            if path.endswith("/ready") and self._gate.why_not_ready is not None:
                raise RefusedError(DOWN, f"not ready: {self._gate.why_not_ready}", self._gate.options.drain_hint_s)
        async with self._body(request) as body:
            fields = read_json(body, self._gate.options.limits) if body else {}
            if method == "POST" and (load := LOAD.fullmatch(path)):
                return await self._load(load["model"], fields)
            if body:
                body = write_json(fields)
                headers["Content-Type"] = "application/json"
            answer = await self._upstream.request(method, path, headers, body)
            if model and answer.status >= 400:
                await self._gate.models.fresh(model)  # says whether it is not ready, which Triton does not
                answer = await self._upstream.request(method, path, headers, body)
            return _passed(answer)

    async def _load(self, model: str, fields: Any) -> Response:
        """Have a model loaded by gRPC: by HTTP, Triton 2.51 does it in a thread that has connections of others."""
        try:
            request = pb.RepositoryModelLoadRequest(model_name=model)
            for name, value in fields.get("parameters", {}).items():
                if name.startswith("file:"):
                    request.parameters[name].bytes_param = b64decode(value, validate=True)
                else:
                    request.parameters[name].string_param = value
        except (AttributeError, TypeError, ValueError) as error:
            raise RefusedError(BAD_REQUEST, f"parameters are texts by names, files in base64: {error}") from error
        try:
            await self._grpc.call("RepositoryModelLoad", request.SerializeToString(), timeout_s=None, with_key=True)
        except grpc.aio.AioRpcError as error:
            return error_response(LOAD_ERRORS.get(error.code(), 400), outward(error.details() or ""), {})
        return Response()

    async def ready(self) -> Response:
        """The answer about readiness; raises `RefusedError` while the server starts, ends or does not answer."""
        if (why := self._gate.why_not_ready) is not None:
            raise RefusedError(DOWN, f"not ready: {why}", self._gate.options.drain_hint_s)
        try:
            asked = self._upstream.request("GET", "/v2/health/ready", {})
            answer = await asyncio.wait_for(asked, READY_TIMEOUT_S)
            if answer.status != 200:
                raise RefusedError(UNREADY, "not ready: a model is being loaded, or did not load", AGAIN_S)
            if not await self._grpc.is_ready():
                raise RefusedError(DOWN, "not ready: gRPC does not get through", self._gate.options.retry_after_s)
            return _passed(answer)
        except TimeoutError as error:
            raise RefusedError(DOWN, "not ready: Triton does not answer", self._gate.options.retry_after_s) from error

    async def _infer(self, request: Request, model: str, version: str) -> Response:
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
                Owner.of(request.headers, request.peer, connected=False),
                trusted=gate.may_share_memory(request.headers.get(gate.options.key_header.lower())),
                tail_bytes=len(body) - size,
            )
            asking = self._ask(request, passage, body, header_length)
            answer = await gate.carry(passage, asking, lambda answer: answer.status == 200)
        return await self._answered(answer, passage)

    async def _generate(self, request: Request, model: str, version: str) -> Answerable:
        gate = self._gate
        check_name(model, version)
        async with self._body(request) as body:
            fields = read_json(body, gate.options.limits)
            inference = generation(model, version, fields, (await gate.models.facts(model)).inputs)
            passage = await gate.enter(inference, Owner.of(request.headers, request.peer, connected=False))
        parts: asyncio.Queue[bytes] = asyncio.Queue()
        path = f"/v2/models/{model}{f'/versions/{version}' if version else ''}/generate_stream"
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        asking: asyncio.Future[Answer] = asyncio.ensure_future(
            self._upstream.request("POST", path, headers, passage.encoded(), on_part=parts.put_nowait)
        )
        asking.add_done_callback(lambda _: parts.put_nowait(b""))
        carried = asyncio.ensure_future(gate.carry(passage, asking, lambda answer: answer.status == 200))
        # What took too long is ended, for it might go on for long.
        carried.add_done_callback(lambda done: (done.cancelled() or done.exception()) and asking.cancel())
        try:
            first = await parts.get()
        except asyncio.CancelledError:  # the client has gone
            asking.cancel()
            raise
        if first:
            return Events(first, parts, asking)
        answer = await carried
        return await self._answered(replace(answer, body=answer.body.removeprefix(b"data:")), passage)

    async def _answered(self, answer: Answer, passage: Passage) -> Response:
        refusal = await self._gate.models.unready(passage.facts.name, answer.error) if answer.status >= 400 else None
        if refusal is not None:
            raise refusal
        return _passed(answer, passage)

    async def _ask(self, request: Request, passage: Passage, body: bytes, header_length: int | None) -> Answer:
        inference = passage.inference
        size = len(body) if header_length is None else header_length
        body, length = passage.encoded() if size <= LARGE else await asyncio.to_thread(passage.encoded)
        header_length = None if header_length is None else length
        headers = {"Content-Type": "application/octet-stream" if header_length is not None else "application/json"}
        if header_length is not None:
            headers[HEADER_LENGTH] = str(header_length)
        accepted = request.headers.get("accept-encoding", "")
        if ACCEPTED_ENCODING.fullmatch(accepted):
            headers["Accept-Encoding"] = accepted
        version = f"/versions/{inference.version}" if inference.version else ""
        return await self._upstream.request("POST", f"/v2/models/{inference.model}{version}/infer", headers, body)

    @asynccontextmanager
    async def _body(self, request: Request) -> AsyncIterator[bytes]:
        """The body, unpacked, within the limits of size and time. Inside, its bytes count as buffered."""
        limits = self._gate.options.limits
        upload = request.upload(max_bytes=limits.max_body_bytes, rate=limits.body_rate)
        counted = 0
        try:
            parts = []
            async for part in upload.parts():
                counted += len(part)
                self._gate.buffer(len(part))
                parts.append(part)
            body = parts[0] if len(parts) == 1 else b"".join(parts)
            encoding = request.headers.get("content-encoding", "").strip().lower()
            if body and encoding not in ("", "identity"):
                binary = HEADER_LENGTH in request.headers
                most = limits.max_body_bytes if binary else min(limits.max_json_bytes, limits.max_body_bytes)
                reserved = most_unpacked(len(body), most)  # before it is there
                counted += reserved
                self._gate.buffer(reserved)
                body = await asyncio.to_thread(unpacked, body, encoding, most)
            yield body
        finally:
            self._gate.buffer(-counted)


def _header_length(request: Request) -> int | None:
    values = request.all(HEADER_LENGTH)
    if not values:
        return None
    if len(values) > 1 or not re.fullmatch("[0-9]{1,12}", values[0]):
        raise RefusedError(BAD_REQUEST, f"{HEADER_LENGTH} must be one whole number, got {', '.join(values)[:80]!r}")
    return int(values[0])


def _passed(answer: Answer, passage: Passage | None = None) -> Response:
    if answer.status >= 400 and (message := answer.error):
        message_out = outward(message if passage is None else passage.in_client_terms(message))
        busy = retry_hints(hinted_s(message_out) or 1.0) if answer.status in (429, 503) else {}
        return error_response(answer.status, message_out, busy)
    headers = {name: answer.headers[name] for name in PASSED_BACK if name in answer.headers}
    return Response(answer.status, answer.body, headers)
