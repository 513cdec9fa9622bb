"""The worker processes of a load test: started together, asked together, and never left behind."""

import multiprocessing
import subprocess
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from multiprocessing.connection import Connection
from types import TracebackType
from typing import IO, Any

from tritone.errors import OperatorError
from tritone.loadtest.processes.worker import Job, Signal
from tritone.runtime.child import python_command

START_TIMEOUT_S = 120.0  # to import, read its job and prepare its requests
END_TIMEOUT_S = 2.0
LAST_WORDS = 2000  # characters of what a process that died had written
WORKER = "tritone.loadtest.processes.worker"


class Fleet:
    """One process for each job, as a context manager; none survives it, or this process.

    Raises:
        OperatorError: a process died, failed, or did not answer in time; the message has its last words.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = jobs
        self._processes: list[subprocess.Popen[bytes]] = []
        self._lines: list[Connection[Any, Any]] = []
        self._logs: list[IO[bytes]] = []

    def __enter__(self) -> "Fleet":
        try:
            for _ in self._jobs:
                self._start()
            for index, job in enumerate(self._jobs):
                self._send(index, job)
            self.receive(START_TIMEOUT_S)  # READY
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def begin(self, delay_s: float = 0.05) -> float:
        """Let all begin at the same time, soon; returns that time, in `perf_counter` seconds."""
        at = time.perf_counter() + delay_s
        for index in range(len(self._lines)):
            self._send(index, at)
        return at

    def receive(self, timeout_s: float) -> list[Any]:
        """The next message of each process, in the order of the jobs."""
        deadline = time.perf_counter() + timeout_s
        return [self._next(index, deadline) for index in range(len(self._lines))]

    def stop(self, timeout_s: float) -> list[list[Any]]:
        """Let all end; returns the messages that each of them still had to send."""
        for index in range(len(self._lines)):
            self._send(index, Signal.STOP)
        deadline = time.perf_counter() + timeout_s
        return [list(iter(partial(self._next, index, deadline), Signal.OVER)) for index in range(len(self._lines))]

    def _start(self) -> None:
        ours, theirs = multiprocessing.Pipe()
        self._lines.append(ours)
        self._logs.append(tempfile.TemporaryFile())  # noqa: SIM115  closed with the processes
        with theirs:
            descriptor = theirs.fileno()
            self._processes.append(
                # Not by multiprocessing, which would run the caller's script once more.
                # A session of its own: Ctrl-C is for this process alone, which then stops the others.
                subprocess.Popen(
                    python_command(WORKER, descriptor),
                    pass_fds=[descriptor],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=self._logs[-1],
                    start_new_session=True,
                )
            )

    def _send(self, index: int, message: object) -> None:
        try:
            self._lines[index].send(message)
        except OSError as error:
            raise self._died(index) from error

    def _next(self, index: int, deadline: float) -> Any:
        line = self._lines[index]
        if not line.poll(max(0.0, deadline - time.perf_counter())):
            raise OperatorError(
                f"load generator process {self._processes[index].pid} does not answer. The machine may be short of "
                "cores or memory; use fewer processes."
            )
        try:
            message = line.recv()
        except (EOFError, OSError) as error:
            raise self._died(index) from error
        if isinstance(message, tuple) and message[0] is Signal.FAILED:
            raise OperatorError(f"a load generator process failed:\n{message[1]}")
        return message

    def _died(self, index: int) -> OperatorError:
        process = self._processes[index]
        try:
            code: int | None = process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            code = None
        log = self._logs[index]
        log.seek(0)
        words = log.read().decode("utf-8", "replace").strip()[-LAST_WORDS:]
        return OperatorError(
            f"load generator process {process.pid} ended (exit code {code}). If it was killed, memory may be short: "
            f"use fewer processes or shorter audio. Its last words: {words or 'none'}"
        )

    def _end(self) -> None:
        for line in self._lines:
            line.close()  # which ends a worker that still runs
        deadline = time.perf_counter() + END_TIMEOUT_S
        try:
            for process in self._processes:
                process.wait(max(0.0, deadline - time.perf_counter()))
        except subprocess.TimeoutExpired:
            pass
        finally:
            for process in self._processes:
                if process.poll() is None:
                    process.kill()
                process.wait()
            for log in self._logs:
                log.close()
