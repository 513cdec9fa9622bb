"""The body of an HTTP request: unpacked within a limit, its JSON read strictly.

What Triton reads otherwise than a check does would pass the check: Triton's parser takes the first of two equal keys,
Python's the last. So a body is either plain, or refused.
"""

import json
import re
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

from tritone.proxy.inference import Inference, StreamId, TensorHead
from tritone.proxy.options import Limits
from tritone.proxy.refusal import BAD_REQUEST, TOO_LARGE, RefusedError

WINDOWS = {"gzip": 31, "deflate": 15}  # arguments of zlib
STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def unpacked(packed: bytes, encoding: str, limit: int) -> bytes:
    """Decompress a body.

    Raises:
        RefusedError: it is damaged, or larger than `limit` bytes; no more than these are unpacked.
    """
    if encoding not in WINDOWS:
        raise RefusedError(BAD_REQUEST, f"the content encoding {encoding[:40]!r} is unknown; use gzip or deflate")
    unpacker = zlib.decompressobj(WINDOWS[encoding])
    try:
        body = unpacker.decompress(packed, limit + 1)
    except zlib.error as error:
        raise RefusedError(BAD_REQUEST, f"the body is not {encoding}: {error}") from error
    if len(body) > limit:
        raise RefusedError(
            TOO_LARGE, f"the body has more than {limit} bytes when it is unpacked, the largest size. Send less at once."
        )
    if not unpacker.eof or unpacker.unused_data:
        raise RefusedError(BAD_REQUEST, f"the body is not one whole {encoding} stream")
    return body


def read_json(text: bytes, limits: Limits) -> Any:
    """Parse strict JSON: UTF-8, no equal keys, no deep nesting, no lone surrogates or NUL.

    Raises:
        RefusedError: it is not.
    """
    if len(text) > limits.max_json_bytes:
        raise RefusedError(
            TOO_LARGE,
            f"the JSON has {len(text)} bytes, {limits.max_json_bytes} are allowed. Send tensors as binary data.",
        )
    depth = 0
    for bracket in STRINGS.sub(b"", text).translate(None, NOT_BRACKETS):
        depth += 1 if bracket in b"[{" else -1
        if depth > limits.max_json_depth:
            raise RefusedError(BAD_REQUEST, f"the JSON is nested deeper than {limits.max_json_depth} levels")
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=_unique)
        if b"\\u" in text and "\0" in "".join(_strings(value)).encode("utf-8").decode("utf-8"):
            raise ValueError("a string holds a NUL character")
    except UnicodeDecodeError as error:
        raise RefusedError(BAD_REQUEST, f"the JSON is not UTF-8 from byte {error.start} on") from error
    except UnicodeEncodeError as error:
        raise RefusedError(BAD_REQUEST, "the JSON has half of a surrogate pair in a string") from error
    except (ValueError, RecursionError) as error:
        raise RefusedError(BAD_REQUEST, f"the JSON cannot be read: {str(error)[:200]}") from error
    return value


def read_inference(model: str, version: str, body: bytes, header_length: int | None, limits: Limits) -> Inference:
    """Read a request of `/v2/models/{model}/infer`.

    Args:
        header_length: size of the JSON in front of binary data; None: everything is JSON.

    Raises:
        RefusedError: it is not of the form that the protocol has.
    """
    length = len(body) if header_length is None else header_length
    head = read_json(body[:length], limits)
    if not isinstance(head, dict):
        raise RefusedError(BAD_REQUEST, f"the request must be a JSON object, got {_kind(head)}")

    def renamed(stream: StreamId) -> tuple[bytes, int]:
        changed = head | {"parameters": parameters | {"sequence_id": stream}}
        text = json.dumps(changed, separators=(",", ":")).encode()
        return b"".join((text, memoryview(body)[length:])), len(text)

    parameters = _object(head, "parameters")
    request_id = head.get("id", "")
    if not isinstance(request_id, str):
        raise RefusedError(BAD_REQUEST, f"'id' must be a string, got {_kind(request_id)}")
    return Inference(
        model=model,
        version=version,
        id=request_id,
        parameters=parameters,
        inputs=_tensors(head, "inputs"),
        outputs=_tensors(head, "outputs"),
        renamed=renamed,
    )


def _tensors(head: Mapping[str, Any], name: str) -> list[TensorHead]:
    tensors = head.get(name, [])
    if not isinstance(tensors, list) or not all(isinstance(each, dict) for each in tensors):
        raise RefusedError(BAD_REQUEST, f"{name!r} must be a list of objects")
    heads = []
    for each in tensors:
        shape, tensor, datatype = each.get("shape", []), each.get("name", ""), each.get("datatype", "")
        if not isinstance(tensor, str) or not isinstance(datatype, str):
            raise RefusedError(BAD_REQUEST, f"'name' and 'datatype' of {name!r} must be strings")
        if not isinstance(shape, list) or not all(type(size) is int for size in shape):
            raise RefusedError(BAD_REQUEST, f"the shape of {tensor[:80]!r} must be a list of whole numbers")
        parameters = _object(each, "parameters")
        heads.append(
            TensorHead(
                name=tensor,
                datatype=datatype,
                shape=shape,
                parameters=parameters,
                num_bytes=parameters.get("binary_data_size"),
            )
        )
    return heads


def _object(head: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = head.get(name, {})
    if not isinstance(value, dict):
        raise RefusedError(BAD_REQUEST, f"{name!r} must be a JSON object, got {_kind(value)}")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has a key twice")
    return found


def _strings(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        for each in value.values():
            yield from _strings(each)
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each)


def _kind(value: Any) -> str:
    return {dict: "an object", list: "a list", str: "a string", type(None): "null"}.get(type(value), repr(value)[:40])
