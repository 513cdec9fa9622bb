"""Work in processes of its own: what one leaves on the device or in its settings is gone with it.

    Task("ceiling", {...})  ->  python -m benchmarks.gpu.tasks  ->  READY, then on "go" its result as JSON

A task prepares at once and measures on its turn, so that many compile at the same time and one alone uses the device.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

READY, RESULT = "TASK READY", "TASK RESULT "
Arguments = Mapping[str, Any]
Measure = Callable[[], Any]


class TaskError(RuntimeError):
    """A task ended without a result; the message has its last words."""


class Task:
    """A process that prepares. `prepared_s`: how long that took, once it has."""

    def __init__(self, name: str, arguments: Arguments, environment: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.arguments = arguments
        self.prepared_s = 0.0
        self._ready = threading.Event()
        self._lines: list[str] = []
        self._result: Any = None
        self._start = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-u", "-m", "benchmarks.gpu.tasks", name, json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            env={**os.environ, **(environment or {})},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_ready(self, timeout_s: float) -> bool:
        """Whether it is prepared, or has ended, in time."""
        return self._ready.wait(timeout_s)

    def result(self, timeout_s: float = 600.0) -> Any:
        """Have it measure, and wait for what it finds.

        Raises:
            TaskError: it failed, or took too long.
        """
        try:
            if not self.wait_ready(timeout_s):
                raise TaskError(f"{self.name} was not prepared after {timeout_s:g} s")
            assert self._process.stdin is not None
            with suppress(OSError):  # where it has ended, its words are below
                self._process.stdin.write("go\n")
                self._process.stdin.flush()
            self._process.wait(timeout_s)
            self._reader.join(timeout=10)
            if self._result is None:
                raise TaskError(f"{self.name} {dict(self.arguments)} failed: " + "\n".join(self._lines[-30:]))
            return self._result["value"]
        except subprocess.TimeoutExpired:
            raise TaskError(f"{self.name} had no result after {timeout_s:g} s") from None
        finally:
            self.end()

    def end(self) -> None:
        """End it, if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reader.join(timeout=10)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(READY):
                self.prepared_s = time.monotonic() - self._start
                self._ready.set()
            elif line.startswith(RESULT):
                self._result = json.loads(line.removeprefix(RESULT))
            else:
                self._lines.append(line.rstrip())
        self._ready.set()


def export(model: str, folder: str, smoke: bool) -> Measure:
    """Export a bundle."""
    from pathlib import Path

    from benchmarks.gpu.bundles import MODELS

    path = MODELS[model].make(Path(folder), smoke)
    return lambda: str(path)


def compiled(
    bundle: str,
    device: str,
    precision: str,
    search: str,
    sizes: str,
    steps: int,
    chunk_size: int | None,
    left_chunks: int | None,
    lengths_s: list[float],
) -> Measure:
    """Compile calls of a bundle ahead of time, as `tritone compile` does; takes no turn."""
    import time as clock

    from tritone.bundle import Bundle
    from tritone.pipelines.compile import compile_bundle
    from tritone.pipelines.graphs.placement import Placement

    start = clock.perf_counter()
    found = compile_bundle(
        Bundle.open(bundle),
        placement=Placement(device=device, runtime="torch", precision=precision),
        modes="streaming" if steps else "offline",
        search=search,  # type: ignore[arg-type]  # of the plan
        chunk_size=chunk_size,
        left_chunks=left_chunks,
        **({"rows": steps} if steps else {"sizes": sizes, "lengths_s": lengths_s, "max_audio_s": 35.0}),
    )
    took_s = clock.perf_counter() - start
    return lambda: {"calls": len(found), "sizes": [str(each) for each in found], "took_s": took_s}


def searches(modes: list[tuple[str, str]]) -> Measure:
    """Compile searches of kinds of models, which no server has to wait for then; takes no turn."""
    from tritone.kinds import compile_search

    for kind, mode in modes:
        compile_search(kind, mode)
    return lambda: len(modes)


def ceiling(seconds_each: float, device: str, **shape: Any) -> Measure:
    """Compile a network and time it."""
    from benchmarks.gpu.ceiling import milliseconds, prepare

    run = prepare(device=device, **shape)
    return lambda: milliseconds(run, device, seconds_each)


def inprocess(seconds_each: float, **arguments: Any) -> Measure:
    """Open a pipeline and measure it in this process."""
    from benchmarks.gpu.inprocess import prepare

    measure = prepare(**arguments)
    return lambda: measure(seconds_each)


def steps(seconds_each: float, **arguments: Any) -> Measure:
    """Open a pipeline for streams and measure its steps."""
    from benchmarks.gpu.inprocess import prepare_streams

    measure = prepare_streams(**arguments)
    return lambda: measure(seconds_each)


def texts(folder: str, device: str, count: int, compiled: bool) -> Measure:
    """Compare texts of the device with those of the CPU; takes no turn, because nothing of it is timed."""
    from pathlib import Path

    from benchmarks.gpu.accuracy import compare, export_demo

    rows = compare(str(export_demo(Path(folder))), device, count, compiled)
    return lambda: rows


def embeddings(bundle: str, device: str, count: int) -> Measure:
    """Compare embeddings of the device with those of the CPU."""
    from benchmarks.gpu.accuracy import compare_embeddings

    rows = compare_embeddings(bundle, device, count)
    return lambda: rows


TASKS: dict[str, Callable[..., Measure]] = {
    each.__name__: each for each in (export, compiled, searches, ceiling, inprocess, steps, texts, embeddings)
}


def main() -> None:
    """Run the task that the command line names."""
    name, arguments = sys.argv[1], json.loads(sys.argv[2])
    measure = TASKS[name](**arguments)
    print(READY, flush=True)
    sys.stdin.readline()
    print(RESULT + json.dumps({"value": measure()}), flush=True)


if __name__ == "__main__":
    main()
