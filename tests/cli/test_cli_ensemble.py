"""`tritone ensemble` and `tritone export python`: what they print, write and refuse."""

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ensemble_models import SPEC, write_parts
from tritone.cli.main import app
from tritone.inspection import inspect_path
from tritone.repository import backends_of, is_all_ours, read_repository
from tritone.repository.config import from_text


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_parts(tmp_path)


def test_a_file_becomes_an_ensemble_and_its_steps(folder: Path) -> None:
    repository = folder / "repository"
    result = run("ensemble", folder / "spec.yaml", "--output", repository, "--no-trial")
    assert result.exit_code == 0, result.stderr
    names = ["mean-length", "mean-length-pool", "mean-length-scale", "mean-length-tokenizer"]
    assert [line.split("\t")[:2] for line in sorted(result.stdout.splitlines())] == [[n, "generic"] for n in names]
    assert [model.name for model in read_repository(repository)] == names
    assert is_all_ours(repository)
    assert backends_of(repository) == set()
    config = from_text((repository / "mean-length" / "config.pbtxt").read_text(encoding="utf-8"))
    steps = {step.model_name: (dict(step.input_map), dict(step.output_map)) for step in config.ensemble_scheduling.step}
    assert steps["mean-length-tokenizer"] == (
        {"text": "TEXT"},
        {"lengths": "tokenizer.lengths", "counts": "COUNT"},
    )
    assert steps["mean-length-pool"] == ({"scaled": "scale.y", "counts": "COUNT"}, {"output": "MEAN"})
    assert config.max_batch_size == 4
    assert "tokenizer.lengths may have any size" in result.stderr
    assert inspect_path(repository).listings[2].title == "steps of ensembles"


def test_steps_that_an_ensemble_no_longer_has_are_removed(folder: Path) -> None:
    repository = folder / "repository"
    run("ensemble", folder / "spec.yaml", "--output", repository, "--no-trial")
    (folder / "spec.yaml").write_text(
        SPEC.replace("pool", "mean").replace("steps:mean", "steps:pool"), encoding="utf-8"
    )
    assert run("ensemble", folder / "spec.yaml", "--output", repository, "--no-trial").exit_code == 0
    assert sorted(path.name for path in repository.iterdir()) == [
        *("mean-length", "mean-length-mean", "mean-length-scale", "mean-length-tokenizer")
    ]


def test_wires_that_do_not_fit_leave_nothing(folder: Path) -> None:
    (folder / "spec.yaml").write_text(SPEC.replace("x: tokenizer.lengths", "x: tokenizer.counts"), encoding="utf-8")
    result = run("ensemble", folder / "spec.yaml", "--output", folder / "repository")
    assert result.exit_code == 1
    assert "error: ensemble mean-length: step scale, input x: tokenizer.counts is INT64 [1]" in result.stderr
    assert not (folder / "repository").exists()


def test_without_an_output_the_wires_are_only_checked(folder: Path) -> None:
    before = sorted(folder.rglob("*"))
    result = run("ensemble", folder / "spec.yaml")
    assert result.exit_code == 0
    assert "the wires fit; nothing was written" in result.stderr
    assert sorted(folder.rglob("*")) == before
    assert run("ensemble", folder / "spec.yaml", "--device", "tpu").exit_code == 2


def test_a_function_becomes_a_bundle(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    result = run("export", "python", "steps:spell", "--output", folder / "spell", "--requirement", "numpy>=1.20")
    assert result.exit_code == 0, result.stderr
    assert result.stdout == f"{folder / 'spell'}\n"
    assert "spell, a generator: it answers many times" in result.stderr
    assert inspect_path(folder / "spell").facts["needs"] == "numpy>=1.20"
    assert run("export", "python", "steps:absent", "--output", folder / "absent").exit_code == 1
    assert run("export", "python", "steps", "--output", folder / "absent").exit_code == 2


def test_a_function_is_built_only_where_it_is_asked_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    run("export", "python", "steps:upper", "--output", "upper")
    result = run("build", "upper", "--output", "repository", "--no-trial")
    assert result.exit_code == 1
    assert "functions of Python run only where they are asked for: runtime python" in result.stderr
    assert run("build", "upper", "--output", "repository", "--no-trial", "--runtime", "python").exit_code == 0


def test_many_answers_cannot_be_cached(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    run("export", "python", "steps:spell", "--output", "spell")
    result = run("build", "spell", "--output", "repository", "--no-trial", "--runtime", "python", "--response-cache")
    assert result.exit_code == 2
    assert "answers a request many times, which Triton cannot cache" in result.stderr


def test_a_step_may_be_left_to_a_backend_of_triton(folder: Path) -> None:
    native = SPEC.replace("bundle: scaled", "bundle: scaled\n    platform: native\n    instances: 2")
    (folder / "spec.yaml").write_text(native, encoding="utf-8")
    result = run("ensemble", folder / "spec.yaml", "--output", folder / "repository", "--no-trial")
    assert result.exit_code == 0, result.stderr
    config = from_text((folder / "repository" / "mean-length-scale" / "config.pbtxt").read_text(encoding="utf-8"))
    assert (config.platform, config.instance_group[0].count) == ("onnxruntime_onnx", 2)
    assert backends_of(folder / "repository") == {"onnxruntime"}
    assert (folder / "repository" / "mean-length-scale" / "1" / "model.onnx").is_file()
