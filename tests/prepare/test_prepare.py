"""WHAT becomes a bundle: what is kept in the cache, by how many processes, after a kill, without room, from the hub."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from typer.testing import CliRunner

import tritone
from exports import let_go
from graphs import scaled
from hub_server import HubServer, commit_of
from tritone.cli.main import app
from tritone.errors import BundleError, ExportError, InputError, MissingDependencyError, OperatorError, StorageError
from tritone.prepare import cache, cached, clear, prepare
from tritone.prepare import prepare as prepare_module
from tritone.storage.cache import copies

CARD = b"---\nlicense: apache-2.0\n---\nWords.\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TRITONE_CACHE", str(tmp_path / "cache"))
    yield tmp_path / "cache"
    let_go()


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    return scaled(tmp_path / "double.onnx", 2.0)


def answer(model: Any, value: float = 3.0) -> float:
    return float(model.infer({"x": np.array([[value]], np.float32)})["y"][0, 0])


def test_a_graph_is_exported_once_and_loaded_from_the_cache(graph: Path):
    said: list[str] = []
    first = prepare(graph, notify=said.append)
    assert [line.partition(":")[2].strip() for line in said[:1]] == ["a graph in ONNX"]
    before = (first.path / "manifest.json").stat().st_mtime_ns
    assert prepare(graph).path == first.path
    assert (first.path / "manifest.json").stat().st_mtime_ns == before
    assert answer(tritone.load(graph)) == 6.0
    assert [entry.about["is"] for entry in cached()] == ["a graph in ONNX"]


def test_another_content_is_another_export_and_the_older_one_stays(graph: Path):
    first = prepare(graph).path
    scaled(graph, 5.0)
    assert answer(tritone.load(graph)) == 15.0
    assert len(cached()) == 2
    assert answer(tritone.load(first)) == 6.0


def test_a_damaged_export_is_made_anew(graph: Path):
    path = prepare(graph).path
    (path / "model.onnx").write_bytes(b"damage")
    assert answer(tritone.load(graph)) == 6.0
    assert len(cached()) == 1


def test_bundles_are_taken_as_they_are(folder: Path):
    assert prepare("demo-asr").name == "demo-asr"
    assert not folder.exists()
    with pytest.raises(BundleError, match="there is no nothing-here"):
        prepare("nothing-here")


PREPARE = "import sys; from tritone.prepare import prepare; prepare(sys.argv[1]); print('done')"


def test_two_processes_make_it_once(graph: Path):
    command = [sys.executable, "-c", PREPARE, str(graph)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding="utf-8") for _ in range(2)]
    assert [process.communicate(timeout=60)[0] for process in running] == ["done\n", "done\n"]
    assert len(cached()) == 1
    assert not list(cache.folder().glob(f"*{cache.PARTIAL}"))


KILLED = """
import sys, time
from pathlib import Path
from tritone.prepare import cache

def write(target):
    target.mkdir()
    (target / "half").write_text("half of it", encoding="utf-8")
    print("begun", flush=True)
    time.sleep(600)

cache.make("slow", write, "waiting")
"""


def test_what_a_killed_process_left_is_begun_anew(graph: Path):
    process = subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True, encoding="utf-8")
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert (cache.folder() / "slow.partial" / "bundle" / "half").exists()
    assert cached() == []  # nobody takes it for an export
    bundle = prepare(graph).path

    def write(target: Path) -> dict[str, str]:
        assert not target.exists()
        target.mkdir()
        for each in bundle.iterdir():
            os.link(each, target / each.name)
        return {"is": "whole"}

    assert cache.make("slow", write, "waiting").about == {"is": "whole"}
    assert not list(cache.folder().glob("*.partial"))


def test_a_failure_keeps_nothing(tmp_path: Path):
    path = tmp_path / "broken.onnx"
    path.write_bytes(b"no graph at all, however long one looks at it")
    with pytest.raises(OperatorError):
        prepare(path)
    assert cached() == []
    assert not list(cache.folder().glob("*/"))


class _Usage(NamedTuple):
    total: int
    used: int
    free: int


def test_room_is_looked_at_before_anything_is_made(graph: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prepare_module.__globals__["shutil"], "disk_usage", lambda path: _Usage(10, 9, 1))
    with pytest.raises(OperatorError, match=r"the export needs about 1 MB, .* with 0 MB free.*tritone cache clear"):
        prepare(graph)
    monkeypatch.undo()


def test_a_cache_that_is_only_read_serves_what_it_has(graph: Path, folder: Path, monkeypatch: pytest.MonkeyPatch):
    path = prepare(graph).path

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", refuse)
    monkeypatch.setattr(os, "utime", refuse)
    let_go()
    assert prepare(graph).path == path
    scaled(graph, 4.0)
    with pytest.raises(OperatorError, match=r"TRITONE_CACHE names another folder.*Read-only file system"):
        prepare(graph)


def test_clear_leaves_what_another_process_uses(graph: Path):
    prepare(graph)
    code = PREPARE.replace("print('done')", "print('done', flush=True); sys.stdin.read()")
    command = [sys.executable, "-c", code, str(graph)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")
    assert process.stdout is not None
    assert process.stdout.readline() == "done\n"
    gone, used = clear()
    assert (len(gone), len(used)) == (0, 1)
    process.communicate("", timeout=60)
    let_go()  # and this one
    gone, used = clear()
    assert (len(gone), len(used)) == (1, 0)
    assert cached() == []


def test_the_command_lists_and_clears(graph: Path):
    prepare(graph)
    let_go()
    shown = json.loads(CliRunner().invoke(app, ["cache", "list", "--json"]).stdout)
    [export] = shown["exports"]
    assert export["what"] == str(graph)
    assert export["bytes"] > 0
    wrong = CliRunner().invoke(app, ["cache", "clear", "other"])
    assert (wrong.exit_code, "there is no export other" in wrong.stderr) == (1, True)
    cleared = CliRunner().invoke(app, ["cache", "clear"])
    assert (cleared.exit_code, cached()) == (0, [])
    assert cleared.stdout == f"{export['name']}\tremoved\n0 copies removed, 0 in use\n"


def test_packages_that_an_export_needs_are_said_before_it_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").write_text('{"model_type": "wav2vec2"}', encoding="utf-8")
    (tmp_path / "hf" / "model.safetensors").touch()
    monkeypatch.setitem(prepare_module.__globals__, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"needs torch, onnx, .*pip install '\S*\[export\]'"):
        prepare(tmp_path / "hf")
    assert cached() == []


def test_keywords_of_another_kind_are_refused():
    with pytest.raises(InputError, match=r"of kind ctc, which has no task; it has .*search"):
        tritone.load("demo-asr", task="translate")
    with pytest.raises(InputError, match="of kind embedding, which has no beam"):
        tritone.load("demo-speaker", beam=4)
    assert isinstance(tritone.load("demo-speaker"), tritone.Embedder)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with HubServer() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
        yield server


def test_a_checkpoint_on_the_hub_is_exported_and_its_revision_and_licence_are_kept(hub: HubServer, graph: Path):
    files = {"README.md": CARD, "model.onnx": graph.read_bytes(), "pytorch_model.bin": b"pickle", "a/b.onnx": b"other"}
    hub.repositories["anna/double"] = {"main": files}
    said: list[str] = []
    found = prepare("hf://anna/double", notify=said.append)
    assert found.name == "double"
    assert f"commit: {commit_of(files)}" in said
    assert "licence: apache-2.0" in said
    about = cached()[0].about
    assert (about["commit"], about["licence"]) == (commit_of(files), "apache-2.0")
    [(copy, _)] = copies()
    assert sorted(path.name for path in copy.iterdir()) == ["README.md", "model.onnx"]  # no pickle, nothing below
    hub.repositories["anna/double"]["main"] = {**files, "README.md": CARD + b"More.\n"}
    assert prepare("hf://anna/double").path == found.path  # the same weights
    hub.repositories.clear()


def test_the_hub_is_not_needed_where_it_is_not_to_be_asked(
    hub: HubServer, graph: Path, monkeypatch: pytest.MonkeyPatch
):
    hub.repositories["anna/double"] = {"main": {"model.onnx": graph.read_bytes()}}
    path = prepare("hf://anna/double").path
    hub.repositories.clear()
    monkeypatch.setenv("TRITONE_OFFLINE", "1")
    assert prepare("hf://anna/double").path == path


def test_pickles_of_the_hub_need_trust(hub: HubServer):
    hub.repositories["anna/pickled"] = {"main": {"model.pt": b"no pickle", "tokens.txt": b""}}
    with pytest.raises(StorageError, match=r"model.pt alone: .* code of whoever made them can hide.*--trust"):
        prepare("hf://anna/pickled")
    assert copies() == []  # it was not read
    with pytest.raises(BundleError, match="is no checkpoint of torch"):
        prepare("hf://anna/pickled", trust=True)


def test_what_nothing_exports_is_refused_before_its_weights_are_read(hub: HubServer):
    hub.repositories["anna/llama"] = {"main": {"config.json": b'{"model_type": "llama"}', "model.safetensors": b"x"}}
    with pytest.raises(BundleError, match=r"^hf://anna/llama is a model of transformers of type 'llama', which no"):
        prepare("hf://anna/llama")
    assert copies() == []


def test_scripts_need_trust_on_this_machine_too(tmp_path: Path):
    import warnings

    import torch

    path = tmp_path / "script.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a form of models that torch calls old
        torch.jit.save(torch.jit.script(torch.nn.ReLU()), path)
    with pytest.raises(OperatorError, match=r"loading it runs it.*--trust"):
        prepare(path)
    with pytest.raises(ExportError, match=r"--dims NAME=SIZE.*`tritone export torchscript` has more options"):
        prepare(path, trust=True)


def test_hostile_and_gated_repositories_are_refused_with_the_reason(hub: HubServer, graph: Path):
    hub.repositories["anna/empty"] = {"main": {"README.md": CARD}}
    hub.repositories["anna/forged"] = {"main": {"model.onnx": graph.read_bytes() + b" " * 2000}}
    hub.repositories["anna/outside"] = {"main": {"../model.onnx": b"x"}}
    hub.gated.add("anna/gated")
    hub.repositories["anna/gated"] = {"main": {"model.onnx": b"x"}}
    for name, reason in (
        ("empty", "holds no weights that a command exports"),
        ("outside", "it would lead out of its folder"),
        ("gated", "its owner lets those in who have asked: do so at https://huggingface.co/anna/gated"),
        ("absent", "no such repository"),
    ):
        with pytest.raises(StorageError, match=reason):
            prepare(f"hf://anna/{name}")
    hub.forged["model.onnx"] = b"y" * (len(graph.read_bytes()) + 2000)
    with pytest.raises(OperatorError):
        prepare("hf://anna/forged")
    assert cached() == []


def test_inspect_prints_the_commands_that_what_stands_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    whisper = tmp_path / "fw"
    whisper.mkdir()
    (whisper / "config.json").write_text("{}", encoding="utf-8")
    (whisper / "model.bin").write_bytes(b"\6\0\0\0\14\0WhisperSpec\0")
    shown = json.loads(CliRunner().invoke(app, ["inspect", str(whisper), "--json"]).stdout)
    assert "a Whisper model in a folder of CTranslate2" in shown["what"]
    assert shown["commands"] == [
        f"tritone export whisper --checkpoint {whisper} --output fw --precision fp32,int8 --lenient",
        "tritone build fw --output repository",
        "tritone serve repository",
    ]
    monkeypatch.chdir(tmp_path)  # beside the model, whose folder the bundle must not be written to
    shown = json.loads(CliRunner().invoke(app, ["inspect", "fw", "--json"]).stdout)
    assert shown["commands"][0].startswith("tritone export whisper --checkpoint fw --output fw-bundle ")
    assert shown["commands"][1] == "tritone build fw-bundle --output repository"
