"""A stream on a server: samples go up in chunks, the text so far, or the speech in them, comes back after each."""

import time
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from tritone.activity import SpeechActivity
from tritone.client.models import ModelInfo
from tritone.client.stream_steps import (
    DEFAULT_RESUME_S,
    ActivitySteps,
    Answer,
    Leave,
    Pause,
    Steps,
    StreamSteps,
    TranscriptSteps,
    Value,
    new_sequence_id,
)
from tritone.client.transport import Call, Transport
from tritone.errors import RetryError, ServerTimeoutError, TritoneError
from tritone.transcript import Transcript

if TYPE_CHECKING:
    from typing import Self

__all__ = [
    "DEFAULT_RESUME_S",
    "ActivityStream",
    "ClientStream",
    "ServedStream",
    "new_sequence_id",
]

LOST_AFTER_S = 5.0  # beyond its time limit a request is given up, whatever its transport does


class ServedStream(StreamSteps[Answer]):
    """A stream whose methods wait for the server; for one thread at a time. See `StreamSteps`.

    Leaving the `with` block by an exception tells the server to free the stream's slot; leaving it without `finish()`
    does the same and drops what was not finished.
    """

    def __init__(self, transport: Transport, model: ModelInfo, **options: Any) -> None:
        super().__init__(model, **options)
        self._transport = transport

    def accept(self, samples: npt.NDArray[Any]) -> Answer:
        """Send audio of any length and return the answer to it.

        Args:
            samples: (samples,) or (samples, channels) at the rate the stream was opened with, floating point in
                [-1, 1] or int16; may be empty.

        Raises:
            AudioError: the samples cannot be used; nothing was sent and the stream goes on without them.
            StreamError: the stream is over.
            StreamLostError: the server, or the model's process, ended or forgot the stream after it had answered, and
                it was not started again, or could not be.
            TritoneError: the server refused, could not be reached, was full or too slow; that ends the stream.
        """
        return self._perform(self.accepting(samples))

    def finish(self) -> Answer:
        """Send what is left, end the stream and return its last answer. Raises as `accept` does."""
        return self._perform(self.finishing())

    def close(self) -> None:
        """Free the stream's slot on the server if `finish()` has not; errors on the way do not matter any more."""
        self._perform(self.closing())

    def __enter__(self) -> "Self":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _perform(self, steps: Steps[Value]) -> Value:
        try:
            step = next(steps)
            while True:
                try:
                    answer = self._answer(step)
                except BaseException as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as end:
            value: Value = end.value
            return value

    def _answer(self, step: Call[Any] | Leave | Pause) -> Any:
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return None
        if isinstance(step, Leave):
            with suppress(TritoneError):
                self._transport.infer(step.call)
            return None
        future = self._transport.infer(step)
        try:
            return future.result(step.timeout_s + LOST_AFTER_S)
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


class ClientStream(TranscriptSteps, ServedStream[Transcript]):
    """One utterance being recognised while it is spoken. Made by `Client.stream`.

    `accept` returns the transcript so far, whose end may still change, and `finish` the whole one. Where the model has
    endpoints, a stream is a row of segments. With details, the transcripts are of the segment under way, and `ended`
    holds the segments that ended since the last one was returned; without, their text is that of the whole stream.
    `Transcript.whole_text` is that either way.
    """


class ActivityStream(ActivitySteps, ServedStream[SpeechActivity]):
    """Speech being found while it is spoken. Made by `Client.detect_stream`.

    Answers have the segments that ended since the answer before, and `speaking_since_s` of the one under way.
    """
