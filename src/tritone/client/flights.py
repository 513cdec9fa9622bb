"""Requests in flight: inputs go out as there is room for them, answers come back in any order.

inputs, model, reply  ->  Landed(source, index, answer | error, audio_s, latency_s), ...
"""

import os
import time
from collections.abc import Generator, Iterable, Mapping
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from tritone.client.models import ModelInfo
from tritone.client.parameters import Parameter
from tritone.client.replies import Reply
from tritone.client.transport import Call, Transport
from tritone.client.waveforms import load
from tritone.errors import RetryError, ServerTimeoutError, TritoneError

AudioInput = str | os.PathLike[str] | npt.NDArray[Any]
Answer = TypeVar("Answer")

LOST_AFTER_S = 5.0  # beyond its time limit a request is given up, whatever its transport does


@dataclass(frozen=True, kw_only=True)
class Landed(Generic[Answer]):
    """What became of an input; the fields are those of the client's results. Either `answer` or `error` is there."""

    source: str
    index: int
    answer: Answer | None = None
    error: TritoneError | None = None
    audio_s: float = 0.0
    latency_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Flights(Generic[Answer]):
    """How inputs are sent: to which model, for which reply, with which parameters, how many at once."""

    transport: Transport
    model: ModelInfo
    reply: Reply[Answer]
    parameters: Mapping[str, Parameter]
    concurrency: int
    sample_rate: int | None
    timeout_s: float

    def run(self, inputs: Iterable[AudioInput]) -> Generator[Landed[Answer], None, None]:
        """Send the inputs; see `Client.transcribe_iter`."""
        finished: SimpleQueue[_Flight[Answer]] = SimpleQueue()
        in_flight: dict[int, _Flight[Answer]] = {}
        try:
            for index, item in enumerate(inputs):
                source = os.fspath(item) if isinstance(item, (str, os.PathLike)) else f"input {index}"
                try:
                    waveform = load(item, self.sample_rate, self.model.sample_rate)
                    in_flight[index] = self._launch(waveform, finished, source, index)
                except TritoneError as error:
                    yield Landed(source=source, index=index, error=error)
                while len(in_flight) >= self.concurrency or not finished.empty():
                    flight = self._next_landed(finished, in_flight)
                    del in_flight[flight.index]
                    yield flight.result()
            while in_flight:
                flight = self._next_landed(finished, in_flight)
                del in_flight[flight.index]
                yield flight.result()
        finally:
            for flight in in_flight.values():
                flight.future.cancel()

    def _next_landed(
        self, finished: "SimpleQueue[_Flight[Answer]]", in_flight: "dict[int, _Flight[Answer]]"
    ) -> "_Flight[Answer]":
        # The transports keep the time limit themselves. Should one fail to, after an interrupt that a library dropped
        # for example, the caller still must not hang: a request well beyond its limit is given up here.
        try:
            return finished.get(timeout=self.timeout_s + LOST_AFTER_S)
        except Empty:
            oldest = next(iter(in_flight.values()))
            oldest.lost = True
            oldest.future.cancel()  # which lands it
            return finished.get()

    def _launch(
        self,
        waveform: npt.NDArray[np.float32],
        finished: "SimpleQueue[_Flight[Answer]]",
        source: str,
        index: int,
    ) -> "_Flight[Answer]":
        call = Call(
            model=self.model.name,
            waveform=waveform,
            timeout_s=self.timeout_s,
            reply=self.reply,
            batched=self.model.batched,
            has_lengths=self.model.has_lengths,
            parameters=self.parameters,
        )
        sent = time.perf_counter()
        flight = _Flight(source, index, len(waveform) / self.model.sample_rate, sent, self.transport.infer(call))

        def land(_: Future[Answer]) -> None:
            flight.landed = time.perf_counter()
            finished.put(flight)

        flight.future.add_done_callback(land)
        return flight


@dataclass
class _Flight(Generic[Answer]):
    source: str
    index: int
    audio_s: float
    sent: float
    future: Future[Answer]
    landed: float = 0.0
    lost: bool = False  # never answered, not even by the transport's own time limit

    def result(self) -> Landed[Answer]:
        known: dict[str, Any] = {"source": self.source, "index": self.index, "audio_s": self.audio_s}
        latency_s = self.landed - self.sent
        try:
            return Landed(**known, answer=self.future.result(), latency_s=latency_s)
        except CancelledError:
            error = (
                ServerTimeoutError(f"{self.source}: no answer, long after the time limit; try it again")
                if self.lost
                else RetryError("the client was closed before the answer came")
            )
            return Landed(**known, error=error, latency_s=latency_s)
        except TritoneError as error:
            return Landed(**known, error=error, latency_s=latency_s)
