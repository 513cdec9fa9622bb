"""One running `tritonserver`, from start to the last trace of it.

    with TritonServer(repository, options) as server:  # ready, or ServerSetupError with Triton's own words
        server.wait()

Nothing is left behind: no process of its group, no shared memory region, no temporary folder; not even when this
process is killed (`guard.py`).
"""

import os
import re
import resource
import secrets
import shutil
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

import psutil

from tritone import errors
from tritone.backend.settings import DRAINING
from tritone.container import usable_cpus
from tritone.errors import OperatorError, ServerSetupError, ServerUnreachableError
from tritone.net.fetch import fetch
from tritone.net.prometheus import samples
from tritone.preparing import VARIABLE
from tritone.repository import backends_of, check_settings, features_of, is_all_ours, runtimes_of, shared_memory_bytes
from tritone.repository.memory import memory_needs, total_bytes
from tritone.server.checks import GPU, MB, MIN_SHARED_MEMORY, SHARED_MEMORY, require
from tritone.server.control import UNREADY, Control
from tritone.server.folder import make_folder, plain_path
from tritone.server.guard import Guard
from tritone.server.installation import Installation
from tritone.server.mps import Mps
from tritone.server.options import ServerOptions

POLL_S = 0.05
STOOD_STILL_S = 0.4  # longer than `POLL_S`, and shorter than what ends the process of a model
STARTS = 3  # at most, where the machine stands still, or is too busy, in each
WAIT_STEP_S = 0.2
TAIL_LINES = 400
METRICS_TIMEOUT_S = 2.0
CHILDREN_STEP_S = 0.5
UNNOTICED_S = 5.0  # Triton waits for a process of a model in moments after it has ended one; it notices no other end
OPEN_STREAMS = "tritone_open_streams"
LINES_PER_SECOND = 1000  # of the server's log; a start writes some hundred
FAILED_MODEL = re.compile(r"failed to load '(?P<model>[^']+)' version \d+: (?P<reason>.*)")
NOT_HEALTHY = "is not healthy"
NOT_READY = "before the model was ready"
LOST_MODEL = (NOT_HEALTHY, NOT_READY)
PYTHON_ERROR = re.compile(r"Internal: (?P<name>\w+): ")
# What Triton prints at start about a GPU that is not there.
NO_GPU = re.compile(r"CudaDriverHelper has not been initialized|pinned_memory_manager|cuda_memory_manager|NVML|DCGM")
DRAINED = re.compile(rf"'{UNREADY}'|model_config_content_name_ is empty")
TABLE = re.compile(r"^[+|]|^\s*$")


class TritonServer:
    """A tritonserver process on one model repository, as a context manager."""

    def __init__(
        self,
        repository: str | Path,
        options: ServerOptions | None = None,
        *,
        server: str | Path | None = None,
        log: TextIO | None = None,
    ) -> None:
        """Args:
        repository: folder of models; or an address in the form of Triton's own client for storage (s3://...), which
            then reads it. What a server needs for its models is not checked in advance there.
        options: addresses and limits.
        server: path of tritonserver; None searches for it.
        log: where the server's output goes as it comes; None keeps only the last lines, for error messages.
        """
        self._address = str(repository) if "://" in str(repository) else None
        self.repository = Path(repository)
        self.options = options or ServerOptions()
        self.control = Control(self.options)
        self._server = server
        self._log = log
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._folder: Path | None = None
        self._guard: Guard | None = None
        self._mps: Mps | None = None
        self._interrupted: int | None = None  # the signal that came while the server started
        self._kill_at: float | None = None  # set by the first wish to stop
        self._stood_still = False  # the machine, while the server started
        self._region_prefix = f"tritone_{os.getpid()}_{secrets.token_hex(4)}_"

    @property
    def http_address(self) -> str:
        """Where HTTP clients on this machine connect, as host:port."""
        return self.options.address("http")

    @property
    def grpc_address(self) -> str:
        """Where gRPC clients on this machine connect, as host:port."""
        return self.options.address("grpc")

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        return self._running().pid

    @property
    def tail(self) -> list[str]:
        """The last lines the server wrote."""
        return list(self._tail)

    def __enter__(self) -> "TritonServer":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start and wait until every model is ready; one that was stopped may be started again.

        Raises:
            ServerSetupError: something is missing, a model failed to load, or it took longer than `start_timeout_s`.
        """
        if self._folder is not None:
            raise RuntimeError("this server was started already")
        if self._address is not None:
            installation, warnings = require(self._server, self.options, MIN_SHARED_MEMORY)
        elif not self.repository.is_dir():
            raise ServerSetupError(f"{self.repository} is not a folder. Make a repository with `tritone build`.")
        else:
            try:
                check_settings(self.repository)
            except OperatorError as error:
                raise ServerSetupError(str(error)) from error
            needed = max(MIN_SHARED_MEMORY, shared_memory_bytes(self.repository))
            runtimes, backends = runtimes_of(self.repository), backends_of(self.repository)
            memory = total_bytes(memory_needs(self.repository))
            installation, warnings = require(self._server, self.options, needed, runtimes, backends, memory)
        for check in warnings:
            self._notify(f"warning: {check.name}: {check.seen}. {check.fix}\n")
        _raise_file_limit()
        starts = count(1)
        while not self._started(installation, may_fail=next(starts) < STARTS):
            self._notify(
                "the process of a model was lost while the machine stood still, or had more to do than it has cores; "
                "the server is started again\n"
            )

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait until the server ends by itself or after `terminate`.

        Returns:
            Its exit code; 128 + n when signal n killed it.

        Raises:
            TimeoutError: it still runs after `timeout_s`.
        """
        process = self._running()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with suppress(subprocess.TimeoutExpired):
                return _exit_code(process.wait(WAIT_STEP_S))
            now = time.monotonic()
            if self._kill_at is not None and now > self._kill_at:
                self._tail.append(
                    f"tritonserver did not end within {self.options.stop_timeout_s:g} s of SIGTERM: killed"
                )
                self.kill()
            elif deadline is not None and now > deadline:
                raise TimeoutError(f"tritonserver still runs after {timeout_s:g} s")

    def terminate(self) -> None:
        """Ask the server to finish what is in flight and end. Does not wait; safe in a signal handler."""
        process = self._running()
        if self._kill_at is None:
            self._kill_at = time.monotonic() + self.options.stop_timeout_s
            process.send_signal(signal.SIGTERM)

    def stop(self) -> int | None:
        """End the server: SIGTERM, after `stop_timeout_s` SIGKILL, and clean up after it. May be called again.

        Returns:
            Its exit code as `wait` gives it; None if it never ran.
        """
        code = None
        try:
            if self._process is not None:
                self.terminate()
                code = self.wait()
        finally:  # an impatient Ctrl-C ends the waiting, not the cleaning
            self._clean_up()
        return code

    def _clean_up(self) -> None:
        if self._process is not None:
            # Its stubs are in its group; those that it did not take along end here.
            self.kill()
            self._process.wait()
        if self._guard is not None:
            self._guard.dismiss()
            self._guard = None
        if self._reader is not None:
            self._reader.join()
            self._reader = None
        if self._mps is not None:
            self._mps.stop()
            self._mps = None
        for region in SHARED_MEMORY.glob(f"{self._region_prefix}*"):
            region.unlink(missing_ok=True)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    @property
    def has_crashed(self) -> bool:
        """Whether it has ended though nobody stopped it."""
        return self._folder is not None and self._running().poll() is not None

    def models(self) -> list[dict[str, Any]]:
        """The models of the repository as Triton lists them: `name`, `version`, `state`, and `reason` if it has one.

        Raises:
            ServerUnreachableError: the server does not answer any more.
        """
        try:
            return self.control.models()
        except ServerUnreachableError as error:
            raise ServerUnreachableError(
                f"tritonserver does not list its models: {error}. It said:\n{self._words()}"
            ) from error

    def children(self) -> list[psutil.Process]:
        """The processes that the server started, such as those of its models."""
        with suppress(psutil.Error):
            return psutil.Process(self.pid).children()
        return []

    def open_streams(self) -> dict[str, int]:
        """How many streams are open, by model; none if the server does not tell."""
        found: dict[str, int] = {}
        with suppress(OSError):
            page = fetch(f"http://{self.options.address('metrics')}/metrics", timeout_s=METRICS_TIMEOUT_S).body.decode()
            for name, labels, value in samples(page.splitlines()):
                if name == OPEN_STREAMS:
                    found[labels["model"]] = found.get(labels["model"], 0) + int(value)
        return found

    def interrupt(self, number: int) -> None:
        """Give up a start that is under way, which then raises SystemExit with 128 + `number`; for signal handlers."""
        # Raising in the handler could hit the very moment between the fork and our knowing of it.
        self._interrupted = number

    def kill(self) -> None:
        """End the server and its models at once; what is in flight is lost."""
        with suppress(ProcessLookupError):
            os.killpg(self._running().pid, signal.SIGKILL)

    def refuse_streams(self) -> None:
        """Make models refuse streams that begin from now on; open ones go on."""
        self._draining.touch()

    @property
    def preparing(self) -> Path | None:
        """The folder in which its models write what they still prepare; None where it does not run."""
        return None if self._folder is None else self._folder / "preparing"

    @property
    def _draining(self) -> Path:
        assert self._folder is not None
        return self._folder / "draining"

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise RuntimeError("the server was not started")
        return self._process

    def _started(self, installation: Installation, *, may_fail: bool) -> bool:
        """Start the server; False if a model was lost for want of a core, which is an error otherwise."""
        self._folder = make_folder()
        self._process, self._kill_at, self._stood_still = None, None, False
        try:
            if self.options.mps:
                self._mps = Mps()
            self._launch(installation)
            self._await_ready()
        except BaseException as error:
            self.stop()
            # Triton, and the heartbeat of the process itself, give up on a process that pauses in its warm-up.
            lost = isinstance(error, ServerSetupError) and any(words in str(error) for words in LOST_MODEL)
            if may_fail and lost and (self._stood_still or os.getloadavg()[0] > usable_cpus()):
                return False
            raise
        return True

    def _launch(self, installation: Installation) -> None:
        assert self._folder is not None
        preparing = self._folder / "preparing"
        preparing.mkdir()
        command = [
            str(installation.executable),
            f"--model-repository={self._address or plain_path(self.repository, self._folder)}",
            f"--backend-directory={installation.assemble(self._folder)}",
            # A name of our own lets `stop` remove the regions that a killed server leaves in /dev/shm.
            f"--backend-config=python,shm-region-prefix-name={self._region_prefix}",
            *self.options.arguments(),
        ]
        if self._address is None:
            command += serving_arguments(self.repository, installation, self.options)
        if self._address is None and is_all_ours(self.repository):
            # Our configurations are complete; asking each model for what is missing starts every one of them twice.
            command.insert(1, "--disable-auto-complete-config")
        self._process = subprocess.Popen(
            command,
            env={
                **installation.start_environment(self._folder),
                DRAINING: str(self._draining),
                VARIABLE: str(preparing),
                **(self._mps.environment if self._mps else {}),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            # A group of its own: Ctrl-C in a terminal reaches only us, and the stubs can be ended with the server.
            start_new_session=True,
        )
        regions = SHARED_MEMORY / self._region_prefix
        self._guard = Guard(self._process.pid, self._folder, regions, self.options.stop_timeout_s)
        self._reader = threading.Thread(target=self._read, name="tritonserver-log", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        limit = LineLimit()
        with self._process.stdout as lines:
            for line in lines:
                if self.options.log_level != "verbose" and self._is_noise(line):
                    continue
                for each in limit.passed(line):
                    self._notify(each)

    def _is_noise(self, line: str) -> bool:
        """Whether a line is about a GPU that is not there, or the model that makes a server unready on purpose."""
        return (not GPU.exists() and bool(NO_GPU.search(line))) or (
            self._draining.exists() and bool(DRAINED.search(line))
        )

    def _notify(self, line: str) -> None:
        self._tail.append(line.rstrip("\n"))
        if self._log is not None:
            try:
                self._log.write(line)
                self._log.flush()
            except (OSError, ValueError):
                # Nobody reads it any more. The pipe must be drained all the same, or the server would stop at it.
                self._log = None

    def _await_ready(self) -> None:
        process = self._running()
        deadline = time.monotonic() + self.options.start_timeout_s
        ended = EndedChildren(self.children)
        while not self.control.is_ready():
            if self._interrupted is not None:
                raise SystemExit(128 + self._interrupted)
            if process.poll() is not None:
                self._settle_log()
                raise ServerSetupError(self._explain_exit(_exit_code(process.returncode)))
            if (end := ended.unnoticed()) is not None:
                raise ServerSetupError(
                    f"the process of a model {end} {NOT_READY}, and tritonserver would wait for it for ever. It said:\n"
                    f"{self._words()}"
                )
            if time.monotonic() > deadline:
                raise ServerSetupError(
                    f"tritonserver was not ready after {self.options.start_timeout_s:g} s. It said:\n{self._words()}"
                )
            slept = time.monotonic()
            time.sleep(POLL_S)
            self._stood_still |= time.monotonic() - slept > STOOD_STILL_S
        # Another server may have taken the port between our check and the start; then ours is about to end.
        if process.poll() is not None:
            raise ServerSetupError(self._explain_exit(_exit_code(process.returncode)))
        self._hide_key()
        if self._interrupted is not None:  # the signal came after the last look at it
            raise SystemExit(128 + self._interrupted)

    def _hide_key(self) -> None:
        """Blank out the key among the arguments of the process, which every user of this machine can list.

        Triton takes it in no other way, and has its own copy by now.
        """
        key = self.options.key.encode()
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            begin, end = int(fields[45]), int(fields[46])  # arg_start and arg_end, the 48th and 49th of all
            with open(f"/proc/{self.pid}/mem", "r+b", buffering=0) as memory:
                memory.seek(begin)
                arguments = memory.read(end - begin)
                for match in re.finditer(re.escape(key), arguments):
                    memory.seek(begin + match.start())
                    memory.write(b"*" * len(key))
        except (OSError, IndexError, ValueError) as error:
            self._notify(f"warning: the key of this server can be seen in the list of processes ({error})\n")

    def _explain_exit(self, code: int) -> str:
        failures: dict[str, str] = {}
        for line in self._tail:
            if match := FAILED_MODEL.search(line):
                # Triton prints a Python error with its traceback, on one line with escapes; the tail keeps all of it.
                reason, _, frames = match["reason"].replace("\\n", "\n").replace('\\"', '"').partition("\n\nAt:\n")
                kind = PYTHON_ERROR.match(reason)
                if kind and hasattr(errors, kind["name"]):  # one of ours says it all
                    failures[match["model"]] = reason[kind.end() :]
                else:
                    place = frames.split("\n")[0].strip()
                    failures[match["model"]] = reason.strip().rstrip('"') + (f" (at {place})" if place else "")
        if failures:
            message = "\n".join(f"  {model}: {reason}" for model, reason in failures.items())
            if NOT_HEALTHY in message:  # its process ended without a reason
                message += f"\nThe log ends with:\n{self._words()}"
            return f"tritonserver ended with code {code}: models did not load:\n{message}"
        return f"tritonserver ended with code {code} before it was ready. It said:\n{self._words()}"

    def _words(self, count: int = 25) -> str:
        lines = [line for line in self._tail if not TABLE.search(line)]
        return "\n".join(f"  {line}" for line in lines[-count:]) or "  (nothing)"

    def _settle_log(self) -> None:
        # The stubs hold the pipe too; they end moments after the server.
        if self._reader is not None:
            self._reader.join(timeout=2)


class EndedChildren:
    """Finds processes that ended while a server starts, and which it does not notice.

    Triton 2.51 waits for ever for the first word of a process that could not be started.
    """

    def __init__(
        self, children: Callable[[], list[psutil.Process]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._children = children
        self._clock = clock
        self._looked = clock()
        self._since: dict[int, float] = {}  # process id -> when it was first seen to have ended

    def unnoticed(self) -> str | None:
        """How one ended that its server has not asked about for `UNNOTICED_S`; None if there is none."""
        now = self._clock()
        if now - self._looked < CHILDREN_STEP_S:
            return None
        self._looked = now
        self._since = {pid: self._since.get(pid, now) for pid in map(_ended, self._children()) if pid is not None}
        late = [pid for pid, since in self._since.items() if now - since >= UNNOTICED_S]
        return _how_it_ended(late[0]) if late else None


class LineLimit:
    """Keeps a log from growing without bounds: Triton writes megabytes a second when it runs out of descriptors."""

    def __init__(self, most: int = LINES_PER_SECOND, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._second = clock()
        self._count = 0

    def passed(self, line: str) -> Iterator[str]:
        """The lines to write when `line` comes: itself if there is room, before it a count of those left out."""
        if self._clock() - self._second >= 1:
            if self._count > self._most:
                yield f"({self._count - self._most} more lines were left out)\n"
            self._second, self._count = self._clock(), 0
        self._count += 1
        if self._count <= self._most:
            yield line


def serving_arguments(repository: Path, installation: Installation, options: ServerOptions) -> list[str]:
    """Options that a server needs for models that want a response cache or its rate limiter."""
    needs, found = features_of(repository), []
    if "response_cache" in needs and not any(each.startswith("--cache-") for each in options.extra):
        found.append(f"--cache-config=local,size={options.cache_mb * MB}")
        if (folder := installation.root / "caches").is_dir():
            found.append(f"--cache-directory={folder}")
    if "rate_limiter" in needs and not any(each.startswith("--rate-limit") for each in options.extra):
        found.append("--rate-limit=execution_count")
    return found


def _raise_file_limit() -> None:
    """Let the server have as many connections as the system allows; where they run out, Triton fills the log."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _ended(process: psutil.Process) -> int | None:
    with suppress(psutil.Error):
        return process.pid if process.status() == psutil.STATUS_ZOMBIE else None
    return None


def _how_it_ended(pid: int) -> str:
    try:
        status = int(
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[-1]
        )
    except (OSError, IndexError, ValueError):
        return "ended"
    if os.WIFSIGNALED(status):
        return f"was killed by signal {os.WTERMSIG(status)}"
    return f"ended with code {os.WEXITSTATUS(status)}"


def _exit_code(returncode: int) -> int:
    return returncode if returncode >= 0 else 128 - returncode
