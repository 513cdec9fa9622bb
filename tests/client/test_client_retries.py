"""What is sent again, when, and what never is; a front refuses requests before it passes them on to a real server."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from fronts import DROP, Front, Refuse
from tritone.client import Client
from tritone.client import retries as policy
from tritone.client.retries import Retries
from tritone.errors import (
    InputError,
    RetryError,
    ServerBusyError,
    ServerTimeoutError,
    ServerUnreachableError,
    StreamError,
    StreamLostError,
)
from tritone.server import TritonServer

Connect = Callable[..., tuple[Front, Client]]
UNAVAILABLE = Refuse("UNAVAILABLE")
DEAD = Refuse(
    "INTERNAL",
    "Failed to process the request(s) for model instance 'count_0', message: Stub process 'count_0' is not healthy.",
)
GONE = Refuse("NOT_FOUND", "Request for unknown model: 'count' has no available versions")
SOUND = np.ones(800, np.float32)  # 0.1 s of "count", 0.05 s of "running"


@pytest.fixture(params=["grpc", "http"])
def connect(
    request: pytest.FixtureRequest, wire_server: TritonServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Connect]:
    monkeypatch.setattr(policy, "FIRST_S", 0.001)
    with ExitStack() as stack:

        def make(*refusals: Refuse, **options: object) -> tuple[Front, Client]:
            front = stack.enter_context(Front(wire_server, request.param, refusals=list(refusals)))
            return front, stack.enter_context(Client(front.url, **({"timeout_s": 30} | options)))  # type: ignore[arg-type]

        yield make


@pytest.mark.parametrize(
    "refusal", [UNAVAILABLE, DEAD, GONE, DROP], ids=["no room", "model died", "unloaded", "broken"]
)
def test_whole_utterances_are_sent_again_until_the_server_takes_them(connect: Connect, refusal: Refuse):
    front, client = connect(refusal, refusal, retries=2)
    assert client.transcribe(SOUND, "count").text == "800 800.0"
    assert len(front.inferences) == 3


def test_nothing_is_sent_again_unless_that_was_asked_for(connect: Connect):
    front, client = connect(UNAVAILABLE)
    with pytest.raises(ServerBusyError, match="could not take the request now: no room"):
        client.transcribe(SOUND, "count")
    assert len(front.inferences) == 1


def test_the_last_refusal_is_the_error_and_says_how_often_it_was_tried(connect: Connect):
    front, client = connect(*3 * [UNAVAILABLE], retries=2)
    with pytest.raises(ServerBusyError, match=r"no room.* Tried 3 times\."):
        client.transcribe(SOUND, "count")
    assert len(front.inferences) == 3


def test_a_wrong_request_is_never_sent_again(connect: Connect):
    front, client = connect(Refuse("INVALID_ARGUMENT", "NaN"), retries=5)
    with pytest.raises(InputError, match="NaN"):
        client.transcribe(SOUND, "count")
    assert len(front.inferences) == 1


@pytest.mark.parametrize("refusal", [Refuse("UNAVAILABLE", after_s=0.2), Refuse("UNAVAILABLE", "Try again in 0.2 s")])
def test_the_hint_of_the_server_is_waited_for(connect: Connect, refusal: Refuse):
    _, client = connect(refusal, retries=1)
    client.model("count")
    started = time.monotonic()
    assert client.transcribe(SOUND, "count").text == "800 800.0"
    assert time.monotonic() - started >= 0.2


def test_a_hint_beyond_the_limit_is_told_at_once(connect: Connect):
    _, client = connect(Refuse("UNAVAILABLE", after_s=60), retries=5)
    started = time.monotonic()
    (result,) = client.transcribe([SOUND], "count")
    assert isinstance(result.error, ServerBusyError)
    assert result.error.retry_after_s == 60
    assert time.monotonic() - started < 20


def test_the_limit_holds_over_all_attempts_and_the_server_is_told_what_is_left_of_it(connect: Connect):
    front, client = connect(*1000 * [UNAVAILABLE], retries=1000)
    client.model("count")
    client.timeout_s = 0.6
    started = time.monotonic()
    (result,) = client.transcribe([SOUND], "count")
    assert time.monotonic() - started < 20
    assert isinstance(result.error, ServerBusyError | ServerTimeoutError)
    left = [each.parameters["timeout"] for each in front.inferences]
    assert left[0] == 600_000
    assert len(left) > 2
    assert left == sorted(left, reverse=True)


def test_waits_for_another_attempt_end_when_the_client_is_closed(connect: Connect):
    _, client = connect(*5 * [Refuse("UNAVAILABLE", after_s=20)], retries=5)
    results = client.transcribe_iter([SOUND], "count")
    closer = threading.Timer(0.3, client.close)
    closer.start()
    started = time.monotonic()
    (result,) = results
    closer.join()
    assert isinstance(result.error, RetryError)
    assert time.monotonic() - started < 15


def test_a_stream_is_started_again_under_a_new_id_where_its_first_chunk_was_refused(connect: Connect):
    front, client = connect(UNAVAILABLE, retries=1)
    with client.stream("running", chunk_ms=50) as stream:
        stream.accept(SOUND)
        assert stream.finish().text
    ids = [each.parameters["sequence_id"] for each in front.inferences]
    assert len(ids) == 3
    assert ids[0] != ids[1] == ids[2] == stream.id
    assert all(0 < each < 2**63 for each in ids)


def test_a_first_chunk_that_may_have_been_heard_is_ended_before_the_stream_is_started_again(connect: Connect):
    front, client = connect(DROP, retries=1)
    with client.stream("running", chunk_ms=50) as stream:
        stream.accept(SOUND)
    sent = [
        (
            each.parameters["sequence_id"] == stream.id,
            each.parameters["sequence_start"],
            each.parameters["sequence_end"],
        )
        for each in front.inferences
    ]
    assert sent == [(False, True, False), (False, False, True), (True, True, False), (True, False, True)]


def test_a_later_chunk_is_never_sent_again_and_its_stream_is_lost(connect: Connect):
    front, client = connect(retries=5)
    with client.stream("running", chunk_ms=50) as stream:
        stream.accept(SOUND)
        front.refusals = [DEAD]
        with pytest.raises(
            StreamLostError, match=r"is lost after 0\.05 s of its audio were answered.*Open a new stream"
        ):
            stream.accept(SOUND)
        assert [each.parameters["sequence_end"] for each in front.inferences] == [False, False, True]
        with pytest.raises(StreamError, match="is over"):
            stream.finish()


def test_a_stream_that_the_server_forgot_is_lost(connect: Connect):
    _, client = connect()
    with client.stream("running", chunk_ms=50) as stream:
        stream.accept(SOUND)
        with client.stream("running", chunk_ms=50) as other:
            other.id = stream.id
            other.finish()
        with pytest.raises(StreamLostError, match="the server does not know it any more"):
            stream.accept(SOUND)


def test_questions_are_asked_again_too_and_a_refused_connection_counts():
    with (
        Client("http://127.0.0.1:1", retries=2, timeout_s=20) as client,
        pytest.raises(ServerUnreachableError, match=r"Tried 3 times\."),
    ):
        client.models()


def test_the_server_is_told_the_limit_of_a_chunk_too(connect: Connect):
    front, client = connect()
    with client.stream("running") as stream:
        stream.finish()
    assert [each.parameters["timeout"] for each in front.inferences] == [pytest.approx(30e6, rel=0.01)]


def test_waits_double_to_a_limit_and_half_of_each_is_random():
    often = Retries(100)
    error = ServerBusyError("no room")
    deadline = time.monotonic() + 1000
    for attempts, longest in ((1, 0.25), (2, 0.5), (4, 2.0), (50, 10.0)):
        waits = [often.wait_s(error, attempts, deadline) for _ in range(200)]
        assert all(wait is not None and longest / 2 <= wait <= longest for wait in waits)
        assert len(set(waits)) > 100
    error.retry_after_s = 3.0
    waits = [often.wait_s(error, 1, deadline) for _ in range(200)]
    assert all(wait is not None and 3 <= wait <= 4.5 for wait in waits)
    assert often.wait_s(error, 1, time.monotonic() + 2) is None
    assert often.wait_s(ServerTimeoutError("late"), 1, deadline) is None
    with pytest.raises(ValueError, match="retries must be at least 0, got -1"):
        Retries(-1)
