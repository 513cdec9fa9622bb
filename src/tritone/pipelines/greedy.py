"""Greedy CTC search on what a graph gives: on the best tokens alone where it can tell them, else on all it says.

A vocabulary of 5,000 makes the log-probabilities a thousand times larger than the best tokens, and on a GPU they would
have to travel.
"""

from collections.abc import Sequence

from tritone.runtime.graph import Array, Graph
from tritone.search.ctc import ctc_greedy, ctc_greedy_best
from tritone.search.hypothesis import Token

BEST = ("best_tokens", "best_log_probs")


class GreedySearch:
    """The search of one pipeline."""

    def __init__(self, graph: Graph, blank_id: int) -> None:
        self._has_best = set(BEST) <= set(graph.outputs)
        self._blank_id = blank_id
        self.outputs: tuple[str, ...] = ("num_frames", *(BEST if self._has_best else ("log_probs",)))
        """What the graph shall be asked for."""

    def __call__(self, results: Sequence[Array]) -> tuple[list[list[Token]], list[int]]:
        """Search in a batch.

        Args:
            results: `outputs` of the graph.

        Returns:
            For each row its tokens, with frames counted from the start of the row, and its number of frames.
        """
        num_frames, *said = results
        if self._has_best:
            found = ctc_greedy_best(said[0], said[1], num_frames, self._blank_id)
        else:
            found = ctc_greedy(said[0], num_frames, self._blank_id)
        return found, num_frames.tolist()
