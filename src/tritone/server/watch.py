"""Watching the processes of a server's models, and loading again those that lost one.

Triton 2.51 does not notice that a model's process has ended: the model stays ready, and each of its batches fails after
a second. Neither can such a model be unloaded, for Triton keeps its failed requests; but it can be put out of service
and loaded again beside what is left of it. What is left stays in memory, so the server itself is started again after
`MOST_LEFTOVERS` of them.
"""

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psutil

from tritone.errors import ServerUnreachableError, TritoneError
from tritone.server.process import TritonServer

LOOK_S = 0.2
STUB = "triton_python_b"  # the kernel keeps 15 letters of a process's name
STABLE_S = 5.0  # what was ready for so long may fail as often as something new
MOST_FAILURES = 5  # in a row
LONGEST_PAUSE_S = 30.0
CHANGE_S = 2.0  # in which the processes of a version that was loaded again end
MOST_LEFTOVERS = 50


@dataclass
class Failures:
    """Failures in a row of something that is started again each time.

    `ready_at`: when it was ready last; None if it has not been since its last failure.
    """

    clock: Callable[[], float] = time.monotonic
    count: int = 0
    ready_at: float | None = None

    def ready(self) -> None:
        """It was started, and works."""
        self.ready_at = self.clock()

    def add(self) -> None:
        stable = self.ready_at is not None and self.clock() - self.ready_at > STABLE_S
        self.count = 1 if stable else self.count + 1
        self.ready_at = None

    @property
    def too_many(self) -> bool:
        return self.count > MOST_FAILURES

    @property
    def pause_s(self) -> float:
        """How long to wait before the next start: not at all after a first failure, then longer and longer."""
        return min(LONGEST_PAUSE_S, 2.0 ** (self.count - 2)) if self.count > 1 else 0.0


class ModelWatch:
    """Watches the models of a server.

    `hopeless`: why the server must be started again; empty if it need not. `leftovers`: how often one was loaded again.
    """

    def __init__(
        self,
        running: TritonServer,
        notify: Callable[[str], None],
        lost: Callable[[str], None] = lambda model: None,
    ) -> None:
        self.hopeless = ""
        self._running = running
        self._notify = notify
        self._lost = lost
        self._failures: defaultdict[str, Failures] = defaultdict(Failures)
        self._loading: dict[str, threading.Thread] = {}
        self.leftovers = 0
        self._processes = self._alive()
        self._is_new = True  # what its models lost before they were watched is looked for once
        self._changed: dict[str, float] = {}  # models that are or were being reloaded, and when that was last seen

    def look(self) -> None:
        """Look once at all processes, and begin to load models again that lost one.

        Raises:
            ServerUnreachableError: the server does not answer.
        """
        before, self._processes = self._processes, self._alive()
        now = time.monotonic()
        # While somebody reloads a version, its old processes and the new ones have the same names.
        self._changed |= {key[0]: now for key, pids in self._processes.items() if len(pids) > 1}
        gone = {
            key for key in before if key not in self._processes and now - self._changed.get(key[0], -1e9) > CHANGE_S
        }
        self._loading = {model: thread for model, thread in self._loading.items() if thread.is_alive()}
        if not gone and not self._is_new:
            return
        # A version that somebody unloads, or that another replaces, is not ready any more when its process ends.
        index = self._running.control.models()
        ready = {(each["name"], each.get("version", "")) for each in index if each.get("state") == "READY"}
        if self._is_new:
            present = Counter(key[:2] for key in {*before, *self._processes})
            for model in sorted(
                {each[0] for each in ready if present[each] < self._running.control.process_count(each[0])}
            ):
                self._lose(model, "before it was watched")
            self._is_new = False
        for model in sorted({key[0] for key in gone if key[:2] in ready} - self._loading.keys()):
            self._lose(model, ", ".join(str(pid) for key in gone if key[0] == model for pid in sorted(before[key])))

    def wait(self) -> None:
        """Return when all models are ready that are being loaded again, or cannot be loaded."""
        for thread in self._loading.values():
            thread.join()

    def _lose(self, model: str, pids: str) -> None:
        failures = self._failures[model]
        failures.add()
        self.leftovers += 1
        self._notify(f"model '{model}' lost its process {pids}; its requests fail until it is loaded again")
        self._lost(model)
        if failures.too_many:
            self.hopeless = f"model '{model}' lost its process {failures.count} times in a row"
        elif self.leftovers > MOST_LEFTOVERS:
            self.hopeless = f"{self.leftovers} models were loaded again, and Triton keeps what was left of each"
        else:
            thread = threading.Thread(target=self._load, args=(model, failures), name=f"load {model}", daemon=True)
            self._loading[model] = thread
            thread.start()

    def _load(self, model: str, failures: Failures) -> None:
        try:
            self._running.control.unload(model)  # not ready from here on; requests are refused at once
            time.sleep(failures.pause_s)
            began = time.monotonic()
            self._running.control.load(model, self._running.options.start_timeout_s)
        except TritoneError as error:
            self.hopeless = f"model '{model}' could not be loaded again: {error}"
        else:
            failures.ready()
            self._notify(f"model '{model}' is ready again after {time.monotonic() - began:.1f} s; its streams are lost")

    def _alive(self) -> dict[tuple[str, str, str], set[int]]:
        """The processes of models: model, version and instance -> process ids."""
        found: defaultdict[tuple[str, str, str], set[int]] = defaultdict(set)
        for process in self._running.children():
            try:
                model = model_of(process)
            except psutil.Error:
                continue  # it ended just now
            if model is not None:
                found[model].add(process.pid)
        return dict(found)


@contextmanager
def kept_alive(running: TritonServer, notify: Callable[[str], None]) -> Iterator[ModelWatch]:
    """Watch the models of a server in a thread: inside, one that loses its process is loaded again."""
    watch = ModelWatch(running, notify)
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(LOOK_S) and not watch.hopeless:
            with suppress(ServerUnreachableError):
                watch.look()

    thread = threading.Thread(target=look, name="model watch", daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        ended.set()
        thread.join()


def model_of(process: psutil.Process) -> tuple[str, str, str] | None:
    """Model, version and instance that a process of Triton's Python backend runs; None if it is something else.

    Raises:
        psutil.Error: it cannot be looked at, or has ended.
    """
    if process.name()[:15] != STUB or process.status() == psutil.STATUS_ZOMBIE:
        return None
    command = process.cmdline()
    try:  # .../MODEL/VERSION/model.py and, as the last but one argument, the instance
        model, version = command[1].split("/")[-3:-1]
        return model, version, command[8]
    except (IndexError, ValueError):
        return None
