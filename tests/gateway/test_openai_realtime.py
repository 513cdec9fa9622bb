"""OpenAI Realtime transcription sessions through the official client, in the shapes of GA and of the beta."""

import base64
import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import soxr
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from gateway_streams import whole_frames
from toy import SAMPLE_RATE, toy_waveform
from tritone.audio.pcm import to_pcm
from tritone.client.models import ModelInfo
from tritone.errors import StreamLostError
from tritone.gateway import GatewayOptions
from tritone.gateway.callers import new_key
from tritone.gateway.live import Live
from tritone.gateway.protocols.openai.deltas import Deltas
from tritone.gateway.protocols.openai.session import SessionConfig
from tritone.gateway.refusal import FieldError, GatewayRefusal
from tritone.gateway.server import GatewayServer
from tritone.gateway.speech import Speech
from tritone.server import TritonServer
from waiting import until

PAUSE = np.zeros(SAMPLE_RATE, np.float32)
AT_16K = {"type": "audio/pcm", "rate": SAMPLE_RATE}  # the toy's own rate, at which its answers are exact
COMPLETED = "conversation.item.input_audio_transcription.completed"
DELTA = "conversation.item.input_audio_transcription.delta"
FAILED = "conversation.item.input_audio_transcription.failed"


def session(**audio_input: Any) -> Any:
    return {"type": "transcription", "audio": {"input": {"format": AT_16K, **audio_input}}}


def send(connection: Any, samples: Any, piece: int = 3200) -> None:
    data = to_pcm(samples).tobytes()
    for start in range(0, len(data), piece):
        connection.input_audio_buffer.append(audio=base64.b64encode(data[start : start + piece]).decode())


def events_until(connection: Any, kind: str, count: int = 1) -> list[Any]:
    """The events up to the one of that kind, so many of them."""
    events: list[Any] = []
    while sum(event.type == kind for event in events) < count:
        events.append(connection.recv())
        assert events[-1].type not in ("error", FAILED) or kind == events[-1].type, events[-1]
    return events


def kinds(events: Sequence[Any]) -> list[str]:
    return [event.type for event in events if event.type != DELTA]


@pytest.fixture(scope="module")
def client(gateway: GatewayServer) -> Iterator[openai.OpenAI]:
    with client_of(gateway.port) as found:
        yield found


@contextmanager
def client_of(port: int) -> Iterator[openai.OpenAI]:
    address = f"127.0.0.1:{port}/v1"
    url = f"http://{address}"
    with openai.OpenAI(base_url=url, websocket_base_url=f"ws://{address}", api_key="any", timeout=60) as found:
        yield found


@contextmanager
def connected(client: openai.OpenAI, **query: str) -> Iterator[Any]:
    with client.realtime.connect(extra_query={"intent": "transcription", **query}) as connection:
        created = connection.recv()
        assert created.type == "session.created"
        assert created.session.type == "transcription"
        yield connection


def test_a_client_commits_what_it_sent(client: openai.OpenAI) -> None:
    with connected(client) as connection:
        connection.session.update(session=session(turn_detection=None))
        updated = connection.recv()
        assert updated.type == "session.updated"
        assert updated.session.audio.input.turn_detection is None
        previous = None
        for text in ("one two", "three"):
            send(connection, whole_frames(text, 3))
            connection.input_audio_buffer.commit()
            events = events_until(connection, COMPLETED)
            assert kinds(events) == [
                "input_audio_buffer.committed",
                "conversation.item.added",
                "conversation.item.done",
                COMPLETED,
            ]
            done, committed = events[-1], next(event for event in events if event.type.endswith("committed"))
            assert done.transcript == text
            assert "".join(event.delta for event in events if event.type == DELTA) == text
            assert {event.item_id for event in events if event.type == DELTA} == {done.item_id}
            assert committed.item_id == done.item_id
            assert committed.previous_item_id == previous
            assert done.usage.seconds == pytest.approx(len(whole_frames(text, 3)) / SAMPLE_RATE, abs=0.01)
            previous = done.item_id


def test_audio_comes_at_24_khz_by_default(client: openai.OpenAI) -> None:
    with connected(client) as connection:
        connection.session.update(session={"type": "transcription", "audio": {"input": {"turn_detection": None}}})
        assert connection.recv().session.audio.input.format.rate == 24000
        audio = soxr.resample(toy_waveform("abc", 8), SAMPLE_RATE, 24000)
        send(connection, audio)
        connection.input_audio_buffer.commit()
        assert events_until(connection, COMPLETED)[-1].transcript == "abc"


def test_a_voice_activity_model_detects_turns(client: openai.OpenAI) -> None:
    detection = {"type": "server_vad", "threshold": 0.6, "prefix_padding_ms": 80, "silence_duration_ms": 200}
    with connected(client) as connection:
        connection.session.update(session=session(turn_detection=detection))
        assert connection.recv().session.audio.input.turn_detection.threshold == 0.6
        send(connection, np.concatenate((PAUSE, whole_frames("one", 3), PAUSE, whole_frames("neo", 3), PAUSE)))
        events = events_until(connection, COMPLETED, 2)
    one = [
        *("input_audio_buffer.speech_started", "input_audio_buffer.speech_stopped", "input_audio_buffer.committed"),
        *("conversation.item.added", "conversation.item.done", COMPLETED),
    ]
    assert kinds(events) == one * 2
    assert [event.transcript for event in events if event.type == COMPLETED] == ["one", "neo"]
    assert len({event.item_id for event in events if event.type == COMPLETED}) == 2
    started = [event.audio_start_ms for event in events if event.type == one[0]]
    stopped = [event.audio_end_ms for event in events if event.type == one[1]]
    spoken = [1000 * len(whole_frames(text, 3)) / SAMPLE_RATE for text in ("one", "neo")]
    assert started == pytest.approx([920, 1920 + spoken[0]], abs=15)
    assert stopped == pytest.approx([1000 + spoken[0], 2000 + sum(spoken)], abs=200)


def test_the_beta_has_events_of_its_own(client: openai.OpenAI) -> None:
    with client.beta.realtime.connect(model="live", extra_query={"intent": "transcription"}) as connection:
        assert connection.recv().type == "transcription_session.created"
        connection.transcription_session.update(
            session={
                "input_audio_format": "g711_ulaw",
                "input_audio_transcription": {"model": "live", "language": "en"},  # type: ignore[typeddict-item]
                "turn_detection": None,  # type: ignore[typeddict-item]
            }
        )
        updated = connection.recv()
        assert updated.type == "transcription_session.updated"
        assert updated.session.input_audio_format == "g711_ulaw"
        silence = base64.b64encode(b"\xff" * 4000).decode()
        connection.input_audio_buffer.append(audio=silence)
        connection.input_audio_buffer.commit()
        events = events_until(connection, COMPLETED)
        assert kinds(events) == ["input_audio_buffer.committed", "conversation.item.created", COMPLETED]
        assert events[-1].transcript == ""
        assert events[-1].usage.seconds == 0.5


def test_audio_that_is_cleared_is_forgotten(client: openai.OpenAI) -> None:
    with connected(client) as connection:
        connection.session.update(session=session(turn_detection=None))
        send(connection, whole_frames("one", 3))
        connection.input_audio_buffer.clear()
        assert events_until(connection, "input_audio_buffer.cleared")
        connection.input_audio_buffer.commit()
        assert "100 ms are needed" in events_until(connection, "error")[-1].error.message
        send(connection, whole_frames("two", 3))
        connection.input_audio_buffer.commit()
        assert events_until(connection, COMPLETED)[-1].transcript == "two"


def test_log_probabilities_come_when_they_are_asked_for(client: openai.OpenAI) -> None:
    asked = session(turn_detection=None) | {"include": ["item.input_audio_transcription.logprobs"]}
    with connected(client) as connection:
        connection.session.update(session=asked)
        send(connection, whole_frames("ab", 3))
        connection.input_audio_buffer.commit()
        found = events_until(connection, COMPLETED)[-1].logprobs
        assert [each.token for each in found] == ["a", "b"]


def test_deltas_wait_for_the_final_text_where_the_client_says_so(client: openai.OpenAI) -> None:
    with connected(client) as connection:
        connection.session.update(session=session(turn_detection=None, transcription={"delay": "high"}))
        send(connection, whole_frames("one two three", 3))
        connection.input_audio_buffer.commit()
        events = events_until(connection, COMPLETED)
        assert [event.delta for event in events if event.type == DELTA] == ["one two three"]
        connection.session.update(session=session(transcription={"delay": "low"}))
        send(connection, whole_frames("one two three", 3))
        connection.input_audio_buffer.commit()
        events = events_until(connection, COMPLETED)
        assert len([event for event in events if event.type == DELTA]) > 1


def test_a_second_model_writes_final_texts_also_while_no_audio_comes(client: openai.OpenAI) -> None:
    transcription = {"final_model": "toy", "final_search": {"timestamps": False}, "texts": {"punctuate": True}}
    with connected(client) as connection:
        connection.session.update(
            session=session(transcription=transcription, turn_detection={"prefix_padding_ms": 80})
            | {"include": ["item.input_audio_transcription.logprobs"]}
        )
        send(connection, np.concatenate((PAUSE, whole_frames("one", 3), PAUSE)))  # and nothing after it
        done = events_until(connection, COMPLETED)[-1]
        assert (done.transcript, done.second_pass, done.logprobs) == ("One.", "done", [])
        # A wrong update leaves the stream as it is.
        connection.session.update(session=session(transcription={"final_model": "nobody"}))
        assert events_until(connection, "error")[-1].error.code == "model_not_found"
        connection.session.update(session=session(transcription={"final_search": {"colour": 1}}, turn_detection=None))
        send(connection, whole_frames("one", 3))
        connection.input_audio_buffer.commit()
        done = events_until(connection, COMPLETED)[-1]
        assert (done.transcript, done.second_pass) == ("One.", "failed")


@pytest.mark.parametrize(
    ("event", "told"),
    [
        ({"type": "response.create"}, "this server transcribes"),
        ({"type": "colour"}, "type: is unknown: 'colour'"),
        ({"no": "type"}, 'an object with a "type"'),
        ({"type": "session.update"}, "session: is missing"),
        ({"type": "session.update", "session": {"type": "realtime"}}, "session.type: must be 'transcription'"),
        ({"type": "session.update", "session": {"colour": 1}}, "session.colour: is unknown"),
        (
            {"type": "session.update", "session": session(format={"type": "audio/opus"})},
            "must be 'audio/pcm'",
        ),
        (
            {"type": "session.update", "session": session(format={"type": "audio/pcm", "rate": 5})},
            "must be 8000",
        ),
        (
            {"type": "session.update", "session": session(noise_reduction={"type": "loud"})},
            "must be 'near_field'",
        ),
        ({"type": "session.update", "session": session(turn_detection={"type": "no_vad"})}, "'server_vad'"),
        (
            {"type": "session.update", "session": session(turn_detection={"threshold": 2})},
            "or equal to 1, got 2",
        ),
        ({"type": "session.update", "session": session(turn_detection={"threshold": True})}, "got True"),
        ({"type": "session.update", "session": session(transcription={"model": "nobody"})}, "no ready model 'nobody'"),
        ({"type": "session.update", "session": session(transcription={"texts": {"colour": 1}})}, "colour"),
        ({"type": "session.update", "session": session(transcription={"search": {"beam": []}})}, "text, a number"),
        ({"type": "session.update", "session": [1]}, "session: must be an object"),
        ({"type": "input_audio_buffer.append", "audio": "?"}, "audio: is no base64"),
        ({"type": "input_audio_buffer.append", "audio": 5}, "audio: must be base64"),
        ({"type": "input_audio_buffer.commit"}, "has 0 ms of audio"),
    ],
)
def test_a_wrong_event_has_an_error_and_the_session_goes_on(
    client: openai.OpenAI, event: dict[str, Any], told: str
) -> None:
    with connected(client) as connection:
        connection.send_raw(json.dumps(event | {"event_id": "mine"}))
        answer = connection.recv()
        assert answer.type == "error"
        assert told in answer.error.message
        assert (answer.error.type, answer.error.event_id) == ("invalid_request_error", "mine")
        connection.session.update(session=session(turn_detection=None))
        assert connection.recv().type == "session.updated"


def test_what_cannot_be_honoured_is_told_in_the_answer(client: openai.OpenAI) -> None:
    with connected(client) as connection:
        asked = session(
            noise_reduction={"type": "near_field"},
            transcription={"prompt": "so", "language": "en"},
            turn_detection={"type": "semantic_vad", "eagerness": "high"},
        )
        connection.session.update(session=asked)
        told = json.loads(connection.recv_bytes())["session"]
        assert told["ignored"] == ["eagerness", "language", "noise_reduction", "prompt", "semantic_vad"]
        found = told["audio"]["input"]
        assert (found["noise_reduction"], found["transcription"]["prompt"]) == (None, "")
        assert found["turn_detection"]["type"] == "server_vad"
        connection.session.update(session=session(noise_reduction=None, transcription={"prompt": ""}))
        assert json.loads(connection.recv_bytes())["session"]["ignored"] == ["eagerness", "language", "semantic_vad"]


def test_audio_that_is_cut_within_samples_is_carried_over(client: openai.OpenAI) -> None:
    data = to_pcm(whole_frames("one two", 3)).tobytes()
    with connected(client) as connection:
        connection.session.update(session=session(turn_detection=None))
        for start in range(0, len(data), 3333):
            connection.input_audio_buffer.append(audio=base64.b64encode(data[start : start + 3333]).decode())
        connection.input_audio_buffer.commit()
        assert events_until(connection, COMPLETED)[-1].transcript == "one two"


def test_hostile_messages_harm_nobody(gateway: GatewayServer) -> None:
    with connect(f"ws://127.0.0.1:{gateway.port}/v1/realtime") as socket:
        assert json.loads(socket.recv())["type"] == "session.created"
        for message in (b"\x00\x01", "[" * 100_000, "{", "5", '{"type": 7}'):
            socket.send(message)
            assert json.loads(socket.recv())["type"] == "error"
        with suppress(ConnectionClosed):  # it may be hung up on before it has sent all
            socket.send("x" * 2_000_000)  # more than a message may have
        with pytest.raises(ConnectionClosed):
            socket.recv()


def test_a_browser_sends_its_key_as_a_subprotocol(gateway: GatewayServer) -> None:
    protocols: Any = ["realtime", "openai-insecure-api-key.any", "openai-beta.realtime-v1"]
    with connect(f"ws://127.0.0.1:{gateway.port}/v1/realtime", subprotocols=protocols) as socket:
        assert socket.subprotocol == "realtime"
        assert json.loads(socket.recv())["type"] == "transcription_session.created"


def test_a_model_that_is_not_there_ends_the_session(client: openai.OpenAI, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tritone.gateway.access")
    with client.realtime.connect(model="nobody", extra_query={"intent": "transcription"}) as connection:
        answer = connection.recv()
        assert (answer.type, answer.error.code) == ("error", "model_not_found")
        with pytest.raises(ConnectionClosed):
            connection.recv()
    line = '"protocol": "openai-realtime", "method": "WEBSOCKET", "path": "/v1/realtime", "status": 404'
    until(lambda: line in caplog.text)


def test_without_a_voice_activity_model_the_recogniser_ends_items(triton: TritonServer, monkeypatch: Any) -> None:
    async def model(speech: Speech, name: str, kind: Any, *, found: Any = Speech.model) -> ModelInfo:
        if kind == "activity-streaming":
            raise GatewayRefusal(404, "there is none")
        info: ModelInfo = await found(speech, name, kind)
        return info

    monkeypatch.setattr(Speech, "model", model)
    options = GatewayOptions(triton=triton.grpc_address, port=0)
    with GatewayServer(options).background() as server, client_of(server.port) as client, connected(client) as there:
        there.session.update(session=session(turn_detection={"type": "server_vad", "silence_duration_ms": 200}))
        told = json.loads(there.recv_bytes())["session"]
        assert (told["ignored"], told["audio"]["input"]["turn_detection"]["silence_duration_ms"]) == (
            ["turn_detection"],
            None,
        )
        there.session.update(session=session(turn_detection={"type": "server_vad"}))
        detection = events_until(there, "session.updated")[-1].session.audio.input.turn_detection
        assert (detection.type, detection.silence_duration_ms) == ("server_vad", None)
        send(there, np.concatenate((whole_frames("one"), PAUSE, whole_frames("neo"), PAUSE)))
        events = events_until(there, COMPLETED, 2)
        assert [event.transcript for event in events if event.type == COMPLETED] == ["one", "neo"]
        there.input_audio_buffer.commit()  # of silence: an item without text
        assert events_until(there, COMPLETED)[-1].transcript == ""


def test_an_item_whose_stream_is_lost_fails_and_the_next_one_does_not(gateway: GatewayServer, client: Any) -> None:
    with connected(client) as connection:
        connection.session.update(session=session(turn_detection=None))
        send(connection, whole_frames("one two three", 3))
        events_until(connection, DELTA)
        connection.session.update(session=session(turn_detection=None))  # changes nothing
        events_until(connection, "session.updated")  # and comes after all audio was heard
        accept = Live.accept
        with pytest.MonkeyPatch.context() as patch:

            async def lost(live: Live, samples: Any) -> Any:
                raise StreamLostError("gone")

            patch.setattr(Live, "accept", lost)
            send(connection, whole_frames("x", 3), piece=100_000)
            failed = events_until(connection, FAILED)[-1]
            assert (failed.error.code, failed.error.type) == ("stream_lost", "server_error")
        assert Live.accept is accept
        send(connection, whole_frames("two", 3))
        connection.input_audio_buffer.commit()
        events = events_until(connection, COMPLETED)
        assert events[-1].transcript == "two"
        assert events[-1].item_id != failed.item_id


def test_a_key_is_needed_where_there_are_keys(triton: TritonServer, tmp_path: Path) -> None:
    key, digest = new_key()
    keys = tmp_path / "keys.yaml"
    keys.write_text(f"keys:\n  - {{name: me, sha256: {digest}, streams: 1}}\n", encoding="utf-8")
    options = GatewayOptions(triton=triton.grpc_address, port=0, keys=keys)
    with GatewayServer(options).background() as server, client_of(server.port) as client:
        with pytest.raises(InvalidStatus) as denied, connected(client):
            pass
        assert denied.value.response.status_code == 401
        assert json.loads(denied.value.response.body or b"")["error"]["code"] == "invalid_api_key"
        mine = client.with_options(api_key=key)
        with connected(mine) as connection, connected(mine) as second:
            connection.session.update(session=session(turn_detection=None))
            send(connection, whole_frames("one two three", 3))
            events_until(connection, DELTA)
            send(second, PAUSE, piece=100_000)  # its second stream
            assert events_until(second, "error")[-1].error.type == "rate_limit_error"
            with pytest.raises(ConnectionClosed):
                second.recv()


@pytest.mark.parametrize(
    ("partials", "final", "deltas"),
    [
        (["one", "one two", "one two three"], "one two three", ["one", " two three"]),
        (["one", "on two", "no"], "no one", ["no one"]),
        (["a b", "a b c", "x y"], "x y", ["a"]),  # what was sent is contradicted: `completed` has the text
        (["你", "你好", "你好吗"], "你好吗", ["你", "好吗"]),
        ([], "all at once", ["all at once"]),
        ([], "", []),
    ],
)
def test_deltas_are_what_two_partial_texts_agree_on(partials: list[str], final: str, deltas: list[str]) -> None:
    found = Deltas()
    sent = [*map(found.partial, partials), found.final(final)]
    assert [delta for delta in sent if delta] == deltas


def test_deltas_are_what_a_model_says_does_not_change() -> None:
    found = Deltas()
    partials = [("one tow", 3), ("one tow", 3), ("one two tree", 7), ("one two three", 7)]
    assert [found.partial(text, settled) for text, settled in partials] == ["one", "", " two", ""]
    assert found.final("one two three") == " three"


def test_a_session_names_languages_for_models_that_are_told_them() -> None:
    def updated(config: SessionConfig, **transcription: object) -> SessionConfig:
        return config.updated({"type": "transcription", "audio": {"input": {"transcription": transcription}}}, "ga")

    german = updated(SessionConfig(), language="de")
    told = german.to_dict("ga", "sess", has_vad=False, takes_language=True)
    assert "ignored" not in told
    assert german.to_dict("ga", "sess", has_vad=False)["ignored"] == ["language"]
    several = updated(german, languages=["de", "fr"])
    assert (several.language, several.allowed_languages) == ("", ("de", "fr"))
    kept = updated(several, prompt="so")
    assert kept.allowed_languages == ("de", "fr")
    shown = kept.to_dict("ga", "sess", has_vad=False, takes_language=True)
    assert shown["audio"]["input"]["transcription"]["allowed_languages"] == ["de", "fr"]
    assert updated(kept, allowed_languages=["nl"]).allowed_languages == ("nl",)
    for wrong in ({"languages": "de"}, {"allowed_languages": [1]}, {"allowed_languages": ["x" * 20_000]}):
        with pytest.raises(FieldError, match="languages"):
            updated(kept, **wrong)
