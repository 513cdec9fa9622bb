"""Compiling the searches that requests may ask for, beside a model that serves, before anybody asks.

    ahead = Ahead.of(pipeline)       # a child of low priority compiles what the model's own search does not need
    ahead.need(options)              # ServerBusyError with a hint until numba's cache has it
    ahead.close()                    # the child ends, if it is still at work

numba compiles for 10 to 15 s, and a model answers nobody meanwhile. So what its own search needs is compiled before it
is ready, and everything else in a process of its own: one at a time on a machine, whichever model it is for. What it
compiled is in numba's cache, and a request that needs it loads it from there in a second.
"""

import logging
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tritone.errors import OperatorError, ServerBusyError
from tritone.pipelines.kind import Kind, compile_search, kind_named, kind_of
from tritone.pipelines.searching.base import Searching
from tritone.runtime.child import python_command
from tritone.search.compiled.kept import FOLDER, Kept
from tritone.search.options import SearchOptions

LOG = logging.getLogger(__name__)

USUAL_S = 15.0  # of compiling one search, for hints
LEAST_S = 2.0  # of a hint, at least
POLL_S = 0.5  # between two looks at whose turn it is
PRIORITY = 10  # the niceness of the child: a tenth of a busy core is left to it
CPU_S = 300  # of a core that the child may take for one search, and
TIMEOUT_S = 1800.0  # of time, on a machine that is busy
COMPILED = 75  # exit code: something was compiled, and whether it was kept is seen by who looks for it next
OUTPUT_CHARACTERS = 2000  # characters of what a child that failed wrote last


class Ahead:
    """Compiles searches of one model that serves, and knows which of them are ready."""

    def __init__(
        self,
        kind: str,
        codes: Mapping[str, str],
        *,
        compiled: Callable[[SearchOptions], bool] = lambda options: True,
        warn: Callable[[str], None] = LOG.warning,
    ) -> None:
        """Begin to compile.

        Args:
            kind: of the model.
            codes: for the modes whose code is not loaded: the mode under which it is compiled and kept.
            compiled: whether a search with some options runs compiled code.
            warn: takes what an operator should know.
        """
        self._kind, self._codes, self._compiled, self._warn = kind, dict(codes), compiled, warn
        self._loaded: set[str] = set()
        self.failed: dict[str, str] = {}  # and why
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._since = time.monotonic()
        self._kept = Kept.here()
        if self._kept is None and codes:
            self._warn(
                f"no folder can be written that numba could keep compiled searches in; set {FOLDER} to one. So "
                f"{', '.join(self._wanted)} of {kind} models is compiled now, and at every start"
            )
            for code in self._wanted:
                self._load(code)
        elif missing := [code for code in self._wanted if not self._has(code)]:
            self._warn(
                f"compiling {', '.join(missing)} search of {kind} models for this machine in the background, once: "
                f"about {USUAL_S:.0f} s each. Who asks for it meanwhile is told to try again; all others are answered"
            )
            self._start()

    @classmethod
    def of(cls, pipeline: Any, *, in_steps: bool = False, warn: Callable[[str], None] = LOG.warning) -> "Ahead | None":
        """Compile what requests to a pipeline may ask for; None for one that does not search.

        Args:
            pipeline: what its own search needs is compiled, or loaded, before this returns.
            in_steps: whether it searches streams.
            warn: as of `Ahead`.
        """
        searching = getattr(pipeline, "searching", None)
        if not isinstance(searching, Searching):
            return None
        kind, own = kind_of(pipeline.bundle), searching.options
        codes, searches = _codes(kind), kind.served(pipeline.bundle).searches
        compiled = partial(searching.runs_compiled, in_steps=in_steps)
        ready = codes.get(own.mode) if compiled(own) else None
        if ready is not None:
            compile_search(kind.name, ready)  # speech and hotwords ask for more than the silence of warming up
        can = getattr(pipeline, "can_search", lambda options: True)
        wanted = {
            mode: code
            for mode, code in codes.items()
            if code != ready and mode in searches and can(replace(own, mode=mode))  # type: ignore[arg-type]  # one of `modes`
        }
        ahead = cls(kind.name, wanted, compiled=compiled, warn=warn)
        searching.admit = ahead.need
        return ahead

    @property
    def _wanted(self) -> list[str]:
        return list(dict.fromkeys(self._codes.values()))

    def need(self, options: SearchOptions) -> None:
        """Make sure that the code which a search needs is loaded.

        Raises:
            ServerBusyError: it is not compiled yet; says when to try again.
        """
        code = self._codes.get(options.mode)
        if code is None or code in self._loaded or not self._compiled(options):
            return
        with self._lock:
            if code in self._loaded:
                return
            if not self._has(code):
                if code not in self.failed:
                    self._start()
                    left_s = self._left_s(code)
                    busy = ServerBusyError(
                        f"{options.mode} search is being compiled for this server, once; other searches are answered "
                        f"meanwhile. Try again in {left_s:.0f} s"
                    )
                    busy.retry_after_s = left_s
                    raise busy
                self._warn(
                    f"compiling {code} search in the model's own process, where all requests wait for it, because it "
                    f"could not be done in the background: {self.failed[code].splitlines()[0]}"
                )
            self._load(code)

    def close(self) -> None:
        """End compiling."""
        self._ended.set()
        if (child := self._child) is not None:
            with suppress(ProcessLookupError):
                child.kill()
        if self._thread is not None:
            self._thread.join()

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until all is compiled, or has failed."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _has(self, code: str) -> bool:
        return self._kept is not None and self._kept.has(f"{self._kind}.{code}")

    def _load(self, code: str) -> None:
        compile_search(self._kind, code)
        self._loaded.add(code)

    def _left_s(self, code: str) -> float:
        """When code should be ready, in seconds: what is compiled before it has its time, too."""
        before = self._wanted[: self._wanted.index(code)]
        count = 1 + sum(not self._has(each) and each not in self.failed for each in before)
        return max(LEAST_S, count * USUAL_S - (time.monotonic() - self._since))

    def _start(self) -> None:
        if self._ended.is_set() or (self._thread is not None and self._thread.is_alive()):
            return
        self._thread = threading.Thread(target=self._run, name="tritone-ahead", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for code in self._wanted:
            if self._ended.is_set():
                return
            if code in self._loaded or code in self.failed:
                continue
            self._since = time.monotonic()
            try:
                reason = self._compile(code)
            except OSError as error:  # no process can be started, or the folder is gone
                reason = str(error)
            if reason and not self._ended.is_set():
                self.failed[code] = reason
                self._warn(
                    f"{code} search of {self._kind} models could not be compiled in the background: {reason}. The "
                    "first request for it will compile it, and all others will wait"
                )

    def _compile(self, code: str) -> str:
        """Have code compiled, by whoever's turn it is; what went wrong."""
        assert self._kept is not None
        while not self._has(code):
            with self._kept.turn() as mine:
                if mine and not self._has(code):  # else it was the work of who had the turn before
                    return self._ask_child(code)
            if self._ended.wait(POLL_S):
                break
        return ""

    def _ask_child(self, code: str) -> str:
        """Have a child compile, and another see that all of it was kept; what went wrong."""
        assert self._kept is not None
        for _ in range(2):
            result, output = self._run_child(python_command(__name__, self._kind, code, self._kept.folder))
            if result != COMPILED:
                break
        if result == 0:
            return ""
        reason = {COMPILED: "it was not kept", -signal.SIGXCPU: f"it took more than {CPU_S} s of a core"}.get(
            result, f"exit code {result}" if result >= 0 else f"it was ended by signal {-result}"
        )
        return f"{reason}\n{output}".rstrip()

    def _run_child(self, command: list[str]) -> tuple[int, str]:
        """Its exit code and what it wrote last. Its standard input is a pipe that ends with this process."""
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        ) as child:
            with suppress(OSError):  # it may be over
                os.setpriority(os.PRIO_PROCESS, child.pid, os.getpriority(os.PRIO_PROCESS, 0) + PRIORITY)
            self._child = child
            if self._ended.is_set():  # `close` came before it could see this child
                child.kill()
            timer = threading.Timer(TIMEOUT_S, child.kill)
            timer.start()
            try:
                assert child.stderr is not None
                output = child.stderr.read().decode(errors="replace")
                result = child.wait()
            finally:
                timer.cancel()
                self._child = None
        return result, output.strip()[-OUTPUT_CHARACTERS:]


def compile_all(kind: str) -> None:
    """Have all searches of models of a kind compiled and marked, as a model that serves does, and wait for it.

    Raises:
        OperatorError: one of them cannot be; says why.
    """
    ahead = Ahead(kind, _codes(kind_named(kind)))
    ahead.wait()
    if ahead.failed:
        raise OperatorError("; ".join(f"{code} search: {reason}" for code, reason in ahead.failed.items()))


def _codes(kind: Kind) -> dict[str, str]:
    """Under which mode the code of each mode is compiled: the first that has the same."""
    compilers = {mode: compiler for mode in kind.modes if (compiler := kind.compiler(mode)) is not None}
    return {mode: next(each for each, same in compilers.items() if same == own) for mode, own in compilers.items()}


def main(kind: str, code: str, folder: str) -> None:
    """Compile, or load what is compiled; if all was in the cache, mark it there."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 5))
    from tritone.search.compiled.compiler import cached_files, not_from_cache

    compile_search(kind, code)
    if missing := not_from_cache():
        sys.stderr.write(f"not found in numba's cache: {', '.join(missing)}\n")
        sys.exit(COMPILED)
    Kept(Path(folder)).mark(f"{kind}.{code}", cached_files())


def _end_with_parent() -> None:
    os.read(0, 1)
    os._exit(1)
