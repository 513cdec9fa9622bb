"""The served models under attack: `tritone serve` as a process of its own, and the processes below it by their role.

Repository of the demo models  ->  Deployment  ->  addresses, {"tritonserver": ..., "model demo-asr": ...}
"""

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO

import psutil

from tritone.pipelines.ahead import compile_all
from tritone.repository import ModelOptions, build_repository
from tritone.server import free_ports

BUNDLES = ("demo-asr", "demo-transducer", "demo-speaker")
OFFLINE, SPEAKER = ("demo-asr", "demo-transducer"), "demo-speaker"
STREAMING = tuple(f"{name}-streaming" for name in OFFLINE)
MODELS = (*OFFLINE, SPEAKER, *STREAMING)
COMMAND = (sys.executable, "-c", "from tritone.cli.main import app; app()")  # `tritone`, installed or not
STUB = "triton_python_backend_stub"
START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 60.0


class DeploymentError(Exception):
    """The server under attack could not be started; the message holds the end of its log."""


def build(folder: Path, options: ModelOptions | None = None) -> Path:
    """Write the repository of the demo models."""
    repository = folder / "repository"
    build_repository(list(BUNDLES), repository, options=options, link=True)
    return repository


class Deployment:
    """A running `tritone serve`. It keeps its ports when it is started again, so that clients find it."""

    def __init__(self, repository: Path, folder: Path, serve_args: Sequence[str] = ()) -> None:
        self.repository = repository
        self.log_path = folder / "serve.log"
        self.http, self.grpc, self.metrics = (f"127.0.0.1:{port}" for port in free_ports(3))
        self.starts = 0
        self._serve_args = tuple(serve_args)
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id of `tritone serve`."""
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> "Deployment":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the command and wait until every model is ready; no search is refused for being compiled then."""
        for kind in ("ctc", "transducer"):
            compile_all(kind)
        self._log = self.log_path.open("ab")
        ports = [
            f"--{name}-port={address.rpartition(':')[2]}"
            for name, address in (("http", self.http), ("grpc", self.grpc), ("metrics", self.metrics))
        ]
        self._process = subprocess.Popen(
            [*COMMAND, "serve", str(self.repository), *ports, *self._serve_args],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C ends this program first, which then ends the server
        )
        self.starts += 1
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise DeploymentError(f"the server did not start. It said:\n{self.log_tail()}")
            time.sleep(0.1)

    def is_alive(self) -> bool:
        """Whether `tritone serve` still runs."""
        return self._process is not None and self._process.poll() is None

    def is_ready(self, model: str = "") -> bool:
        """Whether the server, or a model, says over HTTP that it is ready."""
        path = f"v2/models/{model}/ready" if model else "v2/health/ready"
        with suppress(OSError), urllib.request.urlopen(f"http://{self.http}/{path}", timeout=2) as answer:
            return bool(answer.status == 200)
        return False

    def signal(self, number: int) -> None:
        """Send a signal to `tritone serve` alone."""
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self, timeout_s: float = STOP_TIMEOUT_S) -> int | None:
        """Wait for the end of the command; its exit code, negative for a signal, None where it did not end in time."""
        assert self._process is not None
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def stop(self) -> int | None:
        """End the command and all below it; its exit code as of `wait`."""
        if self._process is None:
            return None
        below = self.processes()
        for each in below.values():
            with suppress(psutil.Error):
                each.resume()
        if self._process.poll() is None:
            self.signal(signal.SIGTERM)
        code = self.wait()
        for each in below.values():
            with suppress(psutil.Error):
                each.kill()
        with suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None
        if self._log is not None:
            self._log.close()
        return code

    def processes(self) -> dict[str, psutil.Process]:
        """All processes of the deployment by role: "serve", "tritonserver", "model NAME", and others by their name."""
        if self._process is None:
            return {}
        found: dict[str, psutil.Process] = {}
        with suppress(psutil.Error):
            top = psutil.Process(self._process.pid)
            found["serve"] = top
            for each in top.children(recursive=True):
                with suppress(psutil.Error, IndexError):
                    command = each.cmdline()
                    if each.status() != psutil.STATUS_ZOMBIE:
                        found[_free_role(role_of(command, self.repository), found)] = each
        return found

    def models(self) -> dict[str, psutil.Process]:
        """The processes of models by the name of the model; a model that is being started may have none."""
        named = self.processes().items()
        return {role.removeprefix("model "): each for role, each in named if role.startswith("model ")}

    def log_tail(self, lines: int = 30) -> str:
        """The last lines that the command wrote."""
        text = self.log_path.read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.splitlines()[-lines:])


def role_of(command: Sequence[str], repository: Path) -> str:
    """What a process of a deployment does, by its command line."""
    words = [word for part in command for word in part.split()]
    program = Path(words[0]).name
    if any(STUB in Path(word).name for word in words) and program in (STUB, "sh", "bash", "env"):
        paths = [Path(word) for word in words if word.endswith("model.py")]
        name = paths[0].parent.parent.name if paths else "unknown"
        return f"model {name}" if program == STUB else f"shell of {name}"
    if program == "tritonserver":
        return "tritonserver"
    if program.startswith("python"):
        modules = [word for word in words[1:] if word.startswith("tritone.")]
        return modules[0].rpartition(".")[2] if modules else "python"
    return program


def _free_role(role: str, taken: dict[str, psutil.Process]) -> str:
    if role not in taken:
        return role
    return next(name for number in range(2, 1000) if (name := f"{role} {number}") not in taken)
