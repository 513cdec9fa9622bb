"""Ends of turns, decided by a classifier: in streams, and as each protocol words them to its official client."""

import asyncio
import base64
import json
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import openai
import pytest
import riva.client
from deepgram import DeepgramClient
from deepgram.core.events import EventType
from deepgram.environment import DeepgramClientEnvironment
from websockets.sync.client import connect as open_socket
from wyoming.asr import Transcript
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.client import AsyncTcpClient
from wyoming.vad import VoiceStarted, VoiceStopped

from fake_speech import heard as until_closed
from gateway_streams import NEO, ONE, events_of, whole_frames
from toy import FRAME, SAMPLE_RATE
from tritone.audio.pcm import to_pcm
from tritone.gateway.ask import Ask, Event, TurnEnd, TurnOptions, VadOptions
from tritone.gateway.refusal import GatewayRefusal
from tritone.gateway.server import GatewayServer

TIMEOUT_S = 60.0
TURNS = TurnOptions(model="turns", eager_threshold=0.3, max_silence_s=1.5)
# Words are of nine frames of 40 ms, the last of which has no sound.
PAUSE, LONG = np.zeros(13 * FRAME, np.float32), np.zeros(50 * FRAME, np.float32)


WORD_S, SPOKEN_S, BEFORE_S, PAUSE_S = 0.36, 0.32, 0.2, 0.52
BEFORE = np.zeros(5 * FRAME, np.float32)  # less than is recognised with speech, so that frames lie where they are
TALK = np.concatenate(
    (BEFORE, whole_frames(ONE, 3), PAUSE, whole_frames(NEO, 3), PAUSE)
)  # a pause within a turn, and one after it


def decided(events: Sequence[Event]) -> list[tuple[str, str]]:
    return [
        (event.kind, event.transcript.text if event.transcript is not None else "")
        for event in events
        if event.kind != "partial"
    ]


@pytest.mark.parametrize("model", ["live", "toy"])
@pytest.mark.parametrize("piece", [1000, len(TALK)])
def test_a_turn_goes_on_over_a_pause_until_the_classifier_says_that_it_ends(
    gateway: Any, run: Any, model: str, piece: int
) -> None:
    ask = Ask(model=model, turns=TURNS)
    events = run(events_of(gateway.gateway.speech, ask, TALK, piece=piece))
    so_far = ONE if model == "live" else ""  # one for recordings writes at the end
    assert decided(events) == [
        ("speech_started", ""),
        ("eager_end", so_far),
        ("resumed", ""),
        ("speech_stopped", ""),
        ("final", f"{ONE} {NEO}" if model == "live" else f"{ONE}{NEO}"),
    ]
    assert [event.segment for event in events] == [0] * len(events)
    eager, final = (next(event for event in events if event.kind == kind) for kind in ("eager_end", "final"))
    assert (eager.turn, final.turn) == (
        TurnEnd(trigger="classifier", probability=pytest.approx(SPOKEN_S, abs=0.02)),
        TurnEnd(trigger="classifier", probability=pytest.approx(2 * SPOKEN_S, abs=0.02)),
    )
    times = [event.time_s for event in events if event.kind in ("eager_end", "resumed", "final")]
    second_s = BEFORE_S + WORD_S + PAUSE_S
    assert times == pytest.approx([BEFORE_S + SPOKEN_S, second_s, second_s + SPOKEN_S], abs=0.02)
    partials = [event.transcript.text for event in events if event.kind == "partial" and event.transcript is not None]
    assert all(f"{ONE} {NEO}".startswith(text) for text in partials)
    assert model == "toy" or f"{ONE} {NEO}" in partials


def test_a_long_silence_ends_a_turn_whatever_the_classifier_says(gateway: Any, run: Any) -> None:
    audio = np.concatenate((whole_frames(ONE, 3), LONG, whole_frames(NEO, 3), LONG))
    events = run(events_of(gateway.gateway.speech, Ask(turns=TURNS, vad=VadOptions(model="talk")), audio))
    one = [("speech_started", ""), ("eager_end", ONE), ("speech_stopped", ""), ("final", ONE)]
    assert decided(events) == one + [(kind, text and NEO) for kind, text in one]
    ends = [event.turn for event in events if event.kind == "final"]
    assert [end.trigger for end in ends if end is not None] == ["silence"] * 2


def test_who_ends_the_stream_or_the_turn_needs_no_classifier(gateway: Any, run: Any) -> None:
    speech, audio = gateway.gateway.speech, np.concatenate((whole_frames(ONE, 3), PAUSE))
    events = run(events_of(speech, Ask(turns=TURNS), audio))
    assert decided(events)[-2:] == [("speech_stopped", ""), ("final", ONE)]
    assert events[-1].turn == TurnEnd(trigger="client", probability=pytest.approx(SPOKEN_S, abs=0.02))
    pause = 13_000  # 0.8 s, when the pause is known
    events = run(events_of(speech, Ask(turns=TURNS), np.concatenate((audio, LONG)), commit_at=pause))
    assert [text for kind, text in decided(events) if kind == "final"] == [ONE]


@pytest.mark.parametrize(
    ("model", "part"), [("toy", "finds no ends of turns"), ("none", "no ready model"), ("", "no model")]
)
def test_a_model_that_finds_no_ends_of_turns_is_refused(gateway: Any, run: Any, model: str, part: str) -> None:
    with pytest.raises(GatewayRefusal, match=part):
        run(events_of(gateway.gateway.speech, Ask(turns=TurnOptions(model=model)), TALK))


# The protocols, at a gateway whose turns a classifier ends.


def pieces(audio: Any = TALK, step: int = 3200) -> list[bytes]:
    data = to_pcm(audio).tobytes()
    return [data[start : start + step] for start in range(0, len(data), step)]


def messages(gateway: GatewayServer, path: str, first: Any, last: Any, audio: Sequence[Any]) -> list[Any]:
    """All that a WebSocket answers."""
    with open_socket(f"ws://127.0.0.1:{gateway.port}{path}", open_timeout=TIMEOUT_S) as socket:
        for each in (*first, *audio, *last):
            socket.send(each)
        return [json.loads(each) if each[0] == "{" else each for each in socket]


def test_the_gateways_own_websocket_tells_all_of_it(turning: GatewayServer) -> None:
    start = {"type": "start", "turns": {"eager_threshold": 0.3}, "partials": False}
    found = messages(turning, "/v1/stream", [json.dumps(start)], [json.dumps({"type": "end"})], pieces())
    kinds = [each["type"] for each in found]
    assert kinds == ["ready", "speech_started", "eager_end", "resumed", "speech_stopped", "final", "end"]
    assert (found[2]["text"], found[5]["text"]) == (ONE, f"{ONE} {NEO}")
    assert found[5]["turn"] == {"trigger": "classifier", "probability": pytest.approx(2 * SPOKEN_S, abs=0.02)}


def test_openais_semantic_vad_is_the_classifier(turning: GatewayServer) -> None:
    address = f"127.0.0.1:{turning.port}/v1"
    form = {"type": "audio/pcm", "rate": SAMPLE_RATE}
    detection = {"type": "semantic_vad", "eagerness": "high"}
    session: Any = {"type": "transcription", "audio": {"input": {"format": form, "turn_detection": detection}}}
    found: list[Any] = []
    with (
        openai.OpenAI(base_url=f"http://{address}", websocket_base_url=f"ws://{address}", api_key="any") as client,
        client.realtime.connect(extra_query={"intent": "transcription"}) as connection,
    ):
        connection.recv()
        connection.session.update(session=session)
        updated = connection.recv().session
        assert updated.audio.input.turn_detection.model_dump(exclude_none=True) == detection
        assert not getattr(updated, "ignored", None)
        for each in pieces():
            connection.input_audio_buffer.append(audio=base64.b64encode(each).decode())
        while not found or not found[-1].type.endswith("completed"):
            found.append(connection.recv())
    assert [each.type.rpartition(".")[2] for each in found if not each.type.endswith("delta")] == [
        *("speech_started", "speech_stopped", "committed", "added", "done", "completed")
    ]
    assert found[-1].transcript == f"{ONE} {NEO}"


def deepgram(gateway: GatewayServer) -> DeepgramClient:
    address = f"127.0.0.1:{gateway.port}"
    environment = DeepgramClientEnvironment(
        base=f"http://{address}", production=f"ws://{address}", agent=f"ws://{address}", agent_rest=f"http://{address}"
    )
    return DeepgramClient(api_key="any", environment=environment)


def listened(socket: Any, say: Any) -> list[Any]:
    found: list[Any] = []
    socket.on(EventType.MESSAGE, found.append)
    listening = threading.Thread(target=socket.start_listening)
    listening.start()
    say(socket)
    socket.send_close_stream()
    listening.join(TIMEOUT_S)
    assert not listening.is_alive()
    return found


def spoken(socket: Any) -> None:
    for each in pieces():
        socket.send_media(each)


def test_deepgrams_first_protocol_has_one_final_result_for_a_turn(turning: GatewayServer) -> None:
    options: Any = {"encoding": "linear16", "sample_rate": SAMPLE_RATE, "vad_events": True}
    with deepgram(turning).listen.v1.connect(model="live", **options) as socket:
        started, result, _ = listened(socket, spoken)
    assert (started.type, result.speech_final) == ("SpeechStarted", True)
    assert result.channel.alternatives[0].transcript == f"{ONE} {NEO}"


def test_deepgrams_flux_tells_all_of_it(turning: GatewayServer) -> None:
    options: Any = {"encoding": "linear16", "sample_rate": SAMPLE_RATE, "eager_eot_threshold": 0.3}
    with deepgram(turning).listen.v2.connect(model="live", **options) as socket:
        found = listened(socket, spoken)
    assert found[0].type == "Connected"
    assert [each.sequence_id for each in found] == list(range(len(found)))
    assert len({each.request_id for each in found}) == 1
    turns = [each for each in found if each.type == "TurnInfo" and each.event != "Update"]
    assert [each.event for each in turns] == ["StartOfTurn", "EagerEndOfTurn", "TurnResumed", "EndOfTurn"]
    assert [each.transcript for each in turns] == ["", ONE, ONE, f"{ONE} {NEO}"]
    assert [each.end_of_turn_confidence for each in turns[1::2]] == pytest.approx([SPOKEN_S, 2 * SPOKEN_S], abs=0.02)
    assert [word.word for word in turns[-1].words] == [ONE, NEO]
    assert (turns[-1].trigger, turns[-1].turn_index) == ("model", 0)


def test_fluxs_thresholds_change_in_a_stream_and_turns_end_when_they_are_forced_to(turning: GatewayServer) -> None:
    def say(socket: Any) -> None:
        for each in pieces(np.concatenate((BEFORE, whole_frames(ONE, 3)))):
            socket.send_media(each)
        socket._send({"type": "Configure", "thresholds": {"eot_threshold": 0.3}})
        socket._send({"type": "Configure", "keyterms": ["one"]})
        socket._send({"type": "Configure", "thresholds": {"eot_threshold": 3}})
        for each in pieces(np.concatenate((PAUSE, whole_frames(NEO, 3)))):
            socket.send_media(each)
        socket._send({"type": "ForceEndTurn"})

    options: Any = {"encoding": "linear16", "sample_rate": SAMPLE_RATE}
    with deepgram(turning).listen.v2.connect(model="live", **options) as socket:
        found = listened(socket, say)
    configured = [each for each in found if each.type.startswith("Configure")]
    assert [each.type for each in configured] == ["ConfigureSuccess", "ConfigureFailure", "ConfigureFailure"]
    assert configured[0].thresholds.eot_threshold == 0.3
    ends = [each for each in found if each.type == "TurnInfo" and each.event == "EndOfTurn"]
    assert [(each.transcript, each.trigger, each.turn_index) for each in ends] == [
        (ONE, "model", 0),
        (NEO, "manual", 1),
    ]


@pytest.mark.parametrize(
    ("query", "message", "part"),
    [
        ("eot_threshold=nan", b"", "eot_threshold"),
        ("eot_timeout_ms=1e9", b"", "eot_timeout_ms"),
        ("redact=pci", b"", "redact"),
        ("model=none", b"", "none"),
        ("", '{"type": "Finalize"}', "ForceEndTurn"),
        ("", "no JSON", "JSON"),
    ],
)
def test_flux_says_why_a_stream_ends(turning: GatewayServer, query: str, message: str | bytes, part: str) -> None:
    path = f"/v2/listen?encoding=linear16&sample_rate={SAMPLE_RATE}&{query}"
    with open_socket(f"ws://127.0.0.1:{turning.port}{path}", open_timeout=TIMEOUT_S) as socket:
        if message:
            socket.send(message)
        found, _ = until_closed(socket)
    assert found[-1]["type"] == "Error"
    assert part in found[-1]["description"]


@pytest.mark.parametrize(
    "thresholds", ["no object", {"eot_threshold": [1]}, {"eot_threshold": "x"}, {"unknown": 1}, {"eot_timeout_ms": -1}]
)
def test_thresholds_that_cannot_be_used_change_nothing(turning: GatewayServer, thresholds: Any) -> None:
    sent = [json.dumps({"type": "Configure", "thresholds": thresholds}), json.dumps({"type": "CloseStream"})]
    found = messages(turning, f"/v2/listen?encoding=linear16&sample_rate={SAMPLE_RATE}", [], sent, [])
    assert [each["type"] for each in found] == ["Connected", "ConfigureFailure"]


def test_flux_warns_where_no_classifier_could_keep_to_its_thresholds(gateway: GatewayServer) -> None:
    options: Any = {"encoding": "linear16", "sample_rate": SAMPLE_RATE, "eot_threshold": 0.8}
    with deepgram(gateway).listen.v2.connect(model="live", **options) as socket:
        connected, warning, *rest = listened(socket, spoken)
    assert (connected.type, warning.type, warning.code) == ("Connected", "Warning", "NO_TURN_MODEL")
    assert [each.transcript for each in rest if each.event == "EndOfTurn"] == [ONE, NEO]  # by the recogniser's rules


def test_rivas_result_is_final_at_the_turns_end(turning: GatewayServer) -> None:
    service = riva.client.ASRService(riva.client.Auth(uri=f"127.0.0.1:{turning.ports['riva']}"))
    config = riva.client.RecognitionConfig(
        encoding=riva.client.AudioEncoding.LINEAR_PCM, sample_rate_hertz=SAMPLE_RATE, audio_channel_count=1
    )
    streaming = riva.client.StreamingRecognitionConfig(config=config, interim_results=False)
    answers = service.streaming_response_generator(pieces(), streaming)
    texts = [result.alternatives[0].transcript.strip() for answer in answers for result in answer.results]
    assert texts == [f"{ONE} {NEO}"]


def test_vosk_sherpa_and_wenet_write_finals_at_the_turns_end(turning: GatewayServer) -> None:
    found = messages(turning, "/vosk", [json.dumps({"config": {"sample_rate": SAMPLE_RATE}})], ['{"eof": 1}'], pieces())
    assert [each["text"] for each in found if each.get("text")] == [f"{ONE} {NEO}"]
    floats = [np.frombuffer(each, "<i2").astype("<f4").tobytes() for each in pieces()]
    floats = [(np.frombuffer(each, "<f4") / 32768).astype("<f4").tobytes() for each in floats]
    found = messages(turning, "/sherpa-onnx", [], ["Done"], floats)
    assert [each["text"] for each in found[:-1] if each["is_final"] and each["text"]] == [f"{ONE} {NEO}"]
    start, end = ({"signal": "start", "continuous_decoding": True}, {"signal": "end"})
    found = messages(turning, "/wenet", [json.dumps(start)], [json.dumps(end)], pieces())
    finals = [json.loads(each["nbest"])[0]["sentence"] for each in found if each.get("type") == "final_result"]
    assert [text for text in finals if text] == [f"{ONE} {NEO}"]


def test_home_assistant_is_told_of_the_voice(turning: GatewayServer) -> None:
    form: dict[str, Any] = {"rate": SAMPLE_RATE, "width": 2, "channels": 1}

    async def ask() -> list[Any]:
        found = []
        async with AsyncTcpClient("127.0.0.1", turning.ports["wyoming"]) as client:
            each: Any
            for each in (AudioStart(**form), *(AudioChunk(audio=part, **form) for part in pieces()), AudioStop()):
                await client.write_event(each.event())
            while (event := await client.read_event()) is not None:
                found.append(event)
                if event.type == "transcript-stop":
                    break
        return found

    events = asyncio.run(asyncio.wait_for(ask(), TIMEOUT_S))
    started, stopped = (
        next(each.from_event(event).timestamp for event in events if each.is_type(event.type))
        for each in (VoiceStarted, VoiceStopped)
    )
    assert (started, stopped) == pytest.approx(
        (1000 * BEFORE_S, 1000 * (BEFORE_S + WORD_S + PAUSE_S + SPOKEN_S)), abs=20
    )
    assert (
        next(Transcript.from_event(event).text for event in events if Transcript.is_type(event.type)) == f"{ONE} {NEO}"
    )
