"""The rules alone: checks, admission, owners of streams, and what errors may tell."""

from typing import Any

import pytest

from tritone.net.limits import Limits
from tritone.net.refusal import RefusedError
from tritone.net.routing import STREAM_HEADER
from tritone.proxy.admission import Admission
from tritone.proxy.checks import ModelFacts, check_classification, check_inference, outward
from tritone.proxy.inference import Inference, StreamId, TensorHead
from tritone.proxy.models import facts_of
from tritone.proxy.owners import Owner, Stream, Streams

LIMITS = Limits(max_body_bytes=1 << 20, max_queued_s=10, max_requests=3, max_streams=2, stream_idle_s=1e-9)
FACTS = ModelFacts(
    name="m",
    outputs={"TRANSCRIPTS": "TYPE_STRING", "EMBEDDINGS": "TYPE_FP32"},
    sample_rate=100,
    audio_inputs=("WAV", "PCM"),
)
ANN, BOB = Owner("10.0.0.1", connection=("10.0.0.1", 4000)), Owner("10.0.0.2")


def request(model: str = "m", **more: Any) -> Inference:
    wav = TensorHead(name="WAV", datatype="FP32", shape=[1, 100], num_bytes=400)
    return Inference(**{"model": model, "inputs": [wav], "encoded": lambda stream: b""} | more)


def chunk(stream: StreamId, *, start: bool = False, end: bool = False) -> Inference:
    return request(parameters={"sequence_id": stream, "sequence_start": start, "sequence_end": end})


@pytest.mark.parametrize(
    "wrong",
    [
        {"model": "../m"},
        {"model": "m\n"},
        {"model": "n" * 256},
        {"version": "1; x"},
        {"id": "x" * 2000},
        {"parameters": {"sequence_id": -1}},
        {"parameters": {"sequence_id": True}},
        {"parameters": {"sequence_id": "x" * 2000}},
        {"parameters": {"sequence_start": 1}},
        {"parameters": {"timeout": "1"}},
        {"parameters": {"timeout": -1}},
        {"parameters": {"a": [1]}},
        {"parameters": {"a": float("inf")}},
        {"parameters": {"hotwords": "x" * (1 << 20)}},
        {"parameters": {str(number): 1 for number in range(300)}},
        {"inputs": [TensorHead(name="WAV", datatype="FP32", shape=[1, 100], num_bytes=399)]},
        {"inputs": [TensorHead(name="PCM", datatype="INT16", shape=[1, 100], num_bytes=400)]},
        {"inputs": [TensorHead(name="WAV", datatype="FP32", shape=[-1, -100], num_bytes=400)]},
        {"inputs": [TensorHead(name="WAV", datatype="FP32", shape=[1 << 20, 1 << 20])]},
        {"inputs": [TensorHead(name="WAV", datatype="FP32", shape=[1] * 17)]},
        {"inputs": [TensorHead(name="WAV", shape=[1], num_bytes="4")]},  # type: ignore[arg-type]
        {"inputs": [TensorHead(name="WAV", parameters={"shared_memory_region": "r"})]},
        {"outputs": [TensorHead(name="TRANSCRIPTS", parameters={"shared_memory_byte_size": 4})]},
        {"outputs": [TensorHead(name=str(number)) for number in range(65)]},
    ],
)
def test_what_means_nothing_is_refused(wrong: dict[str, Any]) -> None:
    check_inference(request(), LIMITS, trusted=False)
    with pytest.raises(RefusedError):
        check_inference(request(**wrong), LIMITS, trusted=False)


def test_shared_memory_is_open_to_who_has_the_key() -> None:
    shared = [TensorHead(name="WAV", datatype="FP32", shape=[1, 2], parameters={"shared_memory_region": "r"})]
    check_inference(request(inputs=shared), LIMITS, trusted=True)


@pytest.mark.parametrize(
    ("output", "count", "passes"),
    [("EMBEDDINGS", 1, True), ("EMBEDDINGS", 0, False), ("TRANSCRIPTS", 1, False), ("UNKNOWN", 1, False)],
)
def test_only_numbers_can_be_ranked(output: str, count: int, passes: bool) -> None:
    ranked = request(outputs=[TensorHead(name=output, parameters={"classification": count})])
    if passes:
        check_classification(ranked, FACTS)
    else:
        with pytest.raises(RefusedError):
            check_classification(ranked, FACTS)


def test_errors_tell_nothing_of_the_servers_inside() -> None:
    key = "Failed to increase the shared memory pool size for key 'tritone_1_ab_7' to 9 bytes. No space left on device"
    assert "tritone_1_ab_7" not in outward(key)
    assert outward("ValueError: no\n\nAt:\n  /srv/model.py(3): execute\n") == "ValueError: no"
    own = "Unable to find shared memory region: 'mine'"
    assert outward(own) == own
    ours = "Unable to open shared memory region: '/tritone-client-1-ab'"
    assert outward(ours) == ours
    assert "inside" not in outward("Unable to open shared memory region: '/inside'")
    loaded = "failed to load 'm': Load model from /srv/models/m/1/model.onnx failed:File doesn't exist"
    assert outward(loaded) == "failed to load 'm': Load model from model.onnx failed:File doesn't exist"


def test_facts_come_from_the_configuration() -> None:
    config = {
        "parameters": {"sample_rate": {"string_value": "8000"}, "max_queued_s": {"string_value": "240"}},
        "input": [
            {"name": "LENS", "data_type": "TYPE_INT32"},
            {"name": "SIGNAL", "data_type": "TYPE_FP32"},
            {"name": "BIAS", "data_type": "TYPE_FP32"},
            {"name": "PCM", "data_type": "TYPE_INT16"},
        ],
        "output": [{"name": "TRANSCRIPTS", "data_type": "TYPE_STRING"}],
    }
    facts = facts_of("m", config)
    assert (facts.sample_rate, facts.audio_inputs, facts.max_queued_s) == (8000, ("SIGNAL", "PCM"), 240)
    for name in ("SIGNAL", "PCM"):
        assert facts.audio_s(request(inputs=[TensorHead(name=name, shape=[2, 8000])])) == 2
    assert facts_of("n", {}).audio_s(request()) == 0


def test_audio_beyond_the_limit_is_refused_with_numbers_and_a_hint() -> None:
    admission = Admission(LIMITS, retry_after_s=2)
    admission.enter(FACTS, 30, always=False)  # alone: the model decides
    with pytest.raises(RefusedError, match=r"'m' has 30.0 s .* 10 s; this one has 1.0 s") as refused:
        admission.enter(FACTS, 1, always=False)
    assert refused.value.hints == {"retry-after": "2", "retry-after-ms": "2000"}
    admission.enter(FACTS, 1, always=True)  # an open stream goes on
    for audio_s in (30, 1):
        admission.leave(FACTS, audio_s)
    assert (admission.requests, admission.loads["m"].in_flight_s) == (0, 0)


def test_the_number_of_requests_is_bounded() -> None:
    admission = Admission(LIMITS, retry_after_s=2)
    silent = ModelFacts(name="other", outputs={})
    for _ in range(3):
        admission.enter(silent, 0, always=False)
    with pytest.raises(RefusedError, match="3 requests are in flight"):
        admission.enter(silent, 0, always=False)


def test_two_owners_with_one_id_have_two_streams_that_nobody_can_guess() -> None:
    streams = Streams(LIMITS, 1, lambda stream: None)
    ann, bob = (streams.take(owner, chunk(5, start=True)) for owner in (ANN, BOB))
    assert isinstance(ann.upstream_id, int)
    assert len({ann.upstream_id, bob.upstream_id, 5}) == 3
    assert streams.take(ANN, chunk(5)) is ann
    with pytest.raises(RefusedError, match="the most that are taken"):
        streams.take(ANN, chunk("six", start=True))


def test_a_newcomer_cannot_take_an_open_stream_over() -> None:
    streams = Streams(LIMITS, 1, lambda stream: None)
    first = streams.take(BOB, chunk("a", start=True))
    assert isinstance(first.upstream_id, str)
    with pytest.raises(RefusedError, match="open already"):
        streams.take(BOB, chunk("a", start=True))
    streams.done(first, chunk("a", start=True), failed=False)
    streams.done(streams.take(BOB, chunk("a", end=True)), chunk("a", end=True), failed=False)
    assert len(streams) == 0
    with pytest.raises(RefusedError, match="not open"):
        streams.take(BOB, chunk("a"))


def test_a_stream_that_failed_may_begin_again_and_the_old_one_is_ended() -> None:
    ended: list[Stream] = []
    streams = Streams(LIMITS, 1, ended.append)
    first = streams.take(BOB, chunk(5, start=True))
    streams.done(first, chunk(5, start=True), failed=False)
    streams.done(streams.take(BOB, chunk(5)), chunk(5), failed=True)
    assert streams.take(BOB, chunk(5, start=True)) is not first
    assert ended == [first]


def test_a_stream_whose_start_failed_is_not_open() -> None:
    ended: list[Stream] = []
    streams = Streams(LIMITS, 1, ended.append)
    first = streams.take(BOB, chunk(5, start=True))
    streams.done(first, chunk(5, start=True), failed=True)
    assert (len(streams), ended) == (0, [first])


def test_streams_of_a_connection_that_is_gone_are_ended_and_idle_ones_too() -> None:
    ended: list[Stream] = []
    streams = Streams(LIMITS, 1, ended.append)
    ann, bob = (streams.take(owner, chunk(5, start=True)) for owner in (ANN, BOB))
    assert streams.expire(lambda peer: False) == 0  # their requests are in flight
    streams.done(ann, chunk(5, start=True), failed=False)
    streams.done(bob, chunk(5, start=True), failed=False)
    ann.at = bob.at = float("inf")
    assert streams.expire(lambda peer: False) == 1
    assert ended == [ann]
    bob.at = 0
    assert streams.expire(lambda peer: False) == 1
    assert ended == [ann, bob]


def test_a_stream_that_was_lost_is_told_so() -> None:
    streams = Streams(LIMITS, 1, lambda stream: None)
    streams.done(streams.take(BOB, chunk(5, start=True)), chunk(5, start=True), failed=False)
    streams.lose(None, "the model's process ended")
    with pytest.raises(RefusedError, match="was lost: the model's process ended") as refused:
        streams.take(BOB, chunk(5))
    assert refused.value.reason.http == 503


def test_a_stream_with_a_routing_key_is_its_own_whatever_connection_carries_it() -> None:
    streams = Streams(LIMITS, 1, lambda stream: None)
    balanced = {STREAM_HEADER: "a1", "x-forwarded-for": "10.1.1.1"}
    one, other = (Owner.of(balanced, ("10.0.0.1", port), connected=True) for port in (4000, 4001))
    first = streams.take(one, chunk(5, start=True))
    assert streams.take(other, chunk(5)) is first
    third = Owner.of({STREAM_HEADER: "a2"}, ("10.0.0.1", 4000), connected=False)
    assert streams.take(third, chunk(5, start=True)) is not first  # the same id, and another key
    for owner, status in ((Owner.of({STREAM_HEADER: "a3"}, ("10.0.0.1", 4000), connected=True), 404), (BOB, 400)):
        with pytest.raises(RefusedError, match="stream 5 on 'm' is not open") as refusal:
            streams.take(owner, chunk(5))
        assert refusal.value.reason.http == status  # 404 lets balancers ask the next server
    for wrong in ("x" * 65, "\u00e4", "a\tb"):
        with pytest.raises(RefusedError, match="at most 64 printable ASCII"):
            Owner.of({STREAM_HEADER: wrong}, ("10.0.0.1", 4000), connected=False)


def test_a_keyed_stream_ends_with_its_clients_own_connection_and_outlives_that_of_a_balancer() -> None:
    limits = Limits(stream_idle_s=3600)
    for headers, ended in (({STREAM_HEADER: "a"}, 1), ({STREAM_HEADER: "a", "via": "2 balancer"}, 0)):
        streams = Streams(limits, 1, lambda stream: None)
        for port, more in ((4000, {"start": True}), (4001, {})):
            step = chunk(5, **more)
            streams.done(streams.take(Owner.of(headers, ("h", port), connected=True), step), step, failed=False)
        assert streams.expire(lambda connection: connection == ("h", 4001)) == 0
        assert streams.expire(lambda connection: connection == ("h", 4000)) == ended


def test_a_stream_that_its_model_has_ended_is_not_waited_for() -> None:
    facts = facts_of("m", {"sequence_batching": {"max_sequence_idle_microseconds": "16000000"}})
    assert facts.idle_s == 16
    assert facts_of("m", {}).idle_s is None
    streams = Streams(Limits(stream_idle_s=3600), 1, lambda stream: None)
    for stream, idle_s in ((5, 1e-9), (6, 16), (7, None)):
        step = chunk(stream, start=True)
        streams.done(streams.take(BOB, step, idle_s), step, failed=False)
    assert streams.expire(lambda connection: True) == 1
    assert [each.client_id for each in streams] == [6, 7]
