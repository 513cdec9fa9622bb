"""How far a model is with what it prepares beside requests: counted, told, and found by operators."""

import json
import threading
from pathlib import Path

import pytest

from tritone import preparing
from tritone.preparing import READY, VARIABLE, Part, Preparing


def test_each_step_is_told_and_the_end_is_ready(tmp_path: Path) -> None:
    told: list[str] = []
    file = tmp_path / "asr@1@asr_0_0.json"
    states, at_two, go_on = [], threading.Event(), threading.Event()

    def work(part: Part) -> None:
        part.step("the first")
        part.step()
        at_two.set()
        assert go_on.wait(30)
        part.step()

    made = Preparing(told.append, file, note=told.append)
    assert made.text == READY
    made.begin("compiling", 3, work)
    assert at_two.wait(30)
    states += [made.text, preparing.states(tmp_path)["asr", "1"]]
    go_on.set()
    made.wait(30)
    assert [*states, made.text] == ["compiling 2 of 3", "compiling 2 of 3", READY]
    assert preparing.states(tmp_path) == {("asr", "1"): READY}
    assert told[0] == "compiling 1 of 3: the first"
    assert told[1].startswith("compiling is done, 3 in ")


def test_what_fails_is_told_and_stays_to_be_seen(tmp_path: Path) -> None:
    told: list[str] = []

    def work(part: Part) -> None:
        part.step()
        raise OSError("no space left")

    made = Preparing(told.append, tmp_path / "asr@1@0.json", note=told.append)
    made.begin("compiling", 3, work)
    made.wait(30)
    assert made.text == "compiling failed: no space left"
    assert told == ["compiling failed: no space left. The model answers without it"]
    assert preparing.states(tmp_path) == {("asr", "1"): made.text}


def test_of_several_processes_the_one_that_is_not_ready_counts(tmp_path: Path) -> None:
    for name, state in {"a@1@0": READY, "a@1@1": "compiling 1 of 2", "a@1@2": READY, "b@2@0": READY}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({"state": state}), encoding="utf-8")
    (tmp_path / "c@1@0.json").write_text("{", encoding="utf-8")
    assert preparing.states(tmp_path) == {("a", "1"): "compiling 1 of 2", ("b", "2"): READY}


def test_commands_find_a_server_by_its_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, folder = tmp_path / "runtime", tmp_path / "server"
    runtime.mkdir(mode=0o700)
    folder.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setenv(VARIABLE, str(folder))
    links = preparing.publish(folder, [8001, 8000])
    Preparing.of_model("asr", "3", "asr_0_0", lambda line: None, lambda line: None).part("recording", 4).step()
    assert preparing.states_at(8001) == preparing.states_at(8000) == {("asr", "3"): "recording 1 of 4"}
    assert preparing.states_at(8002) == {}
    for link in links:
        link.unlink()
    assert preparing.states_at(8001) == {}
