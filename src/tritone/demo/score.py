"""Scores: word errors of a hypothesis against its reference, times against the length of the audio."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import jiwer

from tritone.demo.clips import Clip

Mode = Literal["offline", "streaming"]


@dataclass(frozen=True)
class WordErrors:
    """Counts of one alignment, or pooled over several; words are what spaces separate, nothing is normalised."""

    substitutions: int
    deletions: int
    insertions: int
    reference_words: int

    @property
    def errors(self) -> int:
        return self.substitutions + self.deletions + self.insertions

    @property
    def rate(self) -> float:
        """Word error rate, a fraction. Without reference words: 0 when nothing was said either, else infinite."""
        if self.reference_words == 0:
            return float("inf") if self.errors else 0.0
        return self.errors / self.reference_words


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
    def word_errors(self) -> WordErrors:
        return count_word_errors(self.clip.reference, self.text)

    @property
    def rtf(self) -> float:
        """Time waited for answers over audio time."""
        return self.compute_s / self.audio_s if self.audio_s else 0.0


def count_word_errors(reference: str, hypothesis: str) -> WordErrors:
    """Align two texts with the fewest word errors. Either may be empty."""
    if not reference.split():
        return WordErrors(0, 0, len(hypothesis.split()), 0)
    found = jiwer.process_words(reference, hypothesis)
    return WordErrors(found.substitutions, found.deletions, found.insertions, len(reference.split()))


def pool(counts: Iterable[WordErrors]) -> WordErrors:
    """Add up counts, so that the rate is that of the whole set."""
    total = [0, 0, 0, 0]
    for each in counts:
        fields = (each.substitutions, each.deletions, each.insertions, each.reference_words)
        total = [sum(pair) for pair in zip(total, fields, strict=True)]
    return WordErrors(*total)
