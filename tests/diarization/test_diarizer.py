"""Diarization of audio whose voices are known: the levels of the toy speaker model, computed without a network."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import soundfile

from toy_speaker import SAMPLE_RATE, toy_embedding, toy_voice
from tritone.activity import SpeechSegment
from tritone.diarization import Diarizer, SpeakerOptions
from tritone.errors import InputError
from tritone.formats.rttm import Turn

Waveform = npt.NDArray[np.float32]
VOICES = {"anna": [0, 1, 1], "ben": [0, 0, 0, 1, 1], "carl": [0, 0, 0, 0, 0, 1, 1]}  # shares of the toy's levels
PARTS = [(0.5, 3.0, "anna"), (3.6, 5.6, "ben"), (6.2, 6.4, "ben"), (7.0, 9.0, "anna"), (9.6, 12.0, "carl")]


def embed(waveforms: Sequence[Waveform]) -> Waveform:
    return np.stack([toy_embedding(each) for each in waveforms])


def recording() -> Waveform:
    audio = np.zeros(round(12.5 * SAMPLE_RATE), np.float32)
    for number, (start_s, end_s, name) in enumerate(PARTS):
        first, behind = round(start_s * SAMPLE_RATE), round(end_s * SAMPLE_RATE)
        audio[first:behind] = toy_voice(VOICES[name], behind - first, seed=number)
    return audio


def spans(turns: Sequence[Turn]) -> list[tuple[float, float, str]]:
    return [(round(each.start_s, 2), round(each.end_s, 2), each.speaker) for each in turns]


def expected(padding_s: float, **names: str) -> list[tuple[float, float, str]]:
    return [(round(a - padding_s, 2), round(b + padding_s, 2), names[name]) for a, b, name in PARTS]


BY_NUMBER = {"anna": "speaker1", "ben": "speaker2", "carl": "speaker3"}


def test_speakers_are_found_in_files_and_arrays_alike(tmp_path: Path) -> None:
    path = tmp_path / "meeting.wav"
    soundfile.write(path, recording(), SAMPLE_RATE, subtype="FLOAT")
    diarizer = Diarizer(embed, sample_rate=SAMPLE_RATE)
    found = diarizer.diarize(path)
    assert spans(found.turns) == expected(0.05, **BY_NUMBER)
    assert {each.recording for each in found.turns} == {str(path)}
    assert [(each.label, round(each.speech_s, 2)) for each in found.speakers] == [
        *(("speaker1", 4.7), ("speaker2", 2.4), ("speaker3", 2.5))
    ]
    assert found.audio_s == 12.5
    again = diarizer.diarize(recording(), recording="meeting")
    assert spans(again.turns) == spans(found.turns)
    assert again.to_dict()["turns"][0] == {"start_s": 0.45, "end_s": 3.05, "speaker": "speaker1"}
    assert again.to_dict()["speakers"][1] == {"speaker": "speaker2", "speech_s": 2.4}


def test_speech_that_is_told_is_taken_as_it_is() -> None:
    speech = [SpeechSegment(start_s, end_s) for start_s, end_s, _ in PARTS]
    found = Diarizer(embed, sample_rate=SAMPLE_RATE).diarize(recording(), speech=speech)
    assert spans(found.turns) == expected(0, **BY_NUMBER)


def test_known_voices_get_their_names_and_nobody_gets_two() -> None:
    enrolled = {"ben": toy_embedding(toy_voice(VOICES["ben"])), "speaker1": np.eye(8, dtype=np.float32)[7]}
    diarizer = Diarizer(embed, sample_rate=SAMPLE_RATE, enrolled=enrolled, enrolled_cosine=0.8)
    found = diarizer.diarize(recording())
    assert spans(found.turns) == expected(0.05, anna="speaker2", ben="ben", carl="speaker3")
    assert [None if each.name is None else each.name.name for each in found.speakers] == [None, "ben", None]
    assert found.to_dict()["speakers"][1]["similarity"] > 0.95
    with pytest.raises(ValueError, match="enrolled voices need enrolled_cosine"):
        Diarizer(embed, sample_rate=SAMPLE_RATE, enrolled=enrolled)
    other = Diarizer(embed, sample_rate=SAMPLE_RATE, enrolled={"ben": np.ones(3, np.float32)}, enrolled_cosine=0.8)
    with pytest.raises(InputError, match="enrolled voices have 3 values, those of the recording 8"):
        other.diarize(recording())


@pytest.mark.parametrize("step", [400, 16000, 10**9])
def test_a_stream_labels_speakers_as_it_goes_on(step: int) -> None:
    audio = recording()
    with Diarizer(embed, sample_rate=SAMPLE_RATE).stream("live") as stream:
        turns = [each for start in range(0, len(audio), step) for each in stream.accept(audio[start : start + step])]
        turns += stream.finish()
    assert spans(turns) == expected(0.05, **BY_NUMBER)
    assert stream.speakers.labels == ("speaker1", "speaker2", "speaker3")


def test_a_speaker_is_told_within_a_second_while_the_segment_goes_on() -> None:
    audio, step, live = recording(), SAMPLE_RATE // 10, {}
    embedded: list[bytes] = []

    def counted(waveforms: Sequence[Waveform]) -> Waveform:
        embedded.extend(each.tobytes() for each in waveforms)
        return embed(waveforms)

    with Diarizer(counted, sample_rate=SAMPLE_RATE).stream("live") as stream:
        turns = []
        for start in range(0, len(audio), step):
            turns += stream.accept(audio[start : start + step])
            live[round((start + step) / SAMPLE_RATE, 1)] = stream.under_way
        turns += stream.finish()
        assert stream.under_way == []
    assert spans(turns) == expected(0.05, **BY_NUMBER)  # as without looking
    for start_s, end_s, name in PARTS:
        if end_s - start_s > 1:
            for at in np.arange(start_s + 1, end_s, 0.1):
                (turn,) = live[round(float(at), 1)]
                assert (turn.speaker, round(turn.start_s, 2)) == (BY_NUMBER[name], round(start_s - 0.05, 2))
                assert at - turn.end_s <= 0.2 + 1e-6
    assert live[0.4] == live[3.5] == []  # nobody
    assert len(set(embedded)) == len(embedded)  # nothing twice


def test_a_stream_cannot_know_the_number_of_speakers() -> None:
    diarizer = Diarizer(embed, sample_rate=SAMPLE_RATE, options=SpeakerOptions(num_speakers=2))
    with pytest.raises(InputError, match="num_speakers and min_speakers are for whole recordings"):
        diarizer.stream()


def test_silence_and_speech_too_short_for_a_voice_are_no_errors() -> None:
    diarizer = Diarizer(embed, sample_rate=SAMPLE_RATE)
    assert diarizer.diarize(np.zeros(SAMPLE_RATE, np.float32)).turns == ()
    click = np.zeros(SAMPLE_RATE, np.float32)
    click[4000:6000] = toy_voice(VOICES["anna"], 2000)
    assert [each.speaker for each in diarizer.diarize(click).turns] == ["speaker1"]


def test_an_embedding_that_is_not_finite_is_an_error_with_its_time() -> None:
    diarizer = Diarizer(lambda waveforms: np.full((len(waveforms), 8), np.nan, np.float32), sample_rate=SAMPLE_RATE)
    with pytest.raises(InputError, match=r"the embedding of 0\.45 to 1\.95 s is not finite"):
        diarizer.diarize(recording())
