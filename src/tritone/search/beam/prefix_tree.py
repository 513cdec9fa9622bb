"""The prefixes of one beam search under way: their tree, their times, and what is settled among them.

    log-probabilities, tokens and times of the prefixes alive  ->  hypotheses, best first; tokens that all of them share

What a frame does to them is the search's own; this is what all of them do between frames. Records are those of
`beam_records.py`.
"""

import math
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tritone.search.hypothesis import Hypothesis, Token

if TYPE_CHECKING:
    from tritone.search.scoring.scorer import Scorer

MIN_ROOM = 256  # nodes and marks that a search has room for at first; a power of two
HISTORY = 1500  # frames, a minute at 40 ms


class PrefixTree:
    """What the searches in one utterance or stream have in common. Not for several threads at once.

    What no live prefix needs is dropped from time to time, so the memory depends on how much prefixes differ and not on
    the length of the stream. Only tokens that all of them share stay, in 16 bytes each, until `take_settled` hands them
    over.
    """

    def __init__(
        self, *, beam: int, scorer: "Scorer | None", history: int | None, frame_nodes: int, state_size: int = 0
    ) -> None:
        """Start with the empty prefix.

        Args:
            beam: prefixes kept after each frame, at least 1.
            scorer: adds to the log-probability of prefixes; searches may share it.
            history: for how many frames, at least 1, prefixes may go on differing: whenever so many have passed, what
                the best one said more than `history` frames ago is final, and those that differ there are dropped. Two
                equally good words would else keep two copies of all that follows, for ever. What follows tells next to
                nothing of so old a choice, so the best hypothesis stays the same, but the n best differ in recent words
                alone. None never decides.
            frame_nodes: how many nodes to have room for at first.
            state_size: of a node's two states, at least; the scorer may need more.
        """
        from tritone.search.beam import pruning as beam_room
        from tritone.search.beam import records
        from tritone.search.ctc import prefix_kernel as beam_kernel

        if beam < 1:
            raise ValueError(f"beam must be at least 1, got {beam}")
        if history is not None and history < 1:
            raise ValueError(f"history must be at least 1 frame, got {history}")
        self.beam = beam
        self.history = history
        self.scorer = scorer
        self._records, self._room, self._finish_all = records, beam_room, beam_kernel.finish_all
        self._arrays = no_arrays() if scorer is None else scorer.arrays
        self._counters = np.zeros(records.NUM_COUNTERS, dtype=np.int64)
        self._prefixes = np.zeros((2, beam), dtype=records.PREFIX)
        self._prefixes[0, 0] = (0.0, -math.inf, 0.0, 0.0, 0.0, -math.inf, 0, -1, -1)
        self._marks = np.empty(room_for(8 * beam), dtype=records.MARK)
        self._nodes = np.empty(room_for(frame_nodes), dtype=records.NODE)
        self._nodes[0] = (-1, -1, 0, 0.0)
        state_size = max(state_size, 0 if scorer is None else scorer.state_size)
        self._states = np.zeros((len(self._nodes), 2, state_size), dtype=np.int32)
        self._closings = np.full((len(self._nodes), 0 if scorer is None else 1), math.nan)
        if scorer is not None:
            self._states[0, 0, : scorer.state_size] = scorer.start
        self._slots = np.full(4 * len(self._nodes), -1, dtype=np.int32)
        self._counters[records.NUM_NODES] = self._counters[records.NUM_PREFIXES] = 1
        self._settled = np.empty(0, dtype=records.MARK)
        self._num_settled = 0
        self._num_taken = 0

    @property
    def num_frames(self) -> int:
        """Frames searched so far."""
        return int(self._counters[self._records.NUM_FRAMES])

    @property
    def num_bytes(self) -> int:
        """Memory of the search, without token objects that `hypotheses` made."""
        arrays = (
            self._prefixes,
            self._marks,
            self._nodes,
            self._states,
            self._closings,
            self._slots,
            self._settled,
        )
        return sum(array.nbytes for array in arrays)

    def hypotheses(self, count: int, *, final: bool = False) -> list[Hypothesis]:
        """Tell the best prefixes after the frames so far; the search can go on.

        Args:
            count: the most to tell, at least 1.
            final: score them as if nothing followed: the scorer adds what the last word and the end of the sentence
                are worth, and they are ranked anew.

        Returns:
            Hypotheses, best first. `score` is `log_prob + bonus`, unless the search ranks by something else. A token's
            `start_frame` is its time in the best alignment, `end_frame` the next frame, and its confidence is its
            probability there.
        """
        if count < 1:
            raise ValueError(f"count must be at least 1, got {count}")
        records, counters = self._records, self._counters
        alive = self._prefixes[counters[records.SIDE], : counters[records.NUM_PREFIXES]]
        bonuses = self._nodes["bonus"][alive["node"]]
        if final and self.scorer is not None:
            ends = np.zeros(len(alive))
            self._finish_all(self._prefixes, counters, self._states, self._arrays, ends)
            bonuses = bonuses + ends
        marks = _last_marks(alive)
        scores = self._scores(alive["score"] + bonuses, marks)
        order = np.argsort(-scores, kind="stable")[:count]
        settled = tokens_of(self._settled[: self._num_settled])
        made: dict[int, Token] = {}  # by mark: the n best have most of their tokens in common
        found = []
        for log_prob, bonus, score, mark in zip(
            alive["score"][order].tolist(),
            bonuses[order].tolist(),
            scores[order].tolist(),
            marks[order].tolist(),
            strict=True,
        ):
            path = self._path(mark)
            new = [each for each in path if each not in made]
            made.update(zip(new, tokens_of(self._marks[new]), strict=True))
            tokens = settled + [made[each] for each in path]
            found.append(Hypothesis(tokens, log_prob=log_prob, bonus=bonus, score=score))
        return found

    def take_settled(self) -> list[Token]:
        """Hand over the tokens at the beginning that all prefixes share; `hypotheses` begin after them then.

        Who calls it after every `advance` has hypotheses that are short however long the stream is.
        """
        self._make_room(self.beam, self.beam)
        tokens = tokens_of(self._settled[: self._num_settled])
        self._num_taken += self._num_settled
        self._num_settled = 0
        return tokens

    def _scores(self, totals: npt.NDArray[np.float64], marks: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
        """What prefixes are ranked by, given their log-probabilities with bonus and the last marks of their times."""
        return totals

    def _path(self, mark: int) -> list[int]:
        """The marks that end in one, without the settled ones."""
        scratch = np.empty(int(self._counters[self._records.NUM_MARKS]), dtype=np.int32)
        length = self._room.read_marks(self._marks, mark, scratch)
        path: list[int] = scratch[len(scratch) - length :].tolist()
        return path

    def _until_decision(self, count: int) -> int:
        """How many of `count` frames come before old differences are decided."""
        return count if self.history is None else min(count, self.history - self.num_frames % self.history)

    def _decide_if_due(self, frame_nodes: int, frame_marks: int) -> None:
        if self.history is not None and self.num_frames and self.num_frames % self.history == 0:
            counters, old = self._counters, self.num_frames - self.history
            alive = self._prefixes[counters[self._records.SIDE], : counters[self._records.NUM_PREFIXES]]
            best = int(np.argmax(self._scores(alive["total"], _last_marks(alive))))
            self._room.decide(self._nodes, self._marks, self._prefixes, counters, best, old)
            self._make_room(frame_nodes, frame_marks)

    def _make_room(self, frame_nodes: int, frame_marks: int) -> None:
        """Drop what is not needed; grow unless as much room is free again, for so many nodes and marks at least."""
        records, counters = self._records, self._counters
        settled = np.empty(len(self._marks), dtype=records.MARK)
        num_settled = self._room.make_room(
            self._nodes, self._states, self._closings, self._marks, self._prefixes, counters, settled
        )
        self._settle(settled[:num_settled])
        # Half of the room stays free for the frames to come: so each node and mark is moved about once in its life.
        self._marks = grown(self._marks, 2 * (int(counters[records.NUM_MARKS]) + frame_marks))
        num_nodes = int(counters[records.NUM_NODES])
        self._nodes = grown(self._nodes, 2 * (num_nodes + frame_nodes))
        self._states = grown(self._states, len(self._nodes))
        self._closings = grown(self._closings, len(self._nodes))
        if len(self._slots) < 4 * len(self._nodes):
            self._slots = np.empty(4 * len(self._nodes), dtype=np.int32)
        self._room.index_nodes(self._nodes, num_nodes, self._slots)

    def _settle(self, marks: npt.NDArray[Any]) -> None:
        end = self._num_settled + len(marks)
        if end > len(self._settled):
            self._settled = grown(self._settled, end)
        self._settled[self._num_settled : end] = marks
        self._num_settled = end


def _last_marks(prefixes: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    """The marks of the last tokens of prefixes, by their best alignments."""
    return np.where(prefixes["best_blank"] > prefixes["best_token"], prefixes["blank_mark"], prefixes["token_mark"])


@cache
def no_arrays() -> Any:
    """Arrays of the type that all scorers have, for searches without one: the compiled code is the same."""
    from tritone.search.scoring.scorer import Scorer

    scorer = Scorer.build(("", "a"), lm=None, lm_weight=0.0, word_bonus=0.0, hotwords=(("a", 1.0),))
    assert scorer is not None
    return scorer.arrays


def fixed(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A view that cannot be written: compiled functions tell such arrays apart, and callers have both kinds."""
    view = array.view()
    view.flags.writeable = False
    return view


def room_for(wanted: int) -> int:
    """A power of two that is at least `MIN_ROOM` and what is wanted."""
    return max(MIN_ROOM, 1 << (wanted - 1).bit_length())


def grown(array: npt.NDArray[Any], wanted: int) -> npt.NDArray[Any]:
    """The array, or a copy with room for `wanted` and a power of two rows if it is shorter."""
    if wanted <= len(array):
        return array
    larger = np.empty((room_for(wanted), *array.shape[1:]), dtype=array.dtype)
    larger[: len(array)] = array
    return larger


def tokens_of(marks: npt.NDArray[Any]) -> list[Token]:
    """The tokens of marks, (n,) `MARK` records."""
    return [
        Token(id, frame, frame + 1, min(math.exp(log_prob), 1.0))
        for id, frame, log_prob in zip(
            marks["token"].tolist(), marks["frame"].tolist(), marks["log_prob"].tolist(), strict=True
        )
    ]
