"""How a clip went: its text scored against its reference, times against the length of the audio."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tritone.corpus.clips import Clip
from tritone.errors import OperatorError
from tritone.evaluate.normalize import Normalization, Normalizer
from tritone.evaluate.score import Counts, count_errors, pool

Mode = Literal["offline", "streaming"]
YARDSTICK = "faster-whisper.jsonl"  # beside the clips: a line for each, as benchmarks/whisper_reference.py writes it

# Whisper writes capitals, points and digits, the small models words alone.
_normalizer = Normalizer(Normalization(spelling="english"))


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
        """Errors in words, in lower case, without punctuation, numbers spelled out."""
        return word_errors(self.clip, self.text)

    @property
    def rtf(self) -> float:
        """Time waited for answers over audio time."""
        return self.compute_s / self.audio_s if self.audio_s else 0.0


def word_errors(clip: Clip, text: str) -> Counts:
    """Errors of a text in words, in lower case, without punctuation, numbers spelled out."""
    return count_errors(_normalizer.words(clip.reference), _normalizer.words(text))


def yardstick(clips: Sequence[Clip]) -> Counts | None:
    """Word errors of faster-whisper with the same clips, as they were recorded beside them; None where they were not.

    Raises:
        OperatorError: the record is damaged, or has not all clips.
    """
    path = clips[0].path.parent / YARDSTICK
    if not path.is_file():
        return None
    try:
        rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        texts: dict[str, str] = {row["id"]: row["text"] for row in rows}
        return pool(word_errors(clip, texts[clip.name]) for clip in clips)
    except (ValueError, KeyError, TypeError) as error:
        raise OperatorError(f"{path} is damaged, or not of these clips ({error!r:.80}). Reinstall tritone.") from error
