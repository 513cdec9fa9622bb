"""The gateway's own WebSocket, with a stand-in for the models."""

import json
import socket as plain
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from websockets.sync.client import ClientConnection

from fake_speech import FakeSpeech, floats, heard, speech
from tritone.client.models import ModelInfo
from tritone.errors import AudioError, InputError, ServerBusyError
from tritone.gateway.ask import SpeakerOptions, VadOptions
from tritone.gateway.server import GatewayServer
from tritone.gateway.stream_options import read_start
from tritone.texts import TextOptions
from waiting import until

Connect = Callable[..., ClientConnection]


def start(client: ClientConnection, **options: Any) -> dict[str, Any]:
    client.send(json.dumps({"type": "start", **options}))
    return json.loads(client.recv(60))


def test_samples_become_partial_and_final_texts(connect: Connect) -> None:
    with connect("/v1/stream") as client:
        assert start(client, words=True) == {
            "type": "ready",
            "model": "fake",
            "format": "pcm_s16le",
            "sample_rate": 16000,
        }
        client.send(speech(7, 9).tobytes())
        words = [
            {"text": "7", "start_s": 0.0, "end_s": 0.1, "confidence": 0.5},
            {"text": "9", "start_s": 0.1, "end_s": 0.2, "confidence": 0.5},
        ]
        assert json.loads(client.recv(60)) == {
            "type": "partial",
            "segment": 0,
            "time_s": 0.2,
            "text": "7 9",
            "words": words,
        }
        client.send(speech(0, 5).tobytes())
        client.send('{"type": "end"}')
        found, code = heard(client)
    assert [(each["type"], each.get("segment"), each.get("text")) for each in found] == [
        ("final", 0, "7 9"),
        ("partial", 1, "5"),
        ("final", 1, "5"),
        ("end", None, None),
    ]
    assert found[0]["confidence"] == 0.5
    assert found[0]["alternatives"][1] == {"text": "else", "score": -2.0, "words": [], "confidence": None}
    assert (found[-1]["audio_s"], code) == (0.4, 1000)


@pytest.mark.parametrize("rate", [8000, 16000, 44100])
def test_floats_of_any_rate_are_heard(connect: Connect, rate: int) -> None:
    with connect("/v1/stream") as client:
        assert start(client, format="pcm_f32le", sample_rate=rate, partials=False)["sample_rate"] == rate
        client.send(floats(speech(7, 9, sample_rate=rate)))
        client.send('{"type": "end"}')
        found, _ = heard(client)
    assert [(each["type"], each.get("text")) for each in found] == [("final", "7 9"), ("end", None)]


def test_a_client_may_say_all_in_the_address_and_send_audio_at_once(connect: Connect, fake: FakeSpeech) -> None:
    with connect("/v1/stream?model=other&sample_rate=8000") as client:
        client.send(speech(7, sample_rate=8000).tobytes())
        assert json.loads(client.recv(60))["sample_rate"] == 8000
        assert json.loads(client.recv(60))["text"] == "7"
    assert fake.asked[0].model == "other"


def test_a_client_may_end_a_segment(connect: Connect) -> None:
    with connect("/v1/stream") as client:
        start(client, partials=False)
        for level in (7, 9):
            client.send(speech(level).tobytes())
            client.send('{"type": "commit"}')
            assert json.loads(client.recv(60))["text"] == str(level)


def test_options_become_what_is_asked(connect: Connect, fake: FakeSpeech) -> None:
    with connect("/v1/stream") as client:
        start(
            client,
            model="m",
            search={"search": "prefix-beam", "nbest": 3, "hotwords": {"anna": 8.5}},
            vad={"parameters": {"threshold": 0.7}, "prefix_s": 0.5},
            speakers=True,
            final_model="big",
            words=True,
            texts={"numbers": True, "profanity": "mask"},
        )
    asked = fake.asked[0]
    assert (asked.model, asked.final_model, asked.details) == ("m", "big", True)
    assert asked.search == {"search": "prefix-beam", "nbest": 3, "hotwords": {"anna": 8.5}}
    assert asked.vad == VadOptions(parameters={"threshold": 0.7}, prefix_s=0.5)
    assert asked.speakers == SpeakerOptions()
    assert asked.texts == TextOptions(numbers=True, profanity="mask")
    plain_model = ModelInfo(name="m", kind="streaming")
    assert read_start({}, {}).ask(plain_model).vad is None
    german = read_start({"language": "de", "search": {"beam": 3}}, {})
    several = replace(plain_model, finds_language=True, languages=("de", "fr"))
    assert german.ask(several).search == {"language": "de", "beam": 3}
    either = read_start({"allowed_languages": ["de-AT", "fr"]}, {})
    assert either.ask(several).search == {"allowed_languages": "de,fr"}
    with pytest.raises(InputError, match="takes no language"):
        german.ask(plain_model)


WRONG_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"type": "stop"}, "type"),
    ({"sample_rate": "16000"}, "sample_rate"),
    ({"sample_rate": 16000.5}, "sample_rate"),
    ({"words": "yes"}, "words"),
    ({"word": True}, "word: Extra inputs"),
    ({"search": {"beam": []}}, "search"),
    ({"search": {"sequence_id": 5}}, "sequence_id is a parameter of Triton"),
    ({"vad": {"prefix_s": 1e9}}, "vad"),
    ({"texts": {"profanity": "shout"}}, "profanity"),
    ({"format": "mp3"}, "format must be one of pcm_s16le, pcm_f32le, opus, ogg, webm, mp4"),
]


@pytest.mark.parametrize(("options", "said"), WRONG_OPTIONS)
def test_wrong_options_are_named(connect: Connect, options: dict[str, Any], said: str) -> None:
    with connect("/v1/stream") as client:
        answer = start(client, **options)
        assert answer["type"] == "error"
        assert said in answer["message"]
        assert heard(client) == ([], 1008)


def test_a_rate_in_the_address_is_a_number() -> None:
    with pytest.raises(InputError, match="whole number, got 'fast'"):
        read_start({}, {"sample_rate": "fast"})


WRONG_MESSAGES: list[tuple[str | bytes, str]] = [
    ("hello", "JSON object"),
    ('{"type": "start"}', "expected audio"),
    ('{"type": ["end"]}', "expected audio"),
    ("[" * 60_000, "JSON object"),
    ('{"a":' * 10_000, "JSON object"),
    ("9" * 60_000, "JSON object"),
    ('{"type": "\\ud800"}', "JSON object"),
]


@pytest.mark.parametrize(("message", "said"), WRONG_MESSAGES)
def test_a_wrong_message_is_told_and_ends_the_stream(
    connect: Connect, fake: FakeSpeech, message: str | bytes, said: str
) -> None:
    with connect("/v1/stream") as client:
        start(client)
        client.send(message)
        found, ended = heard(client)
    assert said in found[0]["message"]
    assert ended == 1008
    until(lambda: not fake.open_ones)


def test_errors_of_the_models_say_what_to_do(connect: Connect, fake: FakeSpeech) -> None:
    busy = ServerBusyError("grpc://10.0.0.1:8001: all 4 slots are taken")
    busy.retry_after_s = 1.5
    for error, code in ((busy, 1013), (AudioError("too loud"), 1008), (RuntimeError("a secret"), 1011)):
        fake.error = error
        with connect("/v1/stream") as client:
            start(client)
            client.send(speech(7).tobytes())
            found, ended = heard(client)
        assert ended == code
        assert "10.0.0.1" not in str(found)
        assert "secret" not in str(found)
        assert found[0].get("retry_after_s") == getattr(error, "retry_after_s", None)


def test_a_message_that_is_too_large_ends_its_connection_alone(connect: Connect, fake: FakeSpeech) -> None:
    with connect("/v1/stream") as other, connect("/v1/stream") as client:
        start(other)
        start(client)
        # The head of a message alone: it is refused before the rest comes, and nothing is left to be reset.
        client.socket.sendall(struct.pack("!BBQ4s", 0x82, 0xFF, 2 << 20, bytes(4)))
        assert heard(client) == ([], 1009)
        until(lambda: len(fake.open_ones) == 1)
        other.send(speech(7).tobytes())
        assert json.loads(other.recv(60))["text"] == "7"


def test_others_are_heard_during_a_flood(connect: Connect, fake: FakeSpeech) -> None:
    fake.delay_s = 0.01
    with connect("/v1/stream") as flood, connect("/v1/stream") as client:
        start(flood)
        start(client)
        for _ in range(5000):
            flood.send(b"\0\0")
        client.send(speech(7).tobytes())
        assert json.loads(client.recv(60))["text"] == "7"
    until(lambda: not fake.open_ones)


def test_a_client_that_vanishes_during_work_for_it_leaves_nothing(
    connect: Connect, fake: FakeSpeech, faking: GatewayServer
) -> None:
    fake.delay_s = 600
    client = connect("/v1/stream")
    start(client)
    client.send(speech(7).tobytes())
    until(lambda: bool(fake.open_ones))
    client.socket.shutdown(plain.SHUT_RDWR)  # no word of good-bye
    until(lambda: not fake.open_ones)


def test_many_who_come_and_go_leave_nothing(connect: Connect, fake: FakeSpeech) -> None:
    for number in range(30):
        client = connect("/v1/stream")
        start(client)
        client.send(speech(7).tobytes())
        if number % 2:
            client.socket.shutdown(plain.SHUT_RDWR)
        else:
            client.close()
    until(lambda: not fake.open_ones)
