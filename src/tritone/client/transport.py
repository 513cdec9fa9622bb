"""What both protocols offer the client: inference as a future, statistics, configuration and states of models."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy.typing as npt
from tritonclient.utils import np_to_triton_dtype

from tritone.bfloat16 import BITS
from tritone.client.endpoint import Endpoint
from tritone.client.parameters import Parameter
from tritone.client.replies import DETAILS, EMBEDDING, PCM, PROBABILITIES, SEGMENTS, SPOKEN, TEXT, Reply
from tritone.net.routing import STREAM_HEADER

if TYPE_CHECKING:
    from tritone.client.regions import Region

__all__ = [
    "DETAILS",
    "EMBEDDING",
    "NUM_SAMPLES",
    "PCM",
    "PROBABILITIES",
    "SEGMENTS",
    "SPOKEN",
    "TEXT",
    "TO_SPEAK",
    "WAVEFORM",
    "Call",
    "Placement",
    "Transport",
    "connect",
    "datatype_of",
]

REQUEST_ID = "x-request-id"  # the header whose value is the id of the request, too
WAVEFORM = "WAV"
TO_SPEAK = "TEXT"
NUM_SAMPLES = "WAV_LENS"
LONGEST_S = 1e9  # of a time limit on the wire; 30 years

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a tensor lies in shared memory: the name of a region, an offset in it, and a size, in bytes."""

    region: str
    offset: int
    num_bytes: int

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of an input that lies there."""
        return {
            "shared_memory_region": self.region,
            "shared_memory_byte_size": self.num_bytes,
            "shared_memory_offset": self.offset,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Call(Generic[Answer]):
    """One request: tensors for a model, alone or as a chunk of the stream `sequence_id`.

    `tensors`: the arrays as they travel, by their names. `reply`: which outputs are asked for, and how they are read.
    `parameters`: of the request; of a stream, with its first chunk. `placed`: which tensors lie in shared memory.
    `classes`: how many classes to return in place of each output, the likeliest first; 0 returns the output itself.
    `route`: the key of the stream (`tritone.net.routing`); "" sends none. `more_headers`: others of this request.
    """

    model: str
    tensors: Mapping[str, npt.NDArray[Any]]
    timeout_s: float
    reply: Reply[Answer]
    sequence_id: int = 0
    start: bool = False
    end: bool = False
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    placed: Mapping[str, Placement] = field(default_factory=dict)
    classes: int = 0
    route: str = ""
    more_headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def request_id(self) -> str:
        """What Triton calls the request in its traces and logs; "" lets it have none."""
        return self.more_headers.get(REQUEST_ID, "")

    @property
    def headers(self) -> Mapping[str, str]:
        """The HTTP headers, or gRPC metadata, of this request alone."""
        return {**self.more_headers, STREAM_HEADER: self.route} if self.route else self.more_headers

    @property
    def timeout_us(self) -> int:
        """The limit as it is sent to servers, in microseconds."""
        return max(1, round(min(self.timeout_s, LONGEST_S) * 1e6))

    def read(self, reply: Any, endpoint: Endpoint) -> Answer:
        """Turn a tritonclient `InferResult` into the answer; raises `OperatorError` as `Reply.read` does."""
        return self.reply.read(self.model, reply, endpoint, is_final=self.end or not self.sequence_id)


def datatype_of(array: npt.NDArray[Any]) -> str:
    """The type of a tensor on the wire, such as FP32."""
    return "BF16" if array.dtype == BITS else str(np_to_triton_dtype(array.dtype))


class Transport(Protocol):
    """One open connection to a server. Every method raises the errors of `tritone.errors`, never the library's own."""

    def infer(self, call: Call[Answer]) -> "Future[Answer]":
        """Send a request and return at once. Cancelling the future abandons the request."""
        ...

    def answers(self, call: Call[Answer]) -> Iterator[Answer]:
        """Send a request to a model that answers as often as it likes; each answer as it comes."""
        ...

    def statistics(self, model: str, timeout_s: float) -> list[dict[str, Any]]:
        """What the server counted, one entry for each version of the model that is ready; "": of all models.

        Numbers may be text, as in gRPC's JSON.
        """
        ...

    def model_index(self, timeout_s: float) -> list[dict[str, Any]]:
        """Name, version, state and reason of every model in the server's repositories.

        The server may want its key for this.
        """
        ...

    def model_config(self, model: str, timeout_s: float) -> dict[str, Any]:
        """The configuration that the server runs a model with, in the JSON form of Triton's `ModelConfig`."""
        ...

    def load(self, model: str, timeout_s: float) -> None:
        """Have the server load a model as its files are now; returns when it is ready. The server may want its key."""
        ...

    def unload(self, model: str, stages: bool, timeout_s: float) -> None:
        """Have the server take a model out of service; with `stages` those of an ensemble too. Does not wait."""
        ...

    def register(self, region: "Region", timeout_s: float) -> None:
        """Make a region of shared memory known to the server, which wants its key for this and what follows."""
        ...

    def unregister(self, region: str, memory: str, timeout_s: float) -> None:
        """Have the server forget a region of that name; `memory` is "system" or "cuda"."""
        ...

    def regions(self, memory: str, timeout_s: float) -> list[str]:
        """The names of the regions that the server knows."""
        ...

    def close(self) -> None:
        """Give up what is in flight and free connections and threads."""
        ...


class AroundTransport:
    """A transport around another one, which it asks everything but for inference."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def _ask(self, ask: Callable[[float], Answer], timeout_s: float) -> Answer:
        """The answer of the transport inside to a question about models or memory within so many seconds."""
        return ask(timeout_s)

    def answers(self, call: Call[Answer]) -> Iterator[Answer]:
        return self._transport.answers(call)  # once some are read, the others cannot be asked for alone

    def statistics(self, model: str, timeout_s: float) -> list[dict[str, Any]]:
        return self._ask(lambda left_s: self._transport.statistics(model, left_s), timeout_s)

    def model_index(self, timeout_s: float) -> list[dict[str, Any]]:
        return self._ask(self._transport.model_index, timeout_s)

    def model_config(self, model: str, timeout_s: float) -> dict[str, Any]:
        return self._ask(lambda left_s: self._transport.model_config(model, left_s), timeout_s)

    def load(self, model: str, timeout_s: float) -> None:
        self._ask(lambda left_s: self._transport.load(model, left_s), timeout_s)

    def unload(self, model: str, stages: bool, timeout_s: float) -> None:
        self._ask(lambda left_s: self._transport.unload(model, stages, left_s), timeout_s)

    def register(self, region: "Region", timeout_s: float) -> None:
        self._ask(lambda left_s: self._transport.register(region, left_s), timeout_s)

    def unregister(self, region: str, memory: str, timeout_s: float) -> None:
        self._ask(lambda left_s: self._transport.unregister(region, memory, left_s), timeout_s)

    def regions(self, memory: str, timeout_s: float) -> list[str]:
        return self._ask(lambda left_s: self._transport.regions(memory, left_s), timeout_s)


def connect(endpoint: Endpoint) -> Transport:
    """Open a connection; nothing is sent yet."""
    # Each protocol brings heavy imports that a user of the other one should not wait for.
    if endpoint.protocol == "grpc":
        from tritone.client.grpc_transport import GrpcTransport

        return GrpcTransport(endpoint)
    from tritone.client.http_transport import HttpTransport

    return HttpTransport(endpoint)
