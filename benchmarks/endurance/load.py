"""Lasting load of requests and streams with known answers: threads send them and compare what comes back.

[Task, ...]  ->  Load  ->  [Outcome(task, sent, answered, verdict, message), ...]
"""

import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.endurance.truth import RATE, Task
from tritone.client import Client
from tritone.errors import ServerUnreachableError, TritoneError

RIGHT, WRONG = "right", "wrong"
PAUSE_AFTER_ERROR_S, LONGEST_PAUSE_S = 0.05, 0.5  # doubled with each error in a row: a dead server fails at once
JOIN_TIMEOUT_S = 90.0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one request or stream. Times are of `time.monotonic`; of an error the verdict is its type."""

    model: str
    protocol: str
    sent: float
    answered: float
    verdict: str
    message: str = ""

    @property
    def is_error(self) -> bool:
        return self.verdict not in (RIGHT, WRONG)


class Connection:
    """A client that is made anew when its server was gone, so that no back-off of the transport is measured."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self.protocol = url.partition(":")[0]
        self._url = url
        self._timeout_s = timeout_s
        self._client: Client | None = None

    def ask(self, task: Task, rng: np.random.Generator) -> Outcome:
        """Send one request, or play one stream in chunks of random sizes, and judge the answer."""
        sent = time.monotonic()
        try:
            if self._client is None:
                self._client = Client(self._url, timeout_s=self._timeout_s)
            fault = task.expected.fault_of(_answer(self._client, task, rng))
            verdict, message = (RIGHT, "") if fault is None else (WRONG, fault)
        except TritoneError as error:
            verdict, message = type(error).__name__, str(error)
            if isinstance(error, ServerUnreachableError):
                self.close()
        except Exception as error:  # nothing but a TritoneError should come: it is told by its name, and load goes on
            verdict, message = type(error).__name__, repr(error)
        answered = time.monotonic()
        return Outcome(
            model=task.model, protocol=self.protocol, sent=sent, answered=answered, verdict=verdict, message=message
        )

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


def _answer(client: Client, task: Task, rng: np.random.Generator) -> Any:
    if task.model.endswith("-streaming"):
        with client.stream(task.model, chunk_ms=float(rng.uniform(40, 640)), search=task.search or None) as stream:
            for piece in pieces(task, rng):
                stream.accept(piece)
            return stream.finish()
    if task.expected.embedding is not None:
        return client.embed(task.waveform, task.model).vector
    return client.transcribe(task.waveform, task.model, search=task.search or None, details=task.details).get()


def pieces(task: Task, rng: np.random.Generator) -> Iterable[Any]:
    """A waveform in pieces of random lengths, of 1 ms to 2 s, so that some are smaller than a chunk and some larger."""
    start = 0
    while start < len(task.waveform):
        size = max(1, round(RATE * float(np.exp(rng.uniform(np.log(0.001), np.log(2.0))))))
        yield task.waveform[start : start + size]
        start += size


class Load:
    """Threads that send tasks, chosen at random, one after the other, until they are told to stop."""

    def __init__(
        self, urls: Sequence[str], groups: Sequence[tuple[Sequence[Task], int]], *, seed: int, timeout_s: float = 20.0
    ) -> None:
        """Args:
        urls: of the server; threads take them in turn.
        groups: tasks, and how many threads send them.
        """
        self.outcomes: list[Outcome] = []  # appended by the threads, never changed
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        for tasks, senders in groups:
            for _ in range(senders):
                number = len(self._threads)
                rng = np.random.default_rng([seed, number])
                connection = Connection(urls[number % len(urls)], timeout_s)
                thread = threading.Thread(target=self._send, args=(connection, tasks, rng), daemon=True)
                self._threads.append(thread)

    def _send(self, connection: Connection, tasks: Sequence[Task], rng: np.random.Generator) -> None:
        pause_s = PAUSE_AFTER_ERROR_S
        while not self._over.is_set():
            outcome = connection.ask(tasks[int(rng.integers(len(tasks)))], rng)
            self.outcomes.append(outcome)
            if outcome.is_error:
                self._over.wait(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S) if outcome.is_error else PAUSE_AFTER_ERROR_S
        connection.close()

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Send nothing more, and wait for what is in flight."""
        self._over.set()
        deadline = time.monotonic() + JOIN_TIMEOUT_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def since(self, start: int) -> list[Outcome]:
        """The outcomes from the `start`th on."""
        return self.outcomes[start:]


def tally(outcomes: Iterable[Outcome]) -> dict[str, int]:
    """How many outcomes had each verdict, the most frequent first."""
    return dict(Counter(outcome.verdict for outcome in outcomes).most_common())
