"""What protocols ask of Triton: recordings and live streams, through a real Triton of toy models."""

import asyncio
import io
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import soundfile

from gateway_streams import CALLER, NEO, ONE, events_of, whole_frames
from toy import FRAME, SAMPLE_RATE, toy_waveform
from tritone.client.models import ModelInfo
from tritone.errors import AudioError, InputError
from tritone.gateway.accounts import Account, CallerLimits
from tritone.gateway.ask import language_parameters
from tritone.gateway.callers import Caller
from tritone.gateway.options import GatewayOptions
from tritone.gateway.refusal import GatewayRefusal
from tritone.gateway.speech import Ask, Event, Speech, VadOptions
from tritone.texts import TextOptions
from tritone.transcript import Transcript

TOLD = ModelInfo(name="told", kind="streaming", languages=("auto", "en-US", "en-GB", "de-DE"))
WHISPER = ModelInfo(name="w", kind="offline", has_prompt=True, finds_language=True, languages=("en", "de", "zh"))
CANARY = ModelInfo(name="c", kind="offline", decodes=True, languages=("en", "de"))
PAUSE = np.zeros(SAMPLE_RATE, np.float32)


@pytest.mark.parametrize(
    ("model", "language", "allowed", "told"),
    [
        (TOLD, "de", (), {"language": "de-DE"}),
        (TOLD, "EN-gb", (), {"language": "en-GB"}),
        (TOLD, "en", (), {"language": "en-US"}),
        (TOLD, "de_AT", (), {"language": "de-DE"}),
        (TOLD, "multi", (), {"language": "auto"}),
        (CANARY, "de-AT", (), {"language": "de"}),
        (WHISPER, "auto", ("de",), {"allowed_languages": "de"}),
        (TOLD, "", ("de",), {"language": "de-DE"}),
        (WHISPER, "de-AT", (), {"language": "de"}),
        (WHISPER, "", ("en-US", "de", "en"), {"allowed_languages": "en,de"}),
        (ModelInfo(name="one", kind="offline"), "de", (), {}),
    ],
)
def test_a_language_is_told_as_the_model_calls_it(
    model: ModelInfo, language: str, allowed: Sequence[str], told: dict[str, str]
) -> None:
    assert language_parameters(model, language, allowed) == told


@pytest.mark.parametrize(
    ("model", "language", "allowed", "why"),
    [
        (TOLD, "xx", (), "'told' knows no language 'xx'; it knows en-US, en-GB, de-DE"),
        (WHISPER, "", ("de", "nl-NL"), "'w' knows no language 'nl-NL'; it knows en, de, zh"),
        (CANARY, "auto", (), "'c' does not detect languages; name one of en, de"),
    ],
)
def test_a_language_that_a_model_does_not_know_is_refused_with_those_it_knows(
    model: ModelInfo, language: str, allowed: Sequence[str], why: str
) -> None:
    with pytest.raises(InputError, match=why):
        language_parameters(model, language, allowed)


@pytest.mark.parametrize("model", [TOLD, ModelInfo(name="one", kind="offline")])
def test_several_languages_are_refused_by_a_model_that_detects_none(model: ModelInfo) -> None:
    with pytest.raises(InputError, match="does not detect languages"):
        language_parameters(model, "", ("de", "en"))


def wav(samples: Any, rate: int = SAMPLE_RATE) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format="WAV", subtype="FLOAT")
    return file.getvalue()


def texts(events: Sequence[Event], kind: str = "final") -> list[str]:
    return [event.transcript.text for event in events if event.kind == kind]


def test_a_recording_is_transcribed_with_times(gateway: Any, run: Any) -> None:
    found = run(gateway.gateway.speech.transcribe(wav(toy_waveform("hello world")), Ask(model="toy"), CALLER))
    assert found.text == "hello world"
    assert [word.text for word in found.words] == ["hello", "world"]
    assert found.words[0].start_s < found.words[0].end_s <= found.words[1].start_s


def test_a_long_recording_is_transcribed_in_parts_with_times_of_the_whole(gateway: Any, run: Any) -> None:
    words = [ONE, NEO] * 8
    audio = wav(np.concatenate([np.concatenate((whole_frames(word), PAUSE)) for word in words]))
    speech = gateway.gateway.speech
    caller = Caller(account=Account("a", CallerLimits(audio_s_per_hour=1000)))
    whole = run(speech.transcribe(audio, Ask(model="toy"), caller))
    # The toy model writes no space for a pause, but pieces are joined by one.
    assert whole.text.replace(" ", "") == "".join(words)
    assert whole.tokens[-1].start_s == pytest.approx(15 * 1.12 + 2 * 0.04, abs=0.05)

    async def parts() -> list[Any]:
        return [part async for part in speech.parts(audio, Ask(model="toy"), caller)]

    found = run(parts())
    assert len(found) > 1
    assert " ".join(part.text for part in found) == whole.text
    with pytest.raises(GatewayRefusal, match="1000 s of audio an hour"):
        caller.count_audio(1000 - 2 * whole.audio_s + 1)
    caller.count_audio(1000 - 2 * whole.audio_s - 1)


def test_models_are_those_that_write_text(gateway: Any, run: Any) -> None:
    assert [model.name for model in run(gateway.gateway.speech.models())] == ["live", "toy"]


def test_a_model_that_is_not_served_is_told(gateway: Any, run: Any) -> None:
    with pytest.raises(GatewayRefusal, match="no ready model 'nobody'") as caught:
        run(gateway.gateway.speech.transcribe(wav(PAUSE), Ask(model="nobody"), CALLER))
    assert (caught.value.status, caught.value.code) == (404, "model_not_found")
    assert "grpc://" not in str(caught.value)


def test_a_stream_has_partial_texts_and_a_final_one(gateway: Any, run: Any) -> None:
    events = run(events_of(gateway.gateway.speech, Ask(), toy_waveform("hello", 4)))
    assert texts(events) == ["hello"]
    partial = texts(events, "partial")
    assert partial
    assert all("hello".startswith(text) for text in partial)
    assert events[0].kind == "speech_started"
    assert {event.segment for event in events} == {0}


def test_the_recognisers_rules_end_segments_with_times_of_the_whole_stream(gateway: Any, run: Any) -> None:
    audio = np.concatenate((whole_frames(ONE), PAUSE, whole_frames(NEO), PAUSE))
    events = run(events_of(gateway.gateway.speech, Ask(), audio))
    finals = [event for event in events if event.kind == "final"]
    assert texts(events) == [ONE, NEO]
    assert [event.segment for event in finals] == [0, 1]
    assert [event.kind for event in events if "speech" in event.kind] == ["speech_started", "speech_stopped"] * 2
    assert finals[1].transcript.words[0].start_s > 1


def test_a_segment_ends_when_the_client_says_so(gateway: Any, run: Any) -> None:
    first = np.concatenate((whole_frames("one", 4), np.zeros(FRAME, np.float32)))
    audio, at = np.concatenate((first, toy_waveform("two", 4))), len(first)
    events = run(events_of(gateway.gateway.speech, Ask(), audio, piece=FRAME, commit_at=at))
    finals = [event for event in events if event.kind == "final"]
    assert texts(events) == ["one", "two"]
    assert finals[1].transcript.words[0].start_s == pytest.approx(at / SAMPLE_RATE, abs=0.05)
    assert finals[1].transcript.audio_s == pytest.approx(len(audio) / SAMPLE_RATE, abs=0.01)


def test_a_voice_activity_model_begins_and_ends_segments(gateway: Any, run: Any) -> None:
    speech = [whole_frames(word, 3) for word in (ONE, NEO)]
    quiet = np.zeros(SAMPLE_RATE // 2, np.float32)
    audio = np.concatenate((PAUSE, speech[0], quiet, speech[1], quiet))
    events = run(events_of(gateway.gateway.speech, Ask(vad=VadOptions()), audio))
    assert [event.kind for event in events if event.kind != "partial"] == [
        *("speech_started", "speech_stopped", "final"),
        *("speech_started", "speech_stopped", "final"),
    ]
    started = [event.time_s for event in events if event.kind == "speech_started"]
    second = 1.5 + len(speech[0]) / SAMPLE_RATE
    assert started == pytest.approx([1.0, second], abs=0.011)
    words = [event.transcript.words[0].start_s for event in events if event.kind == "final"]
    assert words == pytest.approx([1.0, second], abs=0.2)


def test_a_model_for_recordings_writes_each_utterance_that_voice_activity_ends(gateway: Any, run: Any) -> None:
    speech = [whole_frames(word, 3) for word in (ONE, NEO)]
    quiet = np.zeros(SAMPLE_RATE // 2, np.float32)
    audio = np.concatenate((PAUSE, speech[0], quiet, speech[1], quiet))
    events = run(events_of(gateway.gateway.speech, Ask(model="toy", vad=VadOptions(prefix_s=0)), audio))
    assert [event.kind for event in events] == ["speech_started", "speech_stopped", "final"] * 2
    first, second = (event.transcript for event in events if event.kind == "final")
    assert (first.text, second.text) == (said_text(gateway, run, speech[0]), said_text(gateway, run, speech[1]))
    begins = 1.5 + len(speech[0]) / SAMPLE_RATE
    assert [first.words[0].start_s, second.words[0].start_s] == pytest.approx([1.0, begins], abs=0.2)


def said_text(gateway: Any, run: Any, audio: Any) -> str:
    """What the model for recordings writes of an utterance alone."""
    text: str = run(gateway.gateway.speech.transcribe(wav(audio), Ask(model="toy"), CALLER)).text
    return text


def test_a_model_for_recordings_writes_what_a_client_commits(gateway: Any, run: Any) -> None:
    audio = np.concatenate((toy_waveform("hello"), toy_waveform("world")))
    events = run(events_of(gateway.gateway.speech, Ask(model="toy"), audio, commit_at=len(toy_waveform("hello"))))
    assert texts(events, "partial") == []
    assert texts(events) == ["hello", "world"]


def test_a_second_model_writes_the_final_text(gateway: Any, run: Any) -> None:
    audio = np.concatenate((whole_frames(ONE), PAUSE, whole_frames(NEO), PAUSE))
    events = run(events_of(gateway.gateway.speech, Ask(final_model="toy"), audio))
    assert texts(events) == [ONE, NEO]
    assert [event.transcript.words[0].start_s > 1 for event in events if event.kind == "final"] == [False, True]


def test_texts_are_written_as_asked_for_partial_ones_too(gateway: Any, run: Any) -> None:
    ask = Ask(model="toy", texts=TextOptions(profanity="mask", profane_words="one"))
    assert run(gateway.gateway.speech.transcribe(wav(toy_waveform("one two")), ask, CALLER)).text == "o** two"
    events = run(events_of(gateway.gateway.speech, replace(ask, model=""), toy_waveform("one two", 4)))
    assert texts(events) == ["o** two"]
    assert {"o**"} <= set(texts(events, "partial"))


def test_silence_has_one_final_event_without_text(gateway: Any, run: Any) -> None:
    for ask in (Ask(), Ask(vad=VadOptions())):
        events = run(events_of(gateway.gateway.speech, ask, PAUSE))
        assert [(event.kind, event.transcript.text) for event in events] == [("final", "")]


def test_streams_are_given_back(gateway: Any, run: Any) -> None:
    async def vanish() -> int:
        speech = gateway.gateway.speech
        with suppress(ConnectionError):
            async with await speech.open(Ask(), SAMPLE_RATE, CALLER) as live:
                await live.accept(toy_waveform("hello"))
                raise ConnectionError("the client is gone")
        return int(speech.open_streams)

    assert run(vanish()) == 0


def test_a_length_that_a_header_claims_is_refused_before_any_work(
    gateway: Any, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    speech = gateway.gateway.speech
    heard: list[float] = []
    monkeypatch.setattr(speech, "count_audio", lambda audio_s, *_: heard.append(audio_s))
    file = io.BytesIO()
    soundfile.write(file, np.zeros(20 * SAMPLE_RATE, np.int16), SAMPLE_RATE, format="FLAC")
    flac = bytearray(file.getvalue())
    samples = 30 * 3600 * SAMPLE_RATE  # its lowest 36 bits of a word of STREAMINFO
    word = int.from_bytes(flac[18:26], "big") >> 36 << 36 | samples
    flac[18:26] = word.to_bytes(8, "big")
    with pytest.raises(AudioError, match="more than 14400 s"):
        run(speech.transcribe(bytes(flac), Ask(model="toy"), CALLER))
    assert heard == []


def test_nothing_more_is_recognised_for_a_client_that_is_gone(gateway: Any, run: Any) -> None:
    speech = gateway.gateway.speech
    audio = wav(np.concatenate([np.concatenate((whole_frames(word), PAUSE)) for word in [ONE, NEO] * 40]))
    seconds: list[float] = []

    async def leave() -> int:
        parts = speech.parts(audio, Ask(model="toy"), CALLER)
        async for part in parts:
            seconds.append(part.audio_s)
            break
        task = asyncio.ensure_future(anext(parts))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await parts.aclose()
        return len([each for each in asyncio.all_tasks() if "_once" in repr(each)])

    assert run(leave()) == 0
    assert len(seconds) == 1


@pytest.mark.parametrize(
    ("served", "chosen"),
    [
        ({"w": "offline", "w-streaming": "streaming"}, "w-streaming"),
        ({"w": "offline"}, "w"),
        ({"other": "offline", "other-streaming": "streaming"}, "other"),
    ],
)
def test_the_streams_of_a_whisper_model_stand_for_it_where_they_are_served(served: Any, chosen: str) -> None:
    class Served:
        async def model(self, name: str, *, kind: str) -> ModelInfo:
            if served.get(name) != kind:
                raise InputError("there is no such model")
            return ModelInfo(name=name, kind=kind, has_prompt=name.startswith("w"))  # type: ignore[arg-type]

    speech = Speech(Served(), GatewayOptions(), None)  # type: ignore[arg-type]
    assert asyncio.run(speech.live_model(next(iter(served)))).name == chosen


def test_a_punctuation_model_writes_final_texts_of_who_asks_for_marks() -> None:
    asked = Ask(texts=TextOptions(numbers=True, punctuate=True))
    spoken = Transcript("it costs five dollars and twenty cents")

    def marked(found: Transcript) -> Transcript:
        return replace(found, text=f"<{found.text}>")

    speech = Speech(None, GatewayOptions(punctuation=marked), None)  # type: ignore[arg-type]
    assert asyncio.run(speech.written(spoken, asked.texts)).text == "<it costs $5.20>"
    assert speech.so_far(replace(spoken, is_final=False), asked.texts).text == "it costs $5.20"
    assert asyncio.run(speech.written(spoken, Ask().texts)) == spoken
    rules = Speech(None, GatewayOptions(), None)  # type: ignore[arg-type]
    assert asyncio.run(rules.written(spoken, asked.texts)).text == "It costs $5.20."
