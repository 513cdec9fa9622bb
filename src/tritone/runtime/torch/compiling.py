"""Compiling several calls of a program at once, each in a process of its own.

    program file, calls  ->  python -m tritone.runtime.torch.compiling ...  ->  compiled calls in the cache

Compilers are programs of many parts that keep memory and threads, so they run apart from what serves. Their own caches
are in a folder beside what they make, which is removed afterwards: the usual one, in /tmp, may be anybody's.
"""

import fcntl
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch

from tritone.container import usable_cpus
from tritone.errors import OperatorError
from tritone.runtime.child import python_command
from tritone.runtime.files.program import read_program
from tritone.runtime.torch.compiled import CompiledCall, CompiledStore, Shapes, most_rows
from tritone.runtime.torch.compiler import compile_call

CPUS_OF_ONE = 4  # a compiler keeps about as many busy
NICENESS = 10  # of compilers, beside a model that answers
MOST = 6  # at once: each has the weights on the device
LOG_CHARACTERS = 2000  # characters of what a process that failed wrote last


@dataclass(frozen=True)
class Wanted:
    """A call to compile: its outputs, and the shape of each input; it will take fewer rows, too."""

    outputs: tuple[str, ...]
    shapes: Shapes

    def is_done_by(self, call: CompiledCall) -> bool:
        """Whether a call that was compiled is all that is wanted."""
        takes = call.outputs == self.outputs and call.takes([*self.shapes.values()])
        return takes and (most_rows(self.shapes) > 1 or most_rows(call.shapes) == 1)  # code for one row is its own


def compile_calls(
    path: Path,
    device: torch.device,
    store: CompiledStore,
    wanted: Sequence[Wanted],
    *,
    processes: int | None = None,
    done: Callable[[CompiledCall], None] = lambda call: None,
) -> None:
    """Compile what the store does not have yet. Several processes may ask for the same: one compiles, the rest wait.

    Args:
        path: the program's file.
        device: where the calls will run.
        processes: at once; None takes as many as the CPUs are enough for.
        done: is called after each call that was compiled, in any thread.

    Raises:
        OperatorError: one cannot be compiled; says why. Those that were compiled stay.
    """
    store.prepare()
    with _alone(store.folder / ".lock"):
        for left in store.folder.glob(".work-*"):  # by a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        have = [call for call, _ in store.calls()]
        missing = [each for each in wanted if not any(each.is_done_by(call) for call in have)]
        if not missing:
            return
        cpus = usable_cpus()
        count = min(len(missing), processes or max(1, min(MOST, cpus // CPUS_OF_ONE)))
        with tempfile.TemporaryDirectory(prefix=".work-", dir=store.folder) as folder:
            _Crew(path, device, store, Path(folder), count, max(1, cpus // count)).run(missing, done)


class _Crew:
    """Processes that compile one call after the other."""

    def __init__(
        self, path: Path, device: torch.device, store: CompiledStore, folder: Path, count: int, threads: int
    ) -> None:
        self._command = python_command(__name__, path.resolve(), device, store.root.parent.resolve())
        self._environment = os.environ | {
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
            "TRITON_CACHE_DIR": str(folder / "triton"),
            "TORCHINDUCTOR_COMPILE_THREADS": str(threads),
            "TMPDIR": str(folder),
        }
        self._folder = folder
        self._count = count
        self._faults: list[str] = []
        self._processes: list[subprocess.Popen[str]] = []
        self._lock = threading.Lock()

    def run(self, missing: Sequence[Wanted], done: Callable[[CompiledCall], None]) -> None:
        # The largest take longest, so they begin.
        rest = iter(sorted(missing, key=lambda each: -max(map(_size, each.shapes.values()))))
        # A model that is taken out of service does not wait for them: its compilers end with its process.
        workers = [
            threading.Thread(target=self._work, args=(index, rest, done), daemon=True) for index in range(self._count)
        ]
        for worker in workers:
            worker.start()
        try:
            for worker in workers:
                worker.join()
        except BaseException:  # Ctrl-C: nobody waits for these processes any longer
            self._faults.append("interrupted")
            for process in self._processes:
                process.kill()
            for worker in workers:
                worker.join()
            raise
        if self._faults:
            raise OperatorError("; ".join(dict.fromkeys(self._faults)))

    def _work(self, index: int, rest: Iterator[Wanted], done: Callable[[CompiledCall], None]) -> None:
        log = self._folder / f"stderr-{index}"
        with (
            log.open("wb") as errors,
            subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=self._environment,
                encoding="utf-8",
            ) as process,
        ):
            self._processes.append(process)
            try:
                self._ask(process, rest, done, log)
            except BaseException as error:
                process.kill()
                self._faults.append(f"{type(error).__name__}: {error}")

    def _ask(
        self,
        process: "subprocess.Popen[str]",
        rest: Iterator[Wanted],
        done: Callable[[CompiledCall], None],
        log: Path,
    ) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        while (wanted := self._next(rest)) is not None:
            answer = _asked(process.stdin, process.stdout, wanted)
            if answer is None:
                code, last = process.wait(), log.read_text(errors="replace", encoding="utf-8")[-LOG_CHARACTERS:]
                self._faults.append(f"the process that compiles ended with code {code}: {last}")
                return
            if "fault" in answer:
                self._faults.append(answer["fault"])
            else:
                done(CompiledCall(wanted.outputs, wanted.shapes, answer["sha256"], answer["compile_s"]))

    def _next(self, rest: Iterator[Wanted]) -> Wanted | None:
        with self._lock:
            return None if self._faults else next(rest, None)


def _asked(questions: IO[str], answers: IO[str], wanted: Wanted) -> Any:
    """What a process answers to a call; None if it is gone."""
    try:
        print(json.dumps({"outputs": wanted.outputs, "shapes": dict(wanted.shapes)}), file=questions, flush=True)
    except BrokenPipeError:
        return None
    line = answers.readline()
    return json.loads(line) if line else None


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Wait until no other process is in here."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _size(shape: Sequence[int]) -> int:
    size = 1
    for axis in shape:
        size *= axis
    return size


def main(file: str, where: str, root: str) -> None:
    """Compile the calls that are asked for on stdin, one a line, and answer on stdout."""
    path, device = Path(file), torch.device(where)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what compilers print is no answer
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    at_work = threading.Event()
    threading.Thread(target=_read, args=(lines, at_work), daemon=True).start()
    os.nice(NICENESS)
    program = read_program(path, device)
    store = CompiledStore(program, device, Path(root))
    while line := lines.get():
        at_work.set()
        asked = json.loads(line)
        shapes = {name: tuple(shape) for name, shape in asked["shapes"].items()}
        try:
            call = compile_call(program, device, store, asked["outputs"], shapes)
            answer: dict[str, Any] = {"sha256": call.sha256, "compile_s": call.compile_s}
        except OperatorError as error:
            answer = {"fault": str(error)}
        at_work.clear()
        print(json.dumps(answer), file=answers, flush=True)


def _read(lines: "queue.SimpleQueue[str]", at_work: threading.Event) -> None:
    """Take what is asked for. A pipe that ends while there is work is that of a model that was killed."""
    for line in sys.stdin:
        lines.put(line)
    if at_work.is_set():
        os._exit(1)
    lines.put("")
