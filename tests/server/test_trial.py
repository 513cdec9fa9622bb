"""Models are loaded in a Triton of their own before a build puts them into the repository."""

import re
from pathlib import Path
from typing import ClassVar

import pytest
from typer.testing import CliRunner

import tritone.server.trial
from generic_models import write_scaled
from tritone.cli.main import app
from tritone.errors import ServerSetupError
from tritone.server.installation import Installation, find_installation
from tritone.server.options import ServerOptions


def build(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["build", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_scaled(tmp_path / "scaled")


class Recorder:
    """Stands for a server: keeps the configurations that it was given, and refuses to load them if told so."""

    refuses = False
    configs: ClassVar[dict[str, str]] = {}

    def __init__(self, repository: Path, options: ServerOptions, **_: object) -> None:
        Recorder.configs = {
            path.parent.name: path.read_text(encoding="utf-8") for path in repository.glob("*/config.pbtxt")
        }
        assert all((path.parent / "1").is_dir() for path in repository.glob("*/config.pbtxt"))

    def __enter__(self) -> "Recorder":
        if self.refuses:
            raise ServerSetupError("models did not load: scaled: no")
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> type[Recorder]:
    monkeypatch.setattr(tritone.server.trial, "TritonServer", Recorder)
    monkeypatch.setattr(Recorder, "refuses", False)
    monkeypatch.setattr(Recorder, "configs", {})
    return Recorder


def test_a_build_loads_its_models_in_a_real_triton(bundle: Path, tmp_path: Path) -> None:
    code, out, told = build(bundle, "--name", "scaled", "--output", tmp_path / "repository", "--platform", "native")
    assert code == 0, told
    assert "loading scaled in a Triton, for a check" in told
    if not find_installation().has_backend("onnxruntime"):
        assert "has no backend onnxruntime, so Tritone's own backend loaded the model with the same" in told
    assert out.split("\t")[:2] == ["scaled", "generic"]


def test_what_triton_refuses_is_not_written(bundle: Path, tmp_path: Path, recorder: type[Recorder]) -> None:
    recorder.refuses = True
    code, _, told = build(bundle, "--output", tmp_path / "repository")
    assert code == 1
    assert "Triton does not accept what was built, so nothing was written: models did not load: scaled: no" in told
    assert not any((tmp_path / "repository").glob("*"))
    assert build(bundle, "--output", tmp_path / "repository", "--no-trial")[0] == 0


def test_models_for_gpus_are_tried_with_one_instance_on_the_cpu_where_there_is_none(
    bundle: Path, tmp_path: Path, recorder: type[Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tritone.server.trial, "GPU", tmp_path / "nvidiactl")
    code, _, told = build(bundle, "--name", "m", "--output", tmp_path / "repository", "--instances", "1@0,2@1,2")
    assert code == 0, told
    assert "m was loaded on the CPU, since there is no GPU here" in told
    assert "KIND_CPU" in recorder.configs["m"]
    assert recorder.configs["m"].count("count: 1") == recorder.configs["m"].count("instance_group") == 1
    written = (tmp_path / "repository" / "m" / "config.pbtxt").read_text(encoding="utf-8")
    assert "KIND_GPU" in written
    assert [re.findall(r"(?:count|gpus): (\d+)", group) for group in written.split("instance_group")[1:]] == [
        ["1", "0"],
        ["2", "1", "2"],
    ]


def test_models_of_speech_are_tried_where_that_is_asked_for(
    toy_bundle: Path, tmp_path: Path, recorder: type[Recorder]
) -> None:
    assert build(toy_bundle, "--output", tmp_path / "repository")[0] == 0
    assert recorder.configs == {}
    assert build(toy_bundle, "--output", tmp_path / "repository", "--trial")[0] == 0
    assert set(recorder.configs) == {"toy", "toy-streaming"}


def test_without_a_server_a_build_says_that_it_did_not_try(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(path: object = None) -> Installation:
        raise ServerSetupError("no tritonserver found")

    monkeypatch.setattr("tritone.cli.build.find_installation", nothing)
    monkeypatch.setattr(tritone.server.trial, "find_installation", nothing)
    code, _, told = build(bundle, "--output", tmp_path / "repository")
    assert code == 0
    assert "note: not loaded for a check, since there is no tritonserver here" in told
    code, _, told = build(bundle, "--output", tmp_path / "repository", "--trial")
    assert code == 1
    assert "no tritonserver found" in told
