"""Requests over gRPC as they are: bytes go out, bytes come in, and only one tensor of the answer is looked at."""

import itertools
import time

import grpc
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2 as pb

from tritone.client.endpoint import Endpoint
from tritone.client.failure import BROKEN_CONNECTION
from tritone.client.grpc_transport import CHANNEL_OPTIONS
from tritone.loadtest.senders.sender import LoopSender, too_late
from tritone.loadtest.senders.wire import Body, Reply, error_kind, read_reply, unreadable

METHOD = "/inference.GRPCInferenceService/ModelInfer"

KINDS = {
    grpc.StatusCode.RESOURCE_EXHAUSTED: "busy",
    grpc.StatusCode.INVALID_ARGUMENT: "refused",
    grpc.StatusCode.NOT_FOUND: "refused",
    grpc.StatusCode.OUT_OF_RANGE: "refused",
    grpc.StatusCode.FAILED_PRECONDITION: "refused",
    grpc.StatusCode.CANCELLED: "cancelled",
}


class GrpcSender(LoopSender):
    """See `Sender`. Every channel has a connection of its own; requests take them in turn."""

    def __init__(self, endpoint: Endpoint, connections: int = 1) -> None:
        if connections < 1:
            raise ValueError(f"connections must be at least 1, got {connections}")
        self._endpoint = endpoint
        self._connections = connections
        super().__init__()

    async def _connect(self) -> None:
        # The options of our client: among others a pool of its own for each channel, without which all channels of
        # a process share one connection.
        options = list(CHANNEL_OPTIONS)
        if self._endpoint.is_loopback:
            options.append(("grpc.enable_http_proxy", 0))
        self._channels = [_channel(self._endpoint, options) for _ in range(self._connections)]
        self._calls = itertools.cycle([channel.unary_unary(METHOD) for channel in self._channels])

    async def _ask(self, body: Body, timeout_s: float) -> Reply:
        content = body.content + body.stream if body.stream else body.content
        try:
            answer = await next(self._calls)(content, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            return _failure(error, timeout_s)
        received = time.perf_counter()
        try:
            message = pb.ModelInferResponse.FromString(answer)
            place = [output.name for output in message.outputs].index(body.output)
            content = message.raw_output_contents[place]
        except (ValueError, IndexError, DecodeError) as error:
            return Reply(error=unreadable(body, str(error)), received=received)
        return read_reply(body, content, message.outputs[place].shape, received)

    async def _disconnect(self) -> None:
        for channel in self._channels:
            await channel.close()


def _channel(endpoint: Endpoint, options: list[tuple[str, int]]) -> grpc.aio.Channel:
    if endpoint.tls:
        return grpc.aio.secure_channel(endpoint.address, grpc.ssl_channel_credentials(), options)
    return grpc.aio.insecure_channel(endpoint.address, options)


def _failure(error: grpc.aio.AioRpcError, timeout_s: float) -> Reply:
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return too_late(timeout_s)
    kind = KINDS.get(code, f"server error ({code.name})")
    if code is grpc.StatusCode.UNAVAILABLE:
        # gRPC has one code for "could not connect" and for a server's own refusal; only words tell them apart.
        kind = "no connection" if BROKEN_CONNECTION.search(details) else "busy"
    return Reply(error=error_kind(kind, details), received=time.perf_counter())
