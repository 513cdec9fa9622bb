"""Talking to Triton by gRPC: many requests at once on one channel, without a thread per request."""

from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import lru_cache
from threading import Thread
from typing import Any, TypeVar

from tritonclient import grpc as triton
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from tritone.client.endpoint import Endpoint
from tritone.client.failure import explain
from tritone.client.transport import Call

Answer = TypeVar("Answer")

CLOSE_TIMEOUT_S = 5.0
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


def open_client(endpoint: Endpoint) -> triton.InferenceServerClient:
    """Triton's own client for this server."""
    return triton.InferenceServerClient(endpoint.address, ssl=endpoint.tls, channel_args=channel_options(endpoint))


class _PendingReply(Future[Answer]):
    context: Any = None  # of the request in flight; it can be cancelled

    def cancel(self) -> bool:
        if self.context is not None:
            self.context.cancel()
        return super().cancel()


class GrpcTransport:
    """See `Transport`. Thread-safe."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._client = open_client(endpoint)

    def infer(self, call: Call[Answer]) -> Future[Answer]:
        pending: _PendingReply[Answer] = _PendingReply()

        def finish(result: Any, error: InferenceServerException | None) -> None:
            with suppress(InvalidStateError):  # cancelled meanwhile
                try:
                    if error is not None:
                        raise explain(error, self._endpoint, f"model '{call.model}'", call.timeout_s) from error
                    pending.set_result(call.read(result, self._endpoint))
                except Exception as failure:  # this is gRPC's thread: whatever it is, the caller must hear of it
                    pending.set_exception(failure)

        inputs = []
        for name, tensor in call.tensors.items():
            inputs.append(triton.InferInput(name, tensor.shape, np_to_triton_dtype(tensor.dtype)))
            inputs[-1].set_data_from_numpy(tensor)
        try:
            pending.context = self._client.async_infer(
                call.model,
                inputs,
                callback=finish,
                outputs=_requested(call.reply.outputs),
                sequence_id=call.sequence_id,
                sequence_start=call.start,
                sequence_end=call.end,
                client_timeout=call.timeout_s,
                parameters=dict(call.parameters),
            )
        except (InferenceServerException, ValueError) as error:  # ValueError: the channel is closed
            raise explain(error, self._endpoint, f"model '{call.model}'", call.timeout_s) from error
        return pending

    def model_index(self, timeout_s: float) -> list[dict[str, Any]]:
        reply = self._ask("list the models", timeout_s, self._client.get_model_repository_index)
        return list(reply.get("models", []))

    def model_config(self, model: str, timeout_s: float) -> dict[str, Any]:
        reply = self._ask(f"read the configuration of model '{model}'", timeout_s, self._client.get_model_config, model)
        return dict(reply["config"])

    def close(self) -> None:
        # After an interrupt at a bad moment grpc was seen to wait for ever here. That must keep nobody.
        closing = Thread(target=self._client.close, name="tritone-grpc-close", daemon=True)
        closing.start()
        closing.join(CLOSE_TIMEOUT_S)

    def _ask(self, task: str, timeout_s: float, method: Any, *args: str) -> dict[str, Any]:
        try:
            reply: dict[str, Any] = method(*args, as_json=True, client_timeout=timeout_s)
        except (InferenceServerException, ValueError) as error:
            raise explain(error, self._endpoint, task, timeout_s) from error
        return reply


@lru_cache(maxsize=8)
def _requested(names: tuple[str, ...]) -> list[triton.InferRequestedOutput]:
    return [triton.InferRequestedOutput(name) for name in names]
