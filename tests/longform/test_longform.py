"""Many recordings through a model that takes short ones, in this process."""

import io
import os
import threading
from collections.abc import Generator, Iterable
from pathlib import Path

import numpy as np
import pytest
import soundfile

import tritone
from tritone.activity import SpeechActivity, SpeechSegment
from tritone.audio import read_audio
from tritone.audio.files import AudioBlocks
from tritone.audio.read_ahead import Recording
from tritone.bundle import Bundle
from tritone.corpus.clips import SHIPPED_CLIPS
from tritone.errors import AudioError, InputError
from tritone.longform import LongForm, PieceRecording, pieces
from tritone.longform.ahead import ahead
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.recognizer import Recognizer
from tritone.result import ActivityResult, TranscriptResult
from tritone.transcript import Transcript

RATE = 16000
PAUSE = np.zeros(round(0.8 * RATE), np.float32)


@pytest.fixture(scope="module")
def clips() -> list[np.ndarray]:
    return [read_audio(path, RATE) for path in sorted(SHIPPED_CLIPS.glob("*.flac"))[:4]]


@pytest.fixture(scope="module")
def recording(clips: list[np.ndarray]) -> np.ndarray:
    """Real speech with pauses."""
    return np.concatenate([each for clip in clips for each in (PAUSE, clip, PAUSE)])


@pytest.fixture(scope="module")
def texts(clips: list[np.ndarray]) -> list[str]:
    return [each.text for each in tritone.load("demo-asr", threads=1).transcribe(clips)]


@pytest.fixture(scope="module")
def short() -> tritone.Recognizer:
    return tritone.load("demo-asr", threads=1, max_audio_s=8.0)


def test_a_long_recording_has_the_texts_of_its_parts_and_its_own_times(
    short: tritone.Recognizer, recording: np.ndarray, texts: list[str], clips: list[np.ndarray], tmp_path: Path
) -> None:
    soundfile.write(tmp_path / "long.flac", recording, RATE)
    results = short.transcribe([str(tmp_path / "long.flac"), clips[0], recording, tmp_path / "none.wav"], concurrency=3)
    assert [each.ok for each in results] == [True, True, True, False]
    assert (results[1].text, results[1].get().segments) == (texts[0], ())
    starts = np.cumsum([0, *(len(each) + 2 * len(PAUSE) for each in clips)]) / RATE
    for result in (results[0], results[2]):
        found = result.get()
        assert [each.text for each in found.segments] == texts
        assert found.text == " ".join(texts) == " ".join(each.text for each in found.words)
        assert result.audio_s == found.audio_s == pytest.approx(len(recording) / RATE)
        for segment, after, before in zip(found.segments, starts[:-1], starts[1:], strict=True):
            assert after < segment.start_s < segment.end_s < before
    plain = short.transcribe(str(tmp_path / "long.flac"), details=False)
    assert (plain.text, plain.words, len(plain.get().segments)) == (" ".join(texts), (), len(texts))


def test_pauses_that_a_detector_finds_cut_a_long_recording(recording: np.ndarray, texts: list[str]) -> None:
    heard: list[int] = []

    class Loud:
        def detect(self, samples: np.ndarray, *, sample_rate: int) -> ActivityResult:
            heard.append(len(samples))
            pauses = np.convolve(samples != 0, np.ones(RATE // 2), "same") > 0.5
            edges = np.flatnonzero(np.diff(np.concatenate([[0], pauses, [0]])))
            found = [SpeechSegment(a / RATE, b / RATE) for a, b in zip(edges[::2], edges[1::2], strict=True)]
            activity = SpeechActivity(segments=tuple(found), audio_s=len(samples) / RATE, frame_s=0.01)
            return ActivityResult(index=0, source="", value=activity)

    placement = Placement(threads=1)
    recognizer = Recognizer(Bundle.open("demo-asr"), placement=placement, max_audio_s=8.0, detector=Loud())
    assert [each.text for each in recognizer.transcribe(recording).get().segments] == texts
    assert sum(heard) >= len(recording)


def test_a_damaged_place_is_the_error_of_its_recording_alone(
    short: tritone.Recognizer, recording: np.ndarray, clips: list[np.ndarray], texts: list[str], tmp_path: Path
) -> None:
    broken = recording.copy()
    broken[-RATE] = np.nan
    soundfile.write(tmp_path / "nan.wav", broken, RATE, subtype="FLOAT")
    cut_off = io.BytesIO()
    soundfile.write(cut_off, recording, RATE, format="FLAC")
    (tmp_path / "cut.flac").write_bytes(cut_off.getvalue()[: len(cut_off.getvalue()) // 2])
    results = list(short.transcribe_iter([tmp_path / "nan.wav", tmp_path / "cut.flac", clips[0]]))
    errors = {each.index: str(each.error) for each in results if not each.ok}
    assert set(errors) == {0, 1}
    assert "nan.wav: sample" in errors[0]
    assert "is nan; samples must be finite numbers" in errors[0]
    assert "cut.flac is damaged or cut off" in errors[1]
    assert next(each.text for each in results if each.index == 2) == texts[0]


def test_pieces_of_several_recordings_are_the_model_s_in_common() -> None:
    form = LongForm(1000, lambda: 10.0, details=False)
    seen: list[str] = []

    def model(recordings: Iterable[Recording]) -> Generator[TranscriptResult, None, None]:
        waiting = []
        for each in recordings:
            seen.append(each.source)
            waiting.append(each)
        for each in reversed(waiting):  # answers come in any order
            value = Transcript(each.source) if each.source != "bad" else None
            error = InputError("bad: no") if each.source == "bad" else None
            yield TranscriptResult(index=each.index, source=each.source, value=value, error=error, compute_s=1.0)

    noise = np.random.default_rng(0).normal(0, 0.1, 25000).astype(np.float32)
    inputs = [
        Recording(index=index, source=name, value=noise[:size], audio_s=size / 1000)
        for index, (name, size) in enumerate([("a", 25000), ("b", 9000), ("bad", 25000), ("c", 22000)])
    ]
    found = {each.source: each for each in form.join(model(form.cut(inputs)))}
    assert [each for index, each in enumerate(seen) if index == 0 or seen[index - 1] != each] == ["a", "b", "bad", "c"]
    assert seen.count("a") >= 3
    assert (found["b"].text, found["b"].index) == ("b", 1)
    assert "bad, from " in str(found["bad"].error)
    assert (found["c"].index, found["c"].audio_s, found["c"].compute_s) == (3, 22.0, seen.count("c"))


def test_leaving_the_loop_closes_the_file(tmp_path: Path, recording: np.ndarray) -> None:
    soundfile.write(tmp_path / "long.flac", recording, RATE)
    blocks = AudioBlocks(tmp_path / "long.flac", RATE)
    form = LongForm(RATE, lambda: 5.0, details=False)
    cut = form.cut([Recording(index=0, source="long", value=blocks)])
    first = next(cut)
    assert isinstance(first, PieceRecording)
    cut.close()
    assert blocks._file.closed


def test_what_is_done_ahead_stops_when_nobody_wants_it() -> None:
    closed = threading.Event()
    found = ahead(iter(range(1000)), 2, lambda _: 1.0, closed.set)
    assert [next(found), next(found)] == [0, 1]
    found.close()
    assert closed.wait(60)

    def broken() -> Generator[int, None, None]:
        yield 1
        raise AudioError("no more")

    with pytest.raises(AudioError, match="no more"):
        list(ahead(broken(), 2, lambda _: 1.0, lambda: None))


def test_pieces_are_cut_of_whatever_has_audio(recording: np.ndarray, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "long.wav", recording, RATE)
    expected: list[int] | None = None
    for source in (tmp_path / "long.wav", str(tmp_path / "long.wav"), (tmp_path / "long.wav").read_bytes(), recording):
        with pieces(source, RATE) as found:
            sizes = [len(each.samples) for each in found]
            assert found.audio_s == pytest.approx(len(recording) / RATE)
        expected = expected or sizes
        assert sizes == expected
    reading, writing = os.pipe()
    data = (tmp_path / "long.wav").read_bytes()

    def write() -> None:
        with os.fdopen(writing, "wb") as end:
            end.write(data)

    thread = threading.Thread(target=write)
    thread.start()
    with os.fdopen(reading, "rb") as pipe, pieces(pipe, RATE, pcm=True) as found:
        parts = list(found)
    thread.join()
    assert [len(each.samples) for each in parts] == expected
    assert {each.samples.dtype for each in parts} == {np.dtype(np.int16)}
