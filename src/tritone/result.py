"""The result of one input, its value or its error: what clients, models in this process and systems all return.

Result(index=0, source="a.wav", value=...).get()      ->  the value
Result(index=1, source="b.wav", error=...).get()      raises the error
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tritone.activity import SpeechActivity, SpeechSegment
from tritone.errors import TritoneError
from tritone.transcript import Alternative, Span, Transcript

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, kw_only=True)
class Partial:
    """One answer of a stream. Times are seconds since its first sample was spoken.

    `spoken_s`: when the last sample that the answer could know of was spoken. `answered_s`: when it was there. Played
    as fast as answers come, nothing is really spoken: `answered_s` is then when it would have come had each chunk been
    sent as soon as it was spoken and the one before was answered, and had every answer taken the time it took.
    """

    text: str
    spoken_s: float
    answered_s: float
    is_final: bool = False

    @property
    def latency_s(self) -> float:
        """From the last sample's being spoken to the answer; a server that falls behind pays for the whole delay."""
        return self.answered_s - self.spoken_s


@dataclass(frozen=True, kw_only=True)
class Result(Generic[T_co]):
    """The value of one input, or the error that took its place. Times are in seconds."""

    index: int  # among the inputs
    source: str  # the path that was given, or "input 3" for an array
    value: T_co | None = None
    error: TritoneError | None = None
    audio_s: float = 0.0  # length of the audio
    latency_s: float = 0.0  # from sending it to having the value; of a stream, from the end of its audio
    compute_s: float = 0.0  # spent on this input alone: waiting for answers, or its share (by length) of a batch
    partials: tuple[Partial, ...] = ()  # all answers of a stream, the final one last; they stop where an error came

    @property
    def ok(self) -> bool:
        return self.error is None

    def get(self) -> T_co:
        """The value. Raises the input's own error if there is none; the message names the source."""
        if self.value is None:
            assert self.error is not None
            error = self.error
            raise error if self.source in str(error) else error.saying(f"{self.source}: {error}") from error
        return self.value


AnyResult = TypeVar("AnyResult", bound=Result[Any])


class TranscriptResult(Result[Transcript]):
    """The transcript of an input, or its error. It has the transcript's own attributes, too.

    Those raise the input's error where there is no transcript.
    """

    text: str
    tokens: tuple[Span, ...]
    words: tuple[Span, ...]
    confidence: float
    is_final: bool
    segment: int
    ended: tuple[Transcript, ...]
    history: str
    whole_text: str

    @property
    def transcript(self) -> Transcript | None:
        return self.value

    @property
    def alternatives(self) -> tuple[Alternative, ...]:
        """The n best readings, the first being the text; empty if no more than one was asked for. Raises as `text`."""
        return self.get().alternatives

    def to_dict(self) -> dict[str, Any]:
        """See `Transcript.to_dict`."""
        return self.get().to_dict()

    def __getattr__(self, name: str) -> Any:
        if name not in TranscriptResult.__annotations__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.get(), name)


class EmbeddingResult(Result["npt.NDArray[np.float32]"]):
    """The embedding of an input, (dim,) as the network returns it (not normalised), or its error."""

    @property
    def embedding(self) -> "npt.NDArray[np.float32] | None":
        return self.value

    @property
    def vector(self) -> "npt.NDArray[np.float32]":
        """The embedding. Raises the input's own error if there is none."""
        return self.get()


class FramesResult(Result["npt.NDArray[np.float32]"]):
    """Who of the speakers of a window talks in its frames, (frames, speakers) of 0 and 1, or its error."""

    @property
    def activity(self) -> "npt.NDArray[np.float32]":
        """The frames. Raises the input's own error if there are none."""
        return self.get()


class ActivityResult(Result[SpeechActivity]):
    """Where an input has speech, or its error."""

    @property
    def segments(self) -> tuple[SpeechSegment, ...]:
        """The speech segments. Raises the input's own error if there are none to have."""
        return self.get().segments

    @property
    def probabilities(self) -> "npt.NDArray[np.float32] | None":
        """(frames,), of speech in each frame; None where they were not asked for. Raises as `segments` does."""
        return self.get().probabilities
