"""The body of an HTTP request: unpacked within a limit, its JSON read strictly, and written again.

What Triton reads otherwise than a check does would pass the check: Triton's parser takes the first of two equal keys,
Python's the last. So a body is either plain, or refused, and what is sent on is written of what was read.

A list of numbers and strings alone, which is what tensor data is, stays text: as objects it would take many times its
size. The grammar is that of RFC 8259, with NaN and Infinity, which Triton takes. No pattern here can go back over
what it has matched, so that time and memory grow with the size of a body and no faster.
"""

import codecs
import json
import math
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tritone.net.limits import Limits
from tritone.net.refusal import BAD_REQUEST, TOO_LARGE, RefusedError
from tritone.proxy.inference import Inference, StreamId, TensorHead

WINDOWS = {"gzip": 31, "deflate": 15}  # arguments of zlib
MOST_UNPACKED = 1032  # bytes that a byte of deflate can become

SPACE = rb"[ \t\n\r]*+"
_PAIR = rb"[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"  # of surrogates
_ESCAPE = rb"\\(?:[\"\\/bfnrt]|u(?:(?!0000|[dD][89a-fA-F])[0-9a-fA-F]{4}|" + _PAIR + rb"))"  # not of NUL
STRING = rb'"(?:[^"\\\x00-\x1f]++|' + _ESCAPE + rb')*+"'
NUMBER = rb"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]++)?+"
CONSTANT = rb"NaN|-?Infinity"
SCALAR = rb"(?:" + STRING + rb"|" + CONSTANT + rb"|" + NUMBER + rb"|true|false|null)"
LIST = rb"\[" + SPACE + rb"(?:" + SCALAR + SPACE + rb"(?:," + SPACE + SCALAR + SPACE + rb")*+)?+\]"
TOKEN = re.compile(
    SPACE + rb"(?:(?P<list>" + LIST + rb")|(?P<constant>" + CONSTANT + rb")|(?P<scalar>" + SCALAR + rb")"
    rb"|(?P<open>[\[{])|(?P<close>[\]}])|(?P<mark>[:,]))"
)
REST = re.compile(SPACE)
ANY_STRING = re.compile(SPACE + rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
PLAIN_BYTES = 64 << 10  # of lists that are read into objects; the rest stays text
FREE_TOKENS, BYTES_PER_TOKEN = 4096, 32  # a token becomes an object of some hundred bytes
MOST_STRING = 1 << 20  # bytes of one string that is no data: as long as all parameters of a request may be
MOST_SIZES = 1024  # characters of a shape


def _up_to(most: int) -> bytes:
    """A pattern of the whole numbers from 0 to `most`, as JSON has them."""
    digits = str(most)
    fewer = f"[0-9]{{1,{len(digits) - 1}}}"
    less = (
        f"{digits[:at]}[0-{int(each) - 1}][0-9]{{{len(digits) - at - 1}}}"
        for at, each in enumerate(digits)
        if each > "0"
    )
    return "|".join((fewer, *less, digits)).encode()


# What elements of data must be, by Triton's name of their type: a pattern, and words for it. Others are an error
# of its own to Triton, which cuts numbers beyond the range; those of half precision it takes as binary data alone.
ELEMENTS = {"BYTES": (STRING, "strings"), "BOOL": (rb"true|false", "true or false")}
FINITE = rb"-?[0-9]{1,300}+(?:\.[0-9]++)?+(?:[eE](?:-[0-9]++|\+?0*+(?:[0-9]{1,2}|[12][0-9]{2}|30[0-7])))?+"
ELEMENTS |= dict.fromkeys(("FP32", "FP64"), (FINITE + rb"|" + CONSTANT, "numbers of at most 64 bits"))
for _bits in (8, 16, 32, 64):
    _half = 1 << _bits - 1
    ELEMENTS[f"UINT{_bits}"] = (_up_to(2 * _half - 1), f"whole numbers from 0 to {2 * _half - 1}")
    ELEMENTS[f"INT{_bits}"] = (
        rb"-(?:" + _up_to(_half) + rb")|" + _up_to(_half - 1),
        f"whole numbers from {-_half} to {_half - 1}",
    )
AFTER = rb"(?=[ \t\n\r,\]])"
FITTING = {
    datatype: re.compile(rb"\[" + SPACE + rb"(?:(?:" + item + rb")" + AFTER + SPACE + rb",?+" + SPACE + rb")*+")
    for datatype, (item, _) in ELEMENTS.items()
}
"""A list up to its first element that does not fit, or to its end."""


@dataclass(frozen=True, slots=True)
class FlatList:
    """A JSON list of numbers, strings and constants, as text that was checked."""

    text: bytes


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


def most_unpacked(packed: int, limit: int) -> int:
    """Bytes that unpacking may take, at most, of so many packed ones."""
    return min(limit + 1, MOST_UNPACKED * packed)


def read_json(text: bytes, limits: Limits) -> Any:
    """Parse strict JSON: UTF-8, no equal keys, no deep nesting, no lone surrogates or NUL.

    Returns:
        The value; long lists of scalars in it are `FlatList`.

    Raises:
        RefusedError: it is not.
    """
    if len(text) > limits.max_json_bytes:
        raise RefusedError(
            TOO_LARGE,
            f"the JSON has {len(text)} bytes, {limits.max_json_bytes} are allowed. Send tensors as binary data.",
        )
    _check_utf8(text)
    skeleton: list[bytes] = []
    aside: list[Any] = []  # what stands for each NaN of the skeleton
    depth, position, plain_left = 0, 0, PLAIN_BYTES
    while (found := TOKEN.match(text, position)) is not None:
        kind, token, position = found.lastgroup, found[found.lastgroup or 0], found.end()
        depth += {"open": 1, "close": -1}.get(kind or "", 0)
        if depth + (kind == "list") > limits.max_json_depth:
            raise RefusedError(BAD_REQUEST, f"the JSON is nested deeper than {limits.max_json_depth} levels")
        if kind == "list" and len(token) <= plain_left and not re.search(CONSTANT, token):
            plain_left -= len(token)
        elif kind in ("list", "constant"):
            aside.append(FlatList(token) if kind == "list" else float(token))
            token = b"NaN"
        elif len(token) > MOST_STRING:
            raise RefusedError(TOO_LARGE, f"a string has {len(token)} bytes, {MOST_STRING} are allowed")
        skeleton.append(token)
        if len(skeleton) > FREE_TOKENS + len(text) // BYTES_PER_TOKEN:
            raise RefusedError(
                TOO_LARGE,
                f"the JSON has more than {len(skeleton) - 1} small parts. Send tensors as binary data, or the data of "
                "each as one flat list.",
            )
    if REST.match(text, position).end() < len(text):  # type: ignore[union-attr]
        raise RefusedError(BAD_REQUEST, _why_unreadable(text, position))
    constants = iter(aside)
    try:
        return json.loads(
            b"".join(skeleton),
            object_pairs_hook=_unique,
            parse_constant=lambda name: next(constants),
            parse_float=_finite,
        )
    except (ValueError, RecursionError) as error:
        raise RefusedError(BAD_REQUEST, f"the JSON cannot be read: {str(error)[:200]}") from error


def write_json(value: Any) -> bytes:
    """The JSON of what `read_json` returned."""
    return b"".join(_written(value))


def _written(value: Any) -> Iterator[bytes]:
    if isinstance(value, FlatList):
        yield value.text
    elif isinstance(value, dict):
        before = b"{"
        for key, each in value.items():
            yield b"%b%b:" % (before, json.dumps(key).encode())
            yield from _written(each)
            before = b","
        yield b"}" if value else b"{}"
    elif isinstance(value, list) and any(isinstance(each, (dict, list, FlatList)) for each in value):
        before = b"["
        for each in value:
            yield before
            yield from _written(each)
            before = b","
        yield b"]"
    else:
        yield json.dumps(value, separators=(",", ":")).encode()


def _check_utf8(text: bytes) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")()
    for start in range(0, len(text), PLAIN_BYTES):
        part = text[start : start + PLAIN_BYTES]
        try:
            decoder.decode(part, final=start + PLAIN_BYTES >= len(text))
        except UnicodeDecodeError as error:
            at = start + len(part) - len(error.object) + error.start
            raise RefusedError(BAD_REQUEST, f"the JSON is not UTF-8 from byte {at} on") from error


def _why_unreadable(text: bytes, position: int) -> str:
    found = ANY_STRING.match(text, position) or ANY_STRING.match(text, position + 1)
    if found and re.search(rb"\\u0000", found[0]):
        return "the JSON cannot be read: a string holds a NUL character"
    if found and re.search(rb"\\u[dD][89a-fA-F]", found[0]):
        return "the JSON has half of a surrogate pair in a string"
    return f"the JSON cannot be read from byte {position} on: {text[position : position + 20]!r}"


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

    def encoded(stream: StreamId | None) -> tuple[bytes, int]:
        changed = head if stream is None else head | {"parameters": parameters | {"sequence_id": stream}}
        text = write_json(changed)
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
        encoded=encoded,
    )


def _tensors(head: Mapping[str, Any], name: str) -> list[TensorHead]:
    tensors = head.get(name, [])
    if not isinstance(tensors, list) or not all(isinstance(each, dict) for each in tensors):
        raise RefusedError(BAD_REQUEST, f"{name!r} must be a list of objects")
    heads = []
    for each in tensors:
        shape, tensor, datatype = _short(each.get("shape", [])), each.get("name", ""), each.get("datatype", "")
        if not isinstance(tensor, str) or not isinstance(datatype, str):
            raise RefusedError(BAD_REQUEST, f"'name' and 'datatype' of {name!r} must be strings")
        if not isinstance(shape, list) or not all(type(size) is int for size in shape):
            raise RefusedError(BAD_REQUEST, f"the shape of {tensor[:80]!r} must be a list of whole numbers")
        parameters = _object(each, "parameters")
        if name == "inputs":
            _check_input(each, tensor, parameters)
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


def _check_input(head: Mapping[str, Any], tensor: str, parameters: Mapping[str, Any]) -> None:
    if missing := [field for field in ("name", "datatype", "shape") if field not in head]:
        raise RefusedError(BAD_REQUEST, f"input {tensor[:80]!r} has no {missing[0]!r}")
    sources = ("binary_data_size", "shared_memory_region")
    if ("data" in head) + sum(source in parameters for source in sources) != 1:
        raise RefusedError(
            BAD_REQUEST, f"input {tensor[:80]!r} needs one of 'data' and, in its parameters, {' and '.join(sources)}"
        )
    check_data(tensor, head["datatype"], head.get("data", []))


def check_data(tensor: str, datatype: str, data: Any) -> None:
    """Refuse elements that are none of a tensor's type; how many there are is Triton's to compare with the shape.

    Raises:
        RefusedError: names the first of them.
    """
    left = [data]
    while left and datatype in ELEMENTS:
        each = left.pop()
        if isinstance(each, list) and any(isinstance(inner, (list, FlatList)) for inner in each):
            left += each
            continue
        text = each.text if isinstance(each, FlatList) else write_json(each) if isinstance(each, list) else b""
        fits = FITTING[datatype].match(text)
        if fits is None or fits.end() + 1 < len(text):
            element = None if fits is None else re.match(SCALAR, text[fits.end() : fits.end() + 80])
            shown = _kind(each) if element is None else element[0].decode(errors="replace")
            raise RefusedError(
                BAD_REQUEST,
                f"input {tensor[:80]!r}: the data of {datatype} is a list of {ELEMENTS[datatype][1]}, got {shown}",
            )


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


def _finite(text: str) -> float:
    if (value := float(text)) in (math.inf, -math.inf):
        raise ValueError(f"{text[:40]} is beyond all numbers of 64 bits")
    return value


def _short(value: Any) -> Any:
    """A shape that stayed text, read; a long one is none."""
    return json.loads(value.text) if isinstance(value, FlatList) and len(value.text) <= MOST_SIZES else value


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", FlatList: "a list", str: "a string", type(None): "null"}
    return kinds.get(type(value), repr(value)[:40])
