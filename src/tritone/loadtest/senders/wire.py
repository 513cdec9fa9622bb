"""Requests as bytes, made before the clock starts, and replies read from bytes.

    Target, waveforms  ->  encode  ->  Body  ->  a sender  ->  read_reply  ->  Reply (texts, embeddings or an error)

A load generator shares its machine with much else: whatever can be done once is done once, and nothing in the hot path
builds a tensor or a message object per request.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from tritone.audio.pcm import to_pcm
from tritone.audio.waveform import widened
from tritone.client.endpoint import Endpoint
from tritone.client.models import ModelInfo
from tritone.client.parameters import Parameter
from tritone.client.transport import EMBEDDING, NUM_SAMPLES, PCM, TEXT, WAVEFORM, Placement
from tritone.loadtest.options import TENSORS

Waveform = npt.NDArray[np.float32]
Vectors = npt.NDArray[np.float32]

Usage = Literal["request", "stream", "answers"]

MAX_ERROR_CHARACTERS = 160
BYTES_PER_NUMBER = 4  # of float32
STRING_LENGTH_BYTES = 4  # a string tensor has them before each element, little-endian


@dataclass(frozen=True, kw_only=True)
class Target:
    """A model on a server, and the parameters of its requests."""

    endpoint: Endpoint
    model: str
    sample_rate: int  # in Hz
    batched: bool = True  # whether its tensors have a batch axis
    streaming: bool = False
    parameters: tuple[tuple[str, Parameter], ...] = ()  # of every request; of a stream, of every chunk
    output: str = TEXT  # the tensor of its answers, `TEXT` or `EMBEDDING`; or `TENSORS`, whatever it has
    usage: Usage = "request"  # of `TENSORS`: as of a `DescribedModel`
    has_lengths: bool = True  # whether it takes `WAV_LENS`; without, all of a waveform is audio
    stages: tuple[str, ...] = ()  # the models that it is an ensemble of
    pcm: bool = False  # whether audio travels as int16, in `PCM`
    shared_memory: str | None = None  # where it lies, as of `Client`; None: in the message

    @classmethod
    def of(
        cls,
        endpoint: Endpoint,
        info: ModelInfo,
        parameters: Mapping[str, Parameter] | None = None,
        *,
        pcm: bool = False,
        shared_memory: str | None = None,
        usage: Usage | None = None,
    ) -> "Target":
        """Describe a model that `Client.model` found, with the parameters of its requests.

        Args:
            usage: of a model that is sent its own inputs; None where it is sent audio.
        """
        output = EMBEDDING if info.kind == "embedding" else TEXT
        return cls(
            endpoint=endpoint,
            model=info.name,
            sample_rate=info.sample_rate,
            batched=info.batched,
            streaming=info.kind == "streaming" and usage is None,
            parameters=tuple((parameters or {}).items()),
            output=output if usage is None else TENSORS,
            usage=usage or "request",
            has_lengths=info.has_lengths,
            stages=info.stages,
            pcm=pcm,
            shared_memory=shared_memory,
        )

    @property
    def bytes_per_sample(self) -> int:
        return 2 if self.pcm else BYTES_PER_NUMBER

    @property
    def samples(self) -> str:
        """How samples travel, in words for reports."""
        form = "int16" if self.pcm else TENSORS if self.output == TENSORS and self.shared_memory else "float32"
        return form + (f" in {self.shared_memory} memory" if self.shared_memory is not None else "")


@dataclass(frozen=True, kw_only=True)
class Body:
    """One request, ready to send to the target it was made for."""

    model: str
    content: bytes  # the whole message (gRPC), or the tensors' bytes (HTTP)
    header: bytes = b""  # HTTP: the JSON that precedes the tensors
    parameters: bytes = b""  # HTTP: the request's parameters
    stream: bytes = b""  # which chunk of which stream it is; kept apart, so that streams can share their chunks
    audio_s: tuple[float, ...] = ()  # of each utterance; zeros of inputs that are no audio
    output: str = TEXT  # as of `Target`
    has_many: bool = False  # whether any number of answers may come
    route: str = ""  # of a stream: its routing key

    def in_stream(self, sequence_id: int, *, start: bool = False, end: bool = False) -> "Body":
        """The same chunk as part of a stream (1 to 2**63 - 1). The tensors' bytes are shared, not copied."""
        if not 0 < sequence_id < 2**63:
            raise ValueError(f"sequence_id must be 1 to 2**63 - 1, got {sequence_id}")
        make = _http_stream if self.header else _grpc_stream
        # Of a gRPC message the parameters are in `content`. A generator's ids are random, and unlike those of others.
        return replace(self, stream=make(sequence_id, start, end), route=f"{sequence_id:x}")

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
    """The answer to one request: texts, embeddings, tensors or an error. Times are `time.perf_counter()`."""

    texts: tuple[str, ...] = ()  # one for each row
    embeddings: Vectors | None = None  # (rows, dim) of finite numbers
    answers: int | None = None  # of a target of `TENSORS`: how many came, which are not looked into
    first: float = 0.0  # of those: when the first was there
    error: str | None = None  # equal causes have equal messages
    received: float  # when the whole answer was there
    sent: float = 0.0  # when the sender began to write the request: later than `send` if it is overloaded

    @property
    def rows(self) -> int:
        """How many rows of texts or embeddings were answered."""
        return len(self.texts) if self.embeddings is None else len(self.embeddings)


class Tensor(NamedTuple):
    """An input as it travels: in the message, or at its place in shared memory."""

    name: str
    datatype: str
    shape: list[int]
    content: bytes
    placed: Placement | None = None


Place = Callable[[npt.NDArray[Any]], Placement | None]


def encode(
    target: Target,
    waveforms: Sequence[Waveform],
    *,
    sequence_id: int = 0,
    start: bool = False,
    end: bool = False,
    place: Place | None = None,
) -> Body:
    """Write a request for the texts or embeddings of some waveforms.

    Args:
        target: the model.
        waveforms: (samples,) float32 at the target's rate, one for each row. Rows are padded with zeros to the longest,
            and `WAV_LENS` holds how long each really is, because a tensor is rectangular.
        sequence_id: of the stream that this is a chunk of; 0 is none.
        start, end: whether it is the stream's first or last chunk.
        place: puts audio into shared memory and returns its place, or None where there is no room.

    Raises:
        ValueError: no waveform, several for a model without a batch axis, or padding for one that knows no lengths.
    """
    if not waveforms:
        raise ValueError("a request needs at least one waveform")
    if len(waveforms) > 1 and not target.batched:
        raise ValueError(
            f"model '{target.model}' has no batch axis, so a request holds one utterance, not {len(waveforms)}. "
            "Use batch size 1."
        )
    lengths = [len(waveform) for waveform in waveforms]
    # A runtime need not accept a tensor without elements: no audio is one sample of padding.
    if not target.has_lengths and (min(lengths) == 0 or len(set(lengths)) > 1):
        raise ValueError(
            f"model '{target.model}' takes no lengths of audio, so it cannot be padded. Use batch size 1, or "
            "utterances of one length."
        )
    block = np.zeros((len(waveforms), max(1, *lengths)), dtype="<i2" if target.pcm else "<f4")
    for row, waveform in zip(block, waveforms, strict=True):
        row[: len(waveform)] = to_pcm(waveform) if target.pcm else widened(waveform)
    counts = np.array(lengths, dtype="<i4")
    rows = [len(lengths)] if target.batched else []
    placed = None if place is None else place(block)
    name, datatype = (PCM, "INT16") if target.pcm else (WAVEFORM, "FP32")
    tensors = [Tensor(name, datatype, [*rows, block.shape[1]], b"" if placed else block.tobytes(), placed)]
    if target.has_lengths:
        tensors.append(Tensor(NUM_SAMPLES, "INT32", [*rows, 1], counts.tobytes()))
    body = body_of(target, tensors, target.parameters, [(target.output, 0)])
    body = replace(body, audio_s=tuple(length / target.sample_rate for length in lengths), output=target.output)
    return body.in_stream(sequence_id, start=start, end=end) if sequence_id else body


def body_of(
    target: Target,
    tensors: Sequence[Tensor],
    parameters: Sequence[tuple[str, Parameter]],
    outputs: Sequence[tuple[str, int]],
) -> Body:
    """A request in the protocol of a target. `outputs`: those that it asks for with how many classes; none is all."""
    make = _grpc_body if target.endpoint.protocol == "grpc" else _http_body
    return make(target, tensors, parameters, outputs)


def read_reply(body: Body, content: bytes, shape: Sequence[int], received: float) -> Reply:
    """Read the tensor that a request asked for; what cannot be read is an error of the reply.

    Args:
        body: the request.
        content: the bytes of the tensor `body.output`.
        shape: of the tensor.
        received: when it was there.
    """
    try:
        if body.output == EMBEDDING:
            return Reply(embeddings=read_vectors(content, shape), received=received)
        return Reply(texts=read_strings(content), received=received)
    except ValueError as error:
        return Reply(error=unreadable(body, str(error)), received=received)


def unreadable(body: Body, message: str) -> str:
    """The error of a reply that is not what `body` asked for."""
    return error_kind(f"not {WANTED[body.output]}", message)


WANTED = {TEXT: "a transcript", EMBEDDING: "an embedding", TENSORS: "an answer"}


def read_vectors(content: bytes, shape: Sequence[int]) -> Vectors:
    """Read a tensor of float32: (rows, dim), or (dim,) of one row.

    Raises:
        ValueError: its size is not that of its shape, it has no numbers, or not all are finite.
    """
    numbers = np.frombuffer(content, dtype="<f4", count=len(content) // BYTES_PER_NUMBER)
    if not numbers.size or len(content) != BYTES_PER_NUMBER * math.prod(shape):
        raise ValueError(f"{len(content)} bytes for float32 numbers of shape {list(shape)}")
    if not np.isfinite(numbers).all():
        raise ValueError("it has numbers that are not finite")
    return numbers.reshape(-1, shape[-1])


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
        message: of the exception or the server.
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


def _grpc_body(
    target: Target,
    tensors: Sequence[Tensor],
    parameters: Sequence[tuple[str, Parameter]],
    outputs: Sequence[tuple[str, int]],
) -> Body:
    from tritonclient.grpc import service_pb2 as pb

    request = pb.ModelInferRequest(model_name=target.model)
    for name, value in parameters:
        setattr(request.parameters[name], GRPC_FIELDS[type(value)], value)
    for each in tensors:
        added = request.inputs.add(name=each.name, datatype=each.datatype, shape=each.shape)
        for name, value in each.placed.parameters.items() if each.placed else ():
            setattr(added.parameters[name], GRPC_FIELDS[type(value)], value)
    for name, classes in outputs:
        wanted = request.outputs.add(name=name)
        if classes:
            wanted.parameters["classification"].int64_param = classes
    request.raw_input_contents.extend(each.content for each in tensors if each.placed is None)
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


def _http_body(
    target: Target,
    tensors: Sequence[Tensor],
    parameters: Sequence[tuple[str, Parameter]],
    outputs: Sequence[tuple[str, int]],
) -> Body:
    header: dict[str, Any] = {
        "inputs": [
            {
                "name": each.name,
                "shape": each.shape,
                "datatype": each.datatype,
                "parameters": each.placed.parameters if each.placed else {"binary_data_size": len(each.content)},
            }
            for each in tensors
        ],
        "outputs": [
            {"name": name, "parameters": {"binary_data": True} | ({"classification": classes} if classes else {})}
            for name, classes in outputs
        ],
    }
    if not outputs:
        del header["outputs"]
        parameters = [*parameters, ("binary_data_output", True)]
    # Without their opening brace, so that the stream's part can go first.
    return Body(
        model=target.model,
        content=b"".join(each.content for each in tensors),
        header=json.dumps(header).encode()[1:],
        parameters=json.dumps(dict(parameters)).encode()[1:-1],
    )


def _http_stream(sequence_id: int, start: bool, end: bool) -> bytes:
    part = {"sequence_id": sequence_id, "sequence_start": start, "sequence_end": end}
    return json.dumps(part).encode()[1:-1]
