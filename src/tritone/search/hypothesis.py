"""What a search finds: tokens with their place in time, and how well they fit.

ids, start frames, end frames, confidences of a row  ->  TokenRow, a sequence of Token
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
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
    """The tokens of one row of a batch, kept as arrays: a token becomes a `Token` only when it is read.

    A request without times needs the ids alone, and never pays for the rest. Equal to any sequence of the same tokens.
    """

    __slots__ = ("confidences", "ends", "ids", "starts")
    __hash__ = None  # type: ignore[assignment]  # as of a list, which it may be equal to

    def __init__(
        self,
        ids: npt.NDArray[np.integer[Any]],
        starts: npt.NDArray[np.integer[Any]],
        ends: npt.NDArray[np.integer[Any]],
        confidences: npt.NDArray[np.floating[Any]],
    ) -> None:
        """Take the fields of the tokens, each (tokens,); they are not copied.

        Args:
            ids: of the tokens.
            starts, ends: as `Token.start_frame` and `Token.end_frame`.
            confidences: 0..1.
        """
        self.ids = ids
        self.starts = starts
        self.ends = ends
        self.confidences = confidences

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, index: int) -> Token: ...

    @overload
    def __getitem__(self, index: slice) -> "TokenRow": ...

    def __getitem__(self, index: int | slice) -> "Token | TokenRow":
        fields = self.ids[index], self.starts[index], self.ends[index], self.confidences[index]
        if isinstance(index, slice):
            return TokenRow(*fields)
        return Token._make(field.item() for field in fields)

    def __iter__(self) -> Iterator[Token]:
        columns = (self.ids, self.starts, self.ends, self.confidences)
        return map(Token._make, zip(*(column.tolist() for column in columns), strict=True))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and list(self) == list(other)

    def __repr__(self) -> str:
        return f"TokenRow({list(self)!r})"


def moved_by(tokens: Sequence[Token], frames: int) -> list[Token]:
    """The same tokens so many frames later."""
    if isinstance(tokens, TokenRow):  # of hundreds of streams in a step: no token is made twice
        columns = (tokens.ids, tokens.starts, tokens.ends, tokens.confidences)
        fields: Iterable[Any] = zip(*(column.tolist() for column in columns), strict=True)
    else:
        fields = tokens
    return [Token(id, start + frames, end + frames, sure) for id, start, end, sure in fields]


def ids_of(tokens: Sequence[Token]) -> list[int]:
    """The ids of tokens."""
    if isinstance(tokens, TokenRow):
        return tokens.ids.tolist()
    return [token.id for token in tokens]


def id_array(tokens: Sequence[Token]) -> npt.NDArray[np.integer[Any]]:
    """The ids of tokens, (tokens,); those of a row are not copied."""
    return tokens.ids if isinstance(tokens, TokenRow) else np.array([token.id for token in tokens], dtype=np.int64)


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
