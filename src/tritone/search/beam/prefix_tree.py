"""The prefixes of one beam search under way: their tree, their times, and what is settled among them.

What a frame does to them is the search's own; this is what all of them do between frames. The records are those of
`records.py`.
"""

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tritone.later import later
from tritone.search.beam.beam import Beam, grown, room_for
from tritone.search.beam.records import NODE, PREFIX, TREE
from tritone.search.hypothesis import Hypothesis

if TYPE_CHECKING:
    from tritone.search.beam import pruning
    from tritone.search.scoring import scorer as scoring
    from tritone.search.scoring.scorer import Scorer
else:
    pruning, scoring = later("pruning"), later("scorer")


class PrefixTree(Beam):
    """A beam search that keeps the best token sequences."""

    _nodes: npt.NDArray[Any]
    _states: npt.NDArray[np.int32]
    _closings: npt.NDArray[np.float64]
    _slots: npt.NDArray[np.int32]
    _prefixes: npt.NDArray[Any]

    def __init__(
        self, *, beam: int, scorer: "Scorer | None", history: int | None, num_nodes: int, state_size: int = 0
    ) -> None:
        """Start with the empty prefix.

        Args:
            beam: prefixes kept after each frame, at least 1.
            scorer: adds to the log-probability of prefixes; searches may share it.
            history: see `Beam`.
            num_nodes: how many nodes to have room for at first.
            state_size: of a node's two states, at least; the scorer may need more.

        Raises:
            ValueError: `beam` or `history` is less than 1.
        """
        if beam < 1:
            raise ValueError(f"beam must be at least 1, got {beam}")
        super().__init__(TREE, num_marks=(8 if history is not None else 128) * beam, history=history)
        self.beam = beam
        self.scorer = scorer
        self._pruning = pruning
        self._frame_nodes = self._frame_marks = beam  # to have free, at least, after room was made
        num_nodes = room_for(num_nodes)
        size = max(state_size, 0 if scorer is None else scorer.state_size)
        self._point_at(
            nodes=np.empty(num_nodes, dtype=NODE),
            states=np.zeros((num_nodes, 2, size), dtype=np.int32),
            closings=np.full((num_nodes, 0 if scorer is None else 1), math.nan),
            slots=np.full(4 * num_nodes, -1, dtype=np.int32),
            prefixes=np.zeros((2, beam), dtype=PREFIX),
            marks=self._marks,
        )
        self._prefixes[0, 0] = (0.0, -math.inf, 0.0, 0.0, 0.0, -math.inf, 0, -1, -1, 0)
        self._nodes[0] = (-1, -1, 0, 0.0)
        if scorer is not None:
            self._states[0, 0, : scorer.state_size] = scorer.start
        record = self._record
        record["scorer"] = self._address_of(scoring.NO_SCORER) if scorer is None else scorer.address
        record["beam"], record["state_size"], record["num_closings"] = beam, size, self._closings.shape[1]
        record["num_nodes"] = record["num_prefixes"] = record["temperature"] = 1

    def hypotheses(self, count: int, *, final: bool = False) -> list[Hypothesis]:
        if count < 1:
            raise ValueError(f"count must be at least 1, got {count}")
        alive = self._alive()
        bonuses = self._nodes["bonus"][alive["node"]]
        if final and self.scorer is not None:
            ends = np.zeros(len(alive))
            self._pruning.finish_all(self.address, ends)
            bonuses = bonuses + ends
        log_probs, ranks = self._distinct(alive)
        bonuses, marks = bonuses[ranks], _last_marks(alive)[ranks]
        return self._ranked(log_probs, bonuses, self._scores(log_probs + bonuses, marks), marks, count)

    def _distinct(self, alive: npt.NDArray[Any]) -> tuple[npt.NDArray[np.float64], Any]:
        """Log-probabilities of the different token sequences alive, and which prefix has the times of each."""
        return alive["score"], slice(None)

    def _scores(self, totals: npt.NDArray[np.float64], marks: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
        """What prefixes are ranked by, given their log-probabilities with bonus and the last marks of their times."""
        return totals

    def _alive(self) -> npt.NDArray[Any]:
        return self._prefixes[int(self._record["side"]), : int(self._record["num_prefixes"])]

    def _arrays(self) -> tuple[npt.NDArray[Any], ...]:
        return self._prefixes, self._nodes, self._states, self._closings, self._slots

    def _decide(self, before: int) -> None:
        alive = self._alive()
        best = int(np.argmax(self._scores(alive["total"], _last_marks(alive))))
        self._pruning.decide(self.address, best, before)

    def _drop(self, settled: npt.NDArray[Any]) -> int:
        return int(self._pruning.make_room(self.address, settled))

    def _grow(self) -> None:
        num_nodes, num_marks = int(self._record["num_nodes"]), int(self._record["num_marks"])
        nodes = grown(self._nodes, 2 * (num_nodes + self._frame_nodes))
        slots = self._slots
        if len(slots) < 4 * len(nodes):
            slots = np.empty(4 * len(nodes), dtype=np.int32)
        self._point_at(
            nodes=nodes,
            states=grown(self._states, len(nodes)),
            closings=grown(self._closings, len(nodes)),
            slots=slots,
            marks=grown(self._marks, 2 * (num_marks + self._frame_marks)),
        )
        self._pruning.index_nodes(self.address)


def _last_marks(prefixes: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    """The marks of the last tokens of prefixes, by their best alignments."""
    return np.where(prefixes["best_blank"] > prefixes["best_token"], prefixes["blank_mark"], prefixes["token_mark"])
