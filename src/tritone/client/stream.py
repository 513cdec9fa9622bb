"""A stream on a server: samples go up in chunks, the text so far, or the speech in them, comes back after each."""

import secrets
import time
from collections.abc import Mapping
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from tritone.activity import SpeechActivity
from tritone.audio.inputs import StreamResampler, mono, narrow
from tritone.audio.waveform import Samples, check_waveform, widened
from tritone.client.models import ModelInfo
from tritone.client.parameters import Parameter
from tritone.client.replies import ActivityReply, Reply, TextReply
from tritone.client.retries import NO_RETRIES, Retries, told
from tritone.client.transport import Call, Transport
from tritone.errors import (
    InputError,
    RetryError,
    ServerBusyError,
    ServerTimeoutError,
    ServerUnreachableError,
    StreamError,
    StreamLostError,
    TritoneError,
)
from tritone.transcript import Transcript

if TYPE_CHECKING:
    from typing_extensions import Self

DEFAULT_CHUNK_MS = 160.0
"""Small enough to add little to the server's own chunk, large enough that requests do not dominate, in milliseconds."""

GOODBYE_TIMEOUT_S = 5.0
LOST_AFTER_S = 5.0  # beyond its time limit a request is given up, whatever its transport does
# In what Triton and its models say of a chunk without START of a stream that they do not have.
FORGOTTEN = ("must specify the START flag", "Start it again with a chunk that carries START")


Answer = TypeVar("Answer")


class ServedStream(Generic[Answer]):
    """Audio going to a streaming model while it is recorded, answers coming back; for one thread at a time.

    A stream whose first chunk the server could not take is started again, with a new id, as often as `retries` says; no
    later chunk is ever sent twice.

    Leaving the `with` block by an exception tells the server to free the stream's slot; leaving it without `finish()`
    does the same and drops what was not finished.
    """

    def __init__(
        self,
        transport: Transport,
        model: ModelInfo,
        *,
        reply: Reply[Answer],
        nothing: Answer,
        sample_rate: int | None,
        chunk_ms: float,
        timeout_s: float,
        parameters: Mapping[str, Parameter] | None = None,
        retries: Retries = NO_RETRIES,
        pcm: bool | None = False,
    ) -> None:
        """Take how answers are read, and `nothing`, the answer before the first; the rest is as of `Client.stream`."""
        self.model = model
        self._transport = transport
        self._reply = reply
        self._timeout_s = timeout_s
        self._parameters = parameters or {}
        self._retries = retries
        self._pcm = pcm  # as of `audio.inputs.load_samples`
        self.sample_rate = model.sample_rate if sample_rate is None else sample_rate
        self._resampler = StreamResampler(self.sample_rate, model.sample_rate)
        self._chunk_samples = round(chunk_ms / 1000 * model.sample_rate)
        if self._chunk_samples < 1:
            raise ValueError(f"chunk_ms must hold at least one sample, got {chunk_ms}")
        self.id = new_sequence_id()
        self.answered_s = 0.0
        """Seconds of audio that the server has answered."""
        self._pending: list[Samples] = []
        self._silence: Samples = np.zeros(0, np.float32)  # no samples, of the type that was sent before
        self._num_pending = 0
        self._started = False
        self._over = False
        self._latest = nothing

    def _without_news(self, answer: Answer) -> Answer:
        """An answer that was returned, without what is told only once."""
        raise NotImplementedError

    def _joined(self, earlier: Answer, answer: Answer) -> Answer:
        """An answer with the news of an earlier one that nobody has seen."""
        raise NotImplementedError

    def accept(self, samples: npt.NDArray[Any]) -> Answer:
        """Send audio of any length and return the answer to it.

        Args:
            samples: (samples,) or (samples, channels) at the rate the stream was opened with, floating point in
                [-1, 1] or int16; may be empty.

        Raises:
            AudioError: the samples cannot be used; nothing was sent and the stream goes on without them.
            StreamError: the stream is over.
            StreamLostError: the server, or the model's process, ended or forgot the stream after it had answered.
            TritoneError: the server refused, could not be reached, was full or too slow; that ends the stream.
        """
        self._require_open()
        self._latest = self._without_news(self._latest)
        self._gather(self._resampler.push(self._checked(samples)))
        while self._num_pending >= self._chunk_samples:
            self._send(self._take(self._chunk_samples))
        return self._latest

    def finish(self) -> Answer:
        """Send what is left, end the stream and return its last answer. Raises as `accept` does."""
        self._require_open()
        self._latest = self._without_news(self._latest)
        self._gather(self._resampler.flush())
        while self._num_pending > self._chunk_samples:
            self._send(self._take(self._chunk_samples))
        self._send(self._take(self._num_pending), end=True)
        self._over = True
        return self._latest

    def close(self) -> None:
        """Free the stream's slot on the server if `finish()` has not; errors on the way do not matter any more."""
        if self._over:
            return
        self._over = True
        if self._started:
            self._say_goodbye()

    def _say_goodbye(self) -> None:
        with suppress(TritoneError):
            self._infer(self._silence, end=True, timeout_s=min(self._timeout_s, GOODBYE_TIMEOUT_S))

    def __enter__(self) -> "Self":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _require_open(self) -> None:
        if self._over:
            raise StreamError(f"stream {self.id} on '{self.model.name}' is over; open a new one with Client.stream()")

    def _checked(self, samples: npt.NDArray[Any]) -> Samples:
        found = mono(samples)
        if found.dtype == np.int16:
            return found
        return check_waveform(found, sample_rate=self.sample_rate, allow_empty=True)

    def _gather(self, samples: Samples) -> None:
        if samples.size:
            samples = narrow(samples, self.model.sample_rate, pcm=self._pcm)
            self._silence = samples[:0]
            self._pending.append(samples)
            self._num_pending += samples.size

    def _take(self, count: int) -> Samples:
        pieces: list[npt.NDArray[Any]] = [*self._pending] or [self._silence]
        if any(each.dtype != pieces[0].dtype for each in pieces):
            pieces = [widened(each) for each in pieces]
        pending: npt.NDArray[Any] = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        self._pending = [pending[count:]] if pending.size > count else []
        self._num_pending -= count
        return pending[:count]

    def _send(self, samples: Samples, *, end: bool = False) -> None:
        is_first = not self._started
        try:
            answer = self._start(samples, end) if is_first else self._infer(samples, end=end, timeout_s=self._timeout_s)
        except BaseException as error:
            # After a lost answer nobody knows what the server has heard, so the stream cannot go on.
            lost = None if is_first or not isinstance(error, TritoneError) else self._lost(error)
            self.close()
            if lost is not None:
                raise lost from error
            raise
        self.answered_s += samples.size / self.model.sample_rate
        # Several chunks may have gone up since the caller saw an answer.
        self._latest = self._joined(self._latest, answer)

    def _start(self, samples: Samples, end: bool) -> Answer:
        """Send the first chunk, again under a new id where the server could not take it."""
        deadline = time.monotonic() + self._timeout_s
        attempts = 0
        while True:
            attempts += 1
            try:
                return self._infer(samples, end=end, timeout_s=max(0.001, deadline - time.monotonic()))
            except TritoneError as error:
                wait_s = self._retries.wait_s(error, attempts, deadline)
                if wait_s is None:
                    if isinstance(error, ServerBusyError):
                        self._over = True  # it was refused: there is nothing to end
                    raise told(error, attempts) from error.__cause__
                if not isinstance(error, ServerBusyError):
                    self._say_goodbye()  # the server may have heard it
                time.sleep(wait_s)
                self.id, self._started = new_sequence_id(), False

    def _lost(self, error: TritoneError) -> StreamLostError | None:
        """The error of a stream that the server does not have any more; None if `error` is about something else."""
        forgotten = isinstance(error, InputError) and any(words in str(error) for words in FORGOTTEN)
        if not forgotten and not isinstance(error, ServerBusyError | ServerUnreachableError):
            return None
        reason = f"the server does not know it any more ({error})" if forgotten else str(error)
        lost = StreamLostError(
            f"stream {self.id} on '{self.model.name}' is lost after {self.answered_s:.2f} s of its audio were "
            f"answered: {reason}. Open a new stream, and send the audio again from its start"
        )
        lost.retry_after_s = error.retry_after_s if isinstance(error, RetryError) else None
        return lost

    def _infer(self, samples: Samples, *, end: bool, timeout_s: float) -> Answer:
        call = Call(
            model=self.model.name,
            tensors=self.model.audio_tensors(samples),
            timeout_s=timeout_s,
            reply=self._reply,
            sequence_id=self.id,
            start=not self._started,
            end=end,
            parameters={} if self._started else self._parameters,
        )
        self._started = True
        future = self._transport.infer(call)
        try:
            return future.result(timeout_s + LOST_AFTER_S)
        except FutureTimeoutError as error:
            # The transports keep the time limit themselves. Should one fail to, the caller still must not hang.
            future.cancel()
            raise ServerTimeoutError(
                f"stream {self.id}: no answer, long after the time limit; start it again"
            ) from error
        except CancelledError as error:
            raise RetryError(f"stream {self.id}: the client was closed before the answer came") from error
        except BaseException:
            future.cancel()
            raise


class ClientStream(ServedStream[Transcript]):
    """One utterance being recognised while it is spoken. Made by `Client.stream`.

    `accept` returns the transcript so far, whose end may still change, and `finish` the whole one. Where the model has
    endpoints, a stream is a row of segments. With details, the transcripts are of the segment under way, and `ended`
    holds the segments that ended since the last one was returned; without, their text is that of the whole stream.
    `Transcript.whole_text` is that either way.
    """

    def __init__(self, transport: Transport, model: ModelInfo, *, details: bool, **options: Any) -> None:
        super().__init__(
            transport, model, reply=TextReply(details), nothing=Transcript(text="", is_final=False), **options
        )

    def _without_news(self, answer: Transcript) -> Transcript:
        return replace(answer, ended=())

    def _joined(self, earlier: Transcript, answer: Transcript) -> Transcript:
        return replace(answer, ended=earlier.ended + answer.ended) if earlier.ended else answer


class ActivityStream(ServedStream[SpeechActivity]):
    """Speech being found while it is spoken. Made by `Client.detect_stream`.

    Answers have the segments that ended since the answer before, and `speaking_since_s` of the one under way.
    """

    def __init__(self, transport: Transport, model: ModelInfo, *, probabilities: bool, **options: Any) -> None:
        nothing = SpeechActivity((), 0.0, 0.0, is_final=False)
        super().__init__(transport, model, reply=ActivityReply(probabilities), nothing=nothing, **options)

    def _without_news(self, answer: SpeechActivity) -> SpeechActivity:
        none = None if answer.probabilities is None else answer.probabilities[:0]
        return replace(answer, segments=(), probabilities=none)

    def _joined(self, earlier: SpeechActivity, answer: SpeechActivity) -> SpeechActivity:
        told = answer.probabilities
        if told is not None and earlier.probabilities is not None:
            told = np.concatenate((earlier.probabilities, told))
        return replace(answer, segments=earlier.segments + answer.segments, probabilities=told)


def new_sequence_id() -> int:
    """An id for a new sequence."""
    # Ids live in one space per server: those that nobody can guess keep clients apart. 0 means "no sequence".
    return secrets.randbelow(2**63 - 1) + 1
