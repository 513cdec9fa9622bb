"""Requests as bytes, held against what tritonclient would have sent."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient import grpc as grpc_client
from tritonclient import http as http_client
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc._utils import _get_inference_request
from tritonclient.http._utils import _get_inference_request as _get_http_request
from tritonclient.utils import serialize_byte_tensor

from tritone.client import Endpoint, ModelInfo
from tritone.loadtest.senders.wire import Body, Target, encode, error_kind, read_strings

SPEECH = [np.linspace(-1, 1, 5, dtype=np.float32), np.array([0.5, -0.25], np.float32)]


PARAMETERS = {"search": "prefix-beam", "beam": 20, "lm_weight": 0.5, "timestamps": False, "hotwords": '{"änne": 8}'}


def target(protocol: str, batched: bool = True, **more: Any) -> Target:
    endpoint = Endpoint.parse(f"{protocol}://localhost:1")
    return Target(endpoint=endpoint, model="m", sample_rate=4, batched=batched, **more)


def theirs(module: Any, wav: np.ndarray, lens: np.ndarray) -> tuple[list[Any], list[Any]]:
    inputs = [module.InferInput("WAV", wav.shape, "FP32"), module.InferInput("WAV_LENS", lens.shape, "INT32")]
    inputs[0].set_data_from_numpy(wav)
    inputs[1].set_data_from_numpy(lens)
    return inputs, [module.InferRequestedOutput("TRANSCRIPTS")]


def grpc_request(
    wav: np.ndarray, lens: np.ndarray, sequence: tuple[int, bool, bool] = (0, False, False), parameters: Any = None
) -> Any:
    inputs, outputs = theirs(grpc_client, wav, lens)
    return _get_inference_request("m", inputs, "", "", outputs, *sequence, 0, None, parameters)


def http_request(
    wav: np.ndarray, lens: np.ndarray, sequence: tuple[int, bool, bool] = (0, False, False), parameters: Any = None
) -> tuple[dict[str, Any], bytes]:
    inputs, outputs = theirs(http_client, wav, lens)
    body, length = _get_http_request(inputs, "", outputs, *sequence, 0, None, parameters)
    return json.loads(body[:length]), bytes(body[length:])


def ours(body: Body) -> tuple[dict[str, Any], bytes]:
    return json.loads(body.json), body.content


# waveforms, the tensors that must travel for them, whether the model has a batch axis
CASES: list[tuple[Sequence[np.ndarray], Any, Any, bool]] = [
    (SPEECH[:1], SPEECH[0][None], [[5]], True),
    (SPEECH[:1], SPEECH[0], [5], False),
    (SPEECH, [SPEECH[0], [0.5, -0.25, 0, 0, 0]], [[5], [2]], True),
    ([np.zeros(0, np.float32)], [[0]], [[0]], True),
    ([np.zeros(0, np.float32), SPEECH[1]], [[0, 0], SPEECH[1]], [[0], [2]], True),
]


@pytest.mark.parametrize(("waveforms", "wav", "lens", "batched"), CASES)
def test_a_request_is_what_tritonclient_sends(waveforms, wav, lens, batched: bool):
    wav, lens = np.asarray(wav, np.float32), np.asarray(lens, np.int32)
    assert pb.ModelInferRequest.FromString(encode(target("grpc", batched), waveforms).content) == grpc_request(
        wav, lens
    )
    assert ours(encode(target("http", batched), waveforms)) == http_request(wav, lens)


@pytest.mark.parametrize("flags", [(False, False), (True, False), (False, True), (True, True)])
def test_a_chunk_of_a_stream_is_what_tritonclient_sends(flags: tuple[bool, bool]):
    wav, lens, sequence = SPEECH[0][None], np.array([[5]], np.int32), (2**62 + 1, *flags)
    start, end = flags
    body = encode(target("grpc"), SPEECH[:1], sequence_id=sequence[0], start=start, end=end)
    message = pb.ModelInferRequest.FromString(body.content + body.stream)
    assert message == grpc_request(wav, lens, sequence)
    body = encode(target("http"), SPEECH[:1], sequence_id=sequence[0], start=start, end=end)
    assert ours(body) == http_request(wav, lens, sequence)


@pytest.mark.parametrize("sequence", [(0, False, False), (7, True, False), (8, False, True)])
def test_search_parameters_travel_as_tritonclient_sends_them(sequence: tuple[int, bool, bool]):
    wav, lens, (stream, start, end) = SPEECH[0][None], np.array([[5]], np.int32), sequence
    more = {"parameters": tuple(PARAMETERS.items())}
    body = encode(target("grpc", **more), SPEECH[:1], sequence_id=stream, start=start, end=end)
    message = pb.ModelInferRequest.FromString(body.content + body.stream)
    assert message == grpc_request(wav, lens, sequence, PARAMETERS)
    body = encode(target("http", **more), SPEECH[:1], sequence_id=stream, start=start, end=end)
    assert ours(body) == http_request(wav, lens, sequence, PARAMETERS)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_streams_share_the_bytes_of_a_chunk(protocol: str):
    chunk = encode(target(protocol), SPEECH[:1])
    one, other = chunk.in_stream(1, start=True), chunk.in_stream(2)
    assert one.content is other.content is chunk.content
    assert one.stream != other.stream
    assert one.in_stream(2) == other, "putting a chunk in another stream leaves nothing of the first"


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_body_knows_its_size_and_the_audio_of_its_rows(protocol: str):
    body = encode(target(protocol), SPEECH, sequence_id=7)
    assert body.audio_s == (1.25, 0.5)
    assert body.num_bytes == len(body.json) + len(body.content) + (len(body.stream) if protocol == "grpc" else 0)


def test_what_cannot_be_one_request_is_refused():
    with pytest.raises(ValueError, match="at least one waveform"):
        encode(target("grpc"), [])
    with pytest.raises(ValueError, match=r"no batch axis.*Use batch size 1"):
        encode(target("grpc", batched=False), SPEECH)
    for wrong in (-1, 2**63):
        with pytest.raises(ValueError, match="sequence_id must be 1 to"):
            encode(target("grpc"), SPEECH[:1], sequence_id=wrong)


@given(st.lists(st.text()))
def test_string_tensors_are_read_as_tritonclient_writes_them(texts: list[str]):
    array = np.array([text.encode() for text in texts], dtype=np.object_)
    content = serialize_byte_tensor(array).item() if texts else b""
    assert read_strings(content) == tuple(texts)


@pytest.mark.parametrize("content", [b"\x05\x00\x00\x00abc", b"\x01\x00\x00\x00\xff"])
def test_bytes_that_are_no_string_tensor_are_refused(content: bytes):
    with pytest.raises(ValueError, match=r"ends within an element|can't decode"):
        read_strings(content)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("[request id: 17] Exceeds maximum queue size", "[request id: <id_unknown>] Exceeds maximum queue size"),
        ("audio of 120.5 s, at most 60 s are taken", "audio of 7 s, at most 60 s are taken"),
        (
            "failed to connect to all addresses; last error: ipv4:127.0.0.1:8001: Connection refused",
            "failed to connect to all addresses; last error: ipv4:10.0.0.7:45001: Connection refused",
        ),
        ("Cannot connect to host 127.0.0.1:1 ssl:default", "Cannot connect to host 127.0.0.1:65000 ssl:default"),
        ("tensor at 0x7f01ab lost", "tensor at 0xdeadbeef lost"),
    ],
)
def test_errors_that_differ_in_numbers_alone_are_of_one_kind(one: str, other: str):
    assert error_kind("busy", one) == error_kind("busy", other)


def test_an_error_keeps_its_words_on_one_line_of_reasonable_length():
    assert error_kind("refused", "\n  no model 'demo_v2' \n trace") == "refused: no model 'demo_v2'"
    assert error_kind("timeout", "") == "timeout"
    assert len(error_kind("refused", "word " * 1000)) < 200


def test_a_target_is_what_the_client_found():
    info = ModelInfo(name="m", kind="streaming", sample_rate=8000, batched=False)
    found = Target.of(Endpoint.parse("localhost:1"), info)
    assert (found.model, found.sample_rate, found.batched, found.streaming) == ("m", 8000, False, True)
