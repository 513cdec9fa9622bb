"""Local copies of bundles in storage: what is read, checked, kept and given up; with a server that fails."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import tritone
from exports import let_go
from hub_server import HubServer, commit_of
from object_server import Fault, ObjectServer, Stored
from tritone.bundle.bundle import Bundle
from tritone.errors import BundleError, StorageError, StorageUnreachableError
from tritone.paths import sha256_of
from tritone.repository import build_repository
from tritone.repository.pull import pull
from tritone.repository.push import push
from tritone.storage import cache, fetch, open_store
from tritone.storage.objects import store as object_store
from tritone.storage.progress import Silent, showing

FOLDER = "bucket/bundles/toy"
ADDRESS = f"s3://{FOLDER}"


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts follow each other at once."""
    monkeypatch.setattr(object_store, "PAUSE_S", 0.001)
    monkeypatch.setitem(object_store.RETRY, "max_retries", 0)  # obstore's own, which would wait


@pytest.fixture
def stored(objects: ObjectServer, toy_bundle: Path) -> ObjectServer:
    for path in toy_bundle.iterdir():
        objects.objects[f"{FOLDER}/{path.name}"] = Stored(path.read_bytes())
    objects.objects[f"{FOLDER}/notes/unrelated.bin"] = Stored(b"x" * 1000)
    return objects


def largest(objects: ObjectServer) -> str:
    return max(
        (key for key in objects.objects if "unrelated" not in key), key=lambda key: len(objects.objects[key].content)
    )


def test_a_bundle_in_a_bucket_is_opened_like_a_folder(stored: ObjectServer, toy_bundle: Path):
    here, away = Bundle.open(toy_bundle), Bundle.open(ADDRESS)
    assert away.manifest == here.manifest
    assert {name: away.file(name).read_bytes() for name in away.files} == {
        name: here.file(name).read_bytes() for name in here.files
    }
    assert not (away.path / "notes").exists()  # the manifest names no such file
    assert tritone.load(Path(ADDRESS)) is not None  # pathlib makes s3:/ of it


def test_a_part_of_a_folder_is_not_taken_for_all_of_it(stored: ObjectServer):
    assert [path.name for path in fetch(ADDRESS, only="*.json").iterdir()] == ["manifest.json"]
    assert not (Bundle.open(ADDRESS).path / "notes").exists()
    assert (fetch(ADDRESS) / "notes" / "unrelated.bin").is_file()


def test_what_did_not_change_is_not_read_again(stored: ObjectServer):
    first = Bundle.open(ADDRESS)
    stored.log.clear()
    assert Bundle.open(ADDRESS).path == first.path
    assert stored.log == ["GET bucket"]  # the listing
    stored.objects[f"{FOLDER}/notes/unrelated.bin"] = Stored(b"y")
    second = Bundle.open(ADDRESS)
    assert second.path != first.path
    assert stored.log[1:] == ["GET bucket"]
    assert first.path.is_dir()  # this process uses it


@pytest.mark.parametrize("how", ["drop", "busy", "cut"])
def test_a_download_outlives_a_server_that_fails(stored: ObjectServer, how: str):
    stored.faults.append(Fault("GET", largest(stored).rpartition("/")[2], how, times=3))
    Bundle.open(ADDRESS).verify()
    assert stored.faults[0].times == 0


def test_a_broken_download_goes_on_where_it_ended(stored: ObjectServer, tmp_path: Path):
    content = bytes(range(256)) * 4096 * 4
    stored.objects["bucket/large/a"] = Stored(content)
    stored.objects["bucket/large/b"] = Stored(b"small")
    stored.faults += [
        Fault("GET", "large/a", "cut", times=1),
        Fault("GET", "large/a", "drop", times=object_store.ATTEMPTS),
    ]
    with pytest.raises(StorageUnreachableError, match=r"s3://bucket/large: cannot read a: .* what has come is kept"):
        fetch("s3://bucket/large")
    (part,) = (tmp_path / "cache").rglob("parts/*")
    have = part.stat().st_size
    assert 0 < have <= len(content) // 2
    stored.log.clear()
    stored.ranges.clear()
    assert (fetch("s3://bucket/large") / "a").read_bytes() == content
    assert stored.log.count("GET bucket/large/b") == 0
    assert stored.ranges == [f"bytes={have}-"]
    assert list((tmp_path / "cache").rglob("*.partial")) == []


@pytest.mark.parametrize("metadata", [True, False])
def test_forged_bytes_are_found_and_not_kept(stored: ObjectServer, metadata: bool, toy_bundle: Path, tmp_path: Path):
    key = largest(stored)
    if metadata:  # as we push it; else the manifest has checksums
        path = toy_bundle / key.rpartition("/")[2]
        open_store(ADDRESS).upload(path.name, path, sha256_of(path), lambda count: None)
    stored.faults.append(Fault("GET", key, "forge", times=1))
    with pytest.raises((StorageError, BundleError), match="sha256 is"):
        Bundle.open(ADDRESS)
    Bundle.open(ADDRESS).verify()


def test_a_folder_that_changes_while_it_is_read_is_no_bundle(stored: ObjectServer, monkeypatch: pytest.MonkeyPatch):
    class Changing(Silent):
        def end(self) -> None:  # the manifest has come
            key = largest(stored)
            stored.objects[key] = Stored(stored.objects[key].content + b"more")

    with showing(Changing()), pytest.raises(StorageError, match="was changed while it was read"):
        Bundle.open(ADDRESS)


def test_a_bundle_without_its_manifest_is_none(stored: ObjectServer, tmp_path: Path):
    del stored.objects[f"{FOLDER}/manifest.json"]
    with pytest.raises(StorageError, match=r"toy has no manifest\.json, but "):
        Bundle.open(ADDRESS)
    with pytest.raises(StorageError, match="there is nothing"):
        Bundle.open("s3://bucket/absent")
    stored.faults.append(Fault("GET", "bucket", "forbid"))
    with pytest.raises(StorageError, match=r"no permission to list it .*AWS_ACCESS_KEY_ID"):
        Bundle.open(ADDRESS)


def test_a_listing_cannot_lead_out_of_the_cache(stored: ObjectServer, tmp_path: Path):
    for name in ("../../../escaped", "a/../../../escaped", "a\\b"):
        stored.objects[f"{FOLDER}/{name}"] = Stored(b"bad")
        with pytest.raises(StorageError):
            Bundle.open(ADDRESS)
        del stored.objects[f"{FOLDER}/{name}"]
    assert not list(tmp_path.rglob("*escaped*"))


def test_the_cache_has_a_limit_and_keeps_what_is_used(stored: ObjectServer, monkeypatch: pytest.MonkeyPatch):
    for index in range(3):
        stored.objects[f"bucket/{index}/file"] = Stored(bytes([index]) * 400_000)
    monkeypatch.setenv(cache.LIMIT, "0.001")
    copies = [fetch(f"s3://bucket/{index}") for index in range(2)]
    let_go()  # as if another process had fetched them
    last = fetch("s3://bucket/2")
    assert [copy.is_dir() for copy in [*copies, last]] == [False, True, True]
    monkeypatch.setenv(cache.LIMIT, "0.0001")
    with pytest.raises(StorageError, match=r"more than the 0\.0001 GB that copies may take; set TRITONE_CACHE_GB"):
        fetch("s3://bucket/0")


def test_a_changed_copy_is_read_again(stored: ObjectServer):
    bundle = Bundle.open(ADDRESS)
    path = bundle.file("manifest.json")
    content = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(b"{}")
    assert Bundle.open(ADDRESS).file("manifest.json").read_bytes() == content
    assert cache.clear_copies() == (0, 1), "the new copy is in use, as the old one was"


def test_several_processes_share_one_download(stored: ObjectServer):
    code = f"from tritone.bundle.bundle import Bundle; Bundle.open({ADDRESS!r})"
    processes = [subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL) for _ in range(2)]
    assert [process.wait(60) for process in processes] == [0, 0]
    assert stored.log.count(f"GET {largest(stored)}") == 1


def test_a_copy_serves_without_a_network(stored: ObjectServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(cache.OFFLINE, "1")
    with pytest.raises(StorageError, match="there is no copy"):
        Bundle.open(ADDRESS)
    monkeypatch.setenv(cache.OFFLINE, "0")
    path = Bundle.open(ADDRESS).path
    stored.faults.append(Fault("GET", "", "drop"))
    with pytest.raises(StorageUnreachableError, match="no connection, or it broke"):
        Bundle.open(ADDRESS)
    monkeypatch.setenv(cache.OFFLINE, "1")
    assert Bundle.open(ADDRESS).path == path


def test_an_upload_in_parts_is_sent_again_as_a_whole(objects: ObjectServer, tmp_path: Path):
    content = bytes(range(256)) * (object_store.PART // 256 * 2 + 1)
    path, shown = tmp_path / "large", []
    path.write_bytes(content)
    objects.faults.append(Fault("PUT", "bucket/large", "drop", times=1))
    open_store("s3://bucket").upload("large", path, sha256_of(path), shown.append)
    assert objects.objects["bucket/large"].content == content
    assert objects.objects["bucket/large"].metadata == {"x-amz-meta-sha256": sha256_of(path)}
    assert sum(shown) == len(content)
    assert objects.log.count("POST bucket/large") >= 2


def test_an_environment_that_says_too_little_is_told_what_it_lacks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(StorageError, match=r"az://models: the environment .* Set AZURE_STORAGE_ACCOUNT_NAME, and"):
        open_store("az://models")


def test_transfers_are_shown(stored: ObjectServer):
    class Bar(Silent):
        def __init__(self) -> None:
            self.told: list[str] = []
            self.left = 0
            self.thread = threading.get_ident()

        def begin(self, task: str, files: int, num_bytes: int) -> None:
            self.told.append(task)
            self.left += num_bytes

        def advance(self, num_bytes: int) -> None:
            self.left -= num_bytes

    bar = Bar()
    with showing(bar):
        Bundle.open(ADDRESS)
    assert bar.told == [f"{ADDRESS}/manifest.json", ADDRESS]
    assert bar.left == 0


@pytest.fixture(scope="module")
def hub() -> Iterator[HubServer]:
    with HubServer() as server:
        yield server


@pytest.fixture
def toy_hub(hub: HubServer, toy_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HubServer:
    monkeypatch.setenv("TRITONE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    files = {path.name: path.read_bytes() for path in toy_bundle.iterdir()}
    hub.repositories["anna/toy"] = {"main": files, "v2": files | {"pytorch_model.bin": b"x" * 5000}}
    hub.forged.clear()
    return hub


def test_a_bundle_on_the_hub_is_opened_at_a_revision(toy_hub: HubServer, toy_bundle: Path):
    files = toy_hub.repositories["anna/toy"]["main"]
    toy_hub.cut[max(files, key=lambda name: len(files[name]))] = 1
    assert Bundle.open("hf://anna/toy").manifest == Bundle.open(toy_bundle).manifest
    tagged = Bundle.open("hf://anna/toy@v2")
    assert not (tagged.path / "pytorch_model.bin").exists()
    pinned = f"hf://anna/toy@{commit_of(files)}"
    path = Bundle.open(pinned).path
    before = toy_hub.seen.total()
    assert Bundle.open(pinned).path == path
    assert toy_hub.seen.total() == before  # a commit never changes
    with pytest.raises(StorageError, match=r"hf://anna/toy@v3: the hub has no such repository, revision or file"):
        Bundle.open("hf://anna/toy@v3")
    with pytest.raises(StorageError, match="the hub is only read here"):
        open_store("hf://anna/toy").write("a", b"")


def test_a_repository_on_the_hub_is_pulled(toy_hub: HubServer, toy_bundle: Path, tmp_path: Path):
    build_repository([toy_bundle], tmp_path / "built", modes="offline")
    push(tmp_path / "built", open_store(tmp_path / "disk"))
    files = {
        path.relative_to(tmp_path / "disk").as_posix(): path.read_bytes()
        for path in (tmp_path / "disk").rglob("*")
        if path.is_file()
    }
    toy_hub.repositories["anna/models"] = {"main": files}
    (done,) = pull(open_store("hf://anna/models"), tmp_path / "pulled")
    assert (done.model, done.versions) == ("toy", (1,))
    assert (tmp_path / "pulled" / "toy" / "1" / "bundle" / "manifest.json").is_file()


def test_forged_files_of_the_hub_are_found_large_and_small(toy_hub: HubServer, toy_bundle: Path):
    files = toy_hub.repositories["anna/toy"]["main"]
    for name, complaint in ((max(files, key=lambda name: len(files[name])), "sha256"), ("tokens.txt", "hash of git")):
        toy_hub.repositories[f"anna/{complaint[0]}"] = {"main": files}
        toy_hub.forged[name] = bytes(byte ^ 1 for byte in files[name])
        with pytest.raises(StorageError, match=f"{name} is damaged: its {complaint}"):
            Bundle.open(f"hf://anna/{complaint[0]}")
        toy_hub.forged.clear()
