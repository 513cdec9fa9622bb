"""Where a recording has speech. Times are seconds from the start of the audio.

The pipelines make it, the wire carries it as JSON (output `SEGMENTS`), the client reads it back.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class SpeechSegment:
    """A stretch of speech."""

    start_s: float
    end_s: float

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True)
class SpeechActivity:
    """The speech segments of a recording, or those that a step of a stream has ended.

    `audio_s`: length of the audio, of a stream so far. `frame_s`: from one probability to the next. `speaking_since_s`:
    start of the segment that a stream is in, None outside of speech. `is_final` is False while more of a stream may
    come. `probabilities` (frames,) float32: of speech in each frame, in a stream in those of this step; None where they
    were not asked for. They are not compared.
    """

    segments: tuple[SpeechSegment, ...]
    audio_s: float
    frame_s: float
    speaking_since_s: float | None = None
    is_final: bool = True
    probabilities: "npt.NDArray[np.float32] | None" = field(default=None, compare=False, repr=False)

    @property
    def speech_s(self) -> float:
        """Seconds of speech in the segments."""
        return sum(each.duration_s for each in self.segments)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, without probabilities."""
        return {
            "segments": [{"start_s": each.start_s, "end_s": each.end_s} for each in self.segments],
            "audio_s": self.audio_s,
            "frame_s": self.frame_s,
            "speaking_since_s": self.speaking_since_s,
            "is_final": self.is_final,
        }

    @classmethod
    def from_dict(
        cls, value: Mapping[str, Any], probabilities: "npt.NDArray[np.float32] | None" = None
    ) -> "SpeechActivity":
        """Read the JSON form; raises `KeyError`, `TypeError` or `ValueError` if it is something else."""
        since = value["speaking_since_s"]
        return cls(
            segments=tuple(SpeechSegment(float(each["start_s"]), float(each["end_s"])) for each in value["segments"]),
            audio_s=float(value["audio_s"]),
            frame_s=float(value["frame_s"]),
            speaking_since_s=None if since is None else float(since),
            is_final=bool(value["is_final"]),
            probabilities=probabilities,
        )
