"""When an utterance of a live stream has ended, for protocols that say so: once, in silence, and after its text.

A scripted recogniser looks at its audio once a second, as Whisper does, and writes a word for each 0.25 s of sound.
"""

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tritone.activity import SpeechActivity, SpeechSegment
from tritone.audio.live import PlainSamples
from tritone.client.models import ModelInfo
from tritone.gateway.ask import Ask, Event
from tritone.gateway.live import Live
from tritone.gateway.protocols.deepgram.live import ListenConversation
from tritone.gateway.protocols.deepgram.request import ListenRequest
from tritone.texts import TextOptions
from tritone.transcript import Span, Transcript

RATE = 1000  # Hz
WORD = RATE // 4
LOOK_S, ENDPOINT_S = 1.0, 0.75


class Recogniser:
    """A leg; `endpoints`: whether silence ends its segments."""

    model = ModelInfo(name="scripted", kind="streaming", has_details=True)

    def __init__(self, *, endpoints: bool) -> None:
        self.endpoints = endpoints
        self.audio = np.zeros(0, np.int16)
        self.looked = 0
        self.begin = 0  # of the segment
        self.text = Transcript("", is_final=False)

    def look(self, *, final: bool = False) -> Transcript:
        whole = self.audio[: len(self.audio) // WORD * WORD].reshape(-1, WORD)
        words = tuple(
            Span(f"w{place}", place * WORD / RATE, (place + 1) * WORD / RATE, 0.5)
            for place, each in enumerate(whole)
            if each.any() and place * WORD >= self.begin
        )
        text = " ".join(each.text for each in words)
        return Transcript(text, words=words, confidence=0.5, audio_s=len(self.audio) / RATE, is_final=final)

    async def accept(self, samples: npt.NDArray[np.int16]) -> Transcript:
        self.audio = np.append(self.audio, samples)
        if self.endpoints and not self.audio[-round(ENDPOINT_S * RATE) :].any() and self.look().words:
            ended = self.look(final=True)
            self.begin = self.looked = len(self.audio)
            self.text = Transcript("", audio_s=len(self.audio) / RATE, is_final=False)
            return Transcript("", audio_s=len(self.audio) / RATE, is_final=False, ended=(ended,))
        if len(self.audio) - self.looked >= LOOK_S * RATE:
            self.looked, self.text = len(self.audio), self.look()
        return self.text

    async def finish(self) -> Transcript:
        return self.look(final=True)

    async def close(self) -> None:
        pass


class Detector:
    """Sound is speech; so much silence ends it."""

    def __init__(self, silence_s: float) -> None:
        self.silence = round(silence_s * RATE)
        self.position, self.since, self.sound = 0, -1, 0

    async def accept(self, samples: npt.NDArray[np.int16]) -> SpeechActivity:
        ended = []
        for each in samples:
            self.position += 1
            if each:
                self.since, self.sound = (self.position - 1 if self.since < 0 else self.since), self.position
            elif self.since >= 0 and self.position - self.sound >= self.silence:
                ended.append(SpeechSegment(self.since / RATE, self.sound / RATE))
                self.since = -1
        since_s = self.since / RATE if self.since >= 0 else None
        return SpeechActivity(tuple(ended), self.position / RATE, 1 / RATE, speaking_since_s=since_s, is_final=False)

    async def finish(self) -> SpeechActivity:
        ended = (SpeechSegment(self.since / RATE, self.position / RATE),) if self.since >= 0 else ()
        return SpeechActivity(ended, self.position / RATE, 1 / RATE)

    async def close(self) -> None:
        pass


class Scripted:
    """What a `Live` asks of `Speech`."""

    limits = SimpleNamespace(second_pass_s=1.0, max_stream_s=1e9)
    turns = None

    async def live_model(self, name: str) -> ModelInfo:
        return Recogniser.model

    async def open(self, ask: Ask, sample_rate: int, caller: Any) -> Live:
        live = Live(self, ask, sample_rate, caller)  # type: ignore[arg-type]
        await live.start()
        return live

    async def recognising(self, ask: Ask, sample_rate: int, caller: Any) -> Recogniser:
        return Recogniser(endpoints=ask.vad is None)

    async def detecting(self, vad: Any, sample_rate: int, caller: Any) -> Detector:
        return Detector(vad.parameters["min_silence_s"])

    def so_far(self, found: Transcript, texts: TextOptions) -> Transcript:
        return found

    async def written(self, found: Transcript, texts: TextOptions) -> Transcript:
        return found

    def count_audio(self, *_: Any) -> None:
        pass

    observe = count_audio


def sound(*seconds: float) -> npt.NDArray[np.int16]:
    """Sound and silence by turns, of so many seconds each."""
    return np.concatenate([np.full(round(each * RATE), 1 - place % 2, np.int16) for place, each in enumerate(seconds)])


def events_of(audio: npt.NDArray[np.int16], query: str, *, has_vad: bool, step: int = 50) -> list[dict[str, Any]]:
    """What a client of Deepgram's receives."""
    found: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        found.append(message)

    async def run() -> None:
        items = [tuple(each.split("=")) for each in query.split("&")]
        socket: Any = SimpleNamespace(send=send, caller=SimpleNamespace(protocol="deepgram"), items=items)
        gateway: Any = SimpleNamespace(speech=Scripted(), options=SimpleNamespace(vad_model="vad" if has_vad else ""))
        conversation = ListenConversation(gateway, socket)
        await conversation.begin()
        conversation.audio = PlainSamples("<i2", RATE)
        for start in range(0, len(audio), step):
            await conversation.take_audio(audio[start : start + step].tobytes())
        await conversation.finish()
        await conversation.close()

    asyncio.run(run())
    return found


def kinds(found: list[dict[str, Any]]) -> list[str]:
    """Their types; final results are "final", and partial ones are left out."""
    names = ["final" if each.get("is_final") else each["type"] for each in found]
    return [each for each in names if each not in ("Results", "Metadata")]


@pytest.mark.parametrize("step", [50, 700])
@pytest.mark.parametrize("more", ["", "&interim_results=true"])
def test_an_utterance_ends_once_after_silence_and_its_text(more: str, step: int) -> None:
    query = f"utterance_end_ms=1000&vad_events=true&endpointing=300{more}"
    found = events_of(sound(3.5, 2.5), query, has_vad=True, step=step)
    assert kinds(found) == ["SpeechStarted", "final", "UtteranceEnd"]
    assert found[-2]["last_word_end"] == 3.5


def test_speech_that_goes_on_before_the_silence_is_long_enough_is_of_the_same_utterance() -> None:
    found = events_of(sound(1.0, 0.75, 1.0, 2.0), "utterance_end_ms=1000&endpointing=300", has_vad=True)
    assert kinds(found) == ["final", "final", "UtteranceEnd"]
    assert found[-2]["last_word_end"] == pytest.approx(2.75, abs=0.25)


def test_two_utterances_have_two_ends() -> None:
    found = events_of(sound(1.0, 1.5, 1.0, 1.5), "utterance_end_ms=1000&endpointing=300", has_vad=True)
    assert kinds(found) == ["final", "UtteranceEnd", "final", "UtteranceEnd"]


def test_without_voice_activity_an_utterance_ends_after_its_final_text() -> None:
    query = "utterance_end_ms=1000&interim_results=true"
    found = events_of(sound(3.5, 2.5), query, has_vad=False)
    assert kinds(found) == ["final", "UtteranceEnd"]
    assert found[-2]["last_word_end"] == 3.5


def test_who_names_the_silence_after_utterances_alone_has_them_found_by_voice_activity() -> None:
    assert ListenRequest(utterance_end_ms=2000).ask(Recogniser.model, has_vad=True).vad is not None
    assert ListenRequest(utterance_end_ms=2000).ask(Recogniser.model).vad is None
    assert kinds(events_of(sound(2.0, 2.5), "utterance_end_ms=2000", has_vad=True)) == ["final", "UtteranceEnd"]


@pytest.mark.parametrize("has_vad", [True, False])
def test_words_of_results_lie_within_their_time(has_vad: bool) -> None:
    query = "utterance_end_ms=1000&endpointing=100&interim_results=true"
    found = events_of(sound(1.1, 0.4, 0.9, 1.3, 0.6, 1.2), query, has_vad=has_vad)
    results = [each for each in found if each["type"] == "Results"]
    assert sum(len(each["channel"]["alternatives"][0]["words"]) for each in results if each["is_final"]) > 6
    for each in results:
        end = each["start"] + each["duration"]
        words = each["channel"]["alternatives"][0]["words"]
        assert all(each["start"] <= word["start"] <= word["end"] <= end + 1e-6 for word in words)


def test_how_far_the_text_has_come_is_known_while_it_is_written() -> None:
    async def run() -> list[tuple[float, float]]:
        live = await Scripted().open(Ask(), RATE, SimpleNamespace(protocol="any"))
        found = []
        for start in range(0, 2500, 500):
            events: list[Event] = await live.accept(sound(2.5)[start : start + 500])
            found.append((live.received_s, live.written_s))
            assert all(each.kind in ("partial", "speech_started") for each in events)
        return found

    assert asyncio.run(run()) == [(0.5, 0.0), (1.0, 1.0), (1.5, 1.0), (2.0, 2.0), (2.5, 2.0)]
