"""What all beam searches have in common: lists of tokens with their times, and the tokens that are settled.

log-probabilities, bonuses and last marks of what is alive  ->  hypotheses, best first
"""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tritone.later import later
from tritone.search.beam.records import MARK
from tritone.search.hypothesis import Hypothesis, Token, TokenRow

if TYPE_CHECKING:
    from tritone.search.beam import marks
    from tritone.search.compiled import addresses
else:
    marks, addresses = later("marks"), later("addresses")

MIN_ROOM = 256  # nodes and marks that a search has room for at first; a power of two


class Beam(ABC):
    """A beam search in one utterance or stream. Not for several threads at once.

    What nothing alive needs is dropped from time to time, so the memory depends on how much hypotheses differ and not
    on the length of the stream. Only tokens that all of them share stay, in 20 bytes each, until `take_settled`
    returns them.
    """

    def __init__(self, dtype: np.dtype[Any], *, num_marks: int, history: int | None) -> None:
        """Start without tokens.

        Args:
            dtype: of the record that compiled code has of the search; with `num_frames`, `num_marks`, `marks`,
                `marks_room`.
            num_marks: how many marks to have room for at first.
            history: for how many frames, at least 1, hypotheses may go on differing: whenever so many have passed, what
                the best one has more than `history` frames ago is final, and those that differ there are dropped. Two
                equally good words would else keep two copies of all that follows, for ever. What follows says next to
                nothing about so old a choice, so the best hypothesis stays the same, but the n best differ in recent
                words alone. None never decides.

        Raises:
            ValueError: `history` is less than 1.
        """
        if history is not None and history < 1:
            raise ValueError(f"history must be at least 1 frame, got {history}")
        self.history = history
        self._address_of, self._lists = addresses.address_of, marks
        self._records = np.zeros(1, dtype=dtype)
        self._record: Any = self._records[0]
        self.address = self._address_of(self._records)
        self._marks = np.empty(room_for(num_marks), dtype=MARK)
        self._settled = np.empty(0, dtype=MARK)
        self._num_settled = 0
        self._num_taken = 0

    @abstractmethod
    def hypotheses(self, count: int, *, final: bool = False) -> list[Hypothesis]:
        """The best hypotheses after the frames so far; the search can go on.

        Args:
            count: the most of them, at least 1.
            final: score them as if nothing followed: the scorer adds what the last word and the end of the sentence
                are worth, and they are ranked again.

        Returns:
            Hypotheses, best first. `score` is `log_prob + bonus`, unless the search ranks by something else. A token's
            `start_frame` is its time in the best alignment, `end_frame` the next frame, or where its duration ends if
            it has one, within the frames so far; its confidence is its probability there.

        Raises:
            ValueError: `count` is less than 1.
        """

    @abstractmethod
    def _drop(self, settled: npt.NDArray[Any]) -> int:
        """Drop what is not needed; returns how many marks were moved to `settled`, which has room for all."""

    @abstractmethod
    def _grow(self) -> None:
        """Make sure that half of the room is free: so what stays is moved about once in its life."""

    @abstractmethod
    def _decide(self, before: int) -> None:
        """Drop hypotheses whose tokens before a frame differ from those of the best one."""

    @abstractmethod
    def _arrays(self) -> tuple[npt.NDArray[Any], ...]:
        """All arrays of the search but the marks."""

    @property
    def num_frames(self) -> int:
        """Frames searched so far."""
        return int(self._record["num_frames"])

    @property
    def num_bytes(self) -> int:
        """Memory of the search, without token objects that `hypotheses` made."""
        return sum(array.nbytes for array in (*self._arrays(), self._marks, self._settled, self._records))

    def take_settled(self) -> list[Token]:
        """Return the tokens at the beginning that all hypotheses share; `hypotheses` begin after them from then on.

        With a call after every few frames hypotheses are short however long the stream is.
        """
        self._make_room()
        tokens = tokens_of(self._settled[: self._num_settled])
        self._num_taken += self._num_settled
        self._num_settled = 0
        return tokens

    def _ranked(
        self,
        log_probs: npt.NDArray[np.float64],
        bonuses: npt.NDArray[np.float64],
        scores: npt.NDArray[np.float64],
        marks: npt.NDArray[np.int32],
        count: int,
    ) -> list[Hypothesis]:
        """The `count` hypotheses of the largest scores, all arrays (n,), best first."""
        order = np.argsort(-scores, kind="stable")[:count]
        # All lists are read at once, since a batch has hundreds of them.
        settled = self._settled[: self._num_settled]
        ends, path = self._paths(marks[order], len(settled))
        fields = (
            np.concatenate([settled, self._marks[: int(self._record["num_marks"])]]) if len(settled) else self._marks
        )[path]
        ids, frames = np.ascontiguousarray(fields["token"]), np.ascontiguousarray(fields["frame"])
        after, confidences = np.minimum(frames + fields["span"], self.num_frames), confidences_of(fields)
        found, begin = [], 0
        columns = (each[order].tolist() for each in (log_probs, bonuses, scores))
        for log_prob, bonus, score, end in zip(*columns, ends.tolist(), strict=True):
            tokens = TokenRow(ids[begin:end], frames[begin:end], after[begin:end], confidences[begin:end])
            found.append(Hypothesis(tokens, log_prob=log_prob, bonus=bonus, score=score))
            begin = end
        return found

    def _ends(self, marks: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        """Where lists that end in these marks would end if they stood one after the other, without settled marks."""
        ends = np.empty(len(marks), dtype=np.int64)
        self._lists.measure_lists(self._marks, np.ascontiguousarray(marks, dtype=np.int32), ends)
        return ends

    def _paths(
        self, marks: npt.NDArray[np.int32], num_settled: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        """Lists one after the other, each with so many settled marks in front: where they end, and their marks.

        Marks are counted from the first settled one.
        """
        ends = self._ends(marks) + num_settled * np.arange(1, len(marks) + 1)
        path = np.empty(int(ends[-1]) if len(ends) else 0, dtype=np.int32)
        self._lists.read_lists(self._marks, np.ascontiguousarray(marks, dtype=np.int32), num_settled, ends, path)
        return ends, path

    def _until_decision(self, count: int) -> int:
        """How many of `count` frames come before old differences are decided."""
        return count if self.history is None else min(count, self.history - self.num_frames % self.history)

    def _decide_if_due(self) -> None:
        if self.history is not None and self.num_frames and self.num_frames % self.history == 0:
            self._decide(self.num_frames - self.history)
            self._make_room()

    def _make_room(self) -> None:
        """Drop what is not needed, and grow unless there is room enough then."""
        settled = np.empty(int(self._record["num_marks"]), dtype=MARK)
        count = self._drop(settled)
        self._settled = grown(self._settled, self._num_settled + count)
        self._settled[self._num_settled : self._num_settled + count] = settled[:count]
        self._num_settled += count
        self._grow()

    def _point_at(self, **arrays: npt.NDArray[Any]) -> None:
        """Take arrays as parts of the search, and tell compiled code where they are."""
        for name, array in arrays.items():
            setattr(self, f"_{name}", array)
            self._record[name] = self._address_of(array)
            if f"{name}_room" in self._records.dtype.names:  # type: ignore[operator]
                self._record[f"{name}_room"] = len(array)


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
        Token(id, frame, frame + span, confidence)
        for id, frame, span, confidence in zip(
            *(marks[name].tolist() for name in ("token", "frame", "span")), confidences_of(marks).tolist(), strict=True
        )
    ]


def confidences_of(marks: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """The probabilities of marks, (n,), always by numpy: with AVX-512 its last digit is not that of `math.exp`."""
    confidences: npt.NDArray[np.float64] = np.exp(np.minimum(marks["log_prob"], 0, dtype=np.float64))
    return confidences
