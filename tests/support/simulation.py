"""A server and a clock for streams that live in one thread: no real time passes, and every latency is decreed.

Requests are read back from the JSON that goes over HTTP, not from our own objects.
"""

import heapq
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tritone.client.endpoint import Endpoint
from tritone.loadtest.senders.wire import Body, Reply, Target

RATE = 1000  # Hz: a sample is a millisecond
TARGET = Target(endpoint=Endpoint.parse("http://localhost:1"), model="toy", sample_rate=RATE, streaming=True)


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a server sees. `samples` are those that WAV_LENS calls valid."""

    sent: float
    stream: int
    start: bool
    end: bool
    samples: np.ndarray


@dataclass(frozen=True)
class Later:
    """An answer after some seconds: a text, several or none of them, or an error."""

    seconds: float
    text: str = ""
    error: str | None = None
    texts: tuple[str, ...] | None = None


LOST = None  # neither an answer nor an error, ever
Behaviour = Callable[[Request], Later | None]


@dataclass
class Simulation:
    """Clock and sender in one. `send_s`: how long sending takes the generator, which can do nothing else meanwhile."""

    behaviour: Behaviour
    send_s: Callable[[Request], float] = lambda request: 0.0
    time: float = 100.0
    requests: list[Request] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._coming: list[tuple[float, int, float, Callable[[Reply], None], Later]] = []
        self._count = itertools.count()

    def now(self) -> float:
        return self.time

    def wait(self, inbox: Any, until: float) -> Any:
        self._deliver(self.time)
        while inbox.empty() and self._coming and self._coming[0][0] <= until:
            self._deliver(self._coming[0][0])
        if not inbox.empty():
            return inbox.get_nowait()
        assert until < float("inf"), "the player would wait for ever"
        self.time = max(self.time, until)
        return None

    def send(self, body: Body, timeout_s: float, done: Callable[[Reply], None]) -> None:
        request = self._read(body)
        self.requests.append(request)
        answer = self.behaviour(request)
        self.time += self.send_s(request)
        if answer is not None:
            if answer.seconds > timeout_s:
                answer = Later(timeout_s, error="timeout")
            heapq.heappush(self._coming, (self.time + answer.seconds, next(self._count), self.time, done, answer))

    def close(self) -> None:
        pass

    def of(self, stream: int) -> list[Request]:
        """The requests of the stream that began as number `stream`, from 0."""
        ids = list(dict.fromkeys(request.stream for request in self.requests))
        return [request for request in self.requests if request.stream == ids[stream]]

    def _deliver(self, until: float) -> None:
        while self._coming and self._coming[0][0] <= until:
            when, _, sent, done, answer = heapq.heappop(self._coming)
            self.time = max(self.time, when)
            texts = () if answer.error else (answer.text,) if answer.texts is None else answer.texts
            done(Reply(texts=texts, error=answer.error, received=when, sent=sent))

    def _read(self, body: Body) -> Request:
        said = json.loads(body.json)
        parameters = said["parameters"]
        size = said["inputs"][0]["parameters"]["binary_data_size"]
        (valid,) = np.frombuffer(body.content[size:], dtype="<i4")
        return Request(
            sent=self.time,
            stream=parameters["sequence_id"],
            start=parameters["sequence_start"],
            end=parameters["sequence_end"],
            samples=np.frombuffer(body.content[:size], dtype="<f4")[:valid],
        )
