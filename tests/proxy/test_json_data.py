"""Data of inputs as JSON: what is none of a type is the sender's error, before Triton calls it one of its own."""

import json
import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxied import Start, body, infer, post
from tritone.net.limits import Limits
from tritone.net.refusal import RefusedError
from tritone.proxy.json_body import PLAIN_BYTES, read_inference

RANGES = {f"INT{bits}": (-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (8, 16, 32, 64)}
RANGES |= {f"UINT{bits}": (0, (1 << bits) - 1) for bits in (8, 16, 32, 64)}
TYPES = ("BYTES", "BOOL", "FP32", "FP64", *RANGES)
EDGES = sorted({edge + step for pair in RANGES.values() for edge in pair for step in (-1, 0, 1)})


def read(datatype: str, data: str) -> None:
    """Read a request whose input has this JSON as data."""
    head = {"inputs": [{"name": "TEXT", "datatype": datatype, "shape": [1], "data": "DATA"}]}
    read_inference("m", "", json.dumps(head).replace('"DATA"', data).encode(), None, Limits())


def is_of(datatype: str, value: Any) -> bool:
    if isinstance(value, list):
        return all(is_of(datatype, each) for each in value)
    if datatype in RANGES:
        low, high = RANGES[datatype]
        return type(value) is int and low <= value <= high
    return type(value) in {"BYTES": (str,), "BOOL": (bool,)}.get(datatype, (int, float))


def has_one_depth(value: list[Any]) -> bool:
    inner = [each for each in value if isinstance(each, list)]
    return (not inner or len(inner) == len(value)) and all(has_one_depth(each) for each in inner)


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=5)
SCALARS = st.none() | st.booleans() | TEXTS | st.sampled_from(EDGES) | st.integers(-300, 300) | st.floats()
PLAIN = st.lists(SCALARS, max_size=4)
ALIKE = st.one_of(
    st.lists(TEXTS),
    st.lists(st.booleans()),
    st.lists(st.floats() | st.integers()),
    *(st.lists(st.integers(*pair)) for pair in RANGES.values()),
)


@given(
    datatype=st.sampled_from(TYPES),
    data=PLAIN | ALIKE | st.lists(ALIKE | PLAIN, min_size=1, max_size=3) | SCALARS | st.dictionaries(TEXTS, SCALARS),
    is_long=st.booleans(),
)
def test_data_passes_if_every_element_is_of_the_type_and_is_the_senders_error_else(
    datatype: str, data: Any, is_long: bool
) -> None:
    text = json.dumps(data)
    if is_long and isinstance(data, list):  # so long that it stays text
        text = "[" + " " * PLAIN_BYTES + text[1:]
    if isinstance(data, list) and has_one_depth(data) and is_of(datatype, data):
        read(datatype, text)
    else:
        with pytest.raises(RefusedError, match="the data of") as refused:
            read(datatype, text)
        assert refused.value.reason.http == 400


@pytest.mark.parametrize(
    ("datatype", "data", "told"),
    [
        ("BYTES", "[5]", "input 'TEXT': the data of BYTES is a list of strings, got 5"),
        ("BYTES", '["a", 1.5, "b"]', "a list of strings, got 1.5"),
        ("BYTES", '"a"', "a list of strings, got a string"),
        ("BYTES", "null", "a list of strings, got null"),
        ("BYTES", '[["a"], [{"b": 1}]]', "a list of strings, got a list"),
        ("INT16", "[32767, 32768]", "whole numbers from -32768 to 32767, got 32768"),
        ("UINT8", "[255, -1]", "whole numbers from 0 to 255, got -1"),
        ("INT32", "[1.0]", "got 1.0"),
        ("INT32", '["1"]', 'got "1"'),
        ("FP32", "[1, true]", "got true"),
        ("FP32", "[1e400]", "1e400 is beyond all numbers of 64 bits"),
        ("FP32", "[NaN, 1e400]", "a list of numbers of at most 64 bits, got 1e400"),
        ("BOOL", "[1]", "a list of true or false, got 1"),
    ],
)
def test_the_first_element_that_does_not_fit_is_named(datatype: str, data: str, told: str) -> None:
    with pytest.raises(RefusedError) as refused:
        read(datatype, data)
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"data": None}, "needs one of 'data' and, in its parameters, binary_data_size and shared_memory_region"),
        ({"parameters": {"binary_data_size": 4}}, "needs one of 'data' and"),
        ({"datatype": None}, "input 'TEXT' has no 'datatype'"),
        ({"shape": None}, "input 'TEXT' has no 'shape'"),
        ({"name": None}, "input '' has no 'name'"),
    ],
)
def test_an_input_that_lacks_something_is_refused_with_what_it_lacks(change: dict[str, Any], told: str) -> None:
    whole = {"name": "TEXT", "datatype": "BYTES", "shape": [1], "data": ["a"]}
    tensor = {name: value for name, value in (whole | change).items() if value is not None}
    with pytest.raises(RefusedError) as refused:
        read_inference("m", "", json.dumps({"inputs": [tensor]}).encode(), None, Limits())
    assert told in str(refused.value)
    assert refused.value.reason.http == 400


def test_checking_data_takes_linear_time_wherever_the_fault_is() -> None:
    def taken(count: int, last: str) -> float:
        text, start = "[" + "1234," * count + last + "]", time.thread_time()
        with suppress(RefusedError):
            read("INT32", text)
        return time.thread_time() - start

    for last in ("7", '"x"', "12345678901234567890", "1.5"):
        few, many = min(taken(50_000, last) for _ in range(3)), min(taken(400_000, last) for _ in range(3))
        assert many < 40 * few  # 8 times as much


def test_behind_the_proxy_a_number_for_a_text_is_refused_and_a_text_passes(start: Start) -> None:
    port = start().options.http_port
    for word in (5, 1.5, True):
        status, answer, _ = post(port, "/v2/models/many/generate_stream", json.dumps({"WORD": word}).encode())
        assert (status, answer["error"]) == (
            400,
            f"input 'WORD': the data of BYTES is a list of strings, got {json.dumps(word)}",
        )
    status, answer, _ = post(port, "/v2/models/many/generate_stream", b'{"WORD": "5"}')
    assert (status, answer.count(b'"SAID":"5"')) == (200, 50)
    request = body()
    assert infer(port, "count", request)[0] == 200
    request["inputs"][1]["data"] = ["2"]
    assert infer(port, "count", request) == (
        400,
        "input 'WAV_LENS': the data of INT32 is a list of whole numbers from -2147483648 to 2147483647, got \"2\"",
    )
