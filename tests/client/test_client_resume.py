"""Streams whose server is lost: started again with all of their audio, or told; and the routing key that they carry."""

import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fronts import DROP, Front, Refuse
from tritone.activity import SpeechActivity, SpeechSegment
from tritone.client import Client
from tritone.client import retries as policy
from tritone.client.http_transport import message_in
from tritone.client.models import ModelInfo
from tritone.client.stream import ActivityStream, ClientStream
from tritone.client.transport import Call
from tritone.errors import InputError, ServerBusyError, ServerTimeoutError, StreamError, StreamLostError, TritoneError
from tritone.net.routing import MAX_STREAM_KEY, STREAM_HEADER
from tritone.server import TritonServer
from tritone.transcript import Transcript

Connect = Callable[..., tuple[Front, Client]]
DEAD = Refuse("INTERNAL", "Stub process 'running_0' is not healthy.")
DRAINING = Refuse("UNAVAILABLE", "the server is ending. Try again later.", after_s=60)
ELSEWHERE = Refuse("NOT_FOUND", "stream 7 on 'running' is not open: its first request must have sequence_start (START)")
RAMP = np.arange(1600, dtype=np.float32) / 1600  # 0.1 s at 16 kHz


@pytest.fixture(autouse=True)
def _without_long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "FIRST_S", 0.001)


@pytest.fixture(params=["grpc", "http"])
def connect(request: pytest.FixtureRequest, wire_server: TritonServer) -> Iterator[Connect]:
    with ExitStack() as stack:

        def make(*refusals: Refuse, **options: object) -> tuple[Front, Client]:
            front = stack.enter_context(Front(wire_server, request.param, refusals=list(refusals)))
            return front, stack.enter_context(Client(front.url, **({"timeout_s": 60} | options)))  # type: ignore[arg-type]

        yield make


def test_all_requests_of_a_stream_carry_its_own_key(connect: Connect) -> None:
    front, client = connect()
    for _ in range(2):
        with client.stream("running", chunk_ms=50) as stream:
            stream.accept(RAMP)
            stream.finish()
    client.transcribe(RAMP[:800], "count")
    keys = [each.headers.get(STREAM_HEADER) for each in front.inferences]
    assert keys[0] == keys[1] == keys[2]
    assert keys[3] == keys[4] == keys[5]
    assert keys[0] != keys[3]
    assert all(re.fullmatch(rf"[!-~]{{16,{MAX_STREAM_KEY}}}", key or "") for key in keys[:-1])
    assert keys[-1] is None  # nothing is kept for whole utterances, so any server will do


@pytest.mark.parametrize("loss", [DEAD, DROP, DRAINING, ELSEWHERE], ids=["died", "broken", "draining", "moved"])
def test_a_lost_stream_is_begun_anew_with_all_of_its_audio(connect: Connect, loss: Refuse) -> None:
    for lost_at_end in (False, True):
        front, client = connect()  # of its own: nobody waits for a goodbye, and a late one would meet the next refusal
        with client.stream("running", chunk_ms=50, resume=True) as stream:
            stream.accept(RAMP)
            if lost_at_end:
                stream.accept(RAMP[:900])
            front.refusals = [loss]
            text = stream.finish().text if lost_at_end else stream.accept(RAMP).text
            heard = 2500 if lost_at_end else 3200
            assert text.split()[1] == str(heard)
            assert stream.resumed == 1
            assert stream.answered_s == pytest.approx(heard / 16000)
        sent = [each for each in front.inferences if each.parameters["sequence_start"]]
        assert len({each.headers[STREAM_HEADER] for each in sent}) == 2  # a new key leads to another server


def test_the_first_chunk_is_sent_until_a_server_takes_it_and_hints_of_one_that_ends_are_not_waited_for(
    connect: Connect,
) -> None:
    front, client = connect(DRAINING, DRAINING)
    with client.stream("running", chunk_ms=50, resume=True) as stream:
        stream.accept(RAMP[:800])
    assert len({each.headers[STREAM_HEADER] for each in front.inferences}) == 3


def test_a_stream_longer_than_what_is_kept_is_told_to_be_lost(connect: Connect) -> None:
    front, client = connect()
    with client.stream("running", chunk_ms=50, resume=True, resume_s=0.12) as stream:
        stream.accept(RAMP)
        front.refusals = [DEAD]
        with pytest.raises(StreamLostError, match=r"longer than the 0\.12 s \(resume_s\).*Open a new stream"):
            stream.accept(RAMP)
        with pytest.raises(StreamError, match="is over"):
            stream.finish()


def test_of_a_page_that_a_balancer_answers_its_title_is_told() -> None:
    page = "<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body><h1>502</h1></body></html>"
    assert message_in(page.encode()) == "502 Bad Gateway"
    assert message_in(b'{"error": "no <title>x</title>"}') == "no <title>x</title>"


def test_wrong_audio_is_not_sent_again(connect: Connect) -> None:
    front, client = connect()
    with client.stream("running", chunk_ms=50, resume=True) as stream:
        stream.accept(RAMP)
        front.refusals = [Refuse("INVALID_ARGUMENT", "NaN")]
        with pytest.raises(InputError, match="NaN"):
            stream.accept(RAMP)


def test_what_is_kept_must_be_some_audio(connect: Connect) -> None:
    _, client = connect()
    with pytest.raises(ValueError, match="resume_s must be positive, got 0"):
        client.stream("running", resume=True, resume_s=0)


class Replicas:
    """Servers that end a segment every 100 samples, and forget the streams at the requests `lost_at` (from 0)."""

    def __init__(self, lost_at: dict[int, TritoneError]) -> None:
        self.lost_at, self.count = lost_at, 0
        self.heard: dict[int, list[np.ndarray[Any, Any]]] = {}

    def infer(self, call: Call[Any]) -> "Future[Any]":
        future: Future[Any] = Future()
        error = self.lost_at.pop(self.count, None)
        self.count += 1
        if error is not None:
            self.heard.clear()
            future.set_exception(error)
        elif not call.start and call.sequence_id not in self.heard:
            future.set_exception(InputError("stream 1 is not open. Start it again with a chunk that carries START."))
        else:
            samples = call.tensors["WAV"].reshape(-1)[: int(call.tensors["WAV_LENS"].item())]
            stream = self.heard.setdefault(call.sequence_id, [])
            before = sum(each.size for each in stream)
            stream.append(samples)
            future.set_result(self.answer(call, np.concatenate(stream), before))
        return future

    def answer(self, call: Call[Any], audio: np.ndarray[Any, Any], before: int) -> Any:
        ends = range((before // 100 + 1) * 100, audio.size + 1, 100)
        if "SEGMENTS" in call.reply.outputs:
            found = tuple(SpeechSegment(end - 100.0, float(end)) for end in ends)
            return SpeechActivity(found, audio.size, 0.01, is_final=call.end, probabilities=audio[before:])
        ended = tuple(Transcript(f"{int(audio[end - 100])}", segment=end // 100 - 1) for end in ends)
        return Transcript(f"{audio.size}", ended=ended, segment=audio.size // 100, is_final=call.end)


LIVE = ModelInfo(name="live", kind="streaming", sample_rate=1000)


def open_stream(kind: type[Any], replicas: Replicas, **options: Any) -> Any:
    given = {"sample_rate": None, "chunk_ms": 30, "timeout_s": 60, "resume_s": 60.0} | options
    return kind(replicas, LIVE, **given)


@pytest.mark.parametrize("at", [1, 7, 11, 12])
@pytest.mark.parametrize("times", [1, 3])
def test_segments_are_told_once_although_their_audio_is_sent_again(at: int, times: int) -> None:
    audio = np.arange(370, dtype=np.float32)
    replicas = Replicas({at + index: ServerBusyError("gone") for index in range(times)})
    stream = open_stream(ClientStream, replicas, details=True)
    answers = [stream.accept(audio[start : start + 50]) for start in range(0, 370, 50)] + [stream.finish()]
    assert [each.text for answer in answers for each in answer.ended] == ["0", "100", "200"]
    assert answers[-1] == replace(answers[-1], text="370", segment=3, is_final=True)
    assert stream.resumed == 1


def test_speech_and_its_probabilities_are_told_once_too() -> None:
    audio = np.arange(370, dtype=np.float32)
    stream = open_stream(ActivityStream, Replicas({8: ServerBusyError("gone")}), probabilities=True)
    answers = [stream.accept(audio[start : start + 50]) for start in range(0, 370, 50)] + [stream.finish()]
    assert [each.end_s for answer in answers for each in answer.segments] == [100, 200, 300]
    assert np.concatenate([each.probabilities for each in answers]).tolist() == audio.tolist()


def test_long_streams_are_sent_again_in_few_requests() -> None:
    replicas = Replicas({100: ServerBusyError("gone")})
    stream = open_stream(ClientStream, replicas, details=True)
    stream.accept(np.zeros(3030, np.float32))  # 101 chunks
    assert replicas.count - 101 <= 4


def test_a_stream_that_no_server_takes_is_told_within_its_limit_and_a_timeout_is_one() -> None:
    gone = {index: ServerBusyError("gone") for index in range(1, 10_000)}
    stream = open_stream(ClientStream, Replicas(gone), details=True, timeout_s=0.2)
    with pytest.raises(StreamLostError, match=r"gone\..*could not be started again within 0\.2 s\. Open a new stream"):
        stream.accept(np.zeros(60, np.float32))
    stream = open_stream(ClientStream, Replicas({1: ServerTimeoutError("late")}), details=True)
    with pytest.raises(ServerTimeoutError, match="late"):  # an overloaded server should not hear it all again
        stream.accept(np.zeros(60, np.float32))
