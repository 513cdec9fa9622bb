import gzip

import pytest
from tritonclient.grpc import service_pb2 as pb

from tritone.net.limits import Limits
from tritone.net.refusal import RefusedError
from tritone.proxy.protobuf_message import end_of, plain, read_inference

LIMITS = Limits(max_body_bytes=1 << 20)


def message(stream: int | str = 5) -> pb.ModelInferRequest:
    made = pb.ModelInferRequest(model_name="m", model_version="3", id="r")
    if isinstance(stream, int):
        made.parameters["sequence_id"].int64_param = stream
    else:
        made.parameters["sequence_id"].string_param = stream
    made.parameters["sequence_start"].bool_param = True
    made.inputs.add(name="WAV", datatype="FP32", shape=[1, 100])
    made.inputs.add(name="WAV_LENS", datatype="INT32", shape=[1, 1])
    made.outputs.add(name="TRANSCRIPTS").parameters["classification"].int64_param = 2
    made.raw_input_contents.extend([b"\x01" * 400, b"\x02" * 4])
    return made


def test_a_message_is_read_without_its_data() -> None:
    read = read_inference(message().SerializeToString(), LIMITS)
    assert (read.model, read.version, read.id) == ("m", "3", "r")
    assert read.parameters == {"sequence_id": 5, "sequence_start": True}
    assert [(each.name, list(each.shape), each.num_bytes) for each in read.inputs] == [
        ("WAV", [1, 100], 400),
        ("WAV_LENS", [1, 1], 4),
    ]
    assert read.outputs[0].parameters == {"classification": 2}


@pytest.mark.parametrize("stream", [5, "five"])
def test_another_stream_id_is_all_that_changes(stream: int | str) -> None:
    other = 2**62 if isinstance(stream, int) else "unguessable"
    changed = read_inference(message(stream).SerializeToString(), LIMITS).encoded(other)
    assert pb.ModelInferRequest.FromString(changed) == message(other)


def test_the_end_of_a_stream_has_the_inputs_of_its_start_without_samples() -> None:
    read = read_inference(message().SerializeToString(), LIMITS)
    end = pb.ModelInferRequest.FromString(end_of(read, 77))
    assert (end.model_name, end.parameters["sequence_id"].int64_param) == ("m", 77)
    assert end.parameters["sequence_end"].bool_param
    assert "sequence_start" not in end.parameters
    assert [(each.name, list(each.shape)) for each in end.inputs] == [("WAV", [1, 0]), ("WAV_LENS", [1, 1])]
    assert list(end.raw_input_contents) == [b"", b"\0\0\0\0"]


def test_no_input_beside_one_in_shared_memory_is_overlooked() -> None:
    mixed = pb.ModelInferRequest(model_name="m", raw_input_contents=[b"\0\0\0\0"])
    mixed.inputs.add(name="WAV_LENS", datatype="INT32", shape=[1, 1])
    mixed.inputs.add(name="PCM", datatype="INT16", shape=[1, 100]).parameters["shared_memory_region"].string_param = "r"
    first, second = read_inference(mixed.SerializeToString(), LIMITS).inputs
    assert (first.name, first.num_bytes, first.parameters) == ("WAV_LENS", 4, {})
    assert (second.name, second.num_bytes, second.parameters) == ("PCM", None, {"shared_memory_region": "r"})
    mixed.inputs.add(name="MORE", datatype="INT32", shape=[1, 1])
    with pytest.raises(RefusedError, match="2 inputs need as many raw_input_contents, there are 1"):
        read_inference(mixed.SerializeToString(), LIMITS)
    end = pb.ModelInferRequest.FromString(end_of(read_inference(message_of_pcm(), LIMITS), 77))
    assert [list(each.shape) for each in end.inputs] == [[1, 0]]
    assert list(end.raw_input_contents) == [b""]


def message_of_pcm() -> bytes:
    made = pb.ModelInferRequest(model_name="m", raw_input_contents=[bytes(200)])
    made.inputs.add(name="PCM", datatype="INT16", shape=[1, 100])
    return bytes(made.SerializeToString())


@pytest.mark.parametrize(
    "damaged",
    [
        message().SerializeToString()[:-1],
        b"\x0b",  # a group
        b"\xff" * 20,
        b"\x38\x01",  # raw contents that are a number
        b"\x0a\x01\xff",  # a name that is not UTF-8
        b"\x3a\x00" * 5000,  # more contents than any request has
        b"\x3a\x00",  # contents without an input
    ],
    ids=range(7),  # the order of a map's entries in bytes is another in each process
)
def test_a_damaged_message_is_refused(damaged: bytes) -> None:
    with pytest.raises(RefusedError):
        read_inference(damaged, LIMITS)


def test_a_packed_message_is_unpacked_within_the_limit() -> None:
    packed = gzip.compress(message().SerializeToString())
    assert plain(packed, LIMITS) == message().SerializeToString()
    with pytest.raises(RefusedError, match="when it is unpacked"):
        plain(gzip.compress(bytes(2 << 20)), LIMITS)
