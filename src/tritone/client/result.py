"""What the client hands back for one input."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tritone.errors import TritoneError
from tritone.transcript import Alternative, Transcript


@dataclass(frozen=True, kw_only=True)
class TranscriptResult:
    """A transcript, or the error that took its place.

    `source` is the path that was given, or "input 3" for an array; `index` its place among the inputs.
    `audio_s` is the length of the audio, `latency_s` the time from sending it to having the text, both in seconds.
    """

    source: str
    index: int
    transcript: Transcript | None = None
    error: TritoneError | None = None
    audio_s: float = 0.0
    latency_s: float = 0.0

    @property
    def ok(self) -> bool:
        return self.error is None

    @property
    def text(self) -> str:
        """The text. Raises the input's own error if there is none."""
        if self.transcript is None:
            raise self.error or RuntimeError(f"{self.source}: neither a transcript nor an error")
        return self.transcript.text

    @property
    def alternatives(self) -> tuple[Alternative, ...]:
        """The n best readings, the first being the text; empty if no more than one was asked for."""
        return () if self.transcript is None else self.transcript.alternatives


@dataclass(frozen=True, kw_only=True)
class EmbeddingResult:
    """An embedding (dim,), as the network gives it, or the error that took its place; the rest as of transcripts."""

    source: str
    index: int
    embedding: npt.NDArray[np.float32] | None = None
    error: TritoneError | None = None
    audio_s: float = 0.0
    latency_s: float = 0.0

    @property
    def ok(self) -> bool:
        return self.error is None

    @property
    def vector(self) -> npt.NDArray[np.float32]:
        """The embedding. Raises the input's own error if there is none."""
        if self.embedding is None:
            raise self.error or RuntimeError(f"{self.source}: neither an embedding nor an error")
        return self.embedding
