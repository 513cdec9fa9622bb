"""Where a recording has speech, and whose. Times are seconds from the start of the audio.

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
    """A stretch of speech; `speaker` is "" where nobody told them apart."""

    start_s: float
    end_s: float
    speaker: str = ""

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        named = {"speaker": self.speaker} if self.speaker else {}
        return {"start_s": self.start_s, "end_s": self.end_s, **named}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "SpeechSegment":
        """Read the JSON form; raises `KeyError`, `TypeError` or `ValueError` if it is something else."""
        return cls(float(value["start_s"]), float(value["end_s"]), str(value.get("speaker", "")))


@dataclass(frozen=True)
class SpeechActivity:
    """The speech segments of a recording, or those that a step of a stream has ended.

    `audio_s`: length of the audio, of a stream so far. `frame_s`: from one probability to the next. `speaking_since_s`:
    start of the segment that a stream is in, None outside of speech. `is_final` is False while more of a stream may
    come. `probabilities` (frames,) float32: of speech in each frame, in a stream in those of this step; None where they
    were not asked for. They are not compared.

    Of a model that distinguishes speakers, segments of different ones may overlap, probabilities are (frames,
    speakers), and `speaking` has the turns that a stream is in, from their starts up to `known_s`, the end of what it
    has judged.
    """

    segments: tuple[SpeechSegment, ...]
    audio_s: float
    frame_s: float
    speaking_since_s: float | None = None
    is_final: bool = True
    probabilities: "npt.NDArray[np.float32] | None" = field(default=None, compare=False, repr=False)
    speaking: tuple[SpeechSegment, ...] = ()
    known_s: float | None = None

    @property
    def speech_s(self) -> float:
        """Seconds of speech in the segments."""
        return sum(each.duration_s for each in self.segments)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, without probabilities."""
        judged: dict[str, Any] = {}
        if self.known_s is not None:
            judged = {"speaking": [each.to_dict() for each in self.speaking], "known_s": self.known_s}
        return {
            "segments": [each.to_dict() for each in self.segments],
            "audio_s": self.audio_s,
            "frame_s": self.frame_s,
            "speaking_since_s": self.speaking_since_s,
            "is_final": self.is_final,
            **judged,
        }

    @classmethod
    def from_dict(
        cls, value: Mapping[str, Any], probabilities: "npt.NDArray[np.float32] | None" = None
    ) -> "SpeechActivity":
        """Read the JSON form; raises `KeyError`, `TypeError` or `ValueError` if it is something else."""
        since, known = value["speaking_since_s"], value.get("known_s")
        return cls(
            segments=tuple(map(SpeechSegment.from_dict, value["segments"])),
            audio_s=float(value["audio_s"]),
            frame_s=float(value["frame_s"]),
            speaking_since_s=None if since is None else float(since),
            is_final=bool(value["is_final"]),
            probabilities=probabilities,
            speaking=tuple(map(SpeechSegment.from_dict, value.get("speaking", ()))),
            known_s=None if known is None else float(known),
        )
