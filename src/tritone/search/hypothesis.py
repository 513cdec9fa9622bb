"""What a search finds: tokens with their place in time."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Token:
    """One decoded token.

    `start_frame`, `end_frame` (exclusive) are encoder frames counted from the start of the audio; `confidence` is the
    model's probability of the token at its best frame, 0..1.
    """

    id: int
    start_frame: int
    end_frame: int
    confidence: float
