"""The detector in process: inputs, options and errors. tests/families/test_silero.py compares what it finds."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tritone
from tritone.activity import SpeechActivity, SpeechSegment
from tritone.audio.files import read_audio
from tritone.corpus.clips import SHIPPED_CLIPS
from tritone.errors import AudioError, InputError, StreamError
from tritone.search.activity import ActivityOptions


@pytest.fixture(scope="module")
def detector(silero_bundle: Path) -> tritone.Detector:
    return tritone.load(silero_bundle, threads=1, max_audio_s=20)


@pytest.fixture(scope="module")
def clip() -> Path:
    return min(SHIPPED_CLIPS.glob("*.flac"))


def test_a_file_and_its_samples_at_another_rate_have_the_same_segments(detector: tritone.Detector, clip: Path) -> None:
    (segment,) = detector.segments(clip)
    assert 0 < segment.start_s < 0.3
    assert segment.duration_s > 1.5
    twice = np.repeat(read_audio(clip, 16000), 2)  # nearly what resampling would make of it
    (other,) = detector.segments(twice, 32000)
    assert abs(other.start_s - segment.start_s) < 0.07


def test_an_input_that_fails_keeps_its_error_and_a_single_one_raises_it(detector: tritone.Detector, clip: Path) -> None:
    missing, long, loud, good, empty = detector.detect(
        ["missing.wav", np.zeros(21 * 16000, np.float32), np.full(9000, 1e9, np.float32), clip, np.zeros(0, np.float32)]
    )
    for bad in (missing, long, loud, empty):
        assert isinstance(bad.error, AudioError)
        with pytest.raises(AudioError):
            _ = bad.segments
    assert len(good.segments) == 1
    with pytest.raises(AudioError, match=r"missing.wav"):
        detector.segments("missing.wav")


def test_options_of_a_call_go_before_those_of_the_detector(detector: tritone.Detector, clip: Path) -> None:
    assert detector.segments(clip, threshold=1.0) == []
    assert detector.segments(clip, min_speech_s=60) == []
    assert detector.detect(clip, options=ActivityOptions(threshold=1.0)).segments == ()
    (plain,), (padded,) = detector.segments(clip, padding_s=0), detector.segments(clip, padding_s=0.05)
    assert plain.start_s - padded.start_s == pytest.approx(0.05)
    for options, told in (({"volume": 11}, "unknown request parameter 'volume'"), ({"threshold": 9}, "0.01 to 1")):
        with pytest.raises(InputError, match=told):
            detector.segments(clip, **options)


def test_streams_tell_when_speech_begins_and_refuse_options_of_recordings(
    detector: tritone.Detector, clip: Path
) -> None:
    audio = read_audio(clip, 16000)
    with detector.stream(options={"padding_s": 0}) as stream:
        before, during = stream.accept(audio[:1000]), stream.accept(audio[1000:16000])
        after = stream.accept(np.zeros(16000, np.float32))
        last = stream.finish()
    assert before.speaking_since_s is None
    assert during.segments == ()
    assert during.speaking_since_s is not None
    (segment,) = after.segments
    assert segment.start_s == during.speaking_since_s
    assert 0.8 < segment.end_s < 1.2
    assert last.segments == ()
    with pytest.raises(StreamError, match="has ended"):
        stream.accept(audio)
    for options in ({"min_speech_s": 0.1}, {"max_segment_s": 5}):
        with pytest.raises(
            InputError, match=f"{next(iter(options))}: streams report speech before its length is known"
        ):
            detector.stream(options=options)
    assert detector.streaming.num_open == 0


def test_the_end_of_a_stream_ends_its_segment(silero_bundle: Path, clip: Path) -> None:
    audio = read_audio(clip, 16000)[:16000]
    # What it was loaded with for recordings does not keep it from streams.
    detector = tritone.load(silero_bundle, threads=1, min_speech_s=5, max_segment_s=6, chunk_size=4)
    assert detector.segments(audio) == []
    with detector.stream() as stream:
        since = stream.accept(audio).speaking_since_s
        last = stream.finish()
    assert last.segments == (SpeechSegment(since, 1.0),)
    assert last.speaking_since_s is None
    assert last.speech_s == pytest.approx(1.0 - since)


def test_results_come_while_inputs_are_still_read(detector: tritone.Detector, clip: Path) -> None:
    def endless() -> Iterator[Path]:
        while True:
            yield clip

    results = detector.detect_iter(endless(), concurrency=2)
    assert [next(results).index for _ in range(3)] == [0, 1, 2]
    results.close()


def test_the_json_form_is_read_back() -> None:
    found = SpeechActivity((SpeechSegment(0.5, 1.25),), 2.0, 0.032, speaking_since_s=1.5, is_final=False)
    assert SpeechActivity.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    with pytest.raises(KeyError):
        SpeechActivity.from_dict({"segments": []})
