"""Talking to Triton from an event loop: the same requests and errors as `transport.py`, awaited and not waited for."""

import asyncio
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Protocol, TypeVar

import grpc
from tritonclient import grpc as triton
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from tritone.client.endpoint import Endpoint
from tritone.client.grpc_transport import CLOSE_TIMEOUT_S, channel_options, credentials, explained, message_of
from tritone.client.transport import Call, Transport, connect
from tritone.errors import RetryError

Answer = TypeVar("Answer")


class AsyncTransport(Protocol):
    """One open connection to a server, for one event loop. Raises the errors of `tritone.errors` alone."""

    async def infer(self, call: Call[Answer]) -> Answer:
        """Send a request and return its answer. Cancelling the task abandons the request."""
        ...

    async def is_ready(self, timeout_s: float) -> bool:
        """Whether the server says that it is ready; raises `RetryError` if it says nothing."""
        ...

    async def close(self) -> None:
        """Give up what is in flight and free the connection."""
        ...


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
        self._calls = 0  # that are not answered
        self._idle = asyncio.Event()
        self._idle.set()

    async def infer(self, call: Call[Answer]) -> Answer:
        metadata = (*self._metadata, *call.headers.items())
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(asked: object) -> None:
            self._calls -= 1
            if not self._calls:
                self._idle.set()
            if not answered.cancelled():
                answered.set_result(None)

        try:
            asked = self._stub.ModelInfer(message_of(call), timeout=call.timeout_s, metadata=metadata)
            self._calls += 1
            self._idle.clear()
            asked.add_done_callback(done)
            # A task that is cancelled leaves the call to its end. Triton 2.51 crashes now and then when a call is
            # cancelled that it is about to answer; `proxy/gate.py` has more about it.
            await answered
            response = await asked
        except (grpc.RpcError, grpc.aio.UsageError) as error:
            raise explained(error, self._endpoint, f"model '{call.model}'", call.timeout_s) from error
        return call.read(triton.InferResult(response), self._endpoint)

    async def is_ready(self, timeout_s: float) -> bool:
        try:
            answer = await self._stub.ServerReady(pb.ServerReadyRequest(), timeout=timeout_s, metadata=self._metadata)
        except (grpc.RpcError, grpc.aio.UsageError) as error:
            raise explained(error, self._endpoint, "ask whether it is ready", timeout_s) from error
        return bool(answer.ready)

    async def close(self) -> None:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._idle.wait(), CLOSE_TIMEOUT_S)
        await self._channel.close()


class AsyncOver:
    """Any `Transport`, used from an event loop; see `AsyncTransport`."""

    def __init__(self, transport: Transport, endpoint: Endpoint) -> None:
        self._transport = transport
        self._endpoint = endpoint

    async def infer(self, call: Call[Answer]) -> Answer:
        pending = self._transport.infer(call)
        try:
            return await asyncio.wrap_future(pending)
        except CancelledError as error:  # not the one of asyncio, by which this task would be cancelled itself
            raise RetryError(f"{self._endpoint}: the client was closed before the answer came") from error

    async def is_ready(self, timeout_s: float) -> bool:
        # HTTP answers statistics when its models are ready to be asked; a server that is not refuses.
        await asyncio.to_thread(self._transport.statistics, "", timeout_s)
        return True

    async def close(self) -> None:
        await asyncio.to_thread(self._transport.close)


def connect_async(endpoint: Endpoint) -> AsyncTransport:
    """Open a connection in the running event loop; nothing is sent yet."""
    return AsyncGrpcTransport(endpoint) if endpoint.protocol == "grpc" else AsyncOver(connect(endpoint), endpoint)
