"""The Triton client: audio files or arrays in, transcripts out; over gRPC or HTTP.

with Client("localhost:8001") as client:
    for result in client.transcribe(["a.flac", "b.wav"]):
        print(result.source, result.text)
"""

import os
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from tritone.client.endpoint import Endpoint
from tritone.client.models import Kind, ModelInfo, choose
from tritone.client.parameters import Parameter, Search, request_parameters, wants_alternatives
from tritone.client.result import TranscriptResult
from tritone.client.stream import DEFAULT_CHUNK_MS, ClientStream
from tritone.client.transport import Call, Transport
from tritone.client.waveforms import load
from tritone.errors import InputError, RetryError, ServerTimeoutError, TritoneError
from tritone.transcript import Transcript

AudioInput = str | os.PathLike[str] | npt.NDArray[Any]

DEFAULT_TIMEOUT_S = 60.0
LOST_AFTER_S = 5.0  # beyond its time limit a request is given up, whatever its transport does
DEFAULT_CONCURRENCY = 8


class Client:
    """A connection to one Triton server. Thread-safe; close it, or use it in a `with` statement.

    Args:
        url: "host:port" (gRPC), "grpc://host:port" or "http://host:port"; "grpcs://" and "https://" use TLS.
        protocol: "grpc" or "http" for a URL without a scheme.
        timeout_s: how long one request may take, queueing included, in seconds.

    Raises:
        ValueError: the URL cannot be understood. Nothing is sent before the first call of a method.
    """

    def __init__(self, url: str, *, protocol: str | None = None, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        if timeout_s <= 0:
            raise ValueError(f"timeout_s must be positive, got {timeout_s}")
        self.endpoint = Endpoint.parse(url, protocol)
        self.timeout_s = timeout_s
        self._transport = _connect(self.endpoint)
        self._chosen: dict[tuple[str | None, Kind], ModelInfo] = {}

    def models(self) -> list[ModelInfo]:
        """The ready models, by name.

        Raises:
            RetryError: the server cannot be reached or does not answer in time.
        """
        self._chosen.clear()
        return [self._describe(name) for name in self._ready_names()]

    def model(self, name: str | None = None, *, kind: Kind = "offline") -> ModelInfo:
        """The ready model of that name, or the only ready one of that kind; remembered until `models()` is called.

        Raises:
            InputError: no such model, or several would do; the message lists what there is.
            RetryError: the server cannot be reached or does not answer in time.
        """
        if (name, kind) not in self._chosen:
            ready = self._ready_names()
            # A server may have hundreds of models: only those that matter are asked for.
            models = [self._describe(each) for each in ([name] if name in ready else ready)]
            if models and models[0].name == name and models[0].kind != kind:
                models = [self._describe(each) for each in ready]  # the message tells which would do
            self._chosen[name, kind] = choose(models, name, kind, self.endpoint)
        return self._chosen[name, kind]

    def transcribe(
        self,
        inputs: Iterable[AudioInput],
        model: str | None = None,
        *,
        details: bool = False,
        concurrency: int = DEFAULT_CONCURRENCY,
        sample_rate: int | None = None,
        search: Search | None = None,
    ) -> list[TranscriptResult]:
        """Transcribe files or waveforms with an offline model; results come in the order of the inputs.

        An input that fails keeps its error in its own result and does not disturb the others.

        Args:
            inputs: paths (any format libsndfile reads, any sample rate, channels are averaged) and arrays:
                (samples,) in [-1, 1], or (samples, channels).
            model: which model; None takes the only offline one there is.
            details: also ask for tokens, words, times and confidences.
            concurrency: requests in flight, at least 1.
            sample_rate: of arrays, in Hz; None says they have the model's rate already.
            search: how to search, by the names of the wire contract: `{"search": "rescoring", "nbest": 5}`; the model
                decides what is not said. More than one reading (`nbest`) brings details with it.

        Raises:
            InputError: no such model, or it is too old for `search`.
            RetryError: the server cannot be reached before anything was sent.
            ValueError: `concurrency` is below 1, `inputs` is a single path or array, or `search` cannot be sent.
        """
        results = self.transcribe_iter(
            inputs, model, details=details, concurrency=concurrency, sample_rate=sample_rate, search=search
        )
        return sorted(results, key=lambda result: result.index)

    def transcribe_iter(
        self,
        inputs: Iterable[AudioInput],
        model: str | None = None,
        *,
        details: bool = False,
        concurrency: int = DEFAULT_CONCURRENCY,
        sample_rate: int | None = None,
        search: Search | None = None,
    ) -> Iterator[TranscriptResult]:
        """Like `transcribe`, but yields each result as it completes; `result.index` tells which input it belongs to.

        Inputs are read only when there is room for them, so `inputs` may be a generator of any length. Leaving the
        loop early abandons the requests in flight.
        """
        if isinstance(inputs, (str, os.PathLike, np.ndarray)):
            raise ValueError("inputs must be a list of paths or waveforms; put the single one into a list")
        if concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, got {concurrency}")
        info = self.model(model, kind="offline")
        ask = self._ask(info, details, search)
        return self._run(inputs, info, ask, concurrency, sample_rate)

    def stream(
        self,
        model: str | None = None,
        *,
        sample_rate: int | None = None,
        details: bool = False,
        chunk_ms: float = DEFAULT_CHUNK_MS,
        search: Search | None = None,
    ) -> ClientStream:
        """Open a stream on a streaming model.

        Args:
            model: which model; None takes the only streaming one there is.
            sample_rate: of the samples that will come, in Hz; None says they have the model's rate already.
            details: also ask for tokens, words, times and confidences with every answer.
            chunk_ms: audio per request, in milliseconds. Shorter pieces are gathered, longer ones cut.
            search: as for `transcribe`; it holds for the whole stream.

        Raises:
            InputError: no such model, or it is too old for `search`.
            RetryError: the server cannot be reached or does not answer in time.
            ValueError: `search` cannot be sent.
        """
        info = self.model(model, kind="streaming")
        ask = self._ask(info, details, search)
        return ClientStream(
            self._transport,
            info,
            sample_rate=sample_rate,
            details=ask.details,
            chunk_ms=chunk_ms,
            timeout_s=self.timeout_s,
            parameters=ask.parameters,
        )

    def _ready_names(self) -> list[str]:
        index = self._transport.model_index(self.timeout_s)
        return sorted({entry["name"] for entry in index if entry.get("state") == "READY"})

    def _describe(self, name: str) -> ModelInfo:
        return ModelInfo.from_config(self._transport.model_config(name, self.timeout_s))

    def _ask(self, model: ModelInfo, details: bool, search: Search | None) -> "_Ask":
        parameters = request_parameters(search)
        details = details or wants_alternatives(parameters)
        if details and not model.has_details:
            raise InputError(
                f"{self.endpoint}: model '{model.name}' gives no details such as times. Build its repository again."
            )
        model.check_search(parameters, self.endpoint)
        return _Ask(details, parameters)

    def close(self) -> None:
        """Close the connection and its threads. Requests in flight are abandoned. Closing twice is fine."""
        self._transport.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(
        self,
        inputs: Iterable[AudioInput],
        model: ModelInfo,
        ask: "_Ask",
        concurrency: int,
        sample_rate: int | None,
    ) -> Iterator[TranscriptResult]:
        finished: SimpleQueue[_Flight] = SimpleQueue()
        in_flight: dict[int, _Flight] = {}
        try:
            for index, item in enumerate(inputs):
                source = os.fspath(item) if isinstance(item, (str, os.PathLike)) else f"input {index}"
                try:
                    waveform = load(item, sample_rate, model.sample_rate)
                    in_flight[index] = self._launch(model, waveform, ask, finished, source, index)
                except TritoneError as error:
                    yield TranscriptResult(source=source, index=index, error=error)
                while len(in_flight) >= concurrency or not finished.empty():
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

    def _next_landed(self, finished: "SimpleQueue[_Flight]", in_flight: "dict[int, _Flight]") -> "_Flight":
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
        model: ModelInfo,
        waveform: npt.NDArray[np.float32],
        ask: "_Ask",
        finished: "SimpleQueue[_Flight]",
        source: str,
        index: int,
    ) -> "_Flight":
        call = Call(
            model=model.name,
            waveform=waveform,
            timeout_s=self.timeout_s,
            details=ask.details,
            batched=model.batched,
            parameters=ask.parameters,
        )
        sent = time.perf_counter()
        flight = _Flight(source, index, len(waveform) / model.sample_rate, sent, self._transport.infer(call))

        def land(_: Future[Transcript]) -> None:
            flight.landed = time.perf_counter()
            finished.put(flight)

        flight.future.add_done_callback(land)
        return flight


@dataclass(frozen=True)
class _Ask:
    details: bool
    parameters: dict[str, Parameter]


@dataclass
class _Flight:
    source: str
    index: int
    audio_s: float
    sent: float
    future: Future[Transcript]
    landed: float = 0.0
    lost: bool = False  # never answered, not even by the transport's own time limit

    def result(self) -> TranscriptResult:
        known: dict[str, Any] = {"source": self.source, "index": self.index, "audio_s": self.audio_s}
        latency_s = self.landed - self.sent
        try:
            return TranscriptResult(**known, transcript=self.future.result(), latency_s=latency_s)
        except CancelledError:
            error = (
                ServerTimeoutError(f"{self.source}: no answer, long after the time limit; try it again")
                if self.lost
                else RetryError("the client was closed before the answer came")
            )
            return TranscriptResult(**known, error=error, latency_s=latency_s)
        except TritoneError as error:
            return TranscriptResult(**known, error=error, latency_s=latency_s)


def _connect(endpoint: Endpoint) -> Transport:
    # Each protocol brings heavy imports that a user of the other one should not wait for.
    if endpoint.protocol == "grpc":
        from tritone.client.grpc_transport import GrpcTransport

        return GrpcTransport(endpoint)
    from tritone.client.http_transport import HttpTransport

    return HttpTransport(endpoint)
