"""What `tritone inspect` tells of bundles, repositories and graphs, hostile ones included."""

import io
import json
import os
import shutil
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from onnx import TensorProto, helper
from typer.testing import CliRunner

from earlier import unpack
from tritone.cli.main import app
from tritone.errors import BundleError, InputError, OperatorError
from tritone.inspection import Inspection, inspect_path
from tritone.runtime.description import ANY

CONFIG = """
name: "images"
platform: "onnxruntime_onnx"
max_batch_size: 8
input { name: "image" data_type: TYPE_UINT8 dims: [128, 128, 3] }
output { name: "scores" data_type: TYPE_FP32 dims: [26] }
"""


class Network(torch.nn.Module):
    def forward(self, words: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": words * mask, "total": words.sum(-1)}


class Pair(torch.nn.Module):
    def forward(self, words: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return words * mask, words.sum(-1)


def onnx_file(path: Path, **changes: object) -> Path:
    name = str(changes.get("name", "pixels"))
    shape = changes.get("shape", ["batch", 3, None])
    graph = helper.make_graph(
        [helper.make_node(str(changes.get("operator", "Relu")), [name], ["out"])],
        "toy",
        [helper.make_tensor_value_info(name, TensorProto.BFLOAT16, shape)],
        [helper.make_tensor_value_info(str(changes.get("output", "out")), TensorProto.BFLOAT16, shape)],
    )
    if location := changes.get("location"):
        weight = graph.initializer.add(name="weight", data_type=TensorProto.FLOAT, dims=[10**6, 3])
        weight.data_location = TensorProto.EXTERNAL
        weight.external_data.add(key="location", value=str(location))
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]).SerializeToString())
    return path


def rows(found: Inspection, title: str) -> list[tuple[str, ...]]:
    (listing,) = (each for each in found.listings if each.title == title)
    return list(listing.rows)


def test_a_bundle_is_told_with_its_tensors_and_graphs(toy_bundle: Path) -> None:
    found = inspect_path(toy_bundle)
    assert found.facts["kind"] == "ctc: a CTC model, it writes text"
    assert ("input", "WAV", "FP32", "[-1]", "optional") in rows(found, "tensors of the served model")
    assert rows(found, "graphs")[0][:4] == ("encoder", "onnxruntime", "fp32", "encoder.onnx weights.bin")
    assert found.fault == ""


def test_a_damaged_bundle_is_told_whole_and_ends_with_an_error(toy_bundle: Path, tmp_path: Path) -> None:
    shutil.copytree(toy_bundle, tmp_path / "bundle")
    with (tmp_path / "bundle" / "encoder.onnx").open("ab") as file:
        file.write(b"more")
    result = CliRunner().invoke(app, ["inspect", str(tmp_path / "bundle")])
    assert result.exit_code == 1
    assert "encoder.onnx" in result.stdout
    assert "was altered or damaged" in result.stderr


def test_a_shipped_bundle_is_known_by_its_name() -> None:
    assert inspect_path("demo-speaker").facts["kind"].startswith("embedding: a speaker model")
    with pytest.raises(InputError, match=r"there is no nowhere\. .*demo-asr"):
        inspect_path("nowhere")


def test_a_repository_is_told_whoever_wrote_it(tmp_path: Path) -> None:
    repository = unpack("v0_1_0", tmp_path)
    (repository / "images" / "2").mkdir(parents=True)
    (repository / "images" / "config.pbtxt").write_text(CONFIG, encoding="utf-8")
    (repository / "bare" / "1").mkdir(parents=True)
    (repository / "bare" / "1" / "model.onnx").write_bytes(b"")
    (repository / "bare" / "1" / "weights").symlink_to("/etc/hostname")
    found = inspect_path(repository)
    models = {row[0]: row[1:] for row in rows(found, "models")}
    assert models["images"] == ("2", "onnxruntime_onnx", "8", "somebody else")
    assert models["letters"] == ("1", "python", "8", "tritone")
    assert models["bare"][1] == "onnxruntime"
    assert ("images", "input", "image", "UINT8", "[128, 128, 3]") in rows(found, "tensors")
    assert rows(found, "steps of ensembles")[0][:2] == ("staged", "staged-features")
    assert "bare/1/weights is a link to something outside of the repository" in found.notes
    assert rows(inspect_path(repository / "images"), "models") == [("images", *models["images"])]


def test_an_onnx_file_is_told_without_its_weights(tmp_path: Path) -> None:
    found = inspect_path(onnx_file(tmp_path / "model.onnx", location="weights.bin"))
    assert rows(found, "tensors") == [
        ("input", "pixels", "BF16", "[batch, 3, ?]"),
        ("output", "out", "BF16", "[batch, 3, ?]"),
    ]
    assert found.facts["opset"] == "20"
    assert found.facts["operators"] == "1: Relu 1"
    assert found.facts["weights"] == "3,000,000 numbers in 1 tensors"
    assert found.notes == ("its weights 'weights.bin' are not beside it",)


def test_files_of_torch_are_told_without_running_them(tmp_path: Path) -> None:
    inputs = torch.ones(2, 4), torch.ones(2, 1)
    sizes = {"words": {0: (batch := torch.export.Dim("batch"))}, "mask": {0: batch}}
    torch.export.save(torch.export.export(Network(), inputs, dynamic_shapes=sizes), tmp_path / "model.pt2")
    found = inspect_path(tmp_path / "model.pt2")
    assert [row[:3] for row in rows(found, "tensors")] == [
        ("input", "words", "FP32"),
        ("input", "mask", "FP32"),
        ("output", "logits", "FP32"),
        ("output", "total", "FP32"),
    ]
    symbol = rows(found, "tensors")[0][3][1:].partition(",")[0]
    assert [row[3] for row in rows(found, "tensors")][1:] == [f"[{symbol}, 1]", f"[{symbol}, 4]", f"[{symbol}]"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(Pair()), tmp_path / "any.name")
    found = inspect_path(tmp_path / "any.name")
    assert [row[:3] for row in rows(found, "tensors")] == [
        ("input", "words", "a tensor"),
        ("input", "mask", "a tensor"),
        ("output", "result 0", "a tensor"),
        ("output", "result 1", "a tensor"),
    ]
    assert "a script is a program" in found.notes[0]
    torch.save({"weight": torch.ones(3)}, tmp_path / "final.pt")
    with pytest.raises(BundleError, match=r"is a checkpoint .* could run any code"):
        inspect_path(tmp_path / "final.pt")


def zipped(**records: bytes) -> bytes:
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w") as file:
        for name, content in records.items():
            file.writestr(f"m/{name.replace('__', '/').replace('_dot_', '.')}", content)
    return memory.getvalue()


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "not an ONNX graph"),
        (b"\x08\x08", "it has no version, no opset or no graph"),
        (b"\xff" * 100, "not an ONNX graph"),
        (b"PK\x03\x04" + b"\0" * 50, "no archive of torch"),
        (zipped(a=b""), "neither of torch.export nor of torch.jit"),
        (zipped(archive_format=b"pt2", archive_version=b"0"), "no record 'models/model.json'"),
        (zipped(archive_format=b"pt2", archive_version=b"0", models__model_dot_json=b"[" * 10**5), "not valid JSON"),
        (zipped(archive_format=b"pt2", archive_version=b"0", models__model_dot_json=b"{}"), "is damaged"),
        (zipped(data_dot_pkl=b"cos\nsystem\n(S'true'\ntR.", code__a_dot_py=b"x"), "without a function `forward`"),
        (zipped(data_dot_pkl=b"\xff", code__a_dot_py=b"x"), "is damaged"),
        (zipped(data_dot_pkl=b"N.", code__a_dot_py=b"\xff"), "is damaged"),
        (zipped(data_dot_pkl=b"N.", code__a_dot_py=b"  def forward(" * 10**5), "without a function `forward`"),
    ],
)
def test_files_that_are_damaged_or_hostile_are_errors(tmp_path: Path, content: bytes, told: str) -> None:
    (tmp_path / "model.bin").write_bytes(content)
    with pytest.raises(BundleError, match=told):
        inspect_path(tmp_path / "model.bin")


@pytest.mark.parametrize(
    ("write", "told"),
    [
        (
            lambda folder: (folder / "config.pbtxt").write_text("nonsense", encoding="utf-8"),
            "not a Triton model configuration",
        ),
        (lambda folder: (folder / "config.pbtxt").write_bytes(b"\xff"), "utf-8"),
        (lambda folder: (folder / "config.pbtxt").write_bytes(b"#" * 2**23), "more than 4194304 bytes"),
        (lambda folder: os.mkfifo(folder / "config.pbtxt"), "has a config.pbtxt or a version"),
    ],
)
def test_configurations_that_cannot_be_read_are_errors(
    tmp_path: Path, write: Callable[[Path], object], told: str
) -> None:
    (tmp_path / "model").mkdir()
    write(tmp_path / "model")
    with pytest.raises(OperatorError, match=told):
        inspect_path(tmp_path)


def test_what_a_file_says_cannot_speak_to_the_terminal(tmp_path: Path) -> None:
    path = onnx_file(
        tmp_path / "m.onnx",
        name="[red]\x1b[2J\n",
        output="[red]\x1b[2J\n",
        shape=[-5, 2**62],
        location="../up",
        operator="Loop",
    )
    result = CliRunner().invoke(app, ["inspect", str(path)])
    assert result.exit_code == 0
    assert "[red]\\x1b[2J\\n" in result.stdout
    assert "\x1b[2J" not in result.stdout
    assert f"[{ANY}, 4611686018427387904]" in result.stdout, "an axis below zero is an open one"
    assert "loops (Loop), whose end only running it shows" in result.stdout
    assert "weights at '../up', outside of its folder" in result.stdout
    assert "two of its inputs and outputs are called" in result.stdout


def test_the_same_is_there_as_json(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["inspect", "--json", str(onnx_file(tmp_path / "model.onnx"))])
    found = json.loads(result.stdout)
    assert found["listings"][0]["rows"][0] == ["input", "pixels", "BF16", "[batch, 3, ?]"]
