"""What a predictor with a state says after each hypothesis alive: of a few tokens alone it knows nothing.

    rows of hypotheses (rows, 1) int64  ->  predictor_out (rows, dim) float32

A stateless predictor's vectors are found by their context, whoever asks (`predictor.py`). Here all tokens so far count,
so vector and states stay with the hypothesis while it is alive, and when it was dropped as long as there is room: it
may come back a frame later. What comes back too late is computed once more.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tritone.search.transducer.network import Contexts, StatefulNetwork, Vectors

ROWS_EACH = 4  # in the tables, for each hypothesis that a beam may have; the last frame's and the next one's take two


class StatefulPredictor:
    """The predictor of a network that has a state, where searches of other networks have their `PredictorCache`."""

    context_size = 1
    unk_id = None  # it may be output, as in greedy search

    def __init__(self, network: StatefulNetwork) -> None:
        """Take the network, whose predictor all searches share."""
        self.network = network
        self.durations = network.durations


class Remembering(Protocol):
    """A beam search; `remembered`: vectors and states of its hypotheses (n, …), by the numbers that it gave them."""

    beam: int
    remembered: Sequence[npt.NDArray[Any]]

    def remember(self, rows: Sequence[npt.NDArray[Any]]) -> None:
        """Keep what it needs of its rows (ROWS_EACH * beam, …)."""


class Memory:
    """The vectors and states of all hypotheses of a batch, in tables; each beam has rows of its own."""

    def __init__(self, network: StatefulNetwork, beams: Sequence[Remembering]) -> None:
        """Take over what beams remember, one after the other."""
        self._network, self._beams = network, beams
        ends = np.cumsum([ROWS_EACH * each.beam for each in beams]).tolist()
        self._rows = [slice(end - ROWS_EACH * each.beam, end) for each, end in zip(beams, ends, strict=True)]
        self._tables = []
        for parts in zip(*(each.remembered for each in beams), strict=True):
            table = np.empty((ends[-1], *parts[0].shape[1:]), dtype=parts[0].dtype)
            for rows, part in zip(self._rows, parts, strict=True):
                table[rows.start : rows.start + len(part)] = part
            self._tables.append(table)

    def __call__(self, rows: Contexts) -> Vectors:
        """Vectors (n, dim) of rows (n, 1)."""
        return np.take(self._tables[0], rows[:, 0], axis=0)

    def follow(self, fresh: npt.NDArray[np.int64]) -> None:
        """Compute the rows of new hypotheses, in one call of the predictor.

        Args:
            fresh: (n, 3) for each the row of the hypothesis before its token, its own, and the token.
        """
        if not len(fresh):
            return
        before, own, tokens = fresh[:, 0], fresh[:, 1], fresh[:, 2:].copy()
        vectors, states = self._network.step(tokens, [np.take(table, before, axis=0) for table in self._tables[1:]])
        for table, new in zip(self._tables, (vectors, *states), strict=True):
            table[own] = new

    def leave(self) -> None:
        """Give each beam what it has to remember until its next frames."""
        for beam, rows in zip(self._beams, self._rows, strict=True):
            beam.remember([table[rows] for table in self._tables])
