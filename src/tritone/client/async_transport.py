"""Talking to Triton from an event loop: the same requests and errors as `transport.py`, awaited and not waited for."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator
from typing import Any, Protocol, TypeVar

import grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from tritone.client.endpoint import Endpoint
from tritone.client.event_stream import Events, generate_request
from tritone.client.failure import Refusal, explain
from tritone.client.grpc_transport import (
    CLOSE_TIMEOUT_S,
    GrpcReply,
    channel_options,
    credentials,
    explained,
    message_of,
    refusal_of,
)
from tritone.client.http_message import inference_request
from tritone.client.http_transport import HttpServices, read_events, read_reply
from tritone.client.transport import Call
from tritone.errors import ServerBusyError, TritoneError
from tritone.net.http_client import HttpAnswer
from tritone.net.unready import LOST

Answer = TypeVar("Answer")
Value = TypeVar("Value")


class AsyncTransport(Protocol):
    """One open connection to a server, for one event loop. Raises the errors of `tritone.errors` alone."""

    async def infer(self, call: Call[Answer]) -> Answer:
        """Send a request and return its answer. Cancelling the task abandons the request."""
        ...

    def answers(self, call: Call[Answer]) -> AsyncGenerator[Answer, None]:
        """Send a request and yield each of its answers as it comes; those after a loop that was left are dropped."""
        ...

    async def is_ready(self, timeout_s: float) -> bool:
        """Whether the server says that it is ready; raises `RetryError` if it says nothing."""
        ...

    async def close(self) -> None:
        """Give up what is in flight and free the connection."""
        ...


class _Unanswered:
    """The calls on the way. A task that is cancelled leaves its call, which goes on.

    Where the process of a model has ended, Triton answers its calls one after the other, each after a second in which
    it hopes for the process: when one has that answer, all streams of the model have it (`lose`).

    Triton 2.51 crashes now and then when a call is cancelled that it is about to answer; `proxy/gate.py` has more about
    it. And END of a stream must not arrive before the chunk that was left.
    """

    def __init__(self) -> None:
        self._all: set[asyncio.Future[Any]] = set()
        self._left: dict[int, asyncio.Future[Any]] = {}  # by the id of the stream
        self._streams: defaultdict[str, set[asyncio.Future[TritoneError]]] = defaultdict(set)  # by model

    def add(self, asked: "asyncio.Future[Any]") -> None:
        """Remember a call until it is answered."""
        self._all.add(asked)
        asked.add_done_callback(self._all.discard)
        asked.add_done_callback(lambda done: done.cancelled() or done.exception())  # looked at

    async def wait(self, asked: "asyncio.Future[Value]", call: Call[Any]) -> Value:
        """The result of a call. Cancelling this does not cancel the call; `before` knows of it then."""
        self.add(asked)
        if not (stream := call.sequence_id):
            return await asyncio.shield(asked)
        lost: asyncio.Future[TritoneError] = asyncio.get_running_loop().create_future()
        self._streams[call.model].add(lost)
        try:
            await asyncio.wait((asked, lost), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._streams[call.model].discard(lost)
            if not asked.done():
                self._left[stream] = asked
                asked.add_done_callback(lambda done: self._left.pop(stream, None))
        if asked.done():
            return asked.result()
        raise lost.result()

    def lose(self, call: Call[Any], error: Exception) -> None:
        """Tell all streams of a model of the error that one of them got, if its process has ended."""
        if call.sequence_id and isinstance(error, TritoneError) and LOST.search(str(error)):
            for each in self._streams.pop(call.model, ()):
                if not each.done():
                    each.set_result(error.saying(str(error)))

    async def before(self, stream: int) -> None:
        """Wait for the call of a stream that was left, if there is one."""
        if (left := self._left.get(stream)) is not None:
            await asyncio.wait((left,))

    async def end(self) -> None:
        """Wait a little for all of them."""
        if self._all:
            await asyncio.wait(self._all, timeout=CLOSE_TIMEOUT_S)


class AsyncGrpcTransport:
    """gRPC in the event loop itself, without a thread between; see `AsyncTransport`."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._metadata = tuple(endpoint.headers.items())
        options, secure = channel_options(endpoint), credentials(endpoint)
        self._channel = (
            grpc.aio.insecure_channel(endpoint.address, options)
            if secure is None
            else grpc.aio.secure_channel(endpoint.address, secure, options)
        )
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._unanswered = _Unanswered()

    async def infer(self, call: Call[Answer]) -> Answer:
        await self._unanswered.before(call.sequence_id)
        try:
            response = await self._unanswered.wait(asyncio.ensure_future(self._ask(call)), call)
        except (grpc.RpcError, grpc.aio.UsageError) as error:
            failure = explained(error, self._endpoint, f"model '{call.model}'", call.timeout_s)
            self._unanswered.lose(call, failure)
            raise failure from error
        return call.read(GrpcReply(response), self._endpoint)

    async def answers(self, call: Call[Answer]) -> AsyncGenerator[Answer, None]:
        metadata, asked = (*self._metadata, *call.headers.items()), iter([message_of(call)])
        stream = self._stub.ModelStreamInfer(asked, timeout=call.timeout_s, metadata=metadata)
        answers: asyncio.Queue[Any] = asyncio.Queue()  # None: the last one has come
        reading = asyncio.ensure_future(_read(stream, answers))
        try:
            refused: Exception | None = None
            while (answer := await answers.get()) is not None:
                if answer.error_message:
                    refused = refused or refusal_of(answer, call, self._endpoint)
                elif refused is None:
                    yield call.read(GrpcReply(answer.infer_response), self._endpoint)
            await reading
            if refused is not None:
                raise refused
        except (grpc.RpcError, grpc.aio.UsageError) as error:
            raise explained(error, self._endpoint, f"model '{call.model}'", call.timeout_s) from error
        finally:
            self._unanswered.add(reading)  # to its end, as `GrpcTransport.answers` does

    async def _ask(self, call: Call[Any]) -> pb.ModelInferResponse:
        metadata = (*self._metadata, *call.headers.items())
        return await self._stub.ModelInfer(message_of(call), timeout=call.timeout_s, metadata=metadata)

    async def is_ready(self, timeout_s: float) -> bool:
        try:
            answer = await self._stub.ServerReady(pb.ServerReadyRequest(), timeout=timeout_s, metadata=self._metadata)
        except (grpc.RpcError, grpc.aio.UsageError) as error:
            raise explained(error, self._endpoint, "ask whether it is ready", timeout_s) from error
        return bool(answer.ready)

    async def close(self) -> None:
        await self._unanswered.end()
        await self._channel.close()


class AsyncHttpTransport:
    """HTTP in the event loop itself; see `AsyncTransport`. It takes half the time of gRPC for a small request."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._services = HttpServices(endpoint)
        self._unanswered = _Unanswered()

    async def infer(self, call: Call[Answer]) -> Answer:
        path, headers, body = inference_request(call)
        await self._unanswered.before(call.sequence_id)
        asking = self._ask("POST", path, body, headers, task=f"model '{call.model}'", timeout_s=call.timeout_s)
        try:
            answer = await self._unanswered.wait(asyncio.ensure_future(asking), call)
        except ServerBusyError as error:
            self._unanswered.lose(call, error)
            raise
        return read_reply(call, answer, self._endpoint)

    async def answers(self, call: Call[Answer]) -> AsyncGenerator[Answer, None]:
        path, headers, body = generate_request(call, self._endpoint)
        parts: asyncio.Queue[bytes] = asyncio.Queue()
        task = f"model '{call.model}'"
        asking = asyncio.ensure_future(
            self._ask("POST", path, body, headers, task=task, timeout_s=call.timeout_s, on_part=parts.put_nowait)
        )
        asking.add_done_callback(lambda done: parts.put_nowait(b""))
        asking.add_done_callback(lambda done: done.cancelled() or done.exception())  # looked at
        events = Events(call)
        try:
            while part := await parts.get():
                for answer in read_events(call, events, part, self._endpoint):
                    yield answer
            await asking
        finally:
            asking.cancel()  # which closes the connection

    async def is_ready(self, timeout_s: float) -> bool:
        try:
            await self._ask("GET", "health/ready", task="ask whether it is ready", timeout_s=timeout_s)
        except ServerBusyError:
            return False
        return True

    async def _ask(self, *what: Any, task: str, timeout_s: float, on_part: Any = None) -> HttpAnswer:
        try:
            return await self._services.ask(*what, timeout_s=timeout_s, on_part=on_part)
        except (TimeoutError, Refusal, OSError) as error:
            raise explain(error, self._endpoint, task, timeout_s) from error

    async def close(self) -> None:
        await self._unanswered.end()
        self._services.close()


async def _read(stream: Any, answers: "asyncio.Queue[Any]") -> None:
    """Queue the answers of a call, and None after the last one."""
    try:
        async for answer in stream:
            answers.put_nowait(answer)
    finally:
        answers.put_nowait(None)


def connect_async(endpoint: Endpoint) -> AsyncTransport:
    """Open a connection in the running event loop; nothing is sent yet."""
    return AsyncGrpcTransport(endpoint) if endpoint.protocol == "grpc" else AsyncHttpTransport(endpoint)
