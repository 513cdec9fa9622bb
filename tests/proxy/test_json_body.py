import gzip
import json
import zlib

import pytest

from tritone.net.limits import Limits
from tritone.net.refusal import RefusedError
from tritone.proxy.json_body import read_inference, read_json, unpacked

LIMITS = Limits(max_json_bytes=10_000, max_json_depth=8)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b'{"a": "\xff"}', "not UTF-8"),
        (b'{"a": "\\ud800"}', "surrogate"),
        (b'{"a": "\\u0000"}', "NUL"),
        (b'{"a": 1, "a": 2}', "a key twice"),
        (b"[" * 9 + b"]" * 9, "nested deeper than 8"),
        (b"[" * 9, "nested deeper than 8"),
        (b'{"a": ' + b"1" * 5000 + b"}", "cannot be read"),
        (b"[" + b" " * 10_000 + b"]", "Send tensors as binary data"),
        (b"", "cannot be read"),
    ],
)
def test_what_two_parsers_could_read_differently_is_refused(text: bytes, told: str) -> None:
    with pytest.raises(RefusedError, match=told):
        read_json(text, LIMITS)


def test_brackets_in_strings_are_no_nesting() -> None:
    value = {"a": "[" * 100 + '\\"' + "{" * 100, "ü": [["x"]]}
    assert read_json(json.dumps(value, ensure_ascii=False).encode(), LIMITS) == value


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_body_is_unpacked_up_to_the_limit_and_no_further(encoding: str) -> None:
    pack = {"gzip": gzip.compress, "deflate": zlib.compress}[encoding]
    assert unpacked(pack(b"x" * 1000), encoding, 1000) == b"x" * 1000
    with pytest.raises(RefusedError, match="more than 1000 bytes"):
        unpacked(pack(b"x" * 1001), encoding, 1000)
    for damaged in (pack(b"x" * 1000)[:-3], pack(b"x") + b"more", b"x"):
        with pytest.raises(RefusedError, match=f"not (one whole )?{encoding}"):
            unpacked(damaged, encoding, 1000)


def test_another_stream_id_leaves_binary_data_as_it_was() -> None:
    head = json.dumps({"inputs": [], "parameters": {"sequence_id": 7, "search": "ü"}}).encode()
    request = read_inference("m", "", head + b"\x00\xff{}", len(head), LIMITS)
    assert request.stream == 7
    changed, length = request.encoded(2**61)
    assert json.loads(changed[:length])["parameters"] == {"sequence_id": 2**61, "search": "ü"}
    assert changed[length:] == b"\x00\xff{}"


@pytest.mark.parametrize(
    "request_",
    [[], {"inputs": {}}, {"inputs": [1]}, {"parameters": []}, {"id": 1}, {"inputs": [{"name": 1}]}]
    + [{"inputs": [{"shape": shape}]} for shape in ("1", [1.5], [True], None)],
)
def test_a_request_of_another_form_is_refused(request_: object) -> None:
    with pytest.raises(RefusedError):
        read_inference("m", "", json.dumps(request_).encode(), None, LIMITS)
