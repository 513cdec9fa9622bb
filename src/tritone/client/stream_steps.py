"""The steps of a stream on a server, without waiting: which requests follow which, and what becomes of answers.

    steps = stream.accepting(samples)  ->  a generator of requests (`Call`, `Leave`) and pauses (`Pause`)
    steps.send(answer)                 ->  the next one; at the end the answer to the samples

`stream.py` performs the steps in a thread that waits, `async_stream.py` in an event loop.
"""

import secrets
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from tritone.activity import SpeechActivity
from tritone.audio.inputs import StreamResampler, mono, narrow
from tritone.audio.waveform import Samples, check_waveform, widened
from tritone.client.models import ModelInfo
from tritone.client.parameters import Parameter
from tritone.client.replies import ActivityReply, Reply, TextReply
from tritone.client.retries import NO_RETRIES, Retries, with_attempts
from tritone.client.transport import Call
from tritone.errors import (
    InputError,
    RetryError,
    ServerBusyError,
    ServerUnreachableError,
    StreamError,
    StreamLostError,
    TritoneError,
)
from tritone.net.routing import new_stream_key
from tritone.transcript import Transcript

DEFAULT_RESUME_S = 600.0
"""Audio that is kept of a stream that can be started again, in seconds: 19 MB of 16 bits at 16 kHz, or twice that."""

GOODBYE_TIMEOUT_S = 5.0
# In what Triton, its models and our proxy say of a chunk without START of a stream that they do not have.
FORGOTTEN = ("must specify the START flag", "Start it again with a chunk that carries START", "is not open: its first")
RESUME_ATTEMPTS = 1000  # within the time limit of a chunk, which ends them in fact
REPLAY_S = 2.0  # audio of a request when a stream is sent again


Answer = TypeVar("Answer")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Leave:
    """A request whose answer nobody waits for."""

    call: Call[Any]


@dataclass(frozen=True, slots=True)
class Pause:
    """A wait before the next request, in seconds."""

    seconds: float


Steps = Generator[Call[Any] | Leave | Pause, Any, Value]


class StreamSteps(Generic[Answer]):
    """Audio going to a streaming model while it is recorded, answers coming back; one step after the other.

    A stream whose first chunk the server could not take is started again, with a new id, as often as `retries` says; no
    later chunk is ever sent twice to the same stream. With `resume_s`, a stream that its server lost is started again,
    with a new id and routing key, and its audio is sent again from the start: another server then has all of it.
    Answers go on where they were.
    """

    def __init__(
        self,
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
        resume_s: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Take how answers are read, and `nothing`, the answer before the first; the rest is as of `Client.stream`.

        `resume_s`: audio that is kept to start a lost stream again, in seconds; None never does. `headers`: sent with
        every request beside its own, such as those of a trace.
        """
        self.model = model
        self._headers = headers or {}
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
        if resume_s is not None and not resume_s > 0:
            raise ValueError(f"resume_s must be positive, got {resume_s}")
        self._renew()
        self._resumes = resume_s is not None
        self._kept = _Kept(round((resume_s or 0) * model.sample_rate))
        self._passed: tuple[int, ...] = ()  # how much news of each sort the caller has seen
        self._known: tuple[int, ...] = ()  # and how much of it a stream that started again has still to repeat
        self.resumed = 0
        """How often the stream was started again."""
        self.answered_s = 0.0
        """Seconds of audio that the server has answered."""
        self._pending: list[Samples] = []
        self._silence: Samples = np.zeros(0, np.float32)  # no samples, of the type that was sent before
        self._num_pending = 0
        self._over = False
        self._latest = nothing

    def _renew(self) -> None:
        """Be another stream for the servers, with an id and a routing key of its own."""
        self.id = new_sequence_id()
        self._route = new_stream_key()
        self._started = False

    def _without_news(self, answer: Answer) -> Answer:
        """An answer that was returned, without what is reported only once."""
        raise NotImplementedError

    def _joined(self, earlier: Answer, answer: Answer) -> Answer:
        """An answer with the news of an earlier one that nobody has seen."""
        raise NotImplementedError

    def _news(self, answer: Answer) -> tuple[int, ...]:
        """How much of an answer is reported only once, by sorts."""
        raise NotImplementedError

    def _later_news(self, answer: Answer, known: Sequence[int]) -> Answer:
        """An answer without the first so many of each sort of its news."""
        raise NotImplementedError

    def accepting(self, samples: npt.NDArray[Any]) -> Steps[Answer]:
        """Send audio of any length; the result is the answer to it. See `ServedStream.accept`."""
        self._require_open()
        self._latest = self._without_news(self._latest)
        self._gather(self._resampler.push(self._checked(samples)))
        while self._num_pending >= self._chunk_samples:
            yield from self._sending(self._take(self._chunk_samples))
        return self._latest

    def finishing(self) -> Steps[Answer]:
        """Send what is left and end the stream; the result is its last answer."""
        self._require_open()
        self._latest = self._without_news(self._latest)
        self._gather(self._resampler.flush())
        while self._num_pending > self._chunk_samples:
            yield from self._sending(self._take(self._chunk_samples))
        yield from self._sending(self._take(self._num_pending), end=True)
        self._over = True
        return self._latest

    def closing(self) -> Steps[None]:
        """Free the stream's slot on the server if it was not finished; errors on the way do not matter any more."""
        if self._over:
            return
        self._over = True
        if self._started:
            yield from self._leaving()

    def _leaving_lost(self) -> Steps[None]:  # the server does not have the stream any more, most likely
        yield from self.closing()

    def _leaving(self) -> Steps[None]:
        with suppress(TritoneError):
            yield from self._asking(self._silence, end=True, timeout_s=min(self._timeout_s, GOODBYE_TIMEOUT_S))

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
        pending = _concatenated(self._pending or [self._silence])
        self._pending = [pending[count:]] if pending.size > count else []
        self._num_pending -= count
        return pending[:count]

    def _sending(self, samples: Samples, *, end: bool = False) -> Steps[None]:
        is_first = not self._started
        if self._resumes:
            self._kept.add(samples)
        try:
            if is_first:
                answer = yield from self._starting(samples, end)
            else:
                answer = yield from self._asking(samples, end=end, timeout_s=self._timeout_s)
            self._receive(answer)
        except BaseException as error:
            # After a lost answer nobody knows what the server has received, so the stream cannot go on as it is.
            lost = None if is_first or not isinstance(error, TritoneError) else self._lost(error)
            if lost is not None and self._resumes:
                yield from self._resuming(lost, error, end)
            else:
                yield from self._leaving_lost() if lost is not None else self.closing()
                if lost is not None:
                    raise lost from error
                raise
        self.answered_s += samples.size / self.model.sample_rate

    def _receive(self, answer: Answer) -> None:
        if any(self._known):
            news = self._news(answer)
            answer = self._later_news(answer, self._known)
            self._known = tuple(max(0, known - new) for known, new in zip(self._known, news, strict=True))
        news = self._news(answer)
        self._passed = tuple(old + new for old, new in zip(self._passed, news, strict=True)) if self._passed else news
        # Several chunks may have gone up since the caller saw an answer.
        self._latest = self._joined(self._latest, answer)

    def _resuming(self, lost: StreamLostError, cause: BaseException, end: bool) -> Steps[None]:
        """Send all audio so far, the chunk that was lost too, as a new stream, until a server has received it."""
        if not self._kept.is_whole:
            yield from self.closing()
            limit = f"it is longer than the {self._kept.limit / self.model.sample_rate:g} s (resume_s) that are kept"
            raise _more(lost, f"It was not started again, because {limit}") from cause
        deadline, attempts, failure = time.monotonic() + self._timeout_s, 0, lost
        try:
            while True:
                attempts += 1
                # A refusal of one server says nothing of when another one has room, so its hint is not waited for.
                wait_s = Retries(RESUME_ATTEMPTS).wait_s(failure, attempts, deadline, hinted=False)
                if wait_s is None:
                    raise _more(lost, f"It could not be started again within {self._timeout_s:g} s") from failure
                yield Pause(wait_s)
                # A server that may not be there any more: its answer is not waited for.
                yield Leave(self._call(self._silence, end=True, timeout_s=GOODBYE_TIMEOUT_S))
                self._renew()
                self._known = self._passed
                try:
                    pieces = self._kept.pieces(max(self._chunk_samples, round(REPLAY_S * self.model.sample_rate)))
                    for samples, is_last in pieces:
                        left_s = max(0.001, deadline - time.monotonic())
                        self._receive((yield from self._asking(samples, end=end and is_last, timeout_s=left_s)))
                except TritoneError as error:
                    again = self._lost(error)
                    if again is None:
                        raise
                    failure = again
                else:
                    self.resumed += 1
                    return
        except BaseException:
            yield from self.closing()
            raise

    def _starting(self, samples: Samples, end: bool) -> Steps[Answer]:
        """Send the first chunk, again under a new id where the server could not take it."""
        deadline = time.monotonic() + self._timeout_s
        retries = Retries(RESUME_ATTEMPTS) if self._resumes else self._retries
        attempts = 0
        while True:
            attempts += 1
            try:
                left_s = max(0.001, deadline - time.monotonic())
                return (yield from self._asking(samples, end=end, timeout_s=left_s))
            except TritoneError as error:
                wait_s = retries.wait_s(error, attempts, deadline, hinted=not self._resumes)
                if wait_s is None:
                    if isinstance(error, ServerBusyError):
                        self._over = True  # it was refused: there is nothing to end
                    raise with_attempts(error, attempts) from error.__cause__
                if not isinstance(error, ServerBusyError):
                    yield from self._leaving()  # the server may have received it
                yield Pause(wait_s)
                self._renew()

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

    def _call(self, samples: Samples, *, end: bool, timeout_s: float) -> Call[Answer]:
        return Call(
            model=self.model.name,
            tensors=self.model.audio_tensors(samples),
            timeout_s=timeout_s,
            reply=self._reply,
            sequence_id=self.id,
            start=not self._started,
            end=end,
            parameters={} if self._started else self._parameters,
            route=self._route,
            more_headers=self._headers,
        )

    def _asking(self, samples: Samples, *, end: bool, timeout_s: float) -> Steps[Answer]:
        call = self._call(samples, end=end, timeout_s=timeout_s)
        self._started = True
        answer: Answer = yield call
        return answer


class TranscriptSteps(StreamSteps[Transcript]):
    """The steps of one utterance being recognised while it is spoken; answers are as of `ClientStream`."""

    def __init__(self, *where: Any, details: bool, **options: Any) -> None:
        nothing = Transcript(text="", is_final=False)
        super().__init__(*where, reply=TextReply(details), nothing=nothing, **options)

    def _without_news(self, answer: Transcript) -> Transcript:
        return replace(answer, ended=()) if answer.ended else answer

    def _joined(self, earlier: Transcript, answer: Transcript) -> Transcript:
        return replace(answer, ended=earlier.ended + answer.ended) if earlier.ended else answer

    def _news(self, answer: Transcript) -> tuple[int, ...]:
        return (len(answer.ended),)

    def _later_news(self, answer: Transcript, known: Sequence[int]) -> Transcript:
        return replace(answer, ended=answer.ended[known[0] :])


class ActivitySteps(StreamSteps[SpeechActivity]):
    """The steps of speech being found while it is spoken; answers are as of `ActivityStream`."""

    def __init__(self, *where: Any, probabilities: bool, speakers: bool = False, **options: Any) -> None:
        nothing = SpeechActivity((), 0.0, 0.0, is_final=False)
        super().__init__(*where, reply=ActivityReply(probabilities, speakers), nothing=nothing, **options)

    def _without_news(self, answer: SpeechActivity) -> SpeechActivity:
        none = None if answer.probabilities is None else answer.probabilities[:0]
        return replace(answer, segments=(), probabilities=none)

    def _joined(self, earlier: SpeechActivity, answer: SpeechActivity) -> SpeechActivity:
        both = answer.probabilities
        if both is not None and earlier.probabilities is not None:
            both = np.concatenate((earlier.probabilities, both))
        return replace(answer, segments=earlier.segments + answer.segments, probabilities=both)

    def _news(self, answer: SpeechActivity) -> tuple[int, ...]:
        return len(answer.segments), 0 if answer.probabilities is None else len(answer.probabilities)

    def _later_news(self, answer: SpeechActivity, known: Sequence[int]) -> SpeechActivity:
        later = None if answer.probabilities is None else answer.probabilities[known[1] :]
        return replace(answer, segments=answer.segments[known[0] :], probabilities=later)


class _Kept:
    """The audio of a stream from its start, up to a limit in samples; beyond it nothing is kept."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.is_whole = True
        self._arrays: list[Samples] = []
        self._size = 0

    def add(self, samples: Samples) -> None:
        self._size += samples.size
        if self._size > self.limit:
            self.is_whole = False
            self._arrays.clear()
        elif self.is_whole:
            self._arrays.append(samples)

    def pieces(self, size: int) -> Iterator[tuple[Samples, bool]]:
        """All of it in pieces of `size` samples, with each whether it is the last; at least one, which may be empty."""
        # Chunks are joined a few at a time: all of them together would take their memory twice.
        waiting: list[Samples] = []
        count = 0
        for index, each in enumerate(self._arrays, 1):
            waiting.append(each)
            count += each.size
            if count >= size or index == len(self._arrays):
                yield _concatenated(waiting), index == len(self._arrays)
                waiting, count = [], 0


def _concatenated(arrays: Sequence[Samples]) -> Samples:
    """Arrays as one; of float32 if one of them is."""
    pieces: list[npt.NDArray[Any]] = list(arrays)
    if any(each.dtype != pieces[0].dtype for each in pieces):
        pieces = [widened(each) for each in pieces]
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def _more(lost: StreamLostError, more: str) -> StreamLostError:
    """The error with another sentence before its advice."""
    return lost.saying(str(lost).replace(". Open a new stream", f". {more}. Open a new stream"))


def new_sequence_id() -> int:
    """An id for a new sequence."""
    # Ids live in one space per server: those that nobody can guess keep clients apart. 0 means "no sequence".
    return secrets.randbelow(2**63 - 1) + 1
