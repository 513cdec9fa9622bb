"""Repositories in storage: a version is complete or not served, whatever breaks; pulled as pushed; and tidied up."""

import shutil
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from tritonclient.grpc import model_config_pb2 as pb

from object_server import Fault, ObjectServer, Stored
from tritone.bundle.bundle import Bundle
from tritone.errors import InputError, OperatorError, StorageError, StorageUnreachableError
from tritone.repository import build_repository, read_repository
from tritone.repository.compare import compare
from tritone.repository.garbage import collect
from tritone.repository.models import version_folder
from tritone.repository.pull import pull, pull_bundle
from tritone.repository.push import push, push_bundle, rollback
from tritone.repository.stored import INDEX, read_models, served_versions
from tritone.storage import Store, open_store
from tritone.storage.folder_store import FolderStore
from tritone.storage.objects import store as object_store

MODELS = "bucket/models/"
ADDRESS = "s3://bucket/models"


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "PAUSE_S", 0.001)
    monkeypatch.setitem(object_store.RETRY, "max_retries", 0)


@pytest.fixture(scope="module")
def once_built(toy_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    build_repository([toy_bundle], folder, modes="offline")
    return folder


@pytest.fixture
def built(once_built: Path, tmp_path: Path) -> Path:
    """A repository with the offline model "toy"."""
    return shutil.copytree(once_built, tmp_path / "built")


@pytest.fixture
def store(objects: ObjectServer) -> Store:
    return open_store(ADDRESS)


def change(repository: Path, text: str = "# changed\n") -> None:
    path = repository / "toy" / "1" / "model.py"
    path.write_text(path.read_text(encoding="utf-8") + text, encoding="utf-8")


def outcomes(done: list) -> list[tuple[int, str]]:
    return [(each.version, each.outcome) for each in done]


def served(store: Store) -> tuple[int, ...]:
    return read_models(store)["toy"].served


def test_a_push_is_a_new_version_only_where_something_changed(built: Path, store: Store, objects: ObjectServer):
    assert outcomes(push(built, store)) == [(1, "new")]
    # Without its model file a version cannot be loaded, and it is the last that comes.
    assert objects.log[-1] == f"PUT {MODELS}toy/1/model.py"
    assert objects.log[-2] == f"PUT {MODELS}toy/config.pbtxt"
    assert outcomes(push(built, store)) == [(1, "unchanged")]
    change(built)
    objects.log.clear()
    assert outcomes(push(built, store)) == [(2, "updated")]
    writes = [line for line in objects.log if line.startswith("PUT")]
    assert [line for line in writes if not line.startswith(f"PUT {MODELS}toy/2/")] == [f"PUT {MODELS}toy/config.pbtxt"]
    assert writes[-1] == f"PUT {MODELS}toy/config.pbtxt"
    assert served(store) == (2,)
    assert rollback(store, "toy") == 1
    assert served(store) == (1,)
    assert outcomes(push(built, store)) == [(2, "switched")]
    with pytest.raises(StorageError, match="no version 7; it has 1, 2"):
        rollback(store, "toy", to=7)


def test_a_pulled_repository_is_what_was_pushed(built: Path, store: Store, tmp_path: Path):
    push(built, store)
    change(built)
    push(built, store)
    (done,) = pull(store, tmp_path / "pulled")
    assert (done.versions, done.outcome) == ((2,), "new")
    assert compare(open_store(built), open_store(tmp_path / "pulled")) == []
    assert compare(store, open_store(tmp_path / "pulled")) == []
    (model,) = read_repository(tmp_path / "pulled")
    assert (model.name, model.mode, version_folder(model.path).name) == ("toy", "offline", "2")
    assert Bundle.open(model.path / "2" / "bundle").manifest == Bundle.open(built / "toy" / "1" / "bundle").manifest
    assert pull(store, tmp_path / "pulled")[0].outcome == "unchanged"
    rollback(store, "toy")
    assert pull(store, tmp_path / "pulled")[0].versions == (1,)
    assert version_folder(model.path).name == "1"
    # What was pulled can be pushed on, with no file of ours in the version.
    assert outcomes(push(tmp_path / "pulled", open_store(tmp_path / "disk"))) == [(1, "new")]
    assert compare(store, open_store(tmp_path / "disk")) == []
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("broken_after", [0, 1, 5, 8, 9, 10])
def test_a_push_that_breaks_anywhere_serves_nothing_half_and_goes_on(
    built: Path, store: Store, objects: ObjectServer, tmp_path: Path, known: bool, broken_after: int
):
    if known:
        push(built, store)
        change(built)
    allow(objects, broken_after)
    try:
        push(built, store)
    except (StorageError, StorageUnreachableError):
        pass
    else:
        raise AssertionError("that was all of it")
    objects.forbidden_after = None
    # What Triton reads: the configuration names complete versions, or the model file is not there.
    models = read_models(store)
    if known:
        assert models["toy"].served == (1,)
        assert models["toy"].versions[1].is_complete
        assert pull(store, tmp_path / "pulled")[0].versions == (1,)
    elif "toy" in models:
        assert f"{MODELS}toy/1/model.py" not in objects.objects
        with pytest.raises(StorageError):
            pull(store, tmp_path / "pulled")
        assert not (tmp_path / "pulled" / "toy").exists()
    before = {name for name in objects.objects if "/bundle/" in name}
    objects.log.clear()
    (done,) = push(built, store)
    assert done.version == (2 if known else 1)
    assert not before & {line.partition(" ")[2] for line in objects.log if line.startswith("PUT")}
    assert served(store) == (done.version,)
    assert compare(open_store(built), store) == []


def allow(objects: ObjectServer, count: int) -> None:
    """Let so many objects be written, and refuse what follows."""
    objects.forbidden_after = objects.seen["PUT"] + count


def test_a_models_own_files_of_any_size_are_pulled_in_pieces(built: Path, tmp_path: Path):
    size = 64 << 20
    sample = built / "toy" / "warmup" / "sample"
    sample.parent.mkdir(exist_ok=True)
    with sample.open("wb") as file:
        file.truncate(size)
    store, folder = FolderStore(built), tmp_path / "pulled"
    tracemalloc.start()
    try:
        pull(store, folder)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < size / 4
    pulled = folder / "toy" / "warmup" / "sample"
    assert pulled.stat().st_size == size
    with sample.open("r+b") as file:
        file.write(b"other")
    assert [each.outcome for each in pull(store, folder)] == ["updated"]
    with pulled.open("rb") as file:
        assert file.read(5) == b"other"
    assert [each.outcome for each in pull(store, folder)] == ["unchanged"]


def test_a_version_that_lost_a_file_is_not_pulled(built: Path, store: Store, objects: ObjectServer, tmp_path: Path):
    push(built, store)
    pull(store, tmp_path / "pulled")
    change(built)
    push(built, store)
    name = next(name for name in objects.objects if name.startswith(f"{MODELS}toy/2/bundle/encoder"))
    kept = objects.objects.pop(name)
    with pytest.raises(StorageError, match=r"version 2 of model toy is not complete: bundle/encoder\.onnx"):
        pull(store, tmp_path / "pulled")
    objects.objects[name] = Stored(bytes(byte ^ 1 for byte in kept.content))
    with pytest.raises(StorageError, match=r"encoder\.onnx is damaged: its sha256 is"):
        pull(store, tmp_path / "pulled")
    assert version_folder(tmp_path / "pulled" / "toy").name == "1"
    assert not (tmp_path / "pulled" / "toy" / "2").exists()
    objects.objects[name] = kept
    assert pull(store, tmp_path / "pulled")[0].versions == (2,)


@pytest.mark.parametrize("how", ["drop", "busy", "cut"])
def test_transfers_outlive_a_server_that_fails(
    built: Path, store: Store, objects: ObjectServer, tmp_path: Path, how: str
):
    objects.faults += [
        Fault("PUT", "bundle", "drop" if how == "cut" else how, times=4),
        Fault("GET", "toy/", how, times=4),
    ]
    push(built, store)
    pull(store, tmp_path / "pulled")
    assert compare(open_store(built), open_store(tmp_path / "pulled")) == []
    assert [fault.times for fault in objects.faults] == [0, 0]


def test_two_who_push_at_once_get_versions_of_their_own(built: Path, store: Store, objects: ObjectServer):
    push(built, store)
    change(built, "# ours\n")
    objects.objects[f"{MODELS}toy/2/tritone.claim.json"] = Stored(
        objects.objects[f"{MODELS}toy/1/tritone.claim.json"].content.replace(b'"size": ', b'"size": 1')
    )
    assert outcomes(push(built, store)) == [(3, "updated")]
    assert served(store) == (3,)


def test_a_repository_of_others_is_served_as_before_until_a_push_is_complete(
    built: Path, store: Store, objects: ObjectServer
):
    for path in (built / "toy").rglob("*"):
        if path.is_file():
            objects.objects[f"{MODELS}{path.relative_to(built)}"] = Stored(path.read_bytes())
    assert served(store) == (1,)  # the latest one that is there
    change(built)
    allow(objects, 5)
    with pytest.raises(StorageError):
        push(built, store)
    objects.forbidden_after = None
    assert any(name.startswith(f"{MODELS}toy/2/") for name in objects.objects)
    assert served(store) == (1,)
    assert outcomes(push(built, store)) == [(2, "updated")]


def test_all_versions_that_a_repository_serves_are_pushed(built: Path, store: Store, objects: ObjectServer):
    shutil.copytree(built / "toy" / "1", built / "toy" / "5")
    (built / "toy" / "5" / "model.py").write_text("# fifth", encoding="utf-8")
    config = built / "toy" / "config.pbtxt"
    config.write_text(
        config.read_text(encoding="utf-8") + "version_policy { latest { num_versions: 2 } }", encoding="utf-8"
    )
    assert outcomes(push(built, store)) == [(5, "new")]
    assert objects.log[-1] == f"PUT {MODELS}toy/5/model.py"
    assert served(store) == (1, 5)
    (built / "toy" / "5" / "model.py").write_text("# sixth", encoding="utf-8")
    assert outcomes(push(built, store)) == [(6, "updated")]
    assert served(store) == (1, 6)  # what the repository here serves
    shutil.rmtree(built / "toy" / "1")
    assert outcomes(push(built, store)) == [(6, "switched")]
    assert served(store) == (5, 6)  # the two newest that are there
    config.write_text(
        config.read_text(encoding="utf-8").replace("num_versions: 2", "num_versions: 1"), encoding="utf-8"
    )
    assert outcomes(push(built, store)) == [(6, "switched")]
    assert served(store) == (6,)
    assert outcomes(push(built, store)) == [(6, "unchanged")]


def test_garbage_is_what_nobody_serves_or_goes_back_to(built: Path, store: Store, objects: ObjectServer):
    for _ in range(4):
        push(built, store)
        change(built)
    allow(objects, 3)
    with pytest.raises(StorageError):
        push(built, store)
    objects.forbidden_after = None
    found = collect(store, keep=1, dry_run=True)
    assert [(each.version, each.reason[:10]) for each in found] == [(1, "not served"), (2, "not served")]
    assert collect(store, keep=1) == found
    assert sorted(read_models(store)["toy"].versions) == [3, 4, 5]
    for name, stored in objects.objects.items():
        if "/5/" in name:
            stored.modified = time.time() - 3 * 86400
    assert [(each.version, each.reason[:8]) for each in collect(store, keep=1)] == [(5, "its push")]
    assert sorted(read_models(store)["toy"].versions) == [3, 4]
    assert rollback(store, "toy") == 3


def test_a_bundle_is_pushed_with_its_manifest_last(toy_bundle: Path, objects: ObjectServer, tmp_path: Path):
    store = open_store("s3://bucket/toy")
    assert push_bundle(toy_bundle, store) == len(Bundle.open(toy_bundle).files)
    assert [line for line in objects.log if line.startswith("PUT")][-1] == "PUT bucket/toy/manifest.json"
    assert push_bundle(toy_bundle, store) == 0
    pull_bundle("s3://bucket/toy", tmp_path / "pulled")
    assert compare(open_store(toy_bundle), open_store(tmp_path / "pulled")) == []
    with pytest.raises(OperatorError, match="has content already"):
        pull_bundle("s3://bucket/toy", tmp_path / "pulled")
    shutil.copytree(toy_bundle, tmp_path / "other")
    manifest = tmp_path / "other" / "manifest.json"
    manifest.write_text(
        manifest.read_text(encoding="utf-8").replace('"name": "toy"', '"name": "other"'), encoding="utf-8"
    )
    with pytest.raises(StorageError, match="has another bundle"):
        push_bundle(tmp_path / "other", store)
    objects.faults.append(Fault("PUT", "manifest.json", "forbid"))
    with pytest.raises(StorageError, match="no permission"):
        push_bundle(tmp_path / "other", store, force=True)
    with pytest.raises(StorageError, match=r"has no manifest\.json"):  # neither the old one nor the new one
        Bundle.open("s3://bucket/toy")


def test_names_that_lead_elsewhere_are_refused(built: Path, store: Store, objects: ObjectServer, tmp_path: Path):
    push(built, store)
    for name in ("../out/1/model.py", "toy/1/../../../out", "sp ace/1/model.py", "toy/1/bundle"):
        objects.objects[f"{MODELS}{name}"] = Stored(b"x")
        with pytest.raises(StorageError):
            pull(store, tmp_path / "pulled")
        del objects.objects[f"{MODELS}{name}"]
    damaged = objects.objects[f"{MODELS}toy/1/{INDEX}"]
    damaged.content = damaged.content[:-20]
    with pytest.raises(StorageError, match="is damaged"):
        pull(store, tmp_path / "pulled")
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "pulled" / "toy").exists()


def test_a_folder_with_another_version_of_that_number_is_left_alone(built: Path, store: Store, tmp_path: Path):
    push(built, store)
    change(built)
    with pytest.raises(StorageError, match="is another version 1 of model toy"):
        pull(store, built)


def test_what_is_no_repository_is_not_pushed(store: Store, tmp_path: Path, toy_bundle: Path):
    (tmp_path / "empty").mkdir()
    for folder, complaint in ((tmp_path / "empty", "is no repository"), (toy_bundle, "is a bundle, not a repository")):
        with pytest.raises(OperatorError, match=complaint):
            push(folder, store)
    with pytest.raises(InputError, match="there is nothing to compare"):
        compare(store, open_store(tmp_path / "empty"))


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (lambda config: None, (12,)),
        (lambda config: config.version_policy.latest.MergeFrom(pb.ModelVersionPolicy.Latest(num_versions=2)), (3, 12)),
        (lambda config: config.version_policy.all.SetInParent(), (1, 3, 12)),
        (lambda config: config.version_policy.specific.versions.extend([1, 3, 5]), (1, 3)),
    ],
)
def test_a_policy_names_the_versions_that_triton_loads(policy: Callable, expected: tuple[int, ...]):
    config = pb.ModelConfig()
    policy(config)
    assert served_versions(config, [12, 1, 3]) == expected
