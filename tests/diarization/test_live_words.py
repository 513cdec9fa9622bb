"""Words of streams get speakers by their voices, as the text grows."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tritone.audio.waveform import Waveform
from tritone.diarization import SpeakerOptions, VoiceWords
from tritone.transcript import Span, Transcript

RATE = 1000
ANNA, BEN = 0.2, 0.6  # levels, which are voices to `Voices`


class Voices:
    """A speaker model: the voice of a waveform is its mean level, as a direction. Counts what it gets."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def __call__(self, waveforms: Sequence[Waveform]) -> Any:
        self.seconds += [len(each) / RATE for each in waveforms]
        angles = np.array([np.pi * each.mean() for each in waveforms])
        return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


class Script:
    """A recogniser: after each second of audio one of the answers that are given."""

    def __init__(self, answers: Iterable[Transcript]) -> None:
        self.answers = list(answers)
        self.closed = 0

    def accept(self, samples: Any) -> Transcript:
        return self.answers.pop(0)

    def finish(self) -> Transcript:
        return replace(self.answers.pop(0), is_final=True)

    def close(self) -> None:
        self.closed += 1


def text(*words: tuple[float, float], ended: Sequence[Transcript] = ()) -> Transcript:
    spans = tuple(Span(f"w{start_s:g}", start_s, end_s, 1.0) for start_s, end_s in words)
    return Transcript(text=" ".join(each.text for each in spans), words=spans, is_final=False, ended=tuple(ended))


def seconds(*levels: float) -> list[Waveform]:
    return [np.full(RATE, level, np.float32) for level in levels]


def speakers_of(found: Transcript) -> list[str]:
    return [each.speaker for each in found.words]


def played(stream: VoiceWords, audio: Iterable[Waveform]) -> list[Transcript]:
    with stream:
        return [*map(stream.accept, audio), stream.finish()]


def test_growing_texts_have_speakers_and_the_last_one_has_all() -> None:
    anna, ben = [(0.1, 0.5), (0.5, 0.9), (1.2, 1.8)], [(3.1, 3.4), (3.5, 3.9), (4.2, 4.8)]
    texts = [anna[:2], anna, anna, [*anna, *ben[:2]], [*anna, *ben], [*anna, *ben]]
    script = Script(text(*each) for each in texts)
    voices = Voices()
    found = played(VoiceWords(script, voices, sample_rate=RATE), seconds(ANNA, ANNA, 0.0, BEN, BEN))
    one, two = "speaker1", "speaker2"
    assert [speakers_of(each) for each in found] == [
        *([one] * 2, [one] * 3, [one] * 3),
        *([one] * 3 + [two] * 2, [one] * 3 + [two] * 3, [one] * 3 + [two] * 3),
    ]
    assert [each.text for each in found] == [text(*each).text for each in texts]
    # 0 to 1 s, 0 to 1.5 and 0.4 to 1.9 s; 3 to 4 s, 3 to 4.5 and 3.4 to 4.9 s: nothing twice.
    assert np.allclose(voices.seconds, [1.0, 1.5, 1.5, 1.0, 1.5, 1.5])
    assert script.closed == 1


def test_a_guess_of_a_growing_text_leaves_no_speaker_behind() -> None:
    # At first the recogniser takes noise for a word, then it thinks better of it.
    script = Script([text((0.2, 0.9)), text(), text((2.1, 2.9)), text((2.1, 2.9))])
    stream = VoiceWords(script, Voices(), sample_rate=RATE)
    first, nothing, *rest = played(stream, seconds(0.9, 0.0, ANNA))
    assert speakers_of(first) == ["speaker1"]
    assert nothing.words == ()
    assert [speakers_of(each) for each in rest] == [["speaker1"], ["speaker1"]]


def test_segments_that_ended_keep_their_speakers_and_the_next_one_knows_them() -> None:
    first, second, third = text((0.1, 0.9)), text((1.1, 1.9)), text((2.1, 2.9))
    script = Script([first, text(ended=[first]), text((2.1, 2.9), ended=[second]), third])
    stream = VoiceWords(script, Voices(), sample_rate=RATE)
    found = played(stream, seconds(ANNA, BEN, ANNA))
    assert [[speakers_of(each) for each in one.ended] for one in found] == [[], [["speaker1"]], [["speaker2"]], []]
    assert speakers_of(found[-1]) == ["speaker1"]


def test_of_a_long_segment_every_window_is_embedded_once_and_old_words_keep_their_speakers() -> None:
    length = 90
    words = [(second + 0.1, second + 0.9) for second in range(length)]
    levels = [ANNA if second < 50 else BEN for second in range(length)]
    script = Script([*(text(*words[: second + 1]) for second in range(length)), text(*words)])
    voices = Voices()
    found = played(VoiceWords(script, voices, sample_rate=RATE), seconds(*levels))
    labels = speakers_of(found[-1])
    assert (labels[:50], labels[51:]) == (["speaker1"] * 50, ["speaker2"] * 39)  # windows are of both at the border
    # A window every 0.75 s, and one that ends with each of the texts.
    assert len(voices.seconds) < length / 0.75 + length


def test_audio_of_another_rate_and_the_most_speakers() -> None:
    script = Script([text((0.1, 0.9)), text((0.1, 0.9), (1.5, 1.9)), text((0.1, 0.9), (1.5, 1.9))])
    voices = Voices()
    stream = VoiceWords(script, voices, sample_rate=RATE, audio_rate=2 * RATE, options=SpeakerOptions(max_speakers=1))
    found = played(stream, [np.repeat(each, 2) for each in seconds(ANNA, BEN)])
    assert speakers_of(found[-1]) == ["speaker1", "speaker1"]
    assert max(voices.seconds) <= 1.5


def test_enrolled_voices_have_their_names() -> None:
    script = Script([text((0.1, 0.9)), text((0.1, 0.9))])
    enrolled = {"anna": Voices()(seconds(ANNA))[0]}
    stream = VoiceWords(script, Voices(), sample_rate=RATE, enrolled=enrolled, enrolled_cosine=0.9)
    assert [speakers_of(each) for each in played(stream, seconds(ANNA))] == [["anna"], ["anna"]]


@pytest.mark.parametrize("words", [(), ((0.1, 0.15),)])
def test_without_a_voice_nobody_is_named(words: tuple[tuple[float, float], ...]) -> None:
    stream = VoiceWords(Script([text(*words)] * 2), Voices(), sample_rate=RATE)
    assert played(stream, [np.zeros(100, np.float32)])[-1].words == text(*words).words
