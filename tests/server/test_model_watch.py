"""The watch over processes of models, with processes of this test: what was replaced is not taken for lost."""

from dataclasses import dataclass, field
from typing import Any

import psutil
import pytest

from tritone.server import watch as watching
from tritone.server.watch import STUB, ModelWatch


@dataclass
class Process:
    pid: int
    model: str
    version: int = 1
    instance: int = 0

    def name(self) -> str:
        return STUB

    def status(self) -> str:
        return psutil.STATUS_RUNNING

    def cmdline(self) -> list[str]:
        path = f"/repository/{self.model}/{self.version}/model.py"
        return ["stub", path, *"234567", f"{self.model}_0_{self.instance}", "9"]


@dataclass
class Running:
    """What `ModelWatch` needs of a server; what it has loaded again is kept."""

    processes: list[Process]
    ready: list[tuple[str, str]]
    reloaded: list[str] = field(default_factory=list)

    def children(self) -> list[Any]:
        return self.processes

    @property
    def control(self) -> "Running":
        return self

    def models(self) -> list[dict[str, str]]:
        return [{"name": name, "version": version, "state": "READY"} for name, version in self.ready]

    def process_count(self, model: str) -> int:
        return {"both": 0, "pair": 2}.get(model, 1)  # of an ensemble, of two instances

    def unload(self, model: str) -> None:
        self.reloaded.append(model)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(watching.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(ModelWatch, "_lose", lambda self, model, pids: found.append(f"{model} {pids}"))
    return found


def watch_of(running: Running) -> ModelWatch:
    return ModelWatch(running, lambda text: None)  # type: ignore[arg-type]


def test_a_process_that_ends_is_lost_while_its_version_is_ready(lost: list[str], clock: list[float]):
    running = Running([Process(1, "asr"), Process(2, "asr", instance=1)], [("asr", "1")])
    watch = watch_of(running)
    watch.look()
    running.processes = running.processes[1:]
    watch.look()
    assert lost == ["asr 1"]


def test_a_process_that_ended_before_it_was_watched_is_lost_once_and_ensembles_have_none(
    lost: list[str], clock: list[float]
):
    ready = [(name, "1") for name in ("asr", "both", "pair", "speaker")]
    watch = watch_of(Running([Process(1, "asr"), Process(2, "pair", instance=1)], ready))
    watch.look()
    watch.look()
    assert lost == ["pair before it was watched", "speaker before it was watched"]


def test_processes_of_a_version_that_another_replaced_are_not_lost(lost: list[str], clock: list[float]):
    old = [Process(1, "asr"), Process(2, "asr", instance=1)]
    running = Running(old, [("asr", "1")])
    watch = watch_of(running)
    running.processes = [*old, Process(3, "asr", version=2)]
    watch.look()
    running.processes, running.ready = [Process(3, "asr", version=2)], [("asr", "2")]
    watch.look()
    assert lost == []
    running.processes = []
    watch.look()
    assert lost == ["asr 3"]


def test_processes_of_a_version_that_was_loaded_again_with_fewer_are_not_lost(lost: list[str], clock: list[float]):
    old = [Process(1, "asr"), Process(2, "asr", instance=1)]
    running = Running(old, [("asr", "1")])
    watch = watch_of(running)
    new = Process(3, "asr")
    for processes in ([*old, new], [old[1], new], [new]):
        running.processes = processes
        watch.look()
        clock[0] += 0.2
    assert lost == []
    clock[0] += watching.CHANGE_S
    running.processes = []
    watch.look()
    assert lost == ["asr 3"]
