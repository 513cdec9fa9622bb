"""Requests over gRPC: bytes go out, bytes come in, and one tensor of the answer is read, or none."""

import time

import grpc
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2 as pb

from tritone.client.endpoint import Endpoint
from tritone.client.failure import BROKEN_CONNECTION
from tritone.client.grpc_transport import channel_options, credentials
from tritone.loadtest.options import TENSORS
from tritone.loadtest.senders.sender import Sender, too_late
from tritone.loadtest.senders.wire import Body, Reply, error_kind, read_reply, unreadable
from tritone.net.routing import STREAM_HEADER

METHOD = "/inference.GRPCInferenceService/ModelInfer"
MANY_METHOD = "/inference.GRPCInferenceService/ModelStreamInfer"

KINDS = {
    grpc.StatusCode.RESOURCE_EXHAUSTED: "busy",
    grpc.StatusCode.INVALID_ARGUMENT: "refused",
    grpc.StatusCode.NOT_FOUND: "refused",
    grpc.StatusCode.OUT_OF_RANGE: "refused",
    grpc.StatusCode.FAILED_PRECONDITION: "refused",
    grpc.StatusCode.CANCELLED: "cancelled",
}


class GrpcSender(Sender):
    """A sender over one gRPC connection, which carries any number of requests."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        super().__init__()

    async def _connect(self) -> None:
        options, secure = channel_options(self._endpoint), credentials(self._endpoint)
        address = self._endpoint.address
        if secure is None:
            self._channel = grpc.aio.insecure_channel(address, options)
        else:
            self._channel = grpc.aio.secure_channel(address, secure, options)
        self._metadata = tuple(self._endpoint.headers.items())
        self._call = self._channel.unary_unary(METHOD)
        self._call_many = self._channel.stream_stream(MANY_METHOD)

    async def _ask(self, body: Body, timeout_s: float) -> Reply:
        content = body.content + body.stream if body.stream else body.content
        try:
            metadata = (*self._metadata, (STREAM_HEADER, body.route)) if body.route else self._metadata
            if body.has_many:
                return await self._ask_many(content, timeout_s, metadata)
            answer = await self._call(content, timeout=timeout_s, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            return _failure(error, timeout_s)
        received = time.perf_counter()
        try:
            message = pb.ModelInferResponse.FromString(answer)
            if body.output == TENSORS:
                return Reply(answers=1, received=received)
            index = [output.name for output in message.outputs].index(body.output)
            content = message.raw_output_contents[index]
        except (ValueError, IndexError, DecodeError) as error:
            return Reply(error=unreadable(body, str(error)), received=received)
        return read_reply(body, content, message.outputs[index].shape, received)

    async def _ask_many(self, content: bytes, timeout_s: float, metadata: tuple[tuple[str, str], ...]) -> Reply:
        """Send a request as the only one of a stream, which ends with its last answer."""
        call = self._call_many(timeout=timeout_s, metadata=metadata)
        try:
            await call.write(content)
            await call.done_writing()
            answers, first, failed = 0, 0.0, ""
            # To its end after an error, too: Triton 2.51 crashes now and then when a call is cancelled that it answers.
            async for answer in call:
                first = first or time.perf_counter()
                failed = failed or pb.ModelStreamInferResponse.FromString(answer).error_message
                answers += 1
            if failed:
                return Reply(error=error_kind("failed", failed), received=time.perf_counter())
            return Reply(answers=answers, first=first, received=time.perf_counter())
        except DecodeError as error:
            return Reply(error=error_kind("not an answer", str(error)), received=time.perf_counter())
        finally:
            call.cancel()  # of no effect where it is over

    async def _disconnect(self) -> None:
        await self._channel.close()


def _failure(error: grpc.aio.AioRpcError, timeout_s: float) -> Reply:
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return too_late(timeout_s)
    kind = KINDS.get(code, f"server error ({code.name})")
    if code is grpc.StatusCode.UNAVAILABLE:
        # gRPC has one code for "could not connect" and for a server's own refusal; only words tell them apart.
        kind = "no connection" if BROKEN_CONNECTION.search(details) else "busy"
    return Reply(error=error_kind(kind, details), received=time.perf_counter())
