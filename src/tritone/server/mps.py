"""CUDA's Multi-Process Service, for a server's own processes.

    Mps().environment  ->  processes of models on one GPU compute side by side

Without it, processes that share a GPU have it in turns: while a kernel computes that leaves most of it idle, as that of
a search, nobody else's does. The service is a daemon of NVIDIA's driver, this one with a folder of its own.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tritone.errors import ServerSetupError
from tritone.server.guard import Guard

CONTROL = "nvidia-cuda-mps-control"
DRIVER = "/usr/local/nvidia/bin"  # where containers have the driver's programs
PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
START_S, STOP_S = 10.0, 5.0
POLL_S = 0.02
LINES = 5


class Mps:
    """A running service.

    `environment`: variables of the processes that are to use it. Where the environment names one already, that one is
    used and left alone.
    """

    def __init__(self) -> None:
        """Start it.

        Raises:
            ServerSetupError: the driver's program is not there, or ends at once; says why.
        """
        self.environment: Mapping[str, str] = {}
        self._process: subprocess.Popen[bytes] | None = None
        if PIPES in os.environ:
            return
        self._control = shutil.which(CONTROL) or shutil.which(CONTROL, path=DRIVER)
        if self._control is None:
            raise ServerSetupError(
                f"--mps needs {CONTROL}, a part of NVIDIA's driver, which is not on the PATH. In a container it is "
                "there with NVIDIA_DRIVER_CAPABILITIES=compute,utility. Or serve without --mps."
            )
        self._folder = Path(tempfile.mkdtemp(prefix="tritone-mps-"))
        self.environment = {PIPES: str(self._folder), LOGS: str(self._folder)}
        self._process = subprocess.Popen(
            [self._control, "-f"],
            env=os.environ | dict(self.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._guard = Guard(self._process.pid, self._folder, self._folder / "-", STOP_S)
        try:
            self._await_ready()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the service, after the processes that use it. May be called again."""
        if self._process is None:
            return
        with suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(
                [str(self._control)],
                input=b"quit\n",
                env=os.environ | dict(self.environment),
                capture_output=True,
                timeout=STOP_S,
                check=False,
            )
            self._process.wait(STOP_S)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None
        self._guard.dismiss()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _await_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_S
        while not (self._folder / "control").exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                log = self._folder / "control.log"
                logged = (
                    log.read_text(errors="replace", encoding="utf-8").splitlines()[-LINES:] if log.is_file() else []
                )
                raise ServerSetupError(
                    f"{self._control} does not run (exit code {self._process.poll()}): {' '.join(logged) or 'no log'}. "
                    "Serve without --mps, or start it yourself and set " + PIPES
                )
            time.sleep(POLL_S)
