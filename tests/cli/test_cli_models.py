"""`tritone models` against a real server whose model control is locked."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tritone.cli.main import app
from tritone.client import Client
from tritone.errors import InputError
from tritone.server import TritonServer
from waiting import until
from wire_toys import toy_server

PROTOCOLS = ["grpc", "http"]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("repository")


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[TritonServer]:
    with toy_server(repository, "count", "running") as running:
        yield running


@pytest.fixture
def with_key(server: TritonServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITONE_KEY", server.options.key)


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["models", *arguments])
    return result.exit_code, result.stdout, result.stderr


def url_of(server: TritonServer, protocol: str) -> str:
    return f"{protocol}://{server.options.address(protocol)}"


@pytest.mark.usefixtures("with_key")
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_models_are_listed_and_described(server: TritonServer, protocol: str):
    url = url_of(server, protocol)
    code, out, _ = run("list", "--url", url)
    assert (code, [line.split() for line in out.splitlines()][1:]) == (
        0,
        [["count", "1", "READY"], ["running", "1", "READY"]],
    )
    with Client(url) as client:
        client.transcribe(np.zeros(1600, np.float32), model="count")

    def counted() -> dict[str, str] | None:  # Triton answers before it counts
        _, out, _ = run("stats", "count", "--url", url)
        names, values = (line.replace(" ms", "-ms").split() for line in out.splitlines())
        row = dict(zip(names, values, strict=True))
        return None if row["rows/batch"] == "0.0" else row

    row = until(counted)
    assert (row["model"], row["version"], row["failed"], row["rows/batch"]) == ("count", "1", "0", "1.0")
    assert int(row["requests"]) >= 1
    code, out, _ = run("config", "running", "--url", url)
    assert "sequence_batching" in json.loads(out)


@pytest.mark.usefixtures("with_key")
def test_a_version_that_does_not_load_leaves_the_one_before(server: TritonServer, repository: Path):
    url = url_of(server, "grpc")
    code = repository / "count" / "1" / "model.py"
    good = code.read_text(encoding="utf-8")
    try:
        code.write_text("raise RuntimeError('no weights')", encoding="utf-8")
        failed, _, told = run("load", "count", "--url", url)
        assert failed == 1
        assert "model 'count' did not load, version 1 goes on serving" in told
        assert "RuntimeError: no weights" in told
        assert "model.py(1)" not in told  # no traceback
        with Client(url) as client:
            assert client.transcribe(np.ones(800, np.float32), model="count").text == "800 800.0"
    finally:
        code.write_text(good, encoding="utf-8")
    assert run("load", "count", "--url", url)[1].split()[4:7] == ["count", "1", "READY"]


@pytest.mark.usefixtures("with_key")
def test_a_model_is_unloaded_and_loaded_again(server: TritonServer):
    url = url_of(server, "http")
    assert run("unload", "running", "--url", url)[0] == 0
    with Client(url) as client:
        assert [each.name for each in client.control.counts()] == ["count"]
    assert run("load", "running", "--url", url)[0] == 0
    code, _, told = run("unload", "absent", "--url", url)
    assert (code, "there is no model 'absent'; the repository has count, running" in told) == (1, True)
    code, _, told = run("config", "absent", "--url", url)
    assert (code, "absent" in told) == (1, True)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_without_the_key_nothing_is_loaded(server: TritonServer, protocol: str):
    url = url_of(server, protocol)
    with Client(url) as client:
        for change in (
            client.control.states,
            lambda: client.control.load("count"),
            lambda: client.control.unload("count"),
        ):
            with pytest.raises(InputError, match=r"the server's key in .* is needed"):
                change()
        assert [each.name for each in client.control.counts()] == ["count", "running"]
