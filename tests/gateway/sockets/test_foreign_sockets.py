"""What clients of WeNet's, sherpa-onnx's and Vosk's servers do, in our words: the same messages, read the same way."""

import json
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from fake_speech import FakeSpeech, floats, heard, speech
from waiting import until

Connect = Callable[..., ClientConnection]


# Vosk: a message is sent when the one before is answered.


def vosk_transcribe(client: ClientConnection, samples: bytes, rate: int) -> list[Any]:
    """vosk-server's websocket/test.py."""
    client.send('{ "config" : { "sample_rate" : %d } }' % rate)  # noqa: UP031
    found = []
    size = 2 * int(rate * 0.2)
    for start in range(0, len(samples), size):
        client.send(samples[start : start + size])
        found.append(json.loads(client.recv()))
    client.send('{"eof" : 1}')
    found.append(json.loads(client.recv()))
    return found


def test_vosk_answers_every_message_once(connect: Connect) -> None:
    with connect("/vosk") as client:
        found = vosk_transcribe(client, speech(7, 9, 0, 5, 5, 5).tobytes(), 16000)
    assert found == [
        {"partial": "7 9"},
        {
            "result": [
                {"conf": 0.5, "end": 0.1, "start": 0.0, "word": "7"},
                {"conf": 0.5, "end": 0.2, "start": 0.1, "word": "9"},
            ],
            "text": "7 9",
        },
        {"partial": "5 5 5"},
        {
            "result": [
                {"conf": 0.5, "end": 0.4, "start": 0.3, "word": "5"},
                {"conf": 0.5, "end": 0.5, "start": 0.4, "word": "5"},
                {"conf": 0.5, "end": 0.6, "start": 0.5, "word": "5"},
            ],
            "text": "5 5 5",
        },
    ]


def test_vosk_repeats_a_partial_text_that_nothing_was_added_to(connect: Connect) -> None:
    with connect("/vosk") as client:
        client.send('{"config": {"sample_rate": 8000}}')
        replies = []
        for message in (speech(7, sample_rate=8000).tobytes(), b"\0\0"):
            client.send(message)
            replies.append(json.loads(client.recv()))
    assert replies == [{"partial": "7"}, {"partial": "7"}]


def test_vosk_takes_8_khz_where_nobody_says_another_rate(connect: Connect) -> None:
    with connect("/vosk") as client:
        client.send(speech(7, 9, sample_rate=8000).tobytes())
        assert json.loads(client.recv()) == {"partial": "7 9"}
    with connect("/vosk?sample_rate=16000") as client:
        client.send(speech(7, 9).tobytes())
        assert json.loads(client.recv()) == {"partial": "7 9"}


def test_vosk_gives_words_alternatives_and_phrases_as_configured(connect: Connect, fake: FakeSpeech) -> None:
    with connect("/vosk") as client:
        client.send('{"config": {"phrase_list": ["7 9", "oh"], "sample_rate": 16000, "words": 0}}')
        client.send(speech(7, 9).tobytes())
        client.recv()
        client.send('{"reset" : 1}')
        assert json.loads(client.recv()) == {"text": "7 9"}
        client.send(speech(5).tobytes())
        assert json.loads(client.recv()) == {"partial": "5"}
    assert fake.asked[0].search == {"hotwords": {"7 9": 3.0, "oh": 3.0}}
    with connect("/vosk") as client:
        client.send('{"config": {"sample_rate": 16000, "max_alternatives": 2, "model": "other"}}')
        client.send(speech(7).tobytes())
        client.recv()
        client.send('{"eof" : 1}')
        first, second = json.loads(client.recv())["alternatives"]
    assert first["text"] == "7"
    assert second == {"confidence": None, "result": [], "text": "else"}
    assert (fake.asked[1].search, fake.asked[1].model) == ({"nbest": 2}, "other")


@pytest.mark.parametrize(
    ("path", "first"), [("/vosk", '{"config": {"max_alternatives": 9}}'), ("/wenet", '{"signal": "start", "nbest": 9}')]
)
def test_greedy_search_has_one_reading_of_those_that_there_may_be(
    connect: Connect, fake: FakeSpeech, path: str, first: str
) -> None:
    fake.has_beam = False
    with connect(path) as client:
        client.send(first)
        client.send(speech(7).tobytes())
        client.recv()
    assert fake.asked[0].search == {}


@pytest.mark.parametrize("size", [333, 4801])
def test_bytes_that_are_cut_within_samples_are_carried_over(connect: Connect, size: int) -> None:
    samples = speech(7, 9, 0, 5).tobytes()
    whole, cut = [], []
    for found, step in ((whole, len(samples)), (cut, size)):
        with connect("/vosk") as client:
            client.send('{"config": {"sample_rate": 16000}}')
            for start in range(0, len(samples), step):
                client.send(samples[start : start + step])
                client.recv()
            client.send('{"eof" : 1}')
            found.append(json.loads(client.recv())["text"])
    assert cut == whole


def test_vosk_leaves_out_phrases_that_no_token_writes(connect: Connect, fake: FakeSpeech) -> None:
    fake.foreign = "ü"
    with connect("/vosk") as client:
        client.send('{"config": {"phrase_list": ["7 9", "Über", "für", "[unk]"], "sample_rate": 16000}}')
        client.send(speech(7).tobytes())
        answer = json.loads(client.recv())
        assert (answer["partial"], "'Über'" in answer["warning"]) == ("7", True)
        client.send(speech(9).tobytes())
        assert json.loads(client.recv()) == {"partial": "7 9"}
    assert [list(each.search["hotwords"]) for each in fake.asked] == [["7 9", "Über", "für"], ["7 9"]]


def test_vosk_ends_without_audio(connect: Connect) -> None:
    with connect("/vosk") as client:
        client.send('{"eof" : 1}')
        assert heard(client) == ([{"text": ""}], 1000)


# WeNet


def wenet_transcribe(client: ClientConnection, samples: bytes, **start: Any) -> list[Any]:
    """WeNet's websocket_client_main: half a second a message, and a thread that reads until the end of speech."""
    client.send(json.dumps({"signal": "start", **start}))
    found = [json.loads(client.recv())]
    with suppress(ConnectionClosed):  # the server may have ended with the first result; what it sent is read below
        for begin in range(0, len(samples), 16000):
            client.send(samples[begin : begin + 16000])
        client.send('{"signal":"end"}')
    for message in client:
        found.append(json.loads(message))
        if found[-1].get("type") == "speech_end" or found[-1]["status"] != "ok":
            break
    return found


def test_wenet_has_results_of_continuous_decoding_and_their_pieces(connect: Connect) -> None:
    with connect("/wenet") as client:
        found = wenet_transcribe(client, speech(7, 9, 0, 0, 0, 5).tobytes(), nbest=1, continuous_decoding=True)
    assert [(each["status"], each["type"]) for each in found] == [
        ("ok", kind) for kind in ("server_ready", "final_result", "partial_result", "final_result", "speech_end")
    ]
    first, between, last = (json.loads(each["nbest"]) for each in found[1:4])
    assert first == [
        {
            "sentence": "7 9",
            "word_pieces": [{"word": "7", "start": 0, "end": 100}, {"word": "9", "start": 100, "end": 200}],
        }
    ]
    assert between == [{"sentence": "5"}]
    assert last == [{"sentence": "5", "word_pieces": [{"word": "5", "start": 500, "end": 600}]}]


def test_wenet_ends_with_the_first_result_unless_decoding_is_continuous(connect: Connect, fake: FakeSpeech) -> None:
    with connect("/wenet?model=other") as client:
        found = wenet_transcribe(client, speech(7, 0, 9, 9, 9).tobytes(), nbest=2, continuous_decoding=False)
    assert [each["type"] for each in found] == ["server_ready", "final_result", "speech_end"]
    assert [each["sentence"] for each in json.loads(found[1]["nbest"])] == ["7", "else"]
    assert (fake.asked[0].search, fake.asked[0].model) == ({"nbest": 2}, "other")


def test_wenet_has_a_result_of_no_audio(connect: Connect) -> None:
    with connect("/wenet") as client:
        found = wenet_transcribe(client, b"")
    assert json.loads(found[1]["nbest"]) == [{"sentence": "", "word_pieces": []}]


# sherpa-onnx


def test_sherpa_onnx_streams_floats_until_done(connect: Connect) -> None:
    data = floats(speech(7, 9, 0, 5))
    with connect("/sherpa-onnx") as client:
        for start in range(0, len(data), 4 * 3200):
            client.send(data[start : start + 4 * 3200])
        client.send("Done")
        found = []
        for message in client:
            if message == "Done!":
                break
            found.append(json.loads(message))
    assert [(each["text"], each["segment"], each["is_final"], each["is_eof"]) for each in found] == [
        ("7 9", 0, False, False),
        ("7 9", 0, True, False),
        ("5", 1, False, False),
        ("5", 1, True, True),
    ]
    assert (found[-1]["tokens"], found[-1]["start_time"], found[-1]["timestamps"]) == (["5"], 0.3, [0.0])


def test_sherpa_onnx_has_a_result_of_no_audio(connect: Connect) -> None:
    with connect("/sherpa-onnx") as client:
        client.send("Done")
        found = list(client)
    assert json.loads(found[0])["text"] == ""
    assert found[1:] == ["Done!"]


def recording(samples: bytes, rate: int) -> bytes:
    return rate.to_bytes(4, "little") + len(samples).to_bytes(4, "little") + samples


def test_sherpa_onnx_transcribes_recordings_one_after_the_other(connect: Connect) -> None:
    found = []
    with connect("/sherpa-onnx-offline") as client:
        for levels, rate in (((7, 9), 16000), ((5,), 8000)):
            data = recording(floats(speech(*levels, sample_rate=rate)), rate)
            for start in range(0, len(data), 10240):
                client.send(data[start : start + 10240])
            found.append(json.loads(client.recv()))
        client.send("Done")
        assert list(client) == []
    assert [(each["text"], each["tokens"], each["timestamps"]) for each in found] == [
        ("7 9", ["7", "9"], [0.0, 0.1]),
        ("5", ["5"], [0.0]),
    ]


# What no client sends on purpose. Each case: messages, and a part of what is said about them.
Case = tuple[str, list[str | bytes], str]
HOSTILE: list[Case] = [
    ("/vosk", ["{"], "JSON object"),
    ("/vosk", ["[1]"], "JSON object"),
    ("/vosk", ["[" * 60_000], "JSON object"),
    ("/vosk", ['{"config": 3}'], "sample_rate, words"),
    ("/vosk", ['{"config": {"speed": 2}}'], "sample_rate, words"),
    ("/vosk", ['{"config": {"sample_rate": "fast"}}'], "cannot be used"),
    ("/vosk", ['{"config": {"sample_rate": 1e400}}'], "cannot be used"),
    ("/vosk", ['{"config": {"phrase_list": "a"}}'], "list of texts"),
    ("/vosk", ["RIFF"], "JSON object"),
    ("/vosk", ['{"what": 1}'], "expected audio"),
    ("/vosk", [b"\0\0", '{"config": {"sample_rate": 16000}}'], "before the audio"),
    ("/vosk", ["x" * 70_000], "65,536 characters"),
    ("/wenet", [b"\0\0"], "before its start"),
    ("/wenet", ['{"signal": "stop"}'], '"start" or "end"'),
    ("/wenet", ['{"signal": "end"}'], "has not started"),
    ("/wenet", ['{"signal": "start", "nbest": "many"}'], "nbest"),
    ("/wenet", ['{"signal": "start", "nbest": 0}'], "nbest"),
    ("/wenet", ['{"signal": "start", "continuous_decoding": 1}'], "true or false"),
    ("/wenet", ['{"signal": "start"}', '{"signal": "start"}'], "has started"),
    ("/sherpa-onnx", ["done"], "'Done'"),
    ("/sherpa-onnx-offline", ["What"], "'Done'"),
    ("/sherpa-onnx-offline", [b"\0" * 7], "8 bytes"),
    ("/sherpa-onnx-offline", [struct.pack("<ii", -1, 4)], "header"),
    ("/sherpa-onnx-offline", [struct.pack("<ii", 16000, -4)], "-4 bytes"),
    ("/sherpa-onnx-offline", [struct.pack("<ii", 16000, 5)], "5 bytes"),
    ("/sherpa-onnx-offline", [struct.pack("<ii", 16000, 2**31 - 4)], "the limit here is 300 s"),
    ("/sherpa-onnx-offline", [struct.pack("<ii", 16000, 4) + b"\0" * 8], "its header says 4"),
]


@pytest.mark.parametrize(("path", "messages", "said"), HOSTILE)
def test_a_wrong_message_has_a_clear_error_and_ends_its_connection(
    connect: Connect, fake: FakeSpeech, path: str, messages: list[str | bytes], said: str
) -> None:
    with connect(path) as client:
        with suppress(ConnectionClosed):  # the first message may have ended it
            for message in messages:
                client.send(message)
        (*_, last), code = heard(client)
    assert said in (last.get("error") or last["message"])
    assert code == 1008
    until(lambda: not fake.open_ones)
