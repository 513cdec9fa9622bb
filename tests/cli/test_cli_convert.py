"""`tritone convert` and `tritone check-precision`, as users type them."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner, Result

import graphs
from tritone.cli.main import app


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return graphs.images(tmp_path / "model.onnx")


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    path = tmp_path / "images.npz"
    np.savez(path, image=np.random.default_rng(5).uniform(0, 1, (6, 1, 3, 16, 16)).astype(np.float32))
    return path


def test_a_graph_is_converted_and_checked_with_limits(model: Path, inputs: Path, tmp_path: Path) -> None:
    converted = tmp_path / "int8.onnx"
    result = run("convert", model, "--to", "int8-static", "--calibration", inputs, "--opset", "21",
                 "--output", converted)  # fmt: skip
    assert result.exit_code == 0, result.stderr
    assert result.stdout.strip() == str(converted)
    for told in ("converting to int8-static", "6 calls, the calibration set", "scores", "opset 17 → 21", "MB →"):
        assert told in result.stderr
    assert onnx.load(converted).opset_import[0].version == 21

    shown = run("check-precision", model, converted, "--inputs", inputs, "--min-agreement", "0.5")
    assert shown.exit_code == 0, shown.stderr
    assert "6 calls; differences of" in shown.stdout

    strict = run("check-precision", model, converted, "--inputs", inputs, "--max-difference", "1e-9", "--json")
    assert strict.exit_code == 1
    assert "the largest difference of scores is" in strict.stderr
    told = json.loads(strict.stdout)
    assert (told["ok"], told["calls"], told["outputs"][0]["name"]) == (False, 6, "scores")
    assert told["limits"] == {"max_difference": 1e-9, "max_mean": None, "min_cosine": 0.99, "min_agreement": None}
    assert 0.99 < told["outputs"][0]["cosine"] <= 1
    assert told["outputs"][0]["finite"] is True


def test_without_inputs_both_commands_say_that_they_made_some(model: Path, tmp_path: Path) -> None:
    result = run("convert", model, "--to", "fp16", "--shapes", "image:2x3x16x16", "--output", tmp_path / "half.onnx")
    assert result.exit_code == 0, result.stderr
    assert "2 calls, inputs made from the shapes" in result.stderr
    result = run("check-precision", model, f"{tmp_path / 'half.onnx'},runtime=reference")
    assert result.exit_code == 0, result.stderr
    assert "inputs made from the shapes" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (("--to", "fp16", "--shapes", "16"), 2, "image (?x3x16x16) varies and needs a shape: image:1x3x16x16"),
        (("--shapes", "picture:1x3x16x16"), 2, "no input picture; the graph has image"),
        (("--shapes", "image:1x3x8x8"), 2, "does not fit input image, which is ?x3x16x16"),
        (("--shapes", "image=1"), 2, "shapes are written NAME:8x128"),
        (("--to", "int8"), 2, "'int8' is not fp16, int8-weights, int8-dynamic or int8-static"),
        (("--to", "fp16", "--rows", "0"), 2, "--rows"),
        (("--to", "fp16", "--inputs", "nowhere"), 1, "there is no file or folder nowhere"),
    ],
)
def test_wrong_usage_is_explained(arguments: tuple[str, ...], code: int, why: str, model: Path, tmp_path: Path) -> None:
    result = run("convert", model, *arguments, "--output", tmp_path / "out.onnx")
    assert result.exit_code == code
    assert why in " ".join(result.stderr.split())
    assert not (tmp_path / "out.onnx").exists()


def test_a_graph_is_not_written_over_itself(model: Path) -> None:
    result = run("convert", model, "--to", "fp16", "--output", model)
    assert result.exit_code == 2
    assert "would be written over" in " ".join(result.stderr.split())
