"""What a model makes ready for its full speed while it answers already, and how far it is.

    preparing = Preparing(report, file)                 in the model's process
    preparing.begin("compiling", 5, work)               work(part) in a thread, which calls part.step() five times
    with timed(preparing, "weights"): ...               for the log
    states(folder)  ->  {("asr", "1"): "compiling 2 of 5"}    of all processes of a server, for its operators

A server has a folder for the files of its models' processes, which `VARIABLE` names to them; commands of the same user
on the same machine find it by the server's port.
"""

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from tritone.errors import ServerSetupError
from tritone.keys import runtime_folder

LOGGER = logging.getLogger(__name__)
VARIABLE = "TRITONE_PREPARING"  # environment variable: where processes of models write how far they are
READY = "ready"
FAULT_CHARACTERS = 200  # characters of what went wrong


class Part:
    """Something that is prepared in `count` steps, from any threads, until `end` or `fail`."""

    def __init__(self, name: str, count: int, changed: Callable[[str], None], ended: Callable[[str], None]) -> None:
        """Take its name, what is called after each change, with what to report or nothing, and at its end."""
        self.name, self.count = name, count
        self.done = 0
        self.fault = ""
        self.is_over = False
        self._changed, self._ended = changed, ended
        self._start = time.perf_counter()
        self._lock = threading.Lock()

    def __str__(self) -> str:
        return f"{self.name} failed: {self.fault}" if self.fault else f"{self.name} {self.done} of {self.count}"

    def step(self, what: str = "") -> None:
        """Count a step; `what` was done, for the log."""
        with self._lock:
            self.done += 1
        self._changed(f"{self}: {what}" if what else "")

    def end(self) -> None:
        """All of it is done."""
        self.is_over = True
        self._ended(f"{self.name} is done, {self.count} in {time.perf_counter() - self._start:.1f} s")

    def fail(self, why: str) -> None:
        """It cannot be done; the model goes on without."""
        self.fault = why
        self._changed(f"{self}. The model answers without it")


class Preparing:
    """What one process of a model prepares. May be used from several threads."""

    def __init__(
        self,
        report: Callable[[str], None] = LOGGER.warning,
        file: Path | None = None,
        *,
        note: Callable[[str], None] = LOGGER.info,
    ) -> None:
        """Take where progress is reported, the file for how far it is if there is one, and where times are noted."""
        self._report, self._note, self._file = report, note, file
        self._lock = threading.Lock()
        self._parts: list[Part] = []
        self._threads: list[threading.Thread] = []
        self.seconds: dict[str, float] = {}  # that parts of opening the model took

    @classmethod
    def of_model(
        cls, name: str, version: str, instance: str, report: Callable[[str], None], note: Callable[[str], None]
    ) -> "Preparing":
        """That of an instance of a served model."""
        folder = os.environ.get(VARIABLE)
        return cls(report, Path(folder, f"{name}@{version}@{instance}.json") if folder else None, note=note)

    @property
    def text(self) -> str:
        """How far it is: "ready", or such as "compiling 2 of 5"."""
        with self._lock:
            return "; ".join(str(each) for each in self._parts if each.fault or not each.is_over) or READY

    def begin(self, name: str, count: int, work: Callable[[Part], None]) -> None:
        """Do something of `count` steps in a thread of its own; its error is reported, and the model goes on.

        Args:
            work: counts its steps.
        """
        part = self.part(name, count)

        def run() -> None:
            try:
                work(part)
            except Exception as error:  # of compilers, devices or disks
                part.fail(str(error) or type(error).__name__)
            else:
                part.end()

        thread = threading.Thread(target=run, name="tritone-preparing", daemon=True)
        self._threads.append(thread)
        thread.start()

    def part(self, name: str, count: int) -> Part:
        """Something of `count` steps that is done elsewhere."""
        part = Part(name, count, self._changed, self._ended)
        with self._lock:
            self._parts.append(part)
        self._write()
        return part

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait for all threads that were started."""
        for thread in self._threads:
            thread.join(timeout_s)

    def opened(self, after_s: float) -> None:
        """Note that the model answers, so long after its process began, and what the time was taken by."""
        parts = "".join(f", {name} {seconds:.1f} s" for name, seconds in self.seconds.items())
        self._note(f"the model answers {after_s:.1f} s after its process began{parts}; {self.text}")
        self._write()

    def _changed(self, what: str) -> None:
        self._write()
        if what:
            self._report(what)

    def _ended(self, what: str) -> None:
        self._write()
        self._note(f"{what}; {self.text}")

    def _write(self) -> None:
        if self._file is None:
            return
        beside = self._file.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
        with suppress(OSError):  # the server is ending
            beside.write_text(json.dumps({"state": self.text[:FAULT_CHARACTERS]}), encoding="utf-8")
            beside.replace(self._file)


@contextmanager
def timed(preparing: Preparing | None, name: str) -> Iterator[None]:
    """Count the time inside as that of a part of opening a model, where somebody wants to know."""
    start = time.perf_counter()
    yield
    if preparing is not None:
        preparing.seconds[name] = preparing.seconds.get(name, 0.0) + time.perf_counter() - start


def states(folder: Path) -> dict[tuple[str, str], str]:
    """What each version of a model still prepares, by name and version; of processes the first that is not ready."""
    found: dict[tuple[str, str], str] = {}
    for path in sorted(folder.glob("*@*@*.json")):
        name, version, _ = path.name.split("@", 2)
        with suppress(OSError, ValueError, KeyError, TypeError):
            state = str(json.loads(path.read_text(encoding="utf-8"))["state"])
            if found.get((name, version), READY) == READY:
                found[name, version] = state
    return found


def publish(folder: Path, ports: Iterable[int]) -> list[Path]:
    """Let this user's commands find the folder of a server by its ports; returns what to remove at its end.

    Raises:
        ServerSetupError: as of `keys.publish`.
    """
    links = [_link(port) for port in ports]
    for link in links:
        try:
            link.unlink(missing_ok=True)
            link.symlink_to(folder)
        except OSError as error:
            raise ServerSetupError(f"{link} cannot be written: {error.strerror}") from error
    return links


def states_at(port: int) -> Mapping[tuple[str, str], str]:
    """The states of the server of this user on this machine that listens on a port; none where there is no such."""
    try:
        return states(_link(port))
    except (OSError, ServerSetupError):
        return {}


def _link(port: int) -> Path:
    return runtime_folder() / f"{port}.preparing"
