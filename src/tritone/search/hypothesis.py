"""What a search finds: tokens with their place in time, and how well they fit."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Token(NamedTuple):
    """One decoded token.

    `start_frame`, `end_frame` (exclusive) are encoder frames counted from the start of the audio; `confidence` is the
    model's probability of the token at its best frame, 0..1. A tuple, because thousands of them are made for a batch.
    """

    id: int
    start_frame: int
    end_frame: int
    confidence: float


@dataclass(frozen=True)
class Hypothesis:
    """One reading of an utterance and its scores, all in natural-log units.

    `log_prob`: log-probability of the tokens over all alignments that the beam followed, by the network alone. `bonus`:
    what the language model, word bonus and hotwords add, weights included. `attention_score`: of the attention
    decoders, weighted among themselves; None before rescoring. `score`: what hypotheses are ranked by.
    """

    tokens: Sequence[Token]
    log_prob: float
    bonus: float = 0.0
    attention_score: float | None = None
    score: float = 0.0
