"""What is loaded when a repository in storage changes, with a server that only says what it was asked for."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from object_server import Fault, ObjectServer
from tritone.errors import ServerSetupError, ServerUnreachableError, StorageUnreachableError
from tritone.repository import build_repository
from tritone.repository.models import version_folder
from tritone.repository.push import push, rollback
from tritone.server import ServerOptions
from tritone.server.remote import LocalCopy, Updates
from tritone.storage import Address, Store, open_store
from tritone.storage.objects import store as object_store


@dataclass
class Running:
    """A server whose models load as long as their code has no "bad" in it."""

    folder: Path | None
    asked: list[str] = field(default_factory=list)
    options: ServerOptions = field(default_factory=ServerOptions)

    @property
    def control(self) -> "Running":
        return self

    def load(self, model: str, timeout_s: float) -> None:
        version = version_folder(self.folder / model)
        self.asked.append(f"load {model} {version.name}")
        if "bad" in (version / "model.py").read_text(encoding="utf-8"):
            raise ServerSetupError("no weights")

    def unload(self, model: str) -> None:
        self.asked.append(f"unload {model}")


@dataclass
class Served:
    """A pushed repository, the copy that is served of it, what watches it, and what it said."""

    built: Path
    store: Store
    copy: LocalCopy
    updates: Updates
    running: Running
    said: list[str]
    changed: list[str]

    def look(self) -> list[str]:
        """What the server is asked for at a look."""
        self.running.asked.clear()
        self.updates._look_at(self.running)
        return self.running.asked

    def change(self, text: str) -> None:
        code = self.built / "toy" / "1" / "model.py"
        code.write_text(text, encoding="utf-8")
        push(self.built, self.store)


@pytest.fixture
def served(
    objects: ObjectServer, toy_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Served]:
    monkeypatch.setattr(object_store, "PAUSE_S", 0.001)
    monkeypatch.setitem(object_store.RETRY, "max_retries", 0)
    built, store = tmp_path / "built", open_store("s3://bucket/models")
    build_repository([toy_bundle], built, modes="offline")
    push(built, store)
    copy = LocalCopy(Address("s3", "bucket", "models"))
    said: list[str] = []
    changed: list[str] = []
    updates = Updates(store, 1, said.append, copy=copy, changed=lambda model, reason: changed.append(model))
    copy.refresh(store)
    yield Served(built, store, copy, updates, Running(copy.folder), said, changed)
    copy.close()


def test_a_model_is_loaded_when_other_versions_of_it_are_served(served: Served):
    assert served.look() == []
    served.change("# second")
    assert served.look() == ["load toy 2"]
    assert served.look() == []
    assert served.changed == ["toy"]
    rollback(served.store, "toy")
    assert served.look() == ["load toy 1"]
    assert served.said == ["model 'toy' serves version 2 now", "model 'toy' serves version 1 now"]


def test_a_push_that_is_under_way_loads_nothing(served: Served, objects: ObjectServer):
    objects.forbidden_after = objects.seen["PUT"] + 6
    with pytest.raises(Exception, match="no permission"):
        served.change("# second")
    assert served.look() == []
    objects.forbidden_after = None
    served.change("# second")
    assert served.look() == ["load toy 2"]


def test_a_version_that_does_not_load_leaves_the_copy_as_it_was(served: Served, monkeypatch: pytest.MonkeyPatch):
    def end(model: str, timeout_s: float) -> None:
        raise ServerUnreachableError("tritonserver does not answer")

    served.change("bad")
    assert served.look() == ["load toy 2"]
    assert "version 2 of model 'toy' does not load, what was served stays: no weights" in served.said
    assert version_folder(served.copy.folder / "toy").name == "1"  # what a server that is started again would load
    assert served.look() == []
    served.change("# third")
    assert served.look() == ["load toy 3"]
    monkeypatch.setattr(served.running, "load", end)  # it takes the server with it, which is started again
    served.change("# fourth")
    served.look()
    assert version_folder(served.copy.folder / "toy").name == "3"


def test_models_come_and_go(served: Served, objects: ObjectServer):
    shutil.copytree(served.built / "toy", served.built / "other")
    config = served.built / "other" / "config.pbtxt"
    config.write_text(config.read_text(encoding="utf-8").replace('name: "toy"', 'name: "other"'), encoding="utf-8")
    push(served.built, served.store)
    assert served.look() == ["load other 1"]
    served.store.delete([entry.name for entry in served.store.entries("other")])
    assert served.look() == ["unload other"]
    assert not (served.copy.folder / "other").exists()
    objects.objects.clear()  # rather a mistake than a wish
    assert served.look() == []
    assert (served.copy.folder / "toy").is_dir()


def test_a_storage_that_does_not_answer_changes_nothing(served: Served, objects: ObjectServer):
    served.change("# second")
    objects.faults.append(Fault("GET", "", "drop", times=object_store.ATTEMPTS))
    with pytest.raises(StorageUnreachableError):
        served.look()
    objects.faults.append(Fault("GET", "toy/2/bundle", "drop", times=30))
    with pytest.raises(StorageUnreachableError):
        served.look()
    assert version_folder(served.copy.folder / "toy").name == "1"
    objects.faults.clear()
    assert served.look() == ["load toy 2"]


def test_a_repository_on_a_disk_is_watched_too(toy_bundle: Path, tmp_path: Path):
    built, disk, said = tmp_path / "built", tmp_path / "disk", []
    build_repository([toy_bundle], built, modes="offline")
    push(built, open_store(disk))
    updates, running = Updates(open_store(disk), 1, said.append), Running(disk)
    updates._look_at(running)  # type: ignore[arg-type]
    assert running.asked == []
    (built / "toy" / "1" / "model.py").write_text("# second", encoding="utf-8")
    push(built, open_store(disk))
    updates._look_at(running)  # type: ignore[arg-type]
    assert running.asked == ["load toy 2"]
