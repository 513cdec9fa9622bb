"""Requests as bytes, made before the clock starts, and senders that put them on the wire without looking inside.

    Target, waveforms  ->  encode  ->  Body  ->  Sender.send  ->  Reply (texts, or what went wrong)

A load generator shares its machine with much else: whatever can be done once is done once, and nothing in the hot path
builds a tensor or a message object per request.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tritone.client.endpoint import Endpoint
from tritone.client.models import ModelInfo
from tritone.client.parameters import Parameter
from tritone.client.transport import NUM_SAMPLES, TEXT, WAVEFORM

Waveform = npt.NDArray[np.float32]

MAX_ERROR_CHARACTERS = 160
STRING_LENGTH_BYTES = 4  # a string tensor has them before each element, little-endian


@dataclass(frozen=True, kw_only=True)
class Target:
    """A model on a server, and what is asked of its search.

    `sample_rate` in Hz; `batched` tells whether its tensors have a batch axis. `parameters`: names and values that all
    requests carry; of a stream, all its chunks.
    """

    endpoint: Endpoint
    model: str
    sample_rate: int
    batched: bool = True
    streaming: bool = False
    parameters: tuple[tuple[str, Parameter], ...] = ()

    @classmethod
    def of(cls, endpoint: Endpoint, info: ModelInfo, parameters: Mapping[str, Parameter] | None = None) -> "Target":
        """Describe a model that `Client.model` found, and what to ask of its search."""
        return cls(
            endpoint=endpoint,
            model=info.name,
            sample_rate=info.sample_rate,
            batched=info.batched,
            streaming=info.kind == "streaming",
            parameters=tuple((parameters or {}).items()),
        )


@dataclass(frozen=True, kw_only=True)
class Body:
    """One request, ready to send to the target it was made for.

    `content` is the message: all of it (gRPC), or the tensors' bytes (HTTP). `stream` says which chunk of which stream
    it is; it is kept apart, so that streams can share their chunks: see `in_stream`. `header` is the JSON that precedes
    the tensors (HTTP only, else empty), `parameters` what it says of the search (HTTP only).
    """

    model: str
    content: bytes
    header: bytes = b""
    parameters: bytes = b""
    stream: bytes = b""
    audio_s: tuple[float, ...] = ()  # of each row

    def in_stream(self, sequence_id: int, *, start: bool = False, end: bool = False) -> "Body":
        """The same chunk as part of a stream (1 to 2**63 - 1). The tensors' bytes are shared, not copied."""
        if not 0 < sequence_id < 2**63:
            raise ValueError(f"sequence_id must be 1 to 2**63 - 1, got {sequence_id}")
        make = _http_stream if self.header else _grpc_stream
        return replace(self, stream=make(sequence_id, start, end))  # of a gRPC message the parameters are in `content`

    @property
    def json(self) -> bytes:
        """The JSON header as it is sent (HTTP)."""
        if not self.header:
            return b""
        parameters = b", ".join(filter(None, (self.stream, self.parameters)))
        return b"{" + (b'"parameters": {' + parameters + b"}, " if parameters else b"") + self.header

    @property
    def num_bytes(self) -> int:
        """Size of the whole message."""
        return len(self.content) + (len(self.json) if self.header else len(self.stream))


@dataclass(kw_only=True, slots=True)
class Reply:
    """What came back for one request.

    `texts` has one text for each row; it is empty exactly when `error` says what went wrong, in words that are the same
    for equal causes. `received`: `time.perf_counter()` when the whole answer was there; `sent`: when the sender began
    to write the request, which is later than `send` if it is overloaded.
    """

    texts: tuple[str, ...] = ()
    error: str | None = None
    received: float
    sent: float = 0.0


Done = Callable[[Reply], None]


class Sender(Protocol):
    """Open connections to one server."""

    def send(self, body: Body, timeout_s: float, done: Done) -> None:
        """Send a request and return at once; `done` is called exactly once, with an error if need be.

        It is called in the sender's own thread, or in `send` itself when the sender is closed. It must not block and
        may call `send` again, which costs less there than in other threads.
        """
        ...

    def close(self) -> None:
        """Close the connections. Requests in flight are answered with an error before this returns."""
        ...


def open_sender(endpoint: Endpoint, *, connections: int = 1) -> Sender:
    """Open a sender for an endpoint's protocol.

    Args:
        endpoint: the server. Nothing is sent before the first request.
        connections: TCP connections (gRPC: each carries any number of requests, they take turns). HTTP opens one for
            each request in flight and keeps them; there `connections` is ignored.
    """
    # Each protocol brings heavy imports that a user of the other one should not wait for.
    if endpoint.protocol == "grpc":
        from tritone.traffic.grpc_sender import GrpcSender

        return GrpcSender(endpoint, connections)
    from tritone.traffic.http_sender import HttpSender

    return HttpSender(endpoint)


def encode(
    target: Target, waveforms: Sequence[Waveform], *, sequence_id: int = 0, start: bool = False, end: bool = False
) -> Body:
    """Write a request for the texts of some waveforms.

    Args:
        target: who is asked.
        waveforms: (samples,) float32 at the target's rate, one for each row. Rows are padded with zeros to the longest,
            and `WAV_LENS` says how long each really is, because a tensor is rectangular.
        sequence_id: of the stream that this is a chunk of; 0 is none.
        start, end: whether it is the stream's first or last chunk.

    Raises:
        ValueError: no waveform, or several for a model without a batch axis.
    """
    if not waveforms:
        raise ValueError("a request needs at least one waveform")
    if len(waveforms) > 1 and not target.batched:
        raise ValueError(
            f"model '{target.model}' has no batch axis, so a request holds one utterance, not {len(waveforms)}. "
            "Use batch size 1."
        )
    lengths = [len(waveform) for waveform in waveforms]
    # An engine need not accept a tensor without elements: nothing to say is one sample of padding.
    block = np.zeros((len(waveforms), max(1, *lengths)), dtype="<f4")
    for row, waveform in zip(block, waveforms, strict=True):
        row[: len(waveform)] = waveform
    counts = np.array(lengths, dtype="<i4")
    shapes = [[len(lengths), block.shape[1]], [len(lengths), 1]] if target.batched else [[block.shape[1]], [1]]
    make = _grpc_body if target.endpoint.protocol == "grpc" else _http_body
    body = make(target, shapes, [block.tobytes(), counts.tobytes()])
    body = replace(body, audio_s=tuple(length / target.sample_rate for length in lengths))
    return body.in_stream(sequence_id, start=start, end=end) if sequence_id else body


def read_strings(content: bytes) -> tuple[str, ...]:
    """Read the elements of a string tensor.

    Raises:
        ValueError: the bytes are no string tensor, or an element is not UTF-8.
    """
    texts, place = [], 0
    while place < len(content):
        begin = place + STRING_LENGTH_BYTES
        place = begin + int.from_bytes(content[place:begin], "little")
        if place > len(content):
            raise ValueError(f"a string tensor of {len(content)} bytes ends within an element")
        texts.append(content[begin:place].decode("utf-8"))
    return tuple(texts)


def error_kind(kind: str, message: str) -> str:
    """Name an error so that equal causes have equal names: what differs from request to request is left out.

    Args:
        kind: what it means for the caller: "timeout", "no connection", "busy", "refused", ...
        message: the words of whoever found it.
    """
    line = next((line.strip() for line in message.splitlines() if line.strip()), "")
    line = REQUEST.sub("", line)
    line = NUMBER.sub("N", ADDRESS.sub("the server", line)).strip(" .:")
    if len(line) > MAX_ERROR_CHARACTERS:
        line = line[: MAX_ERROR_CHARACTERS - 1] + "…"
    return f"{kind}: {line}" if line else kind


REQUEST = re.compile(r"\[request id: [^\]]*\] ?")
ADDRESS = re.compile(r"\b(?:ipv4:|ipv6:)?(?:%5B|\[)?[0-9a-fA-F:.]*[.:][0-9a-fA-F:.]*(?:%5D|\])?:\d+\b")
NUMBER = re.compile(r"\b0x[0-9a-fA-F]+\b|(?<![A-Za-z_])\d+(?:\.\d+)?")


GRPC_FIELDS = {str: "string_param", int: "int64_param", bool: "bool_param", float: "double_param"}


# --- gRPC -----------------------------------------------------------------------------------------------------------


def _grpc_body(target: Target, shapes: list[list[int]], contents: list[bytes]) -> Body:
    from tritonclient.grpc import service_pb2 as pb

    request = pb.ModelInferRequest(model_name=target.model)
    for name, value in target.parameters:
        setattr(request.parameters[name], GRPC_FIELDS[type(value)], value)
    for name, datatype, shape in zip((WAVEFORM, NUM_SAMPLES), ("FP32", "INT32"), shapes, strict=True):
        request.inputs.add(name=name, datatype=datatype, shape=shape)
    request.outputs.add(name=TEXT)
    request.raw_input_contents.extend(contents)
    return Body(model=target.model, content=bytes(request.SerializeToString()))


def _grpc_stream(sequence_id: int, start: bool, end: bool) -> bytes:
    from tritonclient.grpc import service_pb2 as pb

    # Fields of a protobuf message may come in any order, so that this part can simply be joined to the rest.
    part = pb.ModelInferRequest()
    part.parameters["sequence_id"].int64_param = sequence_id
    part.parameters["sequence_start"].bool_param = start
    part.parameters["sequence_end"].bool_param = end
    return bytes(part.SerializeToString())


# --- HTTP -----------------------------------------------------------------------------------------------------------


def _http_body(target: Target, shapes: list[list[int]], contents: list[bytes]) -> Body:
    header: dict[str, Any] = {
        "inputs": [
            {"name": name, "shape": shape, "datatype": datatype, "parameters": {"binary_data_size": len(content)}}
            for name, datatype, shape, content in zip(
                (WAVEFORM, NUM_SAMPLES), ("FP32", "INT32"), shapes, contents, strict=True
            )
        ],
        "outputs": [{"name": TEXT, "parameters": {"binary_data": True}}],
    }
    # Without their opening brace, so that the stream's part can go first.
    return Body(
        model=target.model,
        content=b"".join(contents),
        header=json.dumps(header).encode()[1:],
        parameters=json.dumps(dict(target.parameters)).encode()[1:-1],
    )


def _http_stream(sequence_id: int, start: bool, end: bool) -> bytes:
    part = {"sequence_id": sequence_id, "sequence_start": start, "sequence_end": end}
    return json.dumps(part).encode()[1:-1]
