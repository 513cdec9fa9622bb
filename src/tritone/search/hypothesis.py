"""What a search finds: tokens with their place in time, and how well they fit."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt


class Token(NamedTuple):
    """One decoded token.

    `start_frame`, `end_frame` (exclusive) are encoder frames counted from the start of the audio; `confidence` is the
    model's probability of the token at its best frame, 0..1. A tuple, because thousands of them are made for a batch.
    """

    id: int
    start_frame: int
    end_frame: int
    confidence: float


class TokenRow(Sequence[Token]):
    """The tokens of an utterance as arrays; a `Token` is made only where one is asked for.

    `ids`, `start_frames`, `end_frames`: (tokens,) integers. `confidences`: (tokens,) floats, 0..1. Equal to a list of
    the same tokens. Arrays may be views of a whole batch.
    """

    __slots__ = ("confidences", "end_frames", "ids", "start_frames")
    __hash__ = None  # type: ignore[assignment]  # as a list

    def __init__(
        self,
        ids: npt.NDArray[np.integer[Any]],
        start_frames: npt.NDArray[np.integer[Any]],
        end_frames: npt.NDArray[np.integer[Any]],
        confidences: npt.NDArray[np.floating[Any]],
    ) -> None:
        self.ids, self.start_frames, self.end_frames, self.confidences = ids, start_frames, end_frames, confidences

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, index: int) -> Token: ...

    @overload
    def __getitem__(self, index: slice) -> "TokenRow": ...

    def __getitem__(self, index: int | slice) -> "Token | TokenRow":
        fields = (each[index] for each in (self.ids, self.start_frames, self.end_frames, self.confidences))
        return TokenRow(*fields) if isinstance(index, slice) else Token(*(each.item() for each in fields))

    def __iter__(self) -> Iterator[Token]:
        fields = (self.ids, self.start_frames, self.end_frames, self.confidences)
        return starmap(Token, zip(*(each.tolist() for each in fields), strict=True))

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    def __repr__(self) -> str:
        return f"TokenRow({list(self)})"


def token_ids(tokens: Sequence[Token]) -> list[int]:
    """The ids of some tokens; those of a `TokenRow` without making tokens of it."""
    ids: list[int] = tokens.ids.tolist() if isinstance(tokens, TokenRow) else [token.id for token in tokens]
    return ids


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
