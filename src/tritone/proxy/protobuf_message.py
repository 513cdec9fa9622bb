"""A gRPC message `ModelInferRequest`, read without its tensor data, which may be megabytes.

bytes  ->  Inference  ->  bytes; the data stays where it is, everything else is serialised again

Two readers of protobuf need not agree on bytes: Python's keeps a whole map entry as unknown that has one unknown field,
C++ reads the entry without the field. So what neither the checks nor a newer client can mean is refused at every depth,
and Triton gets what was read, in the one form that every reader understands alike.
"""

from collections.abc import Iterator
from typing import Any

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2 as pb

from tritone.net.limits import Limits
from tritone.net.refusal import BAD_REQUEST, TOO_LARGE, RefusedError
from tritone.proxy.inference import Inference, StreamId, TensorHead
from tritone.proxy.json_body import most_unpacked, unpacked

RAW_INPUT_CONTENTS = pb.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
MAX_FIELDS = 4096  # at the top and in inputs and outputs together, without the numbers in `contents`
NESTED = {  # field numbers at the top -> those inside of tensors of their own, which are not looked into
    pb.ModelInferRequest.INPUTS_FIELD_NUMBER: pb.ModelInferRequest.InferInputTensor.CONTENTS_FIELD_NUMBER,
    pb.ModelInferRequest.OUTPUTS_FIELD_NUMBER: 0,
}
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types
GZIP, ZLIB = b"\x1f\x8b", b"\x78"  # no message that Triton knows begins so


def plain(message: bytes, limits: Limits) -> bytes:
    """Unpack a message that was compressed. gRPC's own unpacking, which has no limit, is switched off.

    Raises:
        RefusedError: it is damaged, or too large.
    """
    if message.startswith(GZIP):
        return unpacked(message, "gzip", limits.max_body_bytes)
    if message.startswith(ZLIB):
        return unpacked(message, "deflate", limits.max_body_bytes)
    return message


def unpacked_size(message: bytes, limits: Limits) -> int:
    """Bytes that a message may take, at most, when it is unpacked, with itself."""
    packed = message.startswith((GZIP, ZLIB))
    return len(message) + (most_unpacked(len(message), limits.max_body_bytes) if packed else 0)


def read_inference(message: bytes, limits: Limits) -> Inference:
    """Read a request.

    Raises:
        RefusedError: it is damaged, or its text is not UTF-8.
    """
    head, raw = _split(message)
    if len(head) > limits.max_json_bytes:
        raise RefusedError(
            TOO_LARGE,
            f"tensors in 'contents' take {len(head)} bytes, {limits.max_json_bytes} are allowed. "
            "Send them as raw_input_contents.",
        )
    request = understood(pb.ModelInferRequest, head)
    # Raw contents are those of the inputs that do not lie in shared memory, in their order.
    sent = [each for each in request.inputs if "shared_memory_region" not in each.parameters]
    if raw and len(raw) != len(sent):
        raise RefusedError(BAD_REQUEST, f"{len(sent)} inputs need as many raw_input_contents, there are {len(raw)}")
    sizes = iter([len(each) for each in raw])

    def encoded(stream: StreamId | None) -> bytes:
        if isinstance(stream, str):
            request.parameters["sequence_id"].string_param = stream
        elif stream is not None:
            request.parameters["sequence_id"].int64_param = stream
        parts = [request.SerializeToString()]
        for each in raw:
            parts += (bytes((RAW_INPUT_CONTENTS << 3 | BYTES,)), _as_varint(len(each)), each)
        return b"".join(parts)

    return Inference(
        model=request.model_name,
        version=request.model_version,
        id=request.id,
        parameters=_parameters(request),
        inputs=[
            TensorHead(
                name=each.name,
                datatype=each.datatype,
                shape=each.shape,
                parameters=_parameters(each) if each.parameters else {},
                num_bytes=next(sizes, None) if "shared_memory_region" not in each.parameters else None,
            )
            for each in request.inputs
        ],
        outputs=[
            TensorHead(name=each.name, parameters=_parameters(each) if each.parameters else {})
            for each in request.outputs
        ],
        encoded=encoded,
    )


def understood(kind: Any, message: bytes) -> Any:
    """A message of protobuf of which every part is known.

    Args:
        kind: its class.

    Raises:
        RefusedError: it is damaged, or has fields that its definition does not have, at any depth.
    """
    try:
        read = kind.FromString(message)
    except DecodeError as error:
        raise RefusedError(BAD_REQUEST, f"the message cannot be read: {str(error)[:200]}") from error
    before = read.ByteSize()
    read.DiscardUnknownFields()
    if read.ByteSize() != before:
        raise RefusedError(
            BAD_REQUEST,
            f"the message has fields that {kind.DESCRIPTOR.name} does not have here. Leave them out, or use the "
            "definitions of Triton 2.51.",
        )
    return read


def end_of(inference: Inference, stream: StreamId) -> bytes:
    """A request that ends a stream: its last one again, without samples."""
    message = pb.ModelInferRequest(model_name=inference.model, model_version=inference.version)
    if isinstance(stream, str):
        message.parameters["sequence_id"].string_param = stream
    else:
        message.parameters["sequence_id"].int64_param = stream
    message.parameters["sequence_end"].bool_param = True
    for each in inference.inputs:
        # audio is the input whose last axis is long; lengths and the like have one value for each row
        shape = [1, *each.shape[1:]] if len(each.shape) > 1 else list(each.shape)
        if each.datatype in ("FP32", "INT16"):
            shape[-1:] = [0]
        message.inputs.add(name=each.name, datatype=each.datatype, shape=shape)
        elements = 1
        for size in shape:
            elements *= size
        message.raw_input_contents.append(bytes(elements * ITEM_SIZES.get(each.datatype, 4)))
    return bytes(message.SerializeToString())


# Bytes of one element; BYTES has 4 for the length of an empty one, but no fixed size.
ITEM_SIZES = {
    **dict.fromkeys(("BOOL", "INT8", "UINT8"), 1),
    **dict.fromkeys(("INT16", "UINT16", "FP16", "BF16"), 2),
    **dict.fromkeys(("INT32", "UINT32", "FP32"), 4),
    **dict.fromkeys(("INT64", "UINT64", "FP64"), 8),
}


def _split(message: bytes) -> tuple[bytes, list[memoryview]]:
    """Separate a message into everything else and its raw contents.

    Raises:
        RefusedError: it is damaged, or has so many parts that they would take many times its size as objects.
    """
    view, head, raw, count = memoryview(message), bytearray(), [], 0
    for number, wire, start, inside, end in _fields(message, 0, len(message)):
        count += 1
        if number == RAW_INPUT_CONTENTS:
            if wire != BYTES:
                raise _damaged()
            raw.append(view[inside:end])
        else:
            head += view[start:end]
            if number in NESTED and wire == BYTES:
                contents = NESTED[number]
                for nested, *_ in _fields(message, inside, end):
                    count += nested != contents
                    _check_count(count)
        _check_count(count)
    return bytes(head), raw


def _check_count(count: int) -> None:
    if count > MAX_FIELDS:
        raise RefusedError(BAD_REQUEST, f"the message has more than {MAX_FIELDS} fields")


def _fields(message: bytes, position: int, limit: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Number, wire type, and positions of tag, content and end of each field in a part of a message."""
    while position < limit:
        start = position
        tag, position = _varint(message, position)
        wire = tag & 7
        size = 0
        if wire == BYTES:
            size, position = _varint(message, position)
        elif wire == VARINT:
            _, position = _varint(message, position)
        elif wire in (FIXED32, FIXED64):
            size = 4 if wire == FIXED32 else 8
        else:
            raise _damaged()
        if position + size > limit:
            raise _damaged()
        yield tag >> 3, wire, start, position, position + size
        position += size


def _varint(message: bytes, position: int) -> tuple[int, int]:
    value, shift = 0, 0
    while position < len(message) and shift < 64:
        byte = message[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position
    raise _damaged()


def _as_varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _damaged() -> RefusedError:
    return RefusedError(BAD_REQUEST, "the message is not a ModelInferRequest")


def _parameters(message: Any) -> dict[str, Any]:
    found = {}
    for name, value in message.parameters.items():
        chosen = value.WhichOneof("parameter_choice")
        found[name] = None if chosen is None else getattr(value, chosen)
    return found
