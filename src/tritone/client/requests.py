"""Many requests at once: inputs are sent as there is room for them, results come back in any order.

inputs, a model, what to ask it for  ->  Result(source, index, value | error, audio_s, latency_s), ...
"""

import time
from collections.abc import Generator, Iterable, Mapping
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Generic

import numpy.typing as npt

from tritone.audio.inputs import AudioInput, load_samples, narrow, source_of
from tritone.audio.waveform import Samples
from tritone.client.device_array import DeviceArray, is_on_gpu
from tritone.client.endpoint import Endpoint
from tritone.client.models import ModelInfo
from tritone.client.parameters import Parameter, Search, request_parameters, wants_alternatives
from tritone.client.replies import Reply
from tritone.client.transport import Call, Transport
from tritone.errors import InputError, RetryError, ServerTimeoutError, TritoneError
from tritone.longform import PieceRecording
from tritone.result import AnyResult, Result

ModelInput = AudioInput | Mapping[str, npt.ArrayLike] | Result[Any]
"""Audio, or the model's own inputs by name. Of a `Result`, as `audio.read_ahead` yields, index and source are kept."""

LOST_AFTER_S = 5.0  # beyond its time limit a request is given up, whatever its transport does


@dataclass(frozen=True)
class Asked:
    """What a model for transcripts is asked for: details or the text alone, and the parameters of requests."""

    details: bool
    parameters: dict[str, Parameter]

    @classmethod
    def of(cls, model: ModelInfo, details: bool, search: Search | None, endpoint: Endpoint) -> "Asked":
        """Check that a model can do it. Who wants details gets words with times, unless `search` says otherwise.

        Raises:
            InputError: it is too old for details, or for `search`.
            ValueError: `search` cannot be sent.
        """
        parameters = request_parameters(search)
        details = details or wants_alternatives(parameters)
        if details and not model.has_details:
            raise InputError(
                f"{endpoint}: model '{model.name}' gives no details such as times. Build its repository again."
            )
        model.check_search(parameters, endpoint)
        return cls(details, {**model.word_parameters("auto"), **parameters} if details else parameters)


@dataclass(frozen=True, kw_only=True)
class Requests(Generic[AnyResult]):
    """How inputs are sent: to which model, for which reply and result, with which parameters, how many at once."""

    transport: Transport
    model: ModelInfo
    reply: Reply[Any]
    result: type[AnyResult]
    parameters: Mapping[str, Parameter]
    concurrency: int
    sample_rate: int | None
    timeout_s: float
    pcm: bool | None = False  # as of `audio.inputs.load_samples`
    takes_gpu: bool = False  # whether arrays on a GPU can be sent
    classes: int = 0  # as of `Call`
    context_reply: Reply[Any] | None = None  # for pieces that share audio with their neighbours, if another one

    def run(self, inputs: Iterable[ModelInput]) -> Generator[AnyResult, None, None]:
        """Send the inputs; see `Client.infer_iter`."""
        finished: SimpleQueue[_Request] = SimpleQueue()
        in_flight: dict[int, _Request] = {}
        try:
            for position, item in enumerate(inputs):
                index, source = position, source_of(item, position)
                if isinstance(item, Result):
                    index, source = item.index, item.source
                try:
                    in_flight[index] = self._send(item, index, source, finished)
                except TritoneError as error:
                    yield self.result(source=source, index=index, error=error)
                while len(in_flight) >= self.concurrency or not finished.empty():
                    yield self._next(finished, in_flight)
            while in_flight:
                yield self._next(finished, in_flight)
        finally:
            for request in in_flight.values():
                request.future.cancel()

    def _next(self, finished: "SimpleQueue[_Request]", in_flight: "dict[int, _Request]") -> AnyResult:
        # The transports keep the time limit themselves. Should one fail to, after an interrupt that a library dropped
        # for example, the caller still must not hang: a request well beyond its limit is given up here.
        try:
            request = finished.get(timeout=self.timeout_s + LOST_AFTER_S)
        except Empty:
            oldest = next(iter(in_flight.values()))
            oldest.lost = True
            oldest.future.cancel()  # which finishes it
            request = finished.get()
        del in_flight[request.index]
        value: Any = None
        error: TritoneError | None = None
        try:
            value = request.future.result()
        except CancelledError:
            error = (
                ServerTimeoutError(f"{request.source}: no answer, long after the time limit; try it again")
                if request.lost
                else RetryError("the client was closed before the answer came")
            )
        except TritoneError as failure:
            error = failure
        took_s = request.finished - request.sent
        return self.result(
            source=request.source,
            index=request.index,
            value=value,
            error=error,
            audio_s=request.audio_s,
            latency_s=took_s,
            compute_s=took_s,
        )

    def _samples(self, item: Any) -> "Samples | DeviceArray":
        wanted = self.model.sample_rate
        is_read = isinstance(item, Result)
        item = item.get() if is_read else item
        if not is_on_gpu(item):
            if is_read:
                return narrow(item, wanted, pcm=self.pcm)
            return load_samples(item, self.sample_rate, wanted, pcm=self.pcm)
        if not self.takes_gpu:
            raise InputError("the array is on a GPU: send it with Client(shared_memory='cuda'), or copy it to the host")
        if self.sample_rate not in (None, wanted):
            raise InputError(f"audio on a GPU is not resampled: {self.sample_rate} Hz, {wanted} Hz is needed")
        return DeviceArray(item).check_waveform()

    def _send(self, item: ModelInput, index: int, source: str, finished: "SimpleQueue[_Request]") -> "_Request":
        audio_s = 0.0
        given = item.value if isinstance(item, Result) else item
        if isinstance(given, Mapping):
            tensors = self.model.tensors(given)
        else:
            if isinstance(item, Result) and item.error is not None:
                raise item.error
            samples = self._samples(item)
            audio_s = samples.size / self.model.sample_rate
            tensors = self.model.audio_tensors(samples)
        shares = isinstance(item, PieceRecording) and item.piece.has_context
        call = Call(
            model=self.model.name,
            tensors=tensors,
            timeout_s=self.timeout_s,
            reply=self.context_reply if shares and self.context_reply is not None else self.reply,
            parameters=self.parameters,
            classes=self.classes,
        )
        sent = time.perf_counter()
        request = _Request(source, index, audio_s, sent, self.transport.infer(call))

        def finish(_: "Future[Any]") -> None:
            request.finished = time.perf_counter()
            finished.put(request)

        request.future.add_done_callback(finish)
        return request


@dataclass
class _Request:
    source: str
    index: int
    audio_s: float
    sent: float
    future: "Future[Any]"
    finished: float = 0.0
    lost: bool = False  # never answered, not even by the transport's own time limit
