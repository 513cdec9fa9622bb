"""What is checked is what is sent: any reader finds in the bytes that Triton gets what the checks have seen."""

import json
import struct
import tracemalloc
from collections.abc import Mapping
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from effort import examples
from proxied import body, get, post
from tritone.net.limits import Limits
from tritone.net.refusal import RefusedError
from tritone.proxy import Proxy
from tritone.proxy.json_body import read_inference as read_http
from tritone.proxy.json_body import read_json, write_json
from tritone.proxy.protobuf_message import read_inference as read_grpc

LIMITS = Limits()
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


def varint(value: int, over: int = 0) -> bytes:
    """A varint, `over` bytes longer than it needs to be."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    if over:
        found.append(value | 0x80)
        found += b"\x80" * (over - 1) + b"\0"
    else:
        found.append(value)
    return bytes(found)


def field(number: int, content: bytes | int, over: int = 0) -> bytes:
    if isinstance(content, int):
        return varint(number << 3, over) + varint(content, over)
    return varint(number << 3 | BYTES, over) + varint(len(content), over) + content


def read(message: bytes, descriptor: Any) -> Mapping[str, Any]:
    """Read a message as C++ does, field by field, the last of equal ones winning, unknown ones left out.

    Written after the encoding's description (protobuf.dev, "Encoding"); `unknown` has what a definition does not.
    """
    found: dict[str, Any] = {"unknown": 0}
    at = 0
    while at < len(message):
        tag, at = take(message, at)
        wire, known = tag & 7, descriptor.fields_by_number.get(tag >> 3)
        value: Any
        if wire == VARINT:
            value, at = take(message, at)
        elif wire == BYTES:
            size, at = take(message, at)
            value, at = message[at : at + size], at + size
        else:
            size = 8 if wire == FIXED64 else 4
            value, at = message[at : at + size], at + size
        if known is None:
            found["unknown"] += 1
            continue
        if known.message_type is not None:
            value = read(value, known.message_type)
            found["unknown"] += value["unknown"]
        if known.message_type is not None and known.message_type.GetOptions().map_entry:
            found.setdefault(known.name, {})[value.get("key", b"")] = value.get("value", {"unknown": 0})
        elif known.is_repeated:
            found.setdefault(known.name, []).append(value)
        else:
            found[known.name] = value
    return found


def take(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (message[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if message[at - 1] < 0x80:
            return value, at


names = st.sampled_from(["a", "b", "classification", "shared_memory_region", "sequence_id", "sequence_start"])
overs = st.integers(0, 3)
unknown = st.one_of(
    st.builds(field, st.integers(12, 30), st.binary(max_size=3), overs),
    st.builds(field, st.integers(12, 30), st.integers(0, 1 << 40), overs),
    st.integers(12, 30).map(lambda number: varint(number << 3 | FIXED32) + b"1234"),
    st.integers(12, 30).map(lambda number: varint(number << 3 | FIXED64) + b"12345678"),
    st.integers(12, 30).map(lambda number: varint(number << 3 | 3) + varint(number << 3 | 4)),  # a group
)


def parts(*kinds: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Fields in any order and number, now and then one that nobody knows."""
    return st.lists(st.one_of(*kinds, *kinds, *kinds, unknown), max_size=5).map(b"".join)


values = parts(
    st.builds(field, st.just(1), st.integers(0, 1), overs),
    st.builds(field, st.just(2), st.integers(0, (1 << 64) - 1), overs),
    st.builds(field, st.just(3), st.text(max_size=3).map(str.encode), overs),
)
entries = parts(st.builds(field, st.just(1), names.map(str.encode), overs), st.builds(field, st.just(2), values, overs))
shapes = st.one_of(
    st.lists(st.integers(0, 9).map(varint), max_size=3).map(lambda sizes: field(3, b"".join(sizes))),
    st.lists(st.integers(0, 9).map(lambda size: field(3, size)), max_size=3).map(b"".join),
)
tensors = parts(st.builds(field, st.just(1), names.map(str.encode), overs), shapes, entries.map(lambda e: field(4, e)))
outputs = parts(st.builds(field, st.just(1), names.map(str.encode), overs), entries.map(lambda e: field(2, e)))
messages = parts(
    st.builds(field, st.just(1), names.map(str.encode), overs),
    entries.map(lambda e: field(4, e)),
    tensors.map(lambda t: field(5, t)),
    outputs.map(lambda o: field(6, o)),
)


def plain_value(value: Mapping[str, Any]) -> Any:
    """The one value of an InferParameter that was written by a serialiser."""
    (found,) = [each for name, each in value.items() if name != "unknown"] or [None]
    return found.decode() if isinstance(found, bytes) else found


def as_signed(value: Any) -> Any:
    return value & (1 << 64) - 1 if type(value) is int else value


def parameters(message: Mapping[str, Any]) -> dict[str, Any]:
    return {key.decode(): plain_value(value) for key, value in message.get("parameters", {}).items()}


@settings(max_examples=examples(400), deadline=None)
@given(messages)
def test_another_reader_finds_what_was_checked_in_every_message_that_is_sent_on(message: bytes) -> None:
    try:
        checked = read_grpc(message, LIMITS)
    except RefusedError:
        return
    sent = read(checked.encoded(None), pb.ModelInferRequest.DESCRIPTOR)
    assert sent["unknown"] == 0
    assert sent.get("model_name", b"").decode() == checked.model
    assert parameters(sent) == {key: as_signed(value) for key, value in checked.parameters.items()}
    for kind, heads in (("inputs", checked.inputs), ("outputs", checked.outputs)):
        found = sent.get(kind, [])
        assert [each.get("name", b"").decode() for each in found] == [each.name for each in heads]
        assert [parameters(each) for each in found] == [
            {key: as_signed(value) for key, value in each.parameters.items()} for each in heads
        ]


@pytest.mark.parametrize("depth", ["message", "tensor", "entry", "value", "contents"])
def test_a_field_that_nobody_knows_is_refused_at_every_depth(depth: str) -> None:
    more = {
        name: b"\x7a\x01x" if name == depth else b"" for name in ("message", "tensor", "entry", "value", "contents")
    }
    value = field(2, 1) + more["value"]
    entry = field(1, b"classification") + field(2, value) + more["entry"]
    tensor = field(1, b"x") + field(5, more["contents"]) + field(4, entry) + more["tensor"]
    whole = field(1, b"m") + field(5, tensor)
    assert read_grpc(field(1, b"m") + field(5, field(1, b"x")), LIMITS).inputs
    with pytest.raises(RefusedError, match="fields that ModelInferRequest does not have"):
        read_grpc(whole + more["message"] if depth == "message" else whole, LIMITS)


@pytest.mark.parametrize("where", [4, 5, 6])
def test_a_message_of_many_tiny_parts_is_refused_before_they_are_objects(where: int) -> None:
    many = (field(4, b"") if where == 5 else field(2, b"")) * 100_000
    with pytest.raises(RefusedError, match="more than 4096 fields"):
        read_grpc(field(1, b"m") + (field(4, b"") * 100_000 if where == 4 else field(where, many)), LIMITS)


def first_wins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Objects as RapidJSON finds members in them, the first of equal ones."""
    return dict(reversed(pairs))


scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3))
json_values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=2), inner, max_size=4)),
    max_leaves=12,
)


@settings(max_examples=examples(300), deadline=None)
@given(json_values, st.booleans(), st.sampled_from(["", "\x00", "x", ",", '"', '{"a":1}', "]"]), st.integers(0, 60))
def test_json_is_read_as_it_is_sent_or_refused(value: Any, ascii_: bool, more: str, at: int) -> None:
    text = json.dumps(value, ensure_ascii=ascii_)
    text = text[:at] + more + text[at:]
    try:
        found = read_json(text.encode("utf-8", "surrogatepass"), LIMITS)
    except RefusedError:
        return
    sent = write_json(found)
    again = [json.loads(sent), json.loads(sent, object_pairs_hook=first_wins)]
    # a list with an infinity stays text
    kept = json.dumps(found, sort_keys=True, default=lambda flat: json.loads(flat.text))
    assert [json.dumps(each, sort_keys=True) for each in again] == [kept] * 2


def test_large_lists_stay_text_and_arrive_as_they_were_sent() -> None:
    numbers = [0.1 * each for each in range(20_000)]
    texts = ["ü", '"', "\\", "\U0001f600"] * 5000
    tensors = {"x": ("FP64", [1], numbers), "y": ("BYTES", [2, 20_000], [texts, texts])}
    head = {
        "inputs": [
            {"name": name, "datatype": datatype, "shape": shape, "data": data}
            for name, (datatype, shape, data) in tensors.items()
        ]
    }
    request = read_http("m", "", json.dumps(head).encode(), None, LIMITS)
    sent, length = request.encoded(None)
    assert json.loads(sent[:length]) == head
    assert [list(each.shape) for each in request.inputs] == [[1], [2, 20_000]]


MEGABYTE = 2 << 20
BOMBS = {
    "one string": b'{"id":"' + b"a" * MEGABYTE + b'"}',
    "escapes": b'{"id":"' + b"\\n" * (MEGABYTE // 2) + b'"}',
    "wide characters": b'{"id":"' + "\U0001f600".encode() + b"a" * MEGABYTE + b'"}',
    "objects": b'{"inputs":[' + b",".join([b"{}"] * (MEGABYTE // 3)) + b"]}",
    "lists": b'{"inputs":[' + b",".join([b"[]"] * (MEGABYTE // 3)) + b"]}",
    "strings": b'{"inputs":[' + b",".join([b'"aa"'] * (MEGABYTE // 5)) + b"]}",
    "numbers": b'{"inputs":[' + b",".join([b"300"] * (MEGABYTE // 4)) + b"]}",
    "members": b"{" + b",".join(b'"%x":1' % each for each in range(MEGABYTE // 9)) + b"}",
    "depth": b"[" * MEGABYTE,
    "strings without an end": b'["' * (MEGABYTE // 2),
    "a string without an end": b'{"id":"' + b"a" * MEGABYTE,
    "lists without an end": b'[1,"' * (MEGABYTE // 4),
    "space": b" " * MEGABYTE,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BOMBS)
def test_json_takes_at_most_eight_times_its_size(name: str) -> None:
    text = BOMBS[name]
    tracemalloc.start()
    try:
        read_json(text, LIMITS)
    except RefusedError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak <= 8 * len(text)


def test_the_map_entry_that_ended_triton_is_refused(proxy: Proxy) -> None:
    request = pb.ModelInferRequest(model_name="count")
    for name, kind, shape, data in (
        ("WAV", "FP32", [1, 100], bytes(400)),
        ("WAV_LENS", "INT32", [1, 1], struct.pack("<i", 100)),
    ):
        request.inputs.add(name=name, datatype=kind, shape=shape)
        request.raw_input_contents.append(data)
    entry = field(1, b"classification") + field(2, field(2, 1)) + field(3, b"x")
    message = request.SerializeToString() + field(6, field(1, b"TRANSCRIPTS") + field(2, entry))
    with grpc.insecure_channel(f"127.0.0.1:{proxy.options.grpc_port}") as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        stream = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        with pytest.raises(grpc.RpcError, match="fields that ModelInferRequest does not have"):
            infer(message, timeout=20)
        (answer,) = stream(iter([message]), timeout=20)
        assert "does not have" in pb.ModelStreamInferResponse.FromString(answer).error_message
        assert infer(request.SerializeToString(), timeout=20)


def test_a_query_string_is_legal_and_not_sent_on(proxy: Proxy) -> None:
    port = proxy.options.http_port
    assert get(port, "/v2/health/ready?test_1=1&test_2=2")[0] == 200
    status, answer, _ = post(port, "/v2/models/count/infer?test_1=1", json.dumps(body()).encode())
    assert (status, answer["outputs"][0]["name"]) == (200, "TRANSCRIPTS")
    assert get(port, "/v2/models/count/config?x=/../y")[0] == 200
