"""How commands reach a server: files of TLS, a key and retries, by options and by the environment."""

from pathlib import Path

import numpy as np
import pytest
import soundfile
from typer.testing import CliRunner

from certificates import write_certificates
from fronts import Front, Refuse, ServerTls
from tritone import keys
from tritone.cli.main import app
from tritone.cli.shared.connection import Connection
from tritone.client import retries
from tritone.server import TritonServer

PROTOCOLS = ["grpc", "http"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_certificates(tmp_path_factory.mktemp("certificates"))
    soundfile.write(folder / "four.wav", np.full(4, 0.5), 8000, subtype="FLOAT")
    (folder / "four.txt").write_text("4 2.0", encoding="utf-8")
    return folder


def run(*arguments: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [*map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_files_of_tls_are_options_or_in_the_environment(
    wire_server: TritonServer, files: Path, protocol: str, monkeypatch: pytest.MonkeyPatch
):
    tls = ServerTls(str(files / "good.pem"), str(files / "good.key"), str(files / "ca.pem"))
    own = {"--ca": files / "ca.pem", "--certificate": files / "me.pem", "--private-key": files / "me.key"}
    with Front(wire_server, protocol, tls=tls) as front:
        asked = ("transcribe", files / "four.wav", "--model", "count", "--url", front.url)
        given = [word for option in own.items() for word in option]
        assert run(*asked, *given) == (0, "4 2.0\n", "")
        code, _, err = run(*asked, "--ca", files / "other.pem")
        assert (code, "is not signed by an authority of" in err, err.count("\n")) == (1, True, 1)
        for name, path in own.items():
            monkeypatch.setenv(f"TRITONE{name[1:].upper().replace('-', '_')}", str(path))
        assert run(*asked) == (0, "4 2.0\n", "")
        monkeypatch.setattr("tritone.cli.shared.recordings.STDIN", str(files / "four.wav"))
        assert run("transcribe", "-", *asked[2:]) == (0, "4 2.0\n", "")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_refused_file_is_sent_again_as_often_as_the_option_says(
    wire_server: TritonServer, files: Path, protocol: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(retries, "FIRST_S", 0.001)
    with Front(wire_server, protocol, refusals=4 * [Refuse("UNAVAILABLE")]) as front:
        asked = ("transcribe", files / "four.wav", "--model", "count", "--url", front.url)
        code, out, err = run(*asked, "--retries", "1")
        assert (code, out, "Tried 2 times." in err) == (1, "", True)
        assert run(*asked, "--retries", "2") == (0, "4 2.0\n", "")


def test_the_key_is_in_the_environment_and_files_there_are_for_tls_alone(files: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TRITONE_KEY", "open sesame")
    monkeypatch.setenv("TRITONE_CA", str(files / "missing.pem"))
    with Connection().client("localhost:1") as client:
        assert client.endpoint.key == "open sesame"
        assert client.endpoint.files.given == []
    with pytest.raises(ValueError, match=r"ca: .*missing\.pem cannot be read"):
        Connection().client("grpcs://localhost:1")
    with Connection(ca=files / "ca.pem").client("grpcs://localhost:1") as client:
        assert client.endpoint.files.ca == str(files / "ca.pem")


def test_the_key_of_an_own_server_on_this_machine_is_found_and_sent_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("TRITONE_KEY", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    keys.publish("open sesame", [8001])
    for url, key in (("localhost", "open sesame"), ("localhost:8002", None), ("example.org", None)):
        with Connection().client(url) as client:
            assert client.endpoint.key == key


def test_files_that_do_not_fit_the_url_are_wrong_usage(files: Path):
    ca, audio = files / "ca.pem", files / "four.wav"
    for command in (
        ("transcribe", audio, "--url", "localhost:1"),
        ("evaluate", "--data-dir", files, "--url", "http://localhost:1"),
        ("verify", audio, audio, "--url", "localhost:1"),
        ("bench", "--url", "localhost:1"),
    ):
        code, _, err = run(*command, "--ca", ca)
        assert code == 2, err
        assert "uses no TLS" in err


def test_options_of_a_server_do_not_go_with_a_bundle(files: Path):
    for command in (
        ("transcribe", files / "four.wav", "--model", "demo-asr"),
        ("evaluate", "--data-dir", files, "--model", "demo-asr"),
        ("verify", files / "four.wav", files / "four.wav"),
    ):
        code, _, err = run(*command, "--ca", files / "ca.pem", "--retries", "3")
        assert code == 2, err
        assert "--retries goes with" in " ".join(err.split())
