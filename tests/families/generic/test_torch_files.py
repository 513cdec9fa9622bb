"""Files of torch.export and TorchScript of any use, as bundles: what is proposed, what is refused, their answers."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner, Result

import tritone
from tritone.bundle import Bundle
from tritone.cli.main import app
from tritone.errors import ExportError, OperatorError
from tritone.families.generic.torch_export import export_torch_export
from tritone.families.generic.torchscript import export_torchscript
from tritone.families.graphs.proposal import TensorOptions
from tritone.kinds.generic.part import GenericPart


class Words(torch.nn.Module):
    """Rows of ids to a vector of 4 for each id, zeros where the mask is 0, and the ids that are counted."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(10, 4)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.table(ids) * mask.unsqueeze(-1), mask.sum(-1, keepdim=True)


class Named(Words):
    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:  # type: ignore[override]
        vectors, count = super().forward(ids, mask)
        return {"vectors": vectors, "count": count}


class Sorted(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.svd(x)[1]


class Nested(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [x, x]


class Optional(torch.nn.Module):
    def forward(self, x: torch.Tensor, scale: float) -> torch.Tensor:
        return x * scale


INPUTS = (torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.tensor([[1.0, 1, 0], [1, 1, 1]]))
ARRAYS = {"ids": INPUTS[0].numpy(), "mask": INPUTS[1].numpy()}


@pytest.fixture(scope="module")
def words() -> Words:
    torch.manual_seed(0)
    return Words().eval()


@pytest.fixture(scope="module")
def program(words: Words, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("program") / "words.pt2"
    named = Named().eval()
    named.load_state_dict(words.state_dict())
    axes = {0: torch.export.Dim("rows"), 1: torch.export.Dim("words")}
    torch.export.save(torch.export.export(named, INPUTS, dynamic_shapes={"ids": axes, "mask": axes}), path)
    return path


def script(module: torch.nn.Module, path: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(module), path)
    return path


def sizes(bundle: Bundle) -> dict[str, tuple[str, tuple[int, ...]]]:
    generic = bundle.manifest.part(GenericPart)
    return {each.name: (each.type, each.dims) for each in (*generic.inputs, *generic.outputs)}


def test_a_program_of_torch_export_keeps_its_names_and_answers(program: Path, words: Words, tmp_path: Path) -> None:
    report = export_torch_export(model=program, output=tmp_path / "bundle")
    assert sizes(report.bundle) == {
        "ids": ("INT64", (-1,)),
        "mask": ("FP32", (-1,)),
        "vectors": ("FP32", (-1, 4)),
        "count": ("FP32", (1,)),
    }
    assert report.bundle.manifest.part(GenericPart).max_batch_size == 8
    found = tritone.load(tmp_path / "bundle", threads=1).infer(ARRAYS)
    vectors, count = words(*INPUTS)
    np.testing.assert_allclose(found["vectors"], vectors.detach().numpy(), atol=1e-6)
    assert found["count"].tolist() == count.tolist() == [[2], [3]]


def test_names_may_be_others_and_a_table_can_be_all(program: Path, tmp_path: Path) -> None:
    rename = {"ids": "input_ids", "vectors": "hidden"}
    report = export_torch_export(model=program, output=tmp_path / "bundle", rename=rename)
    assert list(sizes(report.bundle)) == ["input_ids", "mask", "hidden", "count"]
    result = CliRunner().invoke(app, ["export", "torch-export", str(program), "--dry-run", "--max-batch-size", "4"])
    assert result.exit_code == 0
    assert "first axis, up to 4 rows in a call" in result.stdout
    assert "nothing was written" in result.stderr


def test_a_script_is_given_types_and_sizes_and_runs_only_where_it_is_asked_for(words: Words, tmp_path: Path) -> None:
    path = script(words, tmp_path / "words.pt")
    options = TensorOptions(dims=("ids=-1", "mask=-1"))
    report = export_torchscript(
        model=path, output=tmp_path / "bundle", options=options, types={"ids": "INT64"}, rename={"output_1": "count"}
    )
    assert sizes(report.bundle) == {
        "ids": ("INT64", (-1,)),
        "mask": ("FP32", (-1,)),
        "output_0": ("FP32", (-1, 4)),
        "count": ("FP32", (1,)),
    }
    found = tritone.load(tmp_path / "bundle", runtime="torchscript", threads=1).infer(ARRAYS)
    np.testing.assert_allclose(found["output_0"], words(*INPUTS)[0].detach().numpy(), atol=1e-6)
    with pytest.raises(OperatorError, match="scripts of torch run only where they are asked for"):
        tritone.load(tmp_path / "bundle").infer(ARRAYS)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["export", *map(str, arguments)])


def test_the_command_of_scripts_says_what_it_needs(words: Words, tmp_path: Path) -> None:
    path = script(words, tmp_path / "words.pt")
    result = run("torchscript", path, "--output", tmp_path / "bundle")
    assert result.exit_code == 1
    assert "says nothing of the sizes of ids, mask. Say the sizes" in result.stderr
    wrong = run("torchscript", path, "--output", tmp_path / "bundle", "--dims", "ids=-1", "--dims", "mask=-1")
    assert wrong.exit_code == 1
    assert "the graph did not run on zeros" in wrong.stderr
    assert "(--type NAME=INT64)" in wrong.stderr
    more = ("--dims", "ids=-1", "--dims", "mask=-1", "--type", "ids=INT64")
    assert run("torchscript", path, "--output", tmp_path / "bundle", *more).stdout == f"{tmp_path / 'bundle'}\n"


@pytest.mark.parametrize(
    ("module", "options", "told"),
    [
        (Words(), {"types": {"x": "INT64"}}, "the script has no input x; it has ids, mask"),
        (Words(), {"types": {"ids": "STRING"}}, "the types of scripts are "),
        (Words(), {"rename": {"ids": "mask"}}, "two tensors would be called mask"),
        (Nested(), {"options": TensorOptions(dims=("x=3",))}, "returns a list; a model returns a tensor or a tuple"),
        (Optional(), {}, r"takes what is no tensor \(scale: float\)"),
    ],
)
def test_scripts_that_cannot_be_served_say_why(
    tmp_path: Path, module: torch.nn.Module, options: dict[str, Any], told: str
) -> None:
    path = script(module, tmp_path / "model.pt")
    with pytest.raises(ExportError, match=told):
        export_torchscript(model=path, output=tmp_path / "bundle", **options)
    assert not (tmp_path / "bundle").exists()


def test_files_that_are_something_else_say_what_would_do(program: Path, tmp_path: Path) -> None:
    path = script(Words(), tmp_path / "words.pt")
    with pytest.raises(ExportError, match=r"is TorchScript; `tritone export torchscript`"):
        export_torch_export(model=path, output=None)
    with pytest.raises(ExportError, match=r"is of torch.export; `tritone export torch-export`"):
        export_torchscript(model=program, output=None)
    torch.save({}, tmp_path / "final.pt")
    for export in (export_torch_export, export_torchscript):
        with pytest.raises(ExportError, match="is a checkpoint"):
            export(model=tmp_path / "final.pt", output=None)
        with pytest.raises(ExportError, match="there is no file"):
            export(model=tmp_path / "absent", output=None)
    torch.export.save(torch.export.export(Sorted(), (torch.eye(3),)), tmp_path / "sorted.pt2")
    with pytest.raises(ExportError, match=r"linalg_svd.*Export the module as ONNX"):
        export_torch_export(model=tmp_path / "sorted.pt2", output=None)
