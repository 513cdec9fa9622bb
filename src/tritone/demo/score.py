"""How a clip went: its text scored against its reference, times against the length of the audio."""

from dataclasses import dataclass
from typing import Literal

from tritone.corpus.clips import Clip
from tritone.evaluate.score import Counts, count_errors

Mode = Literal["offline", "streaming"]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """How one clip went in one mode.

    `latency_s`: offline from sending the request to its text; streaming from the end of the audio to the final text.
    `compute_s`: how long the client waited for answers in all. Both are seconds. `error` takes the place of a text.
    """

    clip: Clip
    mode: Mode
    text: str = ""
    error: str | None = None
    audio_s: float = 0.0
    latency_s: float = 0.0
    compute_s: float = 0.0

    @property
    def word_errors(self) -> Counts:
        """Errors in words between spaces; nothing is normalised, as references are written the way the model writes."""
        return count_errors(self.clip.reference.split(), self.text.split())

    @property
    def rtf(self) -> float:
        """Time waited for answers over audio time."""
        return self.compute_s / self.audio_s if self.audio_s else 0.0
