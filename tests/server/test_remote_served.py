"""Repositories in storage, served: versions swapped, refused and rolled back under load, by a real server."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from object_server import Fault, ObjectServer
from serving import lines_until, ports, quiet_options
from tritone.cli import serve
from tritone.cli.main import app
from tritone.client import Client
from tritone.errors import InputError, StorageError, StorageUnreachableError
from tritone.keys import find_key
from tritone.repository import ModelOptions, build_repository
from tritone.repository.push import push, rollback
from tritone.server import ServerOptions
from tritone.server.installation import find_installation
from tritone.server.remote import LocalCopy, can_read, triton_address
from tritone.storage import Address, Entry, Store, open_store, parse

ADDRESS = "s3://bucket/models"
WAIT_S = 120


class Load:
    """Clients that ask a model again and again, by both protocols; failures are kept."""

    def __init__(self, options: ServerOptions) -> None:
        self.answers = 0
        self.failures: list[str] = []
        self._ended = threading.Event()
        urls = [f"{protocol}://{options.address(protocol)}" for protocol in ("grpc", "http")]
        self._threads = [threading.Thread(target=self._ask, args=(url,)) for url in urls * 2]

    def _ask(self, url: str) -> None:
        with Client(url, timeout_s=WAIT_S) as client:
            while not self._ended.is_set():
                try:
                    client.transcribe(np.zeros(1600, np.float32), model="toy")
                    self.answers += 1
                except Exception as error:
                    self.failures.append(str(error))

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()


@pytest.fixture
def built(toy_bundle: Path, tmp_path: Path) -> Path:
    options = ModelOptions(queue_delay_ms=0, max_batch_size=4)
    build_repository([toy_bundle], tmp_path / "built", modes="offline", options=options)
    return tmp_path / "built"


@pytest.fixture
def served(objects: ObjectServer, built: Path) -> Iterator[tuple[ServerOptions, "subprocess.Popen[str]", Store]]:
    """`tritone serve s3://...`, with its options, and the repository."""
    store = open_store(ADDRESS)
    push(built, store)
    options = quiet_options()
    command = [sys.executable, "-c", "from tritone.cli.main import app; app()", "serve", ADDRESS, "--poll-s", "0.3"]
    process = subprocess.Popen(
        [*command, *ports(options)],
        encoding="utf-8",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    try:
        lines_until(process, "^Open to")
        yield options, process, store
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.communicate(timeout=WAIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
        process.communicate()


def _address() -> Address:
    address = parse(ADDRESS)
    assert address is not None
    return address


def write(repository: Path, code: str) -> None:
    (repository / "toy" / "1" / "model.py").write_text(code, encoding="utf-8")


def said_until(process: "subprocess.Popen[str]", words: str) -> str:
    """What the server says on stderr up to a line with these words."""
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if words in line:
            return "".join(lines)
    raise AssertionError(f"{words!r} never came: {''.join(lines)}")


@pytest.mark.slow
def test_versions_are_swapped_refused_and_rolled_back_under_load_without_a_failed_request(
    served: tuple[ServerOptions, "subprocess.Popen[str]", Store], built: Path, objects: ObjectServer
):
    options, process, store = served
    url = f"grpc://{options.address('grpc')}"
    good = (built / "toy" / "1" / "model.py").read_text(encoding="utf-8")
    assert "has no client of its own for s3://: it serves a local copy" in said_until(process, "local copy")
    with Client(url, key=find_key(options.grpc_port)) as client, Load(options) as load:

        def ready() -> list[str]:
            return [each.version for each in client.control.states("toy") if each.state == "READY"]

        write(built, good + "\n# second\n")
        assert push(built, store)[0].version == 2
        said_until(process, "model 'toy' serves version 2 now")
        assert ready() == ["2"]
        write(built, "raise RuntimeError('no weights')\n")
        assert push(built, store)[0].version == 3
        told = said_until(process, "version 3 of model 'toy' does not load, what was served stays")
        assert "no weights" in told
        assert ready() == ["2"]
        assert rollback(store, "toy", to=1) == 1
        said_until(process, "model 'toy' serves version 1 now")
        assert ready() == ["1"]
        before = load.answers
        deadline = time.monotonic() + WAIT_S
        while load.answers < before + 8:
            assert time.monotonic() < deadline
    assert load.failures == []
    process.send_signal(signal.SIGTERM)
    _, rest = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0
    assert "lost its process" not in rest


def test_a_server_with_a_client_of_its_own_reads_storage_itself(
    objects: ObjectServer, built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A stand-in for such a tritonserver says what it was started with."""
    push(built, open_store(ADDRESS))
    own = find_installation()
    server = tmp_path / "server" / "bin" / "tritonserver"
    server.parent.mkdir(parents=True)
    (tmp_path / "server" / "backends").symlink_to(own.root / "backends")
    (tmp_path / "server" / "python_backend_stubs").symlink_to(own.root / "python_backend_stubs")
    help_only = '[ "$1" = --help ] && echo --model-repository && exit'
    server.write_text(f'#!/bin/sh\n# knows s3://\n{help_only}\necho "started with $*" >&2\nexit 3\n', encoding="utf-8")
    server.chmod(0o755)
    assert not can_read(own, _address())
    result = CliRunner().invoke(app, ["serve", ADDRESS, "--server", str(server), *ports(quiet_options())])
    assert result.exit_code == 1
    port = objects.url.rpartition(":")[2]
    assert f"--model-repository=s3://http://127.0.0.1:{port}/bucket/models" in result.stderr
    assert not (tmp_path / "cache" / "served").exists()


def test_addresses_in_the_form_of_triton():
    s3, gs, az = (Address(scheme, "bucket", "a/b") for scheme in ("s3", "gs", "az"))
    assert triton_address(s3, {}) == "s3://bucket/a/b"
    assert (
        triton_address(s3, {"AWS_ENDPOINT_URL": "https://minio.example"}) == "s3://https://minio.example:443/bucket/a/b"
    )
    assert triton_address(gs, {"AWS_ENDPOINT_URL": "https://minio.example"}) == "gs://bucket/a/b"
    assert triton_address(az, {"AZURE_STORAGE_ACCOUNT": "anna"}) == "as://anna/bucket/a/b"
    with pytest.raises(InputError, match="AZURE_STORAGE_ACCOUNT must name the account"):
        triton_address(az, {})


def test_a_server_starts_with_the_copy_of_an_earlier_start_while_the_storage_is_away(
    objects: ObjectServer, built: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def found() -> Path:
        served, _, copy = serve._found(Path(ADDRESS), 0, None, lambda model, reason: None)
        assert copy is not None
        with closing(copy), closing(LocalCopy(_address())) as another:
            assert another.folder != copy.folder  # which is this server's alone, also without --poll-s
        assert served == copy.folder
        return copy.folder

    monkeypatch.setenv("TRITONE_OFFLINE", "1")
    with pytest.raises(StorageError, match="TRITONE_OFFLINE is set, and there is no copy of s3://bucket/models"):
        found()
    monkeypatch.delenv("TRITONE_OFFLINE")
    push(built, open_store(ADDRESS))
    folder = found()
    objects.faults.append(Fault("GET", "", "forbid"))
    with pytest.raises(StorageError):  # an answer, and no storage that is away: the operator has to look at it
        found()

    def silence(folder: str = "") -> list[Entry]:
        raise StorageUnreachableError("no answer.")

    monkeypatch.setattr(serve, "open_store", lambda address: SimpleNamespace(entries=silence))
    with pytest.raises(StorageUnreachableError, match="TRITONE_OFFLINE=1 serves the copy of an earlier start, toy in"):
        found()
    monkeypatch.setenv("TRITONE_OFFLINE", "1")
    assert found() == folder
    assert (folder / "toy" / "config.pbtxt").is_file()
    assert "is not looked at" in capsys.readouterr().err


def test_two_servers_of_one_repository_have_copies_of_their_own(objects: ObjectServer, built: Path):
    store, address = open_store(ADDRESS), Address("s3", "bucket", "models")
    push(built, store)
    first, second = LocalCopy(address), LocalCopy(address)
    try:
        assert first.folder != second.folder
        first.refresh(store)
        (first.folder / "gone" / "1").mkdir(parents=True)
        first.refresh(store)
        assert sorted(path.name for path in first.folder.iterdir()) == ["toy"]
    finally:
        first.close()
        second.close()
    again = LocalCopy(address)
    assert again.folder == first.folder
    again.close()
