"""Classifiers of ends of turns as bundles: features and answers are those of upstream's own code."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from transformers import WhisperFeatureExtractor
from typer.testing import CliRunner

import tritone
from toy_turn import SAMPLES, write_turn_network
from tritone.audio.files import read_audio
from tritone.cli.main import app
from tritone.corpus.clips import SHIPPED_CLIPS
from tritone.errors import ExportError
from tritone.families.smart_turn.export import export_smart_turn, features

FILE = "audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx"  # in the package pipecat-ai 1.14.0
FEATURE_NOISE = 1e-4  # of a feature between 0 and 2; both are rounded to float32 at other places
FLOAT_NOISE = 1e-5  # of a float32 network's probability


def last(audio: Any) -> Any:
    """The last 8 s, with silence before them where there are less."""
    return np.pad(audio[-SAMPLES:], (max(0, SAMPLES - len(audio)), 0)).astype(np.float32)


@pytest.fixture(scope="module")
def waveforms() -> list[Any]:
    """Real speech, whole and broken off."""
    audio = [read_audio(path, 16000) for path in sorted(SHIPPED_CLIPS.rglob("*.flac"))[:6]]
    return [last(each[: len(each) * part // 3]) for each in audio for part in (2, 3)]


def upstreams_features(waveform: Any) -> Any:
    extractor = WhisperFeatureExtractor(chunk_length=8)
    found = extractor(
        waveform,
        sampling_rate=16000,
        return_tensors="np",
        padding="max_length",
        max_length=SAMPLES,
        truncation=True,
        do_normalize=True,
    )
    return found.input_features[0]


def test_features_are_those_of_transformers(waveforms: list[Any]) -> None:
    assert len(waveforms) > 2
    for each in waveforms:
        np.testing.assert_allclose(features(each, 80), upstreams_features(each), atol=FEATURE_NOISE)


def test_a_bundle_answers_as_the_network_behind_transformers_features(tmp_path: Path, waveforms: list[Any]) -> None:
    file = write_turn_network(tmp_path / "turn.onnx")
    result = CliRunner().invoke(app, ["export", "smart-turn", str(file), "--output", str(tmp_path / "turn")])
    assert result.exit_code == 0, result.output
    network = onnxruntime.InferenceSession(file)
    wanted = [network.run(None, {"input_features": upstreams_features(each)[None]})[0].item() for each in waveforms]
    model = tritone.load(tmp_path / "turn", threads=1)
    found = [model.run({"waveform": each[None]})["probability"].item() for each in waveforms]
    assert np.ptp(wanted) > 0.1
    assert found == pytest.approx(wanted, abs=FLOAT_NOISE)


@pytest.mark.parametrize(
    ("changes", "part"), [({"sigmoid": False}, "no probability"), ({"frames": 4000}, "Whisper's features")]
)
def test_another_network_is_refused_and_nothing_is_written(tmp_path: Path, changes: dict[str, Any], part: str) -> None:
    file = write_turn_network(tmp_path / "turn.onnx", **changes)
    with pytest.raises(ExportError, match=part):
        export_smart_turn(file=file, output=tmp_path / "turn")
    assert not (tmp_path / "turn").exists()


@pytest.mark.slow
def test_smart_turn_as_it_was_released(tmp_path: Path, waveforms: list[Any]) -> None:
    package = find_spec("pipecat")
    if package is None or package.origin is None:
        pytest.skip("pipecat-ai 1.14.0, which holds Smart Turn v3.2, was not fetched: make .venv/.real-onnx")
    file = Path(package.origin).parent / FILE
    report = export_smart_turn(file=file, output=tmp_path / "turn")
    assert report.differences["features"] < FEATURE_NOISE
    network = onnxruntime.InferenceSession(file)

    def asked(given: Any) -> float:
        return network.run(None, {"input_features": given[None]})[0].item()

    wanted = np.array([asked(upstreams_features(each)) for each in waveforms])
    # It is of int8: what upstream itself answers to features that are other by what float32 rounds off.
    random = np.random.default_rng(0)
    noise = [upstreams_features(each) + random.uniform(-1e-6, 1e-6, (80, 800)) for each in waveforms]
    moved = np.array([asked(each.astype(np.float32)) for each in noise])
    model = tritone.load(report.bundle.path, threads=1)
    found = np.array([model.run({"waveform": each[None]})["probability"].item() for each in waveforms])
    logits = [np.log(each / (1 - each)) for each in (found, moved, wanted)]
    assert np.mean(np.abs(logits[0] - logits[2])) < 2 * np.mean(np.abs(logits[1] - logits[2])) + 0.1
    assert ((found > 0.5) == (wanted > 0.5)).mean() >= 0.9
