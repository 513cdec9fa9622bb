"""The Triton client: audio files or arrays in, transcripts or speaker embeddings out; over gRPC or HTTP.

with Client("localhost:8001") as client:
    for result in client.transcribe(["a.flac", "b.wav"]):
        print(result.source, result.text)
    for result in client.embed(["a.flac", "b.wav"]):
        print(result.source, result.embedding)
"""

import os
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from types import TracebackType
from typing import TypeVar

import numpy as np

from tritone.client.endpoint import Endpoint
from tritone.client.flights import AudioInput, Flights, Landed
from tritone.client.models import Kind, ModelInfo, choose
from tritone.client.parameters import Parameter, Search, request_parameters, wants_alternatives
from tritone.client.replies import EmbeddingReply, Reply, TextReply, Vector
from tritone.client.result import EmbeddingResult, TranscriptResult
from tritone.client.stream import DEFAULT_CHUNK_MS, ClientStream
from tritone.client.transport import Transport
from tritone.errors import InputError
from tritone.transcript import Transcript

Answer = TypeVar("Answer")

DEFAULT_TIMEOUT_S = 60.0
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
        _check_inputs(inputs, concurrency)
        info = self.model(model, kind="offline")
        ask = self._ask(info, details, search)
        flights = self._flights(info, TextReply(ask.details), ask.parameters, concurrency, sample_rate)
        return _transcripts(flights.run(inputs))

    def embed(
        self,
        inputs: Iterable[AudioInput],
        model: str | None = None,
        *,
        window_s: float | None = None,
        shift_s: float | None = None,
        concurrency: int = DEFAULT_CONCURRENCY,
        sample_rate: int | None = None,
    ) -> list[EmbeddingResult]:
        """Embed files or waveforms with a speaker model; results come in the order of the inputs.

        An input that fails keeps its error in its own result and does not disturb the others.

        Args:
            inputs, concurrency, sample_rate: as for `transcribe`.
            model: which model; None takes the only one for embeddings there is.
            window_s: embed what is longer in windows of so many seconds, and give their mean; 0 takes audio whole, None
                leaves it to the model.
            shift_s: from one window to the next, in seconds; 0 is `window_s`, None leaves it to the model.

        Raises:
            InputError: no such model, or it takes no windows.
            RetryError: the server cannot be reached before anything was sent.
            ValueError: `concurrency` is below 1, or `inputs` is a single path or array.
        """
        results = self.embed_iter(
            inputs, model, window_s=window_s, shift_s=shift_s, concurrency=concurrency, sample_rate=sample_rate
        )
        return sorted(results, key=lambda result: result.index)

    def embed_iter(
        self,
        inputs: Iterable[AudioInput],
        model: str | None = None,
        *,
        window_s: float | None = None,
        shift_s: float | None = None,
        concurrency: int = DEFAULT_CONCURRENCY,
        sample_rate: int | None = None,
    ) -> Iterator[EmbeddingResult]:
        """Like `embed`, but yields each result as it completes; the rest as of `transcribe_iter`."""
        _check_inputs(inputs, concurrency)
        info = self.model(model, kind="embedding")
        parameters = request_parameters({"window_s": window_s, "shift_s": shift_s})
        info.check_windows(parameters, self.endpoint)
        flights = self._flights(info, EmbeddingReply(), parameters, concurrency, sample_rate)
        return _embeddings(flights.run(inputs))

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

    def _flights(
        self,
        model: ModelInfo,
        reply: Reply[Answer],
        parameters: Mapping[str, Parameter],
        concurrency: int,
        sample_rate: int | None,
    ) -> Flights[Answer]:
        return Flights(
            transport=self._transport,
            model=model,
            reply=reply,
            parameters=parameters,
            concurrency=concurrency,
            sample_rate=sample_rate,
            timeout_s=self.timeout_s,
        )


def _check_inputs(inputs: object, concurrency: int) -> None:
    if isinstance(inputs, (str, os.PathLike, np.ndarray)):
        raise ValueError("inputs must be a list of paths or waveforms; put the single one into a list")
    if concurrency < 1:
        raise ValueError(f"concurrency must be at least 1, got {concurrency}")


@dataclass(frozen=True)
class _Ask:
    details: bool
    parameters: dict[str, Parameter]


def _transcripts(flights: Generator[Landed[Transcript], None, None]) -> Iterator[TranscriptResult]:
    with closing(flights):
        for each in flights:
            yield TranscriptResult(
                source=each.source,
                index=each.index,
                transcript=each.answer,
                error=each.error,
                audio_s=each.audio_s,
                latency_s=each.latency_s,
            )


def _embeddings(flights: Generator[Landed[Vector], None, None]) -> Iterator[EmbeddingResult]:
    with closing(flights):
        for each in flights:
            yield EmbeddingResult(
                source=each.source,
                index=each.index,
                embedding=each.answer,
                error=each.error,
                audio_s=each.audio_s,
                latency_s=each.latency_s,
            )


def _connect(endpoint: Endpoint) -> Transport:
    # Each protocol brings heavy imports that a user of the other one should not wait for.
    if endpoint.protocol == "grpc":
        from tritone.client.grpc_transport import GrpcTransport

        return GrpcTransport(endpoint)
    from tritone.client.http_transport import HttpTransport

    return HttpTransport(endpoint)
