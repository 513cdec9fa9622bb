"""silero-vad's network as a bundle: its probabilities and segments are those of the package itself."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import soxr
import torch
from onnx import numpy_helper
from typer.testing import CliRunner

import tritone
from shared import Shared
from silero import package
from tritone.audio.files import read_audio
from tritone.cli.main import app
from tritone.corpus.clips import SHIPPED_CLIPS
from tritone.errors import BundleError, ExportError
from tritone.families.silero import weights
from tritone.families.silero.export import export_silero
from tritone.pipelines import Step, voice_activity
from tritone.systems.spec import open_system

FLOAT_NOISE = 2e-6  # of a probability; both are float32, and batches are added up in another order
RATES = (16000, 8000)


@pytest.fixture(scope="module", params=RATES)
def rate(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def bundle(rate: int, silero_bundle: Path, shared: Shared) -> Path:
    if rate == 16000:
        return silero_bundle
    return shared("silero-8k", lambda folder: export_silero(output=folder / "vad8", sample_rate=8000).bundle.path)


@pytest.fixture(scope="module")
def detector(bundle: Path) -> tritone.Detector:
    return tritone.load(bundle, threads=1)


@pytest.fixture(scope="module")
def recordings(rate: int) -> list[np.ndarray]:
    """Speech with pauses between, noise, silence and next to nothing, at lengths that are no whole frames."""
    rng = np.random.default_rng(0)
    clips = [read_audio(path, 16000) for path in sorted(SHIPPED_CLIPS.glob("*.flac"))[:3]]
    pause = rng.normal(0, 0.002, 12_000).astype(np.float32)
    spoken = np.concatenate([part for clip in clips for part in (pause, clip, pause)])
    found = [spoken, clips[0], rng.normal(0, 0.1, 5000).astype(np.float32), np.zeros(3000, np.float32), spoken[:1]]
    return [soxr.resample(each, 16000, rate) if rate != 16000 and len(each) > 1 else each for each in found]


@pytest.fixture(scope="module")
def theirs() -> Any:
    """The package's own model, as its OnnxWrapper runs it."""
    return package().load_silero_vad(onnx=True)


def test_probabilities_are_those_of_the_package(
    detector: tritone.Detector, recordings: list[np.ndarray], theirs: Any, rate: int
) -> None:
    largest = 0.0
    for waveform, result in zip(recordings, detector.detect(recordings), strict=True):
        frames = np.pad(waveform, (0, -len(waveform) % (rate * 32 // 1000)))  # which it refuses to do for one sample
        wanted = theirs.audio_forward(torch.from_numpy(frames), rate)[0].numpy()
        assert result.probabilities is not None
        assert result.probabilities.shape == wanted.shape
        largest = max(largest, float(np.abs(result.probabilities - wanted).max()))
    assert largest < FLOAT_NOISE


def test_recordings_in_one_batch_have_the_results_that_each_has_alone(
    detector: tritone.Detector, recordings: list[np.ndarray]
) -> None:
    for waveform, together in zip(recordings, detector.detect(recordings * 2)[len(recordings) :], strict=True):
        alone = detector.detect(waveform)
        assert together.segments == alone.segments
        np.testing.assert_allclose(together.probabilities, alone.probabilities, atol=FLOAT_NOISE)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"threshold": 0.8, "end_threshold": 0.2, "min_speech_s": 0.5, "padding_s": 0.1},
        {"max_segment_s": 1.5, "min_silence_s": 0.5},
    ],
)
def test_segments_are_those_of_the_package(
    detector: tritone.Detector, recordings: list[np.ndarray], theirs: Any, rate: int, options: dict[str, float]
) -> None:
    names = {
        "threshold": ("threshold", 1),
        "end_threshold": ("neg_threshold", 1),
        "min_speech_s": ("min_speech_duration_ms", 1000),
        "min_silence_s": ("min_silence_duration_ms", 1000),
        "padding_s": ("speech_pad_ms", 1000),
        "max_segment_s": ("max_speech_duration_s", 1),
    }
    asked = {names[name][0]: value * names[name][1] for name, value in options.items()}
    counts = []
    for waveform in recordings[:3]:
        wanted = package().get_speech_timestamps(torch.from_numpy(waveform), theirs, sampling_rate=rate, **asked)
        found = detector.segments(waveform, **options)
        assert [(each.start_s, each.end_s) for each in found] == [
            (each["start"] / rate, each["end"] / rate) for each in wanted
        ]
        counts.append(len(found))
    assert counts[0] > 1


def test_a_stream_cut_anyhow_has_the_same_probabilities_and_the_iterators_segments(
    detector: tritone.Detector, recordings: list[np.ndarray], theirs: Any, rate: int
) -> None:
    waveform, frame = recordings[0], rate * 32 // 1000
    iterator = package().VADIterator(theirs, sampling_rate=rate)
    events = [
        event
        for start in range(0, len(waveform) - frame, frame)
        for event in (iterator(torch.from_numpy(waveform[start : start + frame])) or {}).items()
    ]
    answers, rng, start = [], np.random.default_rng(1), 0
    with detector.stream() as stream:
        while start < len(waveform):
            size = int(rng.integers(0, 3000))
            answers.append(stream.accept(waveform[start : start + size]))
            start += size
        answers.append(stream.finish())
    probabilities = np.concatenate([each.probabilities for each in answers])
    np.testing.assert_allclose(probabilities, detector.probabilities(waveform), atol=FLOAT_NOISE)
    segments = [segment for each in answers for segment in each.segments]
    found = [time for each in segments for time in (round(each.start_s * rate), round(each.end_s * rate))]
    assert found == [time for _, time in events]
    assert [each.audio_s for each in answers[-2:]] == [len(waveform) / rate] * 2
    assert [each.is_final for each in answers[-2:]] == [False, True]


def test_many_streams_at_once_each_have_their_own_state(
    detector: tritone.Detector, recordings: list[np.ndarray]
) -> None:
    pipeline = detector.streaming
    slots = [pipeline.open() for _ in recordings]
    steps = [Step(slot, each, final=True) for slot, each in zip(slots, recordings, strict=True)]
    for waveform, answer in zip(recordings, pipeline.advance(steps), strict=True):
        np.testing.assert_allclose(answer.probabilities, detector.probabilities(waveform), atol=FLOAT_NOISE)
    assert pipeline.num_open == 0


def test_a_long_recording_is_computed_in_blocks_with_the_same_result(
    bundle: Path, detector: tritone.Detector, recordings: list[np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(voice_activity, "BLOCK_S", 2.0)
    in_blocks = tritone.load(bundle, threads=1)
    for wanted, found in zip(detector.detect(recordings), in_blocks.detect(recordings), strict=True):
        np.testing.assert_allclose(found.probabilities, wanted.probabilities, atol=FLOAT_NOISE)
        assert found.segments == wanted.segments
    too_loud = 1e6 * recordings[0]
    bad, good = in_blocks.detect([too_loud, recordings[0]])
    assert not bad.ok
    assert good.ok


def test_the_command_writes_a_bundle_and_says_how_well_it_follows(tmp_path: Path) -> None:
    source = weights.installed_file()
    result = CliRunner().invoke(app, ["export", "silero", str(source), "--output", str(tmp_path / "vad")])
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{tmp_path / 'vad'}\n"
    assert "encoder.onnx: largest difference from the original" in result.stderr
    assert "(probability)" in result.stderr
    wrong = CliRunner().invoke(app, ["export", "silero", "--output", str(tmp_path / "x"), "--sample-rate", "44100"])
    assert wrong.exit_code == 2
    assert "sample_rate must be 16000 or 8000 Hz, got 44100" in wrong.stderr
    assert not (tmp_path / "x").exists()


def test_a_file_that_is_something_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(file: Path | None, told: str) -> None:
        with pytest.raises(ExportError, match=told):
            export_silero(file=file, output=tmp_path / "vad")
        assert not (tmp_path / "vad").exists()

    (tmp_path / "text.onnx").write_text("no graph at all", encoding="utf-8")
    refused(tmp_path / "text.onnx", "it is not an ONNX graph")
    refused(tmp_path / "missing.onnx", "cannot read")
    refused(weights.installed_file().with_name("silero_vad_16k_sequence.onnx"), "should be float32 .* found nothing")

    def changed(name: str, index: int) -> Path:
        """Upstream's file with another number in a weight of all networks."""
        model = onnx.load(weights.installed_file())
        for branch in (each.g for node in model.graph.node for each in node.attribute if each.HasField("g")):
            for node in branch.node:
                if node.op_type == "Constant" and node.output[0].endswith(name):
                    array = numpy_helper.to_array(node.attribute[0].t).copy()
                    array.reshape(-1)[index] += 10
                    node.attribute[0].t.CopyFrom(numpy_helper.from_array(array))
        onnx.save(model, tmp_path / "changed.onnx")
        return tmp_path / "changed.onnx"

    # Other weights are another model, whose graphs are compared with it; a basis of other frequencies, too.
    assert (
        export_silero(file=changed("decoder.2.bias", 0), output=tmp_path / "other").differences["encoder.onnx"] < 1e-4
    )
    monkeypatch.setattr(weights, "PACKAGE", "no-such-package")
    refused(None, "the package no-such-package, whose file is exported by default, is not installed: pip install")


def test_graphs_that_do_not_follow_upstream_are_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tritone.families.silero.graphs.TORCH_TO_ONNX", (0, 1, 2, 3))
    with pytest.raises(ExportError, match=r"encoder.onnx differs from .* by .*, the limit is 0.0001"):
        export_silero(output=tmp_path / "vad")
    assert not (tmp_path / "vad").exists()


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"streaming": None}, "which needs the part `streaming`"),
        ({"embedding": {}}, "which has no part `embedding`"),
        (
            {"encoder": {"subsampling_rate": 4, "output_dim": 1, "min_samples": 576, "tail_samples": 9}},
            "no `tail_samples`",
        ),
    ],
)
def test_a_manifest_that_does_not_fit_the_kind_is_refused(
    silero_bundle: Path, tmp_path: Path, changed: dict[str, Any], told: str
) -> None:
    manifest = json.loads((silero_bundle / "manifest.json").read_text(encoding="utf-8"))
    shutil.copytree(silero_bundle, tmp_path / "vad")
    (tmp_path / "vad" / "manifest.json").write_text(json.dumps({**manifest, **changed}), encoding="utf-8")
    with pytest.raises(BundleError, match=told):
        tritone.load(tmp_path / "vad")


def test_each_way_of_loading_says_what_else_a_bundle_is_for(silero_bundle: Path) -> None:
    assert isinstance(tritone.load(silero_bundle), tritone.Detector)
    with pytest.raises(BundleError, match=r"voice activity detector: it finds speech.*tritone\.load"):
        open_system(str(silero_bundle))
    with pytest.raises(BundleError, match="a voice activity detector: it finds speech and makes no embeddings"):
        tritone.load_as(tritone.Embedder, silero_bundle)
    with pytest.raises(BundleError, match=r"demo-speaker is a speaker model: .* detects no voice activity"):
        tritone.load_as(tritone.Detector, "demo-speaker")
