"""What search needs of a transducer: the two small networks that say what follows a frame and the tokens before it.

    contexts (rows, context_size) int64  ->  predictor_out (rows, dim)
    encoder_out, predictor_out (rows, dim)  ->  logits (rows, vocab)

Whoever runs them, search sees numbers alone. One row of a call is one hypothesis in one frame, of any utterance.
"""

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

Contexts = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]


class Network(Protocol):
    """Predictor and joiner of one model; may be called from several threads.

    `vocab_size`: of the logits. `blank_id`: the token that stands for nothing. `unk_id`: a token that is never said and
    counts as blank where it is the best one, or None. `start`: (context_size,) the context before the first token, in
    which -1 is no token.
    """

    vocab_size: int
    blank_id: int
    unk_id: int | None
    start: tuple[int, ...]

    def predict(self, contexts: Contexts) -> Vectors:
        """Vectors (rows, dim) of contexts (rows, context_size), the newest token last."""

    def join(self, encoder_out: Vectors, predictor_out: Vectors) -> npt.NDArray[Any]:
        """Logits (rows, vocab_size) float32 of frames and contexts, both (rows, dim); the caller may write to them."""


States: TypeAlias = Sequence[npt.NDArray[Any]]  # (rows, …) each


class StatefulNetwork(Protocol):
    """Predictor and joiner of a model whose predictor has a state; may be called from several threads.

    `vocab_size`, `blank_id`: as of `Network`. `durations`: frames that a token may take, of a TDT model; the joiner
    gives a logit for each after those of the tokens.
    """

    vocab_size: int
    blank_id: int
    durations: tuple[int, ...]

    @property
    def first(self) -> tuple[Vectors, States]:
        """The vector (1, dim) that the first token is joined with, and the states (1, …) that it is given."""

    def step(self, tokens: Contexts, states: States) -> tuple[Vectors, States]:
        """Vectors (rows, dim) and next states of new tokens (rows, 1) after the states of what came before them."""

    def join(self, encoder_out: Vectors, predictor_out: Vectors) -> npt.NDArray[Any]:
        """Logits (rows, vocab_size + durations) float32 of frames and predictions, both (rows, dim)."""


def as_answers(logits: npt.NDArray[Any], rows: int, width: int) -> Vectors:
    """Logits as compiled code takes them; it does not check its bounds.

    Raises:
        ValueError: they are not (rows, width).
    """
    if logits.shape != (rows, width):
        raise ValueError(f"the joiner's logits must be {(rows, width)}, got {logits.shape}")
    return np.require(logits, np.float32, ("C", "W"))
