"""A voice activity detector as a system, and files played into its streams."""

from pathlib import Path

import pytest

import tritone
from tritone.activity import SpeechActivity
from tritone.audio.files import read_audio
from tritone.corpus.clips import SHIPPED_CLIPS
from tritone.errors import AudioError
from tritone.result import ActivityResult
from tritone.systems import BundleSystem, Playback, play_activity

CLIPS = [str(SHIPPED_CLIPS / f"clip-0{number}.flac") for number in (1, 2)]


@pytest.fixture(scope="module")
def detector(silero_bundle: Path) -> tritone.Detector:
    return tritone.load(silero_bundle, threads=1, threshold=0.6)


def test_a_detector_is_described_by_what_decides_its_segments(detector: tritone.Detector) -> None:
    system = BundleSystem[ActivityResult](detector, options={"threshold": 0.6, "threads": 1})
    system.prepare(warm_up=True)
    described = system.describe()
    assert (described["threshold"], described["mode"], "threads" in described) == ("0.6", "offline", False)
    assert [each.segments for each in system.run(CLIPS)] == [tuple(detector.segments(path)) for path in CLIPS]


def test_a_played_file_has_every_answer_and_all_segments_of_its_stream(detector: tritone.Detector) -> None:
    answers: list[tuple[int, SpeechActivity]] = []
    found = list(
        play_activity(
            [CLIPS[0], "absent.wav", CLIPS[1]],
            detector.stream,
            sample_rate=detector.sample_rate,
            playback=Playback(chunk_ms=100),
            on_answer=lambda index, answer: answers.append((index, answer)),
        )
    )
    assert isinstance(found[1].error, AudioError)
    for result, path in ((found[0], CLIPS[0]), (found[2], CLIPS[1])):
        samples = read_audio(path, detector.sample_rate)
        own = [answer for index, answer in answers if index == result.index]
        assert len(own) == -(-len(samples) // (detector.sample_rate // 10)) + 1
        assert result.segments == tuple(each for answer in own for each in answer.segments)
        assert (result.get().is_final, result.audio_s) == (True, len(samples) / detector.sample_rate)
