"""What both protocols offer the client: inference as a future, and the list and configuration of models."""

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from tritone.client.endpoint import Endpoint
from tritone.client.parameters import Parameter
from tritone.client.replies import DETAILS, EMBEDDING, TEXT, Reply

__all__ = ["DETAILS", "EMBEDDING", "NUM_SAMPLES", "TEXT", "WAVEFORM", "Call", "Transport"]

WAVEFORM = "WAV"
NUM_SAMPLES = "WAV_LENS"

Answer = TypeVar("Answer")


@dataclass(frozen=True, kw_only=True, slots=True)
class Call(Generic[Answer]):
    """One request: a mono waveform for a model, alone or as a chunk of the stream `sequence_id`.

    `waveform` is (samples,) float32 in [-1, 1]. `reply` says what is asked for. `batched` tells whether the model has a
    batch axis, `has_lengths` whether it takes `WAV_LENS`. `parameters`: what is asked of the search, or of an
    embedding; of a stream, with its first chunk.
    """

    model: str
    waveform: npt.NDArray[np.float32]
    timeout_s: float
    reply: Reply[Answer]
    batched: bool = True
    has_lengths: bool = True
    sequence_id: int = 0
    start: bool = False
    end: bool = False
    parameters: Mapping[str, Parameter] = field(default_factory=dict)

    def tensors(self) -> dict[str, npt.NDArray[Any]]:
        """`WAV` and `WAV_LENS` as they travel, float32 and int32.

        Nothing to say (an empty file, or END after all audio has been sent) becomes one padding sample with a length
        of 0, because an engine need not accept a tensor without elements.
        """
        waveform = np.ascontiguousarray(self.waveform if self.waveform.size else np.zeros(1), dtype=np.float32)
        tensors: dict[str, npt.NDArray[Any]] = {WAVEFORM: waveform}
        if self.has_lengths:
            tensors[NUM_SAMPLES] = np.array([self.waveform.size], dtype=np.int32)
        return {name: each[None] for name, each in tensors.items()} if self.batched else tensors

    def read(self, reply: Any, endpoint: Endpoint) -> Answer:
        """Turn a tritonclient `InferResult` into the answer; raises `OperatorError` as of `Reply.read`."""
        return self.reply.read(self.model, reply, endpoint, is_final=self.end or not self.sequence_id)


class Transport(Protocol):
    """One open connection to a server. Every method raises the errors of `tritone.errors`, never the library's own."""

    def infer(self, call: Call[Answer]) -> "Future[Answer]":
        """Send a request and return at once. Cancelling the future abandons the request."""
        ...

    def model_index(self, timeout_s: float) -> list[dict[str, Any]]:
        """Name, version, state and reason of every model in the server's repositories."""
        ...

    def model_config(self, model: str, timeout_s: float) -> dict[str, Any]:
        """The configuration that the server runs a model with, in the JSON form of Triton's `ModelConfig`."""
        ...

    def close(self) -> None:
        """Give up what is in flight and free connections and threads."""
        ...
