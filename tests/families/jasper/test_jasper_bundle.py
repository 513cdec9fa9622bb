"""Bundles of a small Jasper: precisions, stages, searches, and the command that writes them."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from typer.testing import CliRunner

from families.conftest import babble
from families.jasper_models import small_config, write_model
from tritone.bundle import Bundle
from tritone.cli.main import app
from tritone.errors import ExportError
from tritone.families.export.report import ExportReport
from tritone.families.jasper.export import export_jasper
from tritone.pipelines import open_offline
from tritone.pipelines.searching.base import SearchSettings
from tritone.runtime import open_graph
from tritone.search.options import SearchOptions


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_model(tmp_path_factory.mktemp("jasper"), small_config())


@pytest.fixture(scope="module")
def report(files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> ExportReport:
    return export_jasper(
        checkpoint=files[0],
        config=files[1],
        output=tmp_path_factory.mktemp("bundles") / "small",
        precisions=("fp32", "fp16"),
        stages=True,
        tail_padding_ms=20,
        max_drift=0.5,  # what a random net says hangs on little
    )


def test_the_manifest_tells_what_the_graph_does(report: ExportReport) -> None:
    manifest = report.bundle.manifest
    assert (manifest.kind, manifest.sample_rate, manifest.provenance.family) == ("ctc", 16000, "jasper")
    assert (manifest.features.kind, manifest.features.window, manifest.features.normalize) == (
        "log-mel",
        "hanning",
        "per-feature",
    )
    assert (manifest.encoder.subsampling_rate, manifest.encoder.output_dim, manifest.encoder.tail_samples) == (
        2,
        16,
        320,
    )
    assert manifest.encoder.min_samples == 320
    vocabulary = report.bundle.vocabulary
    assert (vocabulary.settings.size, vocabulary.settings.blank_id, vocabulary.settings.units) == (11, 10, "char")
    assert vocabulary.text([1, 0, 3]) == "a c"
    assert {(each.role, each.precision) for each in manifest.artifacts} == {
        (role, precision) for role in ("encoder", "features", "acoustic") for precision in ("fp32", "fp16")
    }
    assert report.notes == ()


def test_an_fp16_graph_has_halves_in_its_network_and_floats_in_its_features(report: ExportReport) -> None:
    model = onnx.load(report.bundle.artifact("encoder", "onnxruntime", "fp16"))
    inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    types = {value.name: value.type.tensor_type.elem_type for value in inferred.graph.value_info}
    types |= {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    kinds = {
        operator: {
            types[node.input[0]] for node in model.graph.node if node.op_type == operator and node.input[0] in types
        }
        for operator in ("Conv", "Log", "LogSoftmax")
    }
    assert kinds == {"Conv": {TensorProto.FLOAT16}, "Log": {TensorProto.FLOAT}, "LogSoftmax": {TensorProto.FLOAT}}
    # Strongly typed engines convert nothing by themselves: both sides of a sum or a product are of one type.
    for node in model.graph.node:
        if node.op_type in ("Add", "Mul", "Sub", "Div", "Concat", "Conv"):
            assert len({types[name] for name in node.input if name in types}) <= 1, node


def test_the_stages_one_after_the_other_are_the_whole_graph(report: ExportReport) -> None:
    whole, features, acoustic = (
        open_graph(report.bundle.artifact(role)) for role in ("encoder", "features", "acoustic")
    )
    feed = {"waveform": np.stack([babble(9000, 1), babble(9000, 2)]), "num_samples": np.array([9000, 4321])}
    (ready,) = features(feed, ["features"])
    names = ["log_probs", "num_frames", "encoder_out"]
    found = acoustic({"features": ready, "num_samples": feed["num_samples"]}, names)
    for one, other in zip(whole(feed, names), found, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_beam_search_takes_a_language_model_and_hotwords(report: ExportReport, tmp_path: Path) -> None:
    letters = [*"abcdefgh'", "<unk>", "<s>", "</s>"]
    unigrams = "".join(f"{-0.1 if letter == 'c' else -9}\t{letter}\n" for letter in letters)
    (tmp_path / "lm.arpa").write_text(
        f"\\data\\\nngram 1={len(letters)}\n\n\\1-grams:\n{unigrams}\n\\end\\\n", encoding="utf-8"
    )
    waveforms = [babble(16000, 3), babble(9000, 4)]

    def texts(lm: Path | None = None, **options: object) -> list[str]:
        search = SearchSettings(options=SearchOptions(mode="prefix-beam", **options), lm=lm)  # type: ignore[arg-type]
        return [each.text for each in open_offline(report.bundle, search=search).recognize(waveforms)]

    plain = texts()
    assert all(set(text) - set("c ") for text in plain)
    assert all(set(text) <= set("c ") for text in texts(lm=tmp_path / "lm.arpa", lm_weight=50.0))
    assert all("bad" in text for text in texts(hotwords=(("bad", 60.0),)))


def test_int8_is_refused_and_other_weights_need_their_config(files: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="these networks are made of convolutions"):
        export_jasper(checkpoint=files[0], config=files[1], output=tmp_path / "b", precisions=("int8",))
    with pytest.raises(ExportError, match="needs a config"):
        export_jasper(checkpoint=files[0], output=tmp_path / "b")
    other = write_model(tmp_path / "other", small_config("quartznet"))
    with pytest.raises(ExportError, match=r"missing encoder\.layers\.0\.mconv\.0\.weight"):
        export_jasper(checkpoint=files[0], config=other[1], output=tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_labels_that_cannot_be_told_apart_are_refused(tmp_path: Path) -> None:
    for labels, said in (([*"aa"], "'a'"), (["a b"], "'a b'"), (["<blank>"], "<blank>")):
        checkpoint, config = write_model(tmp_path, small_config() | {"labels": labels})
        with pytest.raises(ExportError, match=said):
            export_jasper(checkpoint=checkpoint, config=config, output=tmp_path / "b")


def test_the_command_writes_a_bundle_of_the_weights_that_were_asked_for(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    arguments = ["export", "jasper", "--checkpoint", str(files[0]), "--config", str(files[1]), "--no-ema", "--unmasked"]
    done = CliRunner().invoke(app, [*arguments, "--output", str(tmp_path / "b"), "--weights", "fp16"])
    assert done.exit_code == 0, done.output
    options = Bundle.open(tmp_path / "b").manifest.provenance.options
    assert (options["ema"], options["masked"], options["weight_storage"]) == (False, False, "fp16")
