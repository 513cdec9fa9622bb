"""CUDA's Multi-Process Service of a server, with a program in place of NVIDIA's, which needs a GPU."""

import os
from pathlib import Path

import psutil
import pytest

from tritone.errors import ServerSetupError
from tritone.server import ServerOptions, TritonServer
from tritone.server.mps import CONTROL, PIPES, Mps
from wire_toys import COMPLETE, write_models

# As NVIDIA's: with -f it serves until it is asked to quit, without it hands on what stdin asks for.
PROGRAM = """#!/bin/sh
if [ "$1" = -f ]; then
  echo $$ > "$CUDA_MPS_LOG_DIRECTORY/pid"
  mkfifo "$CUDA_MPS_PIPE_DIRECTORY/control"
  read -r asked < "$CUDA_MPS_PIPE_DIRECTORY/control"
  echo "$asked" > ASKED
else
  cat > "$CUDA_MPS_PIPE_DIRECTORY/control"
fi
"""
FAULTY = """#!/bin/sh
echo "no device found" > "$CUDA_MPS_LOG_DIRECTORY/control.log"
exit 3
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / CONTROL
    path.write_text(PROGRAM.replace("ASKED", str(tmp_path / "asked")), encoding="utf-8")
    path.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv(PIPES, raising=False)
    return path


def test_it_runs_in_a_folder_of_its_own_and_is_asked_to_end(program: Path, tmp_path: Path) -> None:
    service = Mps()
    folder = Path(service.environment[PIPES])
    assert folder.stat().st_mode & 0o077 == 0
    running = psutil.Process(int((folder / "pid").read_text(encoding="utf-8")))
    service.stop()
    assert not running.is_running()
    assert not folder.exists()
    assert (tmp_path / "asked").read_text(encoding="utf-8") == "quit\n"
    service.stop()


def test_one_that_does_not_listen_is_ended(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tritone.server.mps.STOP_S", 0.5)
    program.write_text(
        PROGRAM.replace("mkfifo", "trap '' TERM; touch").replace("read -r asked <", "sleep 600 <"), encoding="utf-8"
    )
    service = Mps()
    running = psutil.Process(int((Path(service.environment[PIPES]) / "pid").read_text(encoding="utf-8")))
    service.stop()
    assert not running.is_running()


def test_its_own_words_say_why_it_does_not_run(program: Path) -> None:
    program.write_text(FAULTY, encoding="utf-8")
    with pytest.raises(ServerSetupError, match=r"exit code 3\): no device found"):
        Mps()


def test_one_that_runs_already_is_used(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PIPES, "/run/mps")
    service = Mps()
    assert service.environment == {}
    service.stop()


def test_without_the_program_the_error_says_where_it_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("tritone.server.mps.DRIVER", str(tmp_path))
    with pytest.raises(ServerSetupError, match="NVIDIA_DRIVER_CAPABILITIES"):
        Mps()


def test_a_server_has_it_as_long_as_it_runs(program: Path, tmp_path: Path) -> None:
    options = ServerOptions.on_free_ports(drain_s=0, mps=True, extra=COMPLETE)
    with TritonServer(write_models(tmp_path / "models", "count"), options) as server:
        environment = psutil.Process(server.pid).environ()
        folder = Path(environment[PIPES])
        assert (folder / "control").exists()
    assert not folder.exists()
    assert (tmp_path / "asked").read_text(encoding="utf-8") == "quit\n"
