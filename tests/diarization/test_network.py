"""Models that tell speakers apart themselves: recordings, streams, and words as both grow."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from tritone.activity import SpeechActivity, SpeechSegment
from tritone.diarization import NetworkDiarizer, SpeakerWords, TurnsSoFar
from tritone.errors import RetryError
from tritone.transcript import Span, Transcript

RATE = 1000
SECOND = np.zeros(RATE, np.float32)
ANNA, BEN = SpeechSegment(0.0, 2.0, "anna"), SpeechSegment(1.5, 4.0, "ben")


def answer(known_s: float, *ended: SpeechSegment, speaking: Iterable[SpeechSegment] = ()) -> SpeechActivity:
    return SpeechActivity(ended, known_s + 1, 0.01, is_final=False, speaking=tuple(speaking), known_s=known_s)


def text(*words: tuple[float, float]) -> Transcript:
    spans = tuple(Span(f"w{start_s:g}", start_s, end_s, 1.0) for start_s, end_s in words)
    return Transcript(text=" ".join(each.text for each in spans), words=spans)


class Scripted:
    """A stream with answers that are known; it may fail when it is closed."""

    def __init__(self, answers: Iterable[object], broken: bool = False) -> None:
        self.answers, self.broken = list(answers), broken
        self.heard: list[np.ndarray] = []
        self.closed = 0

    def accept(self, samples: np.ndarray) -> object:
        self.heard.append(samples)
        return self.answers.pop(0)

    def finish(self) -> object:
        return self.answers.pop(0)

    def close(self) -> None:
        self.closed += 1
        if self.broken:
            raise RetryError("gone")


def speakers_of(found: Transcript) -> list[str]:
    return [each.speaker for each in found.words]


def test_words_get_the_speakers_that_are_known_and_lose_guesses_as_more_is() -> None:
    first, second, third = (0.2, 0.6), (1.6, 2.2), (3.0, 3.4)
    texts = Scripted([text(first), text(first, second), text(first, second, third), text(first, second, third)])
    speakers = Scripted(
        [
            answer(0.0),
            answer(1.0, speaking=[SpeechSegment(0.0, 1.0, "anna")]),  # the next word is of who spoke last
            answer(2.5, ANNA, speaking=[SpeechSegment(1.5, 2.5, "ben")]),
            answer(4.0, BEN),
        ]
    )
    with SpeakerWords(texts, speakers) as stream:  # type: ignore[arg-type]
        assert speakers_of(stream.accept(SECOND)) == [""]
        assert speakers_of(stream.accept((SECOND * 32767).astype(np.int16))) == ["anna", "anna"]
        assert speakers_of(stream.accept(SECOND)) == ["anna", "ben", "ben"]
        assert speakers_of(stream.finish()) == ["anna", "ben", "ben"]
        assert stream.turns.known_s == 4.0
    assert [each.dtype.kind for each in speakers.heard] == ["f", "f", "f"]
    assert (texts.closed, speakers.closed) == (1, 1)


def test_both_streams_are_closed_even_if_one_fails() -> None:
    texts, speakers = Scripted([], broken=True), Scripted([])
    with pytest.raises(RetryError):
        SpeakerWords(texts, speakers).close()  # type: ignore[arg-type]
    assert speakers.closed == 1


def test_turns_of_long_ago_are_forgotten() -> None:
    turns = TurnsSoFar()
    for start in range(0, 8000, 100):
        turns.add(answer(start + 50.0, SpeechSegment(start, start + 40.0, "anna")))
    assert turns.turns[0].start_s == 4400.0
    assert turns.turns[-1].end_s == 7940.0


def test_a_recording_has_turns_that_overlap_and_what_each_speaker_said(tmp_path: Path) -> None:
    asked: list[object] = []

    def recordings(source: object) -> SpeechActivity:
        asked.append(source)
        return SpeechActivity((BEN, ANNA), 5.0, 0.01, known_s=5.0)

    diarizer = NetworkDiarizer(recordings, None, sample_rate=RATE)
    name = str(tmp_path / "call.wav")
    found = diarizer.diarize(name, speech=[SpeechSegment(0, 1)])
    assert [(each.recording, each.start_s, each.speaker) for each in found.turns] == [
        (name, 0.0, "anna"),
        (name, 1.5, "ben"),
    ]
    assert [(each.label, each.speech_s) for each in found.speakers] == [("anna", 2.0), ("ben", 2.5)]
    assert found.audio_s == 5.0
    diarizer.diarize(np.zeros(4 * RATE, np.float32), 2 * RATE)
    assert asked[0] == name
    assert len(asked[1]) == 2 * RATE  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="for whole recordings; use diarize"):
        next(diarizer.play(SECOND))


def test_a_stream_yields_turns_as_they_end() -> None:
    stream = Scripted([answer(3.0, ANNA), answer(5.0, BEN)])
    diarizer = NetworkDiarizer(None, lambda rate: stream, sample_rate=RATE)  # type: ignore[arg-type, return-value]
    assert [each.speaker for each in diarizer.play(SECOND, recording="call")] == ["anna", "ben"]
    assert stream.closed == 1
    with pytest.raises(ValueError, match="for streams; use play"):
        diarizer.diarize(SECOND)
