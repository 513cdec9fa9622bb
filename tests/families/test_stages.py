"""Features and acoustic network as graphs of their own: one after the other they are the encoder, and cost no disk."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from families.conftest import babble, with_cmvn, write_model
from families.icefall_models import CONFORMER, PREDICTOR, export_files, write_files
from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import Precision, Runtime
from tritone.errors import BundleError
from tritone.families.export.report import ExportReport
from tritone.families.icefall.model import IcefallConfig
from tritone.families.wenet.export import export_wenet
from tritone.pipelines import open_offline
from tritone.pipelines.graphs.choice import open_chosen
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.stages import AcousticPipeline, DecodingJob, DecodingPipeline, FeaturePipeline
from tritone.runtime import Graph

LENGTHS = (16000, 9000, 3210, 0)
LOUD = 3.0  # what is behind a row's samples, and must not be heard


def ragged() -> dict[str, np.ndarray]:
    waveform = np.full((len(LENGTHS), max(LENGTHS)), LOUD, np.float32)
    for row, length in zip(waveform, LENGTHS, strict=True):
        row[:length] = babble(length + 1, seed=length)[:length]
    return {"waveform": waveform, "num_samples": np.array(LENGTHS)}


def stages(bundle: Bundle, runtime: Runtime, precision: Precision = "fp32") -> tuple[Graph, Graph, Graph]:
    placement = Placement(runtime=runtime, precision=precision, threads=1)
    encoder, features, acoustic = (
        open_chosen(bundle, role, placement)[1]
        for role in ("encoder", "features", "acoustic")  # type: ignore[arg-type]
    )
    return encoder, features, acoustic


def check(bundle: Bundle, runtime: Runtime, output: str, precision: Precision = "fp32", atol: float = 1e-5) -> None:
    encoder, features, acoustic = stages(bundle, runtime, precision)
    assert list(acoustic.outputs) == list(encoder.outputs)
    names = [output, "num_frames"]
    expected, counts = encoder(ragged(), names)
    heard, num_samples = features(ragged(), ["features"])[0], ragged()["num_samples"]
    assert heard.dtype == np.float32
    found, same_counts = acoustic({"features": heard, "num_samples": num_samples}, names)
    assert counts.tolist() == same_counts.tolist()
    assert counts[-1] == 0
    for row, other, count in zip(expected, found, counts, strict=True):
        np.testing.assert_allclose(other[:count], row[:count], atol=atol)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> ExportReport:
    def small(config: dict[str, Any]) -> None:
        with_cmvn(config)
        config["encoder_conf"] |= {"num_blocks": 1}

    files = write_model(tmp_path_factory.mktemp("wenet"), small)
    return export_wenet(
        checkpoint=files / "final.pt",
        config=files / "train.yaml",
        tokens=files / "units.txt",
        output=tmp_path_factory.mktemp("bundle") / "b",
        decoder=False,
        stages=True,
        precisions=("fp32", "fp16"),
        max_drift=0.5,
    )


@pytest.fixture(scope="module")
def wenet(report: ExportReport) -> Bundle:
    return report.bundle


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_features_and_acoustic_network_of_wenet_are_the_encoder(wenet: Bundle, precision: Precision) -> None:
    check(wenet, "onnxruntime", "log_probs", precision, 1e-5 if precision == "fp32" else 2e-2)


def test_stages_share_the_weights_of_the_encoder_and_keep_features_once(wenet: Bundle) -> None:
    for precision in ("fp32", "fp16"):
        [encoder], [features], [acoustic] = (
            wenet.artifacts(role, "onnxruntime", precision)  # type: ignore[arg-type]
            for role in ("encoder", "features", "acoustic")
        )
        assert encoder.files[1:] == features.files[1:] == acoustic.files[1:]
        weights = wenet.file(encoder.files[1]).stat().st_size
        parameters = 30_000 * 4  # of this network at most, in float32
        matrices = 400 * 512 * 4 + 256 * 80 * 4  # of the features
        assert matrices < weights < matrices + parameters, "nothing is stored twice"


def test_features_are_held_to_the_limit_of_float32_in_every_precision(report: ExportReport, wenet: Bundle) -> None:
    """They have no drift: in other precisions the very same arithmetic is done."""
    assert set(report.drifts) == {"encoder.fp16.onnx", "acoustic.fp16.onnx"}
    assert report.drifts["acoustic.fp16.onnx"].moved == pytest.approx(
        report.drifts["encoder.fp16.onnx"].moved, rel=0.05
    )
    assert report.differences["features.fp16.onnx"] < 1e-3
    inputs = ragged()
    [plain], [other] = (
        stages(wenet, "onnxruntime", precision)[1](inputs, ["features"])  # type: ignore[arg-type]
        for precision in ("fp32", "fp16")
    )
    np.testing.assert_array_equal(plain, other)


@pytest.mark.slow
def test_stages_of_a_transducer_run_as_scripts(tmp_path: Path) -> None:
    files = write_files(tmp_path / "files", IcefallConfig(encoder=CONFORMER, predictor=PREDICTOR))
    report = export_files(files, tmp_path / "b", stages=True, runtimes=("torchscript",), causal=False)
    check(report.bundle, "torchscript", "encoder_out")
    roles = [artifact.role for artifact in report.bundle.manifest.artifacts]
    assert roles == ["encoder", "features", "acoustic", "predictor", "joiner"]
    sizes = [report.bundle.file(f"{role}.ts").stat().st_size for role in roles[:3]]
    assert sizes[0] < sizes[1] + sizes[2] < sizes[0] + 300_000, "the acoustic stage has no matrices of features"


@pytest.mark.parametrize("steps", [1, 16])
def test_three_pipelines_say_what_the_one_says(wenet: Bundle, steps: int) -> None:
    """Whatever lengths are padded to, and whoever shares a batch."""
    waves = [babble(samples, seed=samples) for samples in (16000, 4321, 100, 9876, 24000, 700, 16001)]
    jobs = [waves[:3], waves[3:4], waves[4:]]
    whole = open_offline(wenet, placement=Placement(threads=1))
    features = FeaturePipeline(wenet, placement=Placement(threads=1), max_audio_s=1.6, steps_per_octave=steps)
    handed = ("log_probs", "num_frames")
    acoustic = AcousticPipeline(wenet, handed, placement=Placement(threads=1))
    decoding = DecodingPipeline(wenet, handed, placement=Placement(threads=1))
    said = acoustic.run(features.run(jobs))
    asked = [
        DecodingJob(each, [len(wave) for wave in job], decoding.options) for each, job in zip(said, jobs, strict=True)
    ]
    found = [transcript for job in decoding.run(asked) for transcript in job]
    expected = whole.recognize(waves)
    assert len({each.text for each in expected}) > 4
    for one, other in zip(found, expected, strict=True):
        assert (one.text, one.audio_s) == (other.text, other.audio_s)
        assert [(each.text, each.start_s) for each in one.tokens] == [
            (each.text, each.start_s) for each in other.tokens
        ]
        assert one.confidence == pytest.approx(other.confidence, abs=1e-4)


def test_a_bundle_without_stages_says_how_to_get_them(toy_bundle: Path) -> None:
    with pytest.raises(BundleError, match=r"no graph for acoustic.*--stages"):
        Bundle.open(toy_bundle).artifacts("acoustic")
