"""Finding the installation and explaining what is missing."""

import os
import socket
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tritone.cli.main import app
from tritone.errors import ServerSetupError
from tritone.runtime.onnx import fusing
from tritone.server import ServerOptions, checks, find_installation, free_ports, installation, run_checks
from tritone.server.checks import (
    check_installation,
    check_libpython,
    check_numpy,
    check_port,
    check_shared_memory,
    check_stub,
)
from tritone.server.installation import PYTHON, Installation


def fake_engine(folder: Path, script: str = "exit 0", backend: bool = True) -> Path:
    """A tritonserver in the installed layout that is a shell script."""
    program = folder / "bin" / "tritonserver"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    program.chmod(0o755)
    if backend:
        (folder / "backends" / "python").mkdir(parents=True)
        (folder / "backends" / "python" / "triton_python_backend_stub").write_bytes(b"...libpython3.6.so.1.0...")
    return program


def installed(program: Path) -> Installation:
    return find_installation(program)


def test_everything_is_fine_where_the_suite_runs() -> None:
    options = ServerOptions.on_free_ports(drain_s=3)
    assert (options.drain_s, options.host) == (3, ServerOptions().host)
    found = run_checks(options=options)
    assert [check for check in found if check.status == "broken"] == []
    assert {"libpython", "shared memory", "tritonserver", "python backend", "http port"} <= {c.name for c in found}


def test_a_given_path_comes_first_then_the_search_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, on_path = fake_engine(tmp_path / "given"), fake_engine(tmp_path / "other")
    monkeypatch.setenv("PATH", f"{on_path.parent}{os.pathsep}{os.environ['PATH']}")
    assert find_installation(given).executable == given
    assert find_installation(tmp_path / "given").executable == given, "the folder of an unpacked release will do"
    assert (find_installation().executable, find_installation().origin) == (on_path, "on PATH")


def test_a_path_that_is_no_program_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ServerSetupError, match="is not an executable tritonserver"):
        find_installation(tmp_path / "tritonserver")


def test_without_any_engine_the_message_names_the_wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(installation, "INSTALLED", tmp_path / "tritonserver")
    monkeypatch.setattr(installation, "_wheel_root", lambda: None)
    with pytest.raises(ServerSetupError, match="pip install nvidia-pytriton"):
        find_installation()
    assert "broken" in {check.status for check in run_checks() if check.name == "tritonserver"}


def test_an_engine_that_does_not_start_is_quoted(tmp_path: Path) -> None:
    program = fake_engine(tmp_path, "echo 'libnuma.so.1: cannot open shared object file' >&2; exit 127")
    check = check_installation(installed(program))
    assert check.status == "broken"
    assert "libnuma.so.1: cannot open" in check.seen


def test_a_stub_of_another_python_is_told_apart(tmp_path: Path) -> None:
    check = check_stub(installed(fake_engine(tmp_path)))
    assert check.status == "broken"
    assert f"embeds Python 3.6, this is {PYTHON}" in check.seen


def test_an_engine_without_the_python_backend_is_told(tmp_path: Path) -> None:
    check = check_stub(installed(fake_engine(tmp_path, backend=False)))
    assert (check.status, "has no Python backend" in check.seen) == ("broken", True)


def test_a_missing_libpython_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "find_libpython", lambda: None)
    check = check_libpython()
    assert check.status == "broken"
    assert f"apt-get install libpython{PYTHON}" in check.fix


def test_too_little_shared_memory_names_the_option_of_the_container(tmp_path: Path) -> None:
    check = check_shared_memory(1 << 60, tmp_path)
    assert check.status == "warning"
    assert f"--shm-size {1 << 40}m" in check.fix
    assert check_shared_memory(1 << 20, tmp_path).status == "ok"
    assert check_shared_memory(1 << 20, tmp_path / "absent").status == "broken"


def test_a_taken_port_names_its_holder() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        check = check_port("127.0.0.1", "grpc", port)
        assert check.status == "broken"
        assert f"127.0.0.1:{port} is taken by pid {os.getpid()} " in check.seen
        assert "--grpc-port" in check.fix
    assert check_port("127.0.0.1", "grpc", port).status == "ok"


def test_an_address_of_another_machine_is_not_called_a_taken_port() -> None:
    check = check_port("192.0.2.1", "http", 8000)
    assert check.status == "broken"
    assert "cannot listen on 192.0.2.1:8000" in check.seen
    assert "--host" in check.fix


def test_doctor_prints_the_fix_and_fails_when_something_is_broken() -> None:
    http_port, grpc_port, metrics_port = free_ports(3)
    ports = ["--http-port", str(http_port), "--grpc-port", str(grpc_port), "--metrics-port", str(metrics_port)]
    fine = CliRunner().invoke(app, ["doctor", *ports])
    assert fine.exit_code == 0, fine.output
    assert "libpython" in fine.output
    with socket.create_server(("127.0.0.1", http_port)):
        broken = CliRunner().invoke(app, ["doctor", *ports])
    assert broken.exit_code == 1
    assert "choose another port with --http-port" in broken.output


@pytest.mark.parametrize(
    ("options", "told"),
    [({"http_port": 0}, "http port must be 1 to 65535"), ({"http_port": 9, "grpc_port": 9}, "the ports must differ")],
)
def test_ports_that_cannot_be_are_refused(options: dict[str, int], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        ServerOptions(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("version", "wheel", "status"),
    [("1.26.4", True, "ok"), ("2.0.0", True, "broken"), ("2.3.5", True, "broken"), ("3.0", False, "warning")],
)
def test_a_numpy_of_which_the_server_makes_empty_texts_is_refused(version: str, wheel: bool, status: str) -> None:
    found = check_numpy(wheel, version)
    assert (found.status, found.seen.startswith(version)) == (status, True)
    assert found.fix == ("" if status == "ok" else "pip install 'numpy<2'")


def test_a_server_does_not_start_with_such_a_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "version", lambda name: "2.4.1")
    with pytest.raises(ServerSetupError, match=r"numpy: 2\.4\.1, of which .* empty texts\. pip install 'numpy<2'"):
        checks.require(options=ServerOptions.on_free_ports())


def test_doctor_says_what_of_onnxruntime_cannot_be_imported(monkeypatch):
    monkeypatch.setitem(sys.modules, "tritone.runtime.onnx.fusing", None)
    check = checks.check_packages()
    assert check.status == "broken"
    assert "tritone.runtime.onnx.fusing" in check.seen
    assert "--force-reinstall onnxruntime" in check.fix


def test_doctor_says_why_zipformers_are_slower_than_they_could_be(monkeypatch):
    monkeypatch.setattr(fusing, "library", lambda: None)
    monkeypatch.setattr(fusing.importlib.util, "find_spec", lambda name: None if name == fusing.LIBRARY else object())
    check = checks.check_packages()
    assert check.status == "ok"
    assert "Install one (gcc)" in check.seen
