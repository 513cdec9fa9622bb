"""The gRPC side: the calls of Triton's inference service as bytes; only requests for inference are looked into.

bytes  ->  (inference: gate)  ->  Triton  ->  bytes
"""

import asyncio
import logging
import re
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import grpc
from tritonclient.grpc import service_pb2 as pb

from tritone.errors import hinted_s
from tritone.net.address import joined
from tritone.net.connections import Peer, peer_of
from tritone.net.refusal import BAD_REQUEST, LOCKED, NOT_PASSED, RefusedError, retry_hints
from tritone.net.waits import Wait
from tritone.proxy.checks import check_name, outward
from tritone.proxy.gate import Gate, Passage
from tritone.proxy.options import ProxyOptions
from tritone.proxy.owners import Owner, Stream
from tritone.proxy.protobuf_message import plain, read_inference, understood, unpacked_size

SERVICE = "/inference.GRPCInferenceService/"
HEALTH_CHECK = "/grpc.health.v1.Health/Check"
SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"  # grpc.health.v1.HealthCheckResponse
KEY_PREFIX = "triton-grpc-protocol-"  # what Triton puts before the name of the key
# Open to everybody; those with a model's name are checked for it.
OF_MODELS = {
    "ModelReady": pb.ModelReadyRequest,
    "ModelMetadata": pb.ModelMetadataRequest,
    "ModelConfig": pb.ModelConfigRequest,
    "ModelStatistics": pb.ModelStatisticsRequest,
}
OPEN = {"ServerMetadata", *OF_MODELS}
LOCKED_CALLS = {
    **{
        f"{kind}SharedMemory{call}": "shared-memory"
        for kind in ("System", "Cuda")
        for call in ("Status", "Register", "Unregister")
    },
    **dict.fromkeys(("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"), "control"),
    "TraceSetting": "trace",
    "LogSettings": "logging",
}
ERROR_MESSAGE = b"\x0a"  # a ModelStreamInferResponse that begins so is an error
LARGE_PACKED = 1 << 10  # bytes of a message whose unpacking may take some milliseconds
MOST_PENDING = 1 << 20
GOODBYE_TIMEOUT_S = 5.0
READY_TIMEOUT_S = 5.0
STOP_GRACE_S = 1.0
# A call that its client breaks off looks like one that it ends until gRPC cancels it, which on a busy machine is after
# Triton has answered its end.
BROKEN_OFF_S = 0.2

# gRPC's own words when a connection is missing or breaks; Triton's refusals speak of queues and models.
CONNECTION = re.compile(r"connect|socket|stream removed|broken pipe|goaway|transport|recvmsg|sendmsg", re.IGNORECASE)
LOG = logging.getLogger(__name__)

Metadata = Mapping[str, str]
Context = Any  # grpc.aio.ServicerContext


class GrpcUpstream:
    """The connection to Triton's gRPC service."""

    def __init__(self, options: ProxyOptions) -> None:
        limit = ("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)
        quick = ("grpc.min_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 1000)
        kept = ("grpc.client_idle_timeout_ms", 2**31 - 1)
        self._channel = grpc.aio.insecure_channel(options.upstream_grpc, [*limit, *quick, kept])
        self._key = {KEY_PREFIX + options.key_header: options.key} if options.key else {}
        self._calls: dict[str, Any] = {}
        # Without the client's time limit: Triton would take its end for a cancelled call.
        self.stream_infer = self._channel.stream_stream(SERVICE + "ModelStreamInfer")
        self._background: set[asyncio.Task[Any]] = set()

    async def connect(self) -> None:
        """Connect now, so that clients who take all descriptors do not keep Triton from those that are served.

        Without a Triton it returns as well; the next call connects then.
        """
        state = self._channel.get_state(try_to_connect=True)
        while state in (grpc.ChannelConnectivity.IDLE, grpc.ChannelConnectivity.CONNECTING):
            await self._channel.wait_for_state_change(state)
            state = self._channel.get_state()

    async def is_ready(self, *, wait: bool = False) -> bool:
        """Whether Triton says that it is ready. `wait`: for a connection, if there is none."""
        try:
            answer = await self.call("ServerReady", b"", timeout_s=READY_TIMEOUT_S, wait=wait)
        except grpc.RpcError:
            return False
        return bool(pb.ServerReadyResponse.FromString(answer).ready)

    async def call(
        self, name: str, message: bytes, *, timeout_s: float | None, with_key: bool = False, wait: bool = False
    ) -> bytes:
        """Make a call that has one answer. If the caller is cancelled, so is the call."""
        method = self._calls.get(name)
        if method is None:
            method = self._calls[name] = self._channel.unary_unary(SERVICE + name)
        metadata = tuple(self._key.items()) if with_key else None
        return await method(message, timeout=timeout_s, metadata=metadata, wait_for_ready=wait or None)

    def end(self, stream: Stream) -> None:
        """End a stream whose client does not, in the background."""

        async def goodbye() -> None:
            with suppress(grpc.RpcError):  # a stream that Triton does not know any more has ended
                await self.call("ModelInfer", stream.goodbye, timeout_s=GOODBYE_TIMEOUT_S)

        self.finish(goodbye())

    def finish(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something in the background that no client waits for; `parted` and `close` wait for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def parted(self, timeout_s: float | None = None) -> None:
        """Return when streams and calls that were ended here have ended at Triton too."""
        if self._background:
            await asyncio.wait(self._background, timeout=timeout_s)

    async def close(self) -> None:
        await self.parted(STOP_GRACE_S)
        await self._channel.close()  # which cancels what is left
        await self.parted(STOP_GRACE_S)


class GrpcSide(grpc.GenericRpcHandler):
    """A server for gRPC clients, in a running event loop."""

    def __init__(self, gate: Gate, upstream: GrpcUpstream) -> None:
        self._gate = gate
        self._upstream = upstream
        self._server: Any = None

    async def start(self, host: str, port: int, credentials: Any) -> None:
        """`credentials`: of TLS, as gRPC makes them; None for none."""
        limits = self._gate.options.limits
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", limits.max_body_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.per_message_decompression", 0),  # it knows no limit; `plain` does it
                ("grpc.server_handshake_timeout_ms", round(1000 * limits.body_grace_s)),
                ("grpc.keepalive_time_ms", 30_000),  # finds clients that are gone without a word
                ("grpc.keepalive_timeout_ms", 10_000),
                ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
                ("grpc.max_concurrent_streams", 1024),  # of one connection
                # Calls that came faster than Python has looked at them; beyond gRPC ends anybody's, at random.
                ("grpc.server.max_pending_requests", MOST_PENDING),
                ("grpc.server.max_pending_requests_hard_limit", MOST_PENDING),
                ("grpc.so_reuseport", 0),  # a second server on the port is an error
            ],
        )
        self._server.add_generic_rpc_handlers((self,))
        address = joined(host, port)
        try:
            bound = (
                self._server.add_insecure_port(address)
                if credentials is None
                else self._server.add_secure_port(address, credentials)
            )
        except RuntimeError as error:
            raise OSError(f"gRPC cannot listen on {address}: {error}") from error
        if not bound:
            raise OSError(f"gRPC cannot listen on {address}")
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(STOP_GRACE_S)

    def service(self, handler_call_details: Any) -> Any:
        """gRPC's interface: who handles a call."""
        path = handler_call_details.method
        metadata = _texts(handler_call_details.invocation_metadata)
        name = path.removeprefix(SERVICE)
        if name == "ModelStreamInfer":
            return grpc.stream_stream_rpc_method_handler(self._stream_infer)

        # The client sends one message. As a stream of them the call is seen when it begins, not when that is whole.
        async def unary(requests: AsyncIterator[bytes], context: Context) -> bytes:
            return await self._unary(name, metadata, context)

        return grpc.stream_unary_rpc_method_handler(unary)

    async def _unary(self, name: str, metadata: Metadata, context: Context) -> bytes:
        gate, peer = self._gate, peer_of(context)
        outcome = "cancelled"
        started = False
        try:
            self._require_family(peer)
            message = await self._message(context, peer)
            gate.connections.begin(peer)
            started = True
            if name == "ModelInfer":
                answer = await self._infer(metadata, message, context, peer)
            else:
                with self._buffered(message):
                    answer = await self._other(name, metadata, await self._plain(message))
            outcome = "ok"
            return answer
        except Exception as error:
            outcome = error.reason.name if isinstance(error, RefusedError) else "failed"
            await _abort(context, error, gate.options)
        finally:
            if started:
                gate.connections.end(peer)
            gate.outcomes["grpc", outcome] += 1
        raise AssertionError  # _abort has raised

    async def _message(self, context: Context, peer: Peer) -> bytes:
        """The message of a call that has one.

        Raises:
            RefusedError: it does not come, or too slowly.
        """
        wait = self._gate.waits.enter(peer)
        reading = asyncio.ensure_future(context.read())
        try:
            await asyncio.wait((reading, wait.over), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._gate.waits.leave(wait)
            reading.add_done_callback(_looked_at)
        if not reading.done():
            raise wait.over.result()
        message = reading.result()
        if message is grpc.aio.EOF:
            raise RefusedError(BAD_REQUEST, "the call has no message")
        self._gate.connections.received_message(peer, len(message))
        return bytes(message)

    async def _plain(self, message: bytes) -> bytes:
        """The message, unpacked where it is packed; a large one beside the loop."""
        if len(message) < LARGE_PACKED:
            return plain(message, self._gate.options.limits)
        return await asyncio.to_thread(plain, message, self._gate.options.limits)

    async def _infer(self, metadata: Metadata, message: bytes, context: Context, peer: Peer) -> bytes:
        gate = self._gate
        with self._buffered(message):
            message = await self._plain(message)
            inference = read_inference(message, gate.options.limits)
            passage = await gate.enter(
                inference,
                Owner.of(metadata, peer, connected=True),
                trusted=self._may_share_memory(metadata),
                timeout_s=context.time_remaining(),
            )
            try:
                return await gate.carry(passage, self._ask(passage))
            except grpc.aio.AioRpcError as error:
                refusal = await gate.models.unready(inference.model, error.details() or "")
                raise refusal or _UpstreamError(error, gate.options, passage) from error

    async def _ask(self, passage: Passage) -> bytes:
        return await self._upstream.call("ModelInfer", passage.encoded(), timeout_s=None)

    async def _other(self, name: str, metadata: Metadata, message: bytes) -> bytes:
        gate, model = self._gate, ""
        if name == "ServerLive":
            return _bytes(pb.ServerLiveResponse(live=True))
        if name in ("ServerReady", HEALTH_CHECK):
            ready = gate.why_not_ready is None and await self._upstream.is_ready()
            if name == HEALTH_CHECK:
                return SERVING if ready else NOT_SERVING
            return _bytes(pb.ServerReadyResponse(ready=ready))
        if name in OF_MODELS:
            asked = understood(OF_MODELS[name], message)
            if asked.name or name != "ModelStatistics":  # which are of all models then
                check_name(asked.name, asked.version)
                model = asked.name
            if name == "ModelReady" and gate.why_not_ready is not None:
                return _bytes(pb.ModelReadyResponse(ready=False))
        elif name in LOCKED_CALLS:
            gate.require_key(LOCKED_CALLS[name], metadata.get(KEY_PREFIX + gate.options.key_header))
            if name.startswith("RepositoryModel"):
                gate.models.forget()
        elif name not in OPEN:
            raise RefusedError(NOT_PASSED, f"{name[:200]!r} is not served here")
        limit = gate.options.limits.request_s
        message = _bytes(understood(getattr(pb, f"{name}Request"), message))
        try:
            return await self._upstream.call(name, message, timeout_s=limit, with_key=name in LOCKED_CALLS)
        except grpc.aio.AioRpcError:
            if not model:
                raise
            await gate.models.fresh(model)  # says whether it is not ready, which Triton does not
            return await self._upstream.call(name, message, timeout_s=limit)

    async def _stream_infer(self, requests: AsyncIterator[bytes], context: Context) -> None:
        gate, peer = self._gate, peer_of(context)
        metadata = _texts(context.invocation_metadata())
        gate.connections.begin(peer)
        relay, wait = None, gate.waits.enter(peer, patient=True)
        gate.connections.receive(peer)
        try:
            self._require_family(peer)
            owner = Owner.of(metadata, peer, connected=True)
            relay = _Relay(gate, self._upstream, context, owner, self._may_share_memory(metadata))
            running = asyncio.ensure_future(relay.run(self._messages(requests, peer, wait)))
            try:
                await asyncio.wait((running, wait.over), return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not running.done():
                    running.cancel()
                    await asyncio.wait((running,))
                running.add_done_callback(_looked_at)
            if wait.over.done():
                raise wait.over.result()
            running.result()
        except Exception as error:
            await _abort(context, error, gate.options)
        finally:
            if relay is not None:
                relay.close()
            gate.waits.leave(wait)
            gate.connections.receive_end(peer)
            gate.connections.end(peer)

    async def _messages(self, requests: AsyncIterator[bytes], peer: Peer, wait: Wait) -> AsyncIterator[bytes]:
        async for message in requests:
            self._gate.waits.leave(wait)
            self._gate.connections.received_message(peer, len(message))
            yield message

    def _require_family(self, peer: Peer) -> None:
        if self._gate.connections.is_foreign(peer):
            raise RefusedError(LOCKED, f"this server listens on {self._gate.options.host} only, which is IPv4")

    def _may_share_memory(self, metadata: Metadata) -> bool:
        return self._gate.may_share_memory(metadata.get(KEY_PREFIX + self._gate.options.key_header))

    @contextmanager
    def _buffered(self, message: bytes) -> Iterator[None]:
        """Count a message as buffered, and what it takes unpacked."""
        size = unpacked_size(message, self._gate.options.limits)
        try:
            self._gate.buffer(size)
            yield
        finally:
            self._gate.buffer(-size)


class _Relay:
    """One call of ModelStreamInfer: requests go up one by one, Triton answers in their order.

    When the client goes away, Triton's call is left to end: its requests end, and its answers are dropped as they come.
    Triton 2.51 crashes now and then when a call is cancelled that it is about to answer, as `Gate.carry` says.
    """

    def __init__(self, gate: Gate, upstream: GrpcUpstream, context: Context, owner: Owner, trusted: bool) -> None:
        self._gate = gate
        self._upstream = upstream
        self._context = context
        self._owner = owner
        self._trusted = trusted
        self._waiting: deque[Passage | bytes] = deque()  # not answered yet; bytes: a refusal that waits for its turn
        self._generating: Passage | None = None  # the newest request that may have any number of answers
        self._streams: set[Stream] = set()
        self._writing = asyncio.Lock()
        self._finished = False
        self._gone: Exception | bool = False  # nobody reads the answers; what showed it, if anything did
        self._late: set[asyncio.Task[None]] = set()
        self._call = upstream.stream_infer()
        self._sent: asyncio.Future[None] | None = None  # what was written to Triton last
        # gRPC cancels a call where somebody is cancelled who reads it, so nobody does but this task.
        self._reading = asyncio.ensure_future(self._read())
        self._reading.add_done_callback(_looked_at)

    async def run(self, requests: AsyncIterator[bytes]) -> None:
        sending = asyncio.ensure_future(self._send(requests))
        try:
            await asyncio.wait((sending, self._reading), return_when=asyncio.FIRST_EXCEPTION)
            for each in (self._reading, sending):
                if each.done():
                    each.result()
            if isinstance(self._gone, Exception):
                raise self._gone
            if not all(each.ending for each in self._streams):
                await asyncio.sleep(BROKEN_OFF_S)
            self._finished = True
        finally:
            sending.cancel()
            await asyncio.wait((sending,))
            _looked_at(sending)

    def close(self) -> None:
        """Leave with what is unanswered. A client that went away without a word leaves no stream open."""
        self._gone = self._gone or True
        if not self._finished:
            for stream in self._streams:
                self._gate.streams.end(stream)
        if self._reading.done():
            self._leave()
            return
        for each in self._waiting:
            if isinstance(each, Passage):
                each.give_up()
        self._upstream.finish(self._drain())

    async def _drain(self) -> None:
        """Drop what Triton answers to a client that is gone; its requests are in flight until then."""
        ending, limit_s = asyncio.ensure_future(self._end()), self._gate.options.limits.request_s
        ended, _ = await asyncio.wait((ending,), timeout=limit_s)
        if not ended:
            LOG.warning("a call whose client is gone was cancelled: Triton did not end its answers in %g s", limit_s)
            self._call.cancel()
            await asyncio.wait((ending,))
        self._leave()

    async def _end(self) -> None:
        """Return when Triton has answered everything."""
        if self._sent is not None:
            await asyncio.wait((self._sent,))
        with suppress(grpc.RpcError, asyncio.InvalidStateError, asyncio.CancelledError):  # it has ended
            await self._call.done_writing()
        await asyncio.wait((self._reading,))

    def _leave(self) -> None:
        for each in (*self._waiting, self._generating):
            if isinstance(each, Passage):
                self._gate.leave(each, failed=True)

    async def _read(self) -> None:
        async for response in self._call:
            await self._answer(response)

    async def _send(self, requests: AsyncIterator[bytes]) -> None:
        try:
            async for message in requests:
                await self._pass(message)
            await self._up(self._call.done_writing())
        except (grpc.RpcError, asyncio.InvalidStateError):
            pass  # upstream has ended: its answers show why

    async def _up(self, writing: Coroutine[Any, Any, None]) -> None:
        """Write to Triton, which goes on where this is cancelled: gRPC would cancel the call."""
        self._sent = asyncio.ensure_future(writing)
        self._sent.add_done_callback(_looked_at)
        await asyncio.shield(self._sent)

    async def _pass(self, message: bytes) -> None:
        limits, request_id = self._gate.options.limits, ""
        try:
            message = plain(message, limits)
            inference = read_inference(message, limits)
            request_id = inference.id
            passage = await self._gate.enter(inference, self._owner, trusted=self._trusted)
        except RefusedError as refusal:
            self._gate.outcomes["grpc", refusal.reason.name] += 1
            response = _stream_error(str(refusal), request_id)
            if self._waiting:
                self._waiting.append(response)
            else:
                await self._write(response)
            return
        if passage.stream is not None:
            self._streams = {each for each in self._streams if each.busy or not each.ending} | {passage.stream}
        if passage.facts.decoupled:
            # Any number of answers: of these requests the newest is in flight until the call ends.
            done: Passage | None = passage
            if passage.stream is None:
                done, self._generating = self._generating, passage
            if done is not None:
                self._gate.leave(done, failed=False)
        else:
            self._waiting.append(passage)
            passage.on_lost = partial(self._refuse, passage)
            if "timeout" in inference.parameters:
                asyncio.get_running_loop().call_later(
                    passage.remaining_s(), lambda: self._refuse(passage, passage.expired())
                )
        await self._up(self._call.write(passage.encoded()))

    async def _answer(self, response: bytes) -> None:
        failed = response.startswith(ERROR_MESSAGE)
        passage = self._waiting[0] if self._waiting else None
        assert not isinstance(passage, bytes)
        if failed:
            error = pb.ModelStreamInferResponse.FromString(response)
            text = outward(error.error_message)
            if (asked := passage or self._generating) is not None:
                text = asked.in_client_terms(str(await self._gate.models.unready(asked.facts.name, text) or text))
            error.error_message = text
            response = _bytes(error)
        if passage is not None:  # still the first: what is refused meanwhile waits behind it
            self._waiting.popleft()
        if passage is None or not passage.over:
            self._gate.outcomes["grpc", "cancelled" if self._gone else "failed" if failed else "ok"] += 1
            if passage is not None:
                self._gate.leave(passage, failed=failed or passage.given_up)
            await self._write(response)
        while self._waiting and isinstance(self._waiting[0], bytes):
            refused = self._waiting.popleft()
            assert isinstance(refused, bytes)
            await self._write(refused)

    def _refuse(self, passage: Passage, refusal: RefusedError) -> None:
        """Answer a request in Triton's place, which answers it later or not at all."""
        if not passage.over:
            self._gate.leave(passage, failed=True)
            response = _stream_error(str(refusal), passage.inference.id)
            task = asyncio.get_running_loop().create_task(self._write(response))
            self._late.add(task)
            task.add_done_callback(self._late.discard)

    async def _write(self, response: bytes) -> None:
        async with self._writing:
            if self._gone:
                return
            try:
                await self._context.write(response)
            except Exception as error:  # gRPC has several for a client that is gone; Triton's answers must be read on
                self._gone = error


class _UpstreamError(Exception):
    """An error of Triton, or of the way to it, as a client gets it."""

    def __init__(self, error: Any, options: ProxyOptions, passage: Passage | None = None) -> None:
        details, self.code = error.details() or "", error.code()
        busy = self.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)
        if self.code is grpc.StatusCode.UNAVAILABLE and CONNECTION.search(details):
            details = "the server does not answer now; it may be restarting. Try again."
        super().__init__(outward(details if passage is None else passage.in_client_terms(details)))
        self.hints = retry_hints((hinted_s(details) or options.retry_after_s) if busy else None)


def _looked_at(task: "asyncio.Future[Any]") -> None:
    """Take note of a task's error, of which asyncio complains else."""
    if not task.cancelled():
        task.exception()


async def _abort(context: Context, error: Exception, options: ProxyOptions) -> None:
    """End a call with an error; always raises."""
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if isinstance(error, RefusedError):
        await context.abort(error.reason.grpc, str(error), tuple(error.hints.items()))
    if isinstance(error, grpc.aio.AioRpcError):
        error = _UpstreamError(error, options)
    if isinstance(error, _UpstreamError):
        await context.abort(error.code, str(error), tuple(error.hints.items()))
    LOG.error("the proxy failed", exc_info=error)
    await context.abort(grpc.StatusCode.INTERNAL, "the proxy failed; its log says more")


def _stream_error(message: str, request_id: str) -> bytes:
    return _bytes(
        pb.ModelStreamInferResponse(error_message=message, infer_response=pb.ModelInferResponse(id=request_id))
    )


def _texts(metadata: Any) -> dict[str, str]:
    return {key: value for key, value in metadata or () if isinstance(value, str)}


def _bytes(message: Any) -> bytes:
    return message.SerializeToString()
