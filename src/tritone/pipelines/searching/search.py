"""The search of one utterance, or of one segment of a stream, and what it reports after each step."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from tritone.runtime.graph import Array
from tritone.search.hypothesis import Hypothesis, Token
from tritone.search.options import SearchOptions

if TYPE_CHECKING:
    from typing import Self


class News(NamedTuple):
    """What a search has found since its last news; frames count from the start of the search.

    `tokens` are there to stay, but for the last of them: with `replaces_last`, `tokens` begin with a longer version of
    the last token reported before. `tail` is what the best hypothesis has after all tokens reported so far; it replaces
    the tail of the news before.
    """

    tokens: Sequence[Token] = ()
    replaces_last: bool = False
    tail: Sequence[Token] = ()


NOTHING = News()


class Search(ABC):
    """A search under way. Not for several threads at once.

    `options`: how it searches. Its class is how searches of its kind share a batch.
    """

    def __init__(self, options: SearchOptions) -> None:
        """Start before the first frame."""
        self.options = options

    @classmethod
    @abstractmethod
    def advance_all(cls, searches: "Sequence[Self]", outputs: Mapping[str, Array], rows: Sequence[int]) -> None:
        """Search the next frames of some searches of this class.

        Args:
            searches: all different and of one `Searching`.
            outputs: of the network, by name; the first axis is that of rows.
            rows: of each search the row that has its frames, ascending.
        """

    @abstractmethod
    def news(self) -> News:
        """What has been found since the last call; the search can go on."""

    @abstractmethod
    def hypotheses(self) -> list[Hypothesis]:
        """The hypotheses as if nothing followed, best first, at least one; each from the start of the search."""

    def encoder_out(self) -> Array:
        """What rescoring needs of the encoder, (frames, dim); nothing where there will be none."""
        return np.empty((0, 0), np.float32)


class Beam(Protocol):
    """The state of a beam search, which counts frames from its start."""

    def hypotheses(self, count: int, *, final: bool = False) -> list[Hypothesis]:
        """The best hypotheses after the frames so far, without what `take_settled` has returned."""

    def take_settled(self) -> list[Token]:
        """The tokens that all hypotheses begin with; later hypotheses begin after them."""


class BeamSearch(Search):
    """A search that keeps several hypotheses. Reports what all begin with; the rest of the best one is the tail."""

    def __init__(self, options: SearchOptions, beam: Beam) -> None:
        """Start with a new beam."""
        super().__init__(options)
        self._beam = beam
        self._reported: list[Token] = []

    def news(self) -> News:
        settled = self._beam.take_settled()
        self._reported += settled
        (best,) = self._beam.hypotheses(1)
        return News(settled, tail=best.tokens)

    def hypotheses(self) -> list[Hypothesis]:
        found = self._beam.hypotheses(self.options.num_hypotheses, final=True)
        return [replace(each, tokens=[*self._reported, *each.tokens]) for each in found] if self._reported else found


class GreedySearch(Search):
    """A search that keeps one hypothesis."""

    def __init__(self, options: SearchOptions) -> None:
        """Start without tokens."""
        super().__init__(options)
        self._tokens: list[Token] = []
        self._num_reported = 0
        self._replaces_last = False  # the last token reported has become longer

    def add(self, tokens: Sequence[Token], replaces_last: bool = False) -> None:
        """Take the tokens of further frames; with `replaces_last` they begin with a longer version of the last one."""
        if replaces_last:
            self._replaces_last |= len(self._tokens) == self._num_reported
            self._tokens.pop()
        self._tokens += tokens

    def news(self) -> News:
        if len(self._tokens) == self._num_reported and not self._replaces_last:
            return NOTHING
        first = self._num_reported - self._replaces_last
        news = News(self._tokens[first:], self._replaces_last)
        self._num_reported, self._replaces_last = len(self._tokens), False
        return news

    def hypotheses(self) -> list[Hypothesis]:
        return [Hypothesis(self._tokens, 0.0)]


def advance(searches: Sequence[Search], outputs: Mapping[str, Array], rows: Sequence[int] | None = None) -> None:
    """Search the next frames of some searches, one for each of some rows of `outputs` (all of them by default).

    Those of one class share the work.
    """
    classes: dict[type[Search], list[int]] = {}
    for place, search in enumerate(searches):
        classes.setdefault(type(search), []).append(place)
    for each, places in classes.items():
        each.advance_all(
            [searches[place] for place in places],
            outputs,
            places if rows is None else [rows[place] for place in places],
        )


def of_rows(array: Array, rows: Sequence[int]) -> Array:
    """Some rows of an array, in ascending order; all of them are not copied."""
    return array if len(rows) == len(array) else array[rows]
