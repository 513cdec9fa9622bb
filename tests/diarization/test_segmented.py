"""Speakers who talk at once, by a segmentation that is known; frames and turns are those of pyannote.audio's code."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from families.pyannote.upstream import FIELD_S, FRAME_S, PATH, segmentations, similarities
from toy_speaker import SAMPLE_RATE, toy_embedding, toy_voice
from tritone.activity import SpeechSegment
from tritone.diarization import Diarizer, SpeakerOptions, turns_of_activity
from tritone.diarization.activity import TurnRules
from tritone.diarization.segmented import (
    NOBODY,
    LocalSpeaker,
    SlidingWindows,
    assign,
    label_local,
    local_speakers,
    speaker_frames,
    talk_at_once,
)
from tritone.errors import InputError
from tritone.formats.rttm import Turn

Waveform = npt.NDArray[np.float32]
VOICES = {"anna": [0, 1, 1], "ben": [0, 0, 0, 1, 1], "carl": [0, 0, 0, 0, 0, 1, 1]}  # shares of the toy's levels
TRUTH = [
    *((1.0, 8.0, "anna"), (6.0, 13.0, "ben"), (14.0, 18.0, "carl"), (17.0, 22.0, "anna"), (23.0, 26.0, "ben")),
    (25.0, 27.5, "carl"),
]
AUDIO_S = 28.3


def recording() -> Waveform:
    """Of those who talk at once, the sum of their samples."""
    audio = np.zeros(round(AUDIO_S * SAMPLE_RATE), np.float32)
    for number, (start_s, end_s, name) in enumerate(TRUTH):
        first, behind = round(start_s * SAMPLE_RATE), round(end_s * SAMPLE_RATE)
        audio[first:behind] += toy_voice(VOICES[name], behind - first, seed=number)
    return audio


class Oracle:
    """A segmentation network that knows the truth: local speakers in the order in which they first talk in a window."""

    window_samples, frame_samples, field_samples = 10 * SAMPLE_RATE, 270, 991

    def __init__(self) -> None:
        self.windows = 0

    def segment(self, windows: Sequence[Waveform]) -> list[npt.NDArray[np.float32]]:
        found = []
        for _ in windows:
            frames = 589
            times = self.windows + (np.arange(frames) * 270 + 495) / SAMPLE_RATE
            self.windows += 1
            rows = {}
            for start_s, end_s, name in TRUTH:
                talks = (times >= start_s) & (times < end_s)
                if talks.any():
                    rows[name] = rows.get(name, False) | talks
            ordered = sorted(rows.values(), key=lambda row: int(np.argmax(row)))
            ordered += [np.zeros(frames, bool)] * (3 - len(ordered))
            found.append(np.stack(ordered[:3], axis=1).astype(np.float32))
        return found


def embed(waveforms: Sequence[Waveform]) -> Waveform:
    return np.stack([toy_embedding(each) for each in waveforms])


def rounded(turns: Sequence[Turn]) -> list[tuple[float, float, str]]:
    return [(round(each.start_s, 1), round(each.end_s, 1), each.speaker) for each in turns]


@pytest.mark.parametrize("number", [None, 3])
def test_speech_of_two_at_once_is_given_to_both(number: int | None) -> None:
    options = SpeakerOptions(num_speakers=number)
    found = Diarizer(embed, sample_rate=SAMPLE_RATE, segmenter=Oracle(), options=options).diarize(recording())
    names = {"anna": "speaker1", "ben": "speaker2", "carl": "speaker3"}
    assert rounded(found.turns) == [(start_s, end_s, names[name]) for start_s, end_s, name in TRUTH]
    assert [each.label for each in found.speakers] == ["speaker1", "speaker2", "speaker3"]
    assert found.speakers[0].speech_s == pytest.approx(12, abs=0.1)
    assert found.audio_s == pytest.approx(AUDIO_S)
    one = Diarizer(embed, sample_rate=SAMPLE_RATE, segmenter=Oracle(), options=SpeakerOptions(num_speakers=1))
    assert {each.speaker for each in one.diarize(recording()).turns} == {"speaker1"}


def test_enrolled_voices_have_their_names_where_speech_overlaps_too() -> None:
    enrolled = {"Ben": toy_embedding(toy_voice(VOICES["ben"]))}
    diarizer = Diarizer(embed, sample_rate=SAMPLE_RATE, segmenter=Oracle(), enrolled=enrolled, enrolled_cosine=0.8)
    assert [each.speaker for each in diarizer.diarize(recording()).turns] == [
        *("speaker1", "Ben", "speaker2", "speaker1", "Ben", "speaker2")
    ]


def test_silence_has_no_speakers_and_a_segmentation_is_of_whole_recordings() -> None:
    class Silent(Oracle):
        def segment(self, windows: Sequence[Waveform]) -> list[npt.NDArray[np.float32]]:
            return [np.zeros((589, 3), np.float32) for _ in windows]

    diarizer = Diarizer(embed, sample_rate=SAMPLE_RATE, segmenter=Silent())
    found = diarizer.diarize(np.zeros(SAMPLE_RATE, np.float32))
    assert (found.turns, found.speakers) == ((), ())
    with pytest.raises(InputError, match="a segmentation network is for whole recordings"):
        diarizer.stream()
    assert diarizer.diarize(recording(), speech=[SpeechSegment(1.0, 2.0)]).turns == ()  # the network finds it


@pytest.mark.parametrize("step", [777, 16000, 10**9])
@pytest.mark.parametrize("seconds", [0.5, 10.0, 10.5, 12.0])
def test_windows_begin_each_second_and_the_last_one_ends_with_the_audio(seconds: float, step: int) -> None:
    audio = np.arange(round(seconds * SAMPLE_RATE), dtype=np.float32) + 1
    cutter = SlidingWindows(Oracle(), SAMPLE_RATE)
    windows = [each for start in range(0, len(audio), step) for each in cutter.accept(audio[start : start + step])]
    windows += cutter.finish()
    assert len(windows) == {0.5: 1, 10.0: 1, 10.5: 2, 12.0: 3}[seconds]
    for index, window in enumerate(windows):
        part = audio[index * SAMPLE_RATE :][: len(window)]
        np.testing.assert_array_equal(window, np.pad(part, (0, len(window) - len(part))))


def test_a_voice_is_what_a_speaker_says_alone_if_that_is_long_enough() -> None:
    audio = np.arange(160000, dtype=np.float32)
    activity = np.zeros((589, 3), bool)
    activity[100:400, 0] = activity[300:500, 1] = True
    activity[310:330, 2] = True
    found = list(local_speakers(audio, activity, Oracle(), SAMPLE_RATE))
    assert [(each.column, each.alone, each.whole, len(each.samples)) for each in found] == [
        *((0, True, True, 200 * 270), (1, True, True, 100 * 270), (2, False, False, 20 * 270))
    ]
    assert found[0].samples[[0, -1]].tolist() == [360 + 100 * 270, 360 + 300 * 270 - 1]


def test_frames_and_turns_are_upstreams() -> None:
    given = segmentations().astype(bool)
    with np.load(PATH) as upstream:
        clusters, discrete, turns = upstream["clusters"].astype(int), upstream["discrete"], upstream["turns"]
    labels = np.where(clusters == -2, NOBODY, clusters)
    frames = speaker_frames(list(given), labels, discrete.shape[1], shift=1 / FRAME_S)
    assert not discrete[len(frames) :].any()
    np.testing.assert_array_equal(frames, discrete[: len(frames)])
    found = turns_of_activity(
        frames, FRAME_S, speakers=list("0123"), start_s=FIELD_S / 2, rules=TurnRules(min_pause_s=0.1)
    )
    ours = sorted((each.start_s, each.end_s, float(each.speaker)) for each in found)
    np.testing.assert_allclose(np.array(ours), turns, atol=FRAME_S + 1e-6)


def test_local_speakers_of_a_window_are_different_people_as_upstream_has_them() -> None:
    with np.load(PATH) as upstream:
        clusters = upstream["clusters"].astype(int)
    everybody = np.all(clusters >= 0, axis=1)
    assert everybody.sum() >= 4
    np.testing.assert_array_equal(assign(list(similarities()), 4)[everybody], clusters[everybody])
    assert assign([np.array([[0.9], [0.8], [np.nan]])], 1).tolist() == [[0, NOBODY, NOBODY]]


def local(*kinds: str) -> list[LocalSpeaker]:
    return [LocalSpeaker(0, np.zeros(0, np.float32), kind != "never alone", kind == "long") for kind in kinds]


def labels_of(
    vectors: list[npt.NDArray[np.float32]], kinds: list[str], pairs: object = (), **options: int
) -> list[int]:
    """The labels of voices, each in a window of its own."""
    places = [(window, 0) for window in range(len(vectors))]
    apart = np.array(pairs, np.int64).reshape(-1, 2)
    chosen = SpeakerOptions(**options)  # type: ignore[arg-type]
    found, _ = label_local(np.stack(vectors), local(*kinds), places, (len(vectors), 1), chosen, apart)
    return found[:, 0].tolist()


def test_who_is_alone_for_moments_only_is_a_speaker_if_that_is_so_in_several_windows() -> None:
    anna, ben, carl = np.eye(3, dtype=np.float32)
    voices = [anna, anna, ben, ben, carl, carl, carl, (anna + 0.2 * carl)]
    kinds = ["long"] * 4 + ["short"] * 4
    assert labels_of(voices, kinds) == [0, 0, 1, 1, 2, 2, 2, 0]
    assert labels_of(voices, [*kinds[:6], "never alone", "short"])[4:7] != [2, 2, 2]
    assert labels_of(voices, kinds, max_speakers=2)[:4] == [0, 0, 1, 1]
    assert len(set(labels_of(voices, kinds, num_speakers=3))) == 3


def test_local_speakers_who_talk_at_once_are_two_however_alike_their_voices() -> None:
    anna = np.array([1, 0, 0.1], np.float32)
    voices = [anna, anna, anna, anna]
    places = [(0, 0), (0, 1), (1, 0), (1, 1)]
    activity = np.zeros((2, 100, 2), bool)
    activity[:, :60, 0] = activity[0, 40:, 1] = activity[1, 58:, 1] = True
    assert talk_at_once(list(activity), places, 10).tolist() == [[0, 1]]  # two frames are a boundary
    assert talk_at_once(list(activity), places, 2).tolist() == [[0, 1], [2, 3]]
    found, count = label_local(np.stack(voices), local(*["long"] * 4), places, (2, 2), SpeakerOptions())
    assert count == 1
    pairs = np.array([[0, 1], [2, 3]])
    found, count = label_local(np.stack(voices), local(*["long"] * 4), places, (2, 2), SpeakerOptions(), pairs)
    assert (found[:, 0] != found[:, 1]).all()
    assert count == 2
