"""The benchmark of voice activity on a few shipped clips, and what the detector reaches on them."""

import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import soundfile

from benchmarks import voice_activity
from tritone.audio.files import read_audio
from tritone.corpus.clips import read_clips
from tritone.report.stamp import Stamp


def write_corpus(folder: Path, recordings: Mapping[str, np.ndarray], **fields: str) -> None:
    folder.mkdir()
    rows = []
    with tarfile.open(folder / f"{folder.name}.tar", "w") as archive:
        for name, samples in recordings.items():
            file = io.BytesIO()
            soundfile.write(file, samples, voice_activity.RATE, format="FLAC")
            member = tarfile.TarInfo(f"./{name}.flac")
            member.size = len(file.getvalue())
            file.seek(0)
            archive.addfile(member, file)
            rows.append({"id": name, "path": f"{name}.flac", "text": "words", "speaker": name[-1], **fields})
    (folder / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    clips = {clip.name: read_audio(clip.path, voice_activity.RATE) for clip in read_clips()[:8]}
    write_corpus(tmp_path / "an4", clips, split="test")
    write_corpus(tmp_path / "librispeech_mini", clips, split="dev")
    noise = np.random.default_rng(0).standard_normal(5 * voice_activity.RATE) * 0.05
    write_corpus(tmp_path / "noise", dict.fromkeys(voice_activity.RECORDED, noise))
    return tmp_path


@pytest.mark.slow
def test_conditions_are_measured_and_written(data: Path, silero_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(voice_activity, "LEVELS_DB", (5,))
    monkeypatch.setattr(voice_activity, "RECORDED", ("kitchen",))
    rows = voice_activity.rows_of(data, silero_bundle, "an4")
    assert {(row.noise, row.snr_db) for row in rows} == {
        *(("none", "-"), ("white", "5"), ("kitchen", "5"), ("babble of 6", "5"))
    }
    by_detector = {row.detector: row for row in rows if row.noise == "white"}
    assert list(by_detector) == [*voice_activity.VARIANTS, "silero, stream", "level"]
    silero, level = by_detector["silero"], by_detector["level"]
    assert silero.missed < 0.1
    assert silero.with_collar < 0.1
    assert silero.detection_error < level.detection_error
    assert by_detector["silero, threshold 0.7"].missed >= silero.missed
    assert by_detector["silero, threshold 0.3"].false_alarm >= silero.false_alarm
    page = voice_activity.page(rows, Stamp.here())
    assert page.count("\n| ") >= len(rows)
