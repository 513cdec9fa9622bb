"""Talking to Triton by gRPC: many requests at once on one channel, without a thread per request."""

from collections.abc import Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
from google.protobuf.json_format import MessageToDict
from tritonclient import grpc as triton
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc
from tritonclient.utils import serialize_byte_tensor

from tritone.client.endpoint import Endpoint
from tritone.client.failure import Refusal, explain, seconds_of, unstated
from tritone.client.transport import Call, datatype_of

if TYPE_CHECKING:
    from tritone.client.regions import Region

Answer = TypeVar("Answer")

CLOSE_TIMEOUT_S = 5.0
RETRY_AFTER = "retry-after-ms"  # trailing metadata: when the server expects to have room
FIELDS: dict[type, str] = {
    str: "string_param",
    bool: "bool_param",
    int: "int64_param",
    float: "double_param",
}
CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # Channels of one process would share a connection and its back-off, so that a new client could fail at once
    # because an old one had met a server that was not up yet.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 5000),
)


def channel_options(endpoint: Endpoint) -> list[tuple[str, int]]:
    """The options of a channel to this server."""
    # A proxy named in the environment cannot reach this machine's loopback.
    return [*CHANNEL_OPTIONS, *([("grpc.enable_http_proxy", 0)] if endpoint.is_loopback else [])]


def credentials(endpoint: Endpoint) -> grpc.ChannelCredentials | None:
    """Of a channel to this server; None where there is no TLS."""
    return grpc.ssl_channel_credentials(*endpoint.files.contents()) if endpoint.tls else None


class _PendingReply(Future[Answer]):
    call: grpc.Future | None = None  # the request in flight; it can be cancelled, which the server notices

    def cancel(self) -> bool:
        if self.call is not None:
            self.call.cancel()
        return super().cancel()


class GrpcTransport:
    """See `Transport`. Thread-safe."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._metadata = tuple(endpoint.headers.items())
        options, secure = channel_options(endpoint), credentials(endpoint)
        self._channel = (
            grpc.insecure_channel(endpoint.address, options)
            if secure is None
            else grpc.secure_channel(endpoint.address, secure, options)
        )
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def infer(self, call: Call[Answer]) -> Future[Answer]:
        pending: _PendingReply[Answer] = _PendingReply()

        def finish(done: grpc.Future) -> None:
            with suppress(InvalidStateError):  # cancelled meanwhile
                try:
                    try:
                        response = done.result()
                    except (grpc.RpcError, grpc.FutureCancelledError) as error:
                        raise explained(error, self._endpoint, f"model '{call.model}'", call.timeout_s) from error
                    pending.set_result(call.read(GrpcReply(response), self._endpoint))
                except Exception as failure:  # this is gRPC's thread: whatever it is, the caller must learn of it
                    pending.set_exception(failure)

        try:
            metadata = (*self._metadata, *call.headers.items())
            pending.call = self._stub.ModelInfer.future(message_of(call), timeout=call.timeout_s, metadata=metadata)
        except ValueError as error:  # the channel is closed
            raise explained(error, self._endpoint, f"model '{call.model}'", call.timeout_s) from error
        pending.call.add_done_callback(finish)
        return pending

    def answers(self, call: Call[Answer]) -> Iterator[Answer]:
        task, metadata = f"model '{call.model}'", (*self._metadata, *call.headers.items())
        responses: Any = None
        try:
            responses = self._stub.ModelStreamInfer(iter([message_of(call)]), timeout=call.timeout_s, metadata=metadata)
            refused: Exception | None = None
            # To its end, whatever happens, and without the metadata that makes errors statuses (`triton_grpc_error`):
            # Triton 2.51 crashes if it is about to answer again when such a call is over
            # (github.com/triton-inference-server/server/issues/7368).
            for answer in responses:
                if answer.error_message:
                    refused = refused or refusal_of(answer, call, self._endpoint)
                elif refused is None:
                    yield call.read(GrpcReply(answer.infer_response), self._endpoint)
            if refused is not None:
                raise refused
        except (grpc.RpcError, ValueError) as error:
            raise explained(error, self._endpoint, task, call.timeout_s) from error
        except GeneratorExit:
            Thread(target=_read_out, args=(responses,), daemon=True).start()
            raise

    def statistics(self, model: str, timeout_s: float) -> list[dict[str, Any]]:
        task = f"read the statistics of model '{model}'" if model else "list the models"
        reply = self._ask(task, timeout_s, self._stub.ModelStatistics, pb.ModelStatisticsRequest(name=model))
        return list(reply.get("model_stats", []))

    def model_index(self, timeout_s: float) -> list[dict[str, Any]]:
        request = pb.RepositoryIndexRequest()
        return list(self._ask("list the models", timeout_s, self._stub.RepositoryIndex, request).get("models", []))

    def model_config(self, model: str, timeout_s: float) -> dict[str, Any]:
        task = f"read the configuration of model '{model}'"
        return dict(self._ask(task, timeout_s, self._stub.ModelConfig, pb.ModelConfigRequest(name=model))["config"])

    def load(self, model: str, timeout_s: float) -> None:
        request = pb.RepositoryModelLoadRequest(model_name=model)
        self._ask(f"load model '{model}'", timeout_s, self._stub.RepositoryModelLoad, request)

    def unload(self, model: str, stages: bool, timeout_s: float) -> None:
        request = pb.RepositoryModelUnloadRequest(model_name=model)
        request.parameters["unload_dependents"].bool_param = stages
        self._ask(f"unload model '{model}'", timeout_s, self._stub.RepositoryModelUnload, request)

    def register(self, region: "Region", timeout_s: float) -> None:
        self._memory_call(region.memory, "Register", timeout_s, name=region.name, **region.registration)

    def unregister(self, region: str, memory: str, timeout_s: float) -> None:
        self._memory_call(memory, "Unregister", timeout_s, name=region)

    def regions(self, memory: str, timeout_s: float) -> list[str]:
        return list(self._memory_call(memory, "Status", timeout_s).get("regions", {}))

    def _memory_call(self, memory: str, call: str, timeout_s: float, **fields: Any) -> dict[str, Any]:
        name = f"{memory.capitalize()}SharedMemory{call}"
        request = getattr(pb, f"{name}Request")(**fields)
        return self._ask("shared memory", timeout_s, getattr(self._stub, name), request)

    def close(self) -> None:
        # After an interrupt at a bad moment grpc was seen to wait for ever here. That must keep nobody.
        closing = Thread(target=self._channel.close, name="tritone-grpc-close", daemon=True)
        closing.start()
        closing.join(CLOSE_TIMEOUT_S)

    def _ask(self, task: str, timeout_s: float, method: Any, request: Any) -> dict[str, Any]:
        try:
            reply = method(request, timeout=timeout_s, metadata=self._metadata)
        except (grpc.RpcError, ValueError) as error:
            raise explained(error, self._endpoint, task, timeout_s) from error
        return MessageToDict(reply, preserving_proto_field_name=True)


class GrpcReply(triton.InferResult):
    """The tensors of an answer, as `Reply.read` takes them."""

    def raw(self, name: str) -> bytes | None:
        """The bytes of an output; None where it is not there, or has none."""
        response = self.get_response()
        for output, data in zip(response.outputs, response.raw_output_contents, strict=False):
            if output.name == name:
                return bytes(data)
        return None


def explained(error: Exception, endpoint: Endpoint, task: str, timeout_s: float) -> Exception:
    """An error of gRPC, of a call in a thread or in an event loop, as `explain` words it."""
    seen: Exception = error
    if isinstance(error, grpc.FutureCancelledError):
        seen = Refusal("CANCELLED", "cancelled")
    elif isinstance(error, grpc.Call | grpc.aio.AioRpcError):
        trailing = dict(error.trailing_metadata() or ())
        hint_s = seconds_of(trailing.get(RETRY_AFTER), unit_s=0.001)
        seen = Refusal(error.code().name, error.details() or "", hint_s)
    return explain(seen, endpoint, task, timeout_s)


def refusal_of(answer: Any, call: Call[Any], endpoint: Endpoint) -> Exception:
    """What one of many answers says went wrong."""
    return explain(unstated(answer.error_message), endpoint, f"model '{call.model}'", call.timeout_s)


def _read_out(responses: Any) -> None:
    """Read the answers that nobody wants any more."""
    with suppress(grpc.RpcError, ValueError):
        for _ in responses:
            pass


def message_of(call: Call[Any]) -> pb.ModelInferRequest:
    """A request as it travels."""
    message = pb.ModelInferRequest(model_name=call.model, id=call.request_id)
    for name, tensor in call.tensors.items():
        datatype = datatype_of(tensor)
        added = message.inputs.add(name=name, datatype=datatype, shape=tensor.shape)
        if name in call.placed:
            for key, value in call.placed[name].parameters.items():
                setattr(added.parameters[key], FIELDS[type(value)], value)
            continue
        message.raw_input_contents.append(
            serialize_byte_tensor(tensor).item() if datatype == "BYTES" and tensor.size else tensor.tobytes()
        )
    for name in call.reply.outputs:
        wanted = message.outputs.add(name=name)
        if call.classes:
            wanted.parameters["classification"].int64_param = call.classes
    parameters = dict(call.parameters) | {"timeout": call.timeout_us}
    if call.sequence_id:
        parameters |= {"sequence_id": call.sequence_id, "sequence_start": call.start, "sequence_end": call.end}
    for name, value in parameters.items():
        setattr(message.parameters[name], FIELDS[type(value)], value)
    return message
