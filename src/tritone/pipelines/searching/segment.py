"""One utterance of a stream while it goes on: what its search has found so far.

    tokens or a beam after each step  ->  Segment  ->  partial readings; at its end the hypotheses to choose from

A stream without endpoints is one segment. Frames count from the start of the stream; searches count from the start of
their segment.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from tritone.pipelines.searching.assembly import Reading, ReadingBuilder
from tritone.runtime.graph import Array
from tritone.search.hypothesis import Hypothesis, Token
from tritone.search.options import SearchOptions


class Beam(Protocol):
    """A beam search under way, see `search.prefix_beam.PrefixBeam`."""

    def hypotheses(self, count: int, *, final: bool = False) -> list[Hypothesis]:
        """Tell the best hypotheses after the frames so far; the search can go on."""

    def take_settled(self) -> list[Token]:
        """Hand over the tokens at the beginning that all hypotheses share."""


class Segment:
    """See the module. `options`: how it is searched; `first_frame`, `num_frames`: its place in the stream.

    `search`: the state of its search, which is a beam if `is_beam`.
    """

    def __init__(
        self, builder: ReadingBuilder, options: SearchOptions, search: Any, first_frame: int, *, is_beam: bool
    ) -> None:
        """Start a segment."""
        self.options = options
        self.search = search
        self.first_frame = first_frame
        self.num_frames = 0
        self._builder = builder
        self._beam: Beam | None = search if is_beam else None
        self._settled: list[Token] = []  # of a beam: what all its hypotheses start with
        self._tail: Sequence[Token] = ()  # of its best hypothesis: what comes after that
        self._last: Token | None = None
        self._encoder_out: list[Array] = []

    def add_tokens(self, tokens: Sequence[Token], num_frames: int, *, continues: bool = False) -> None:
        """Take what a greedy search found in a step.

        Args:
            tokens: with frames of the segment.
            num_frames: of the step.
            continues: the first token is a new version of the last one.
        """
        placed = self._placed(tokens)
        self._builder.add(placed, continues)
        self.num_frames += num_frames
        if placed:
            self._last = placed[-1]

    def read_beam(self, num_frames: int, encoder_out: Array | None = None) -> None:
        """Look at the beam after it has searched a step.

        Args:
            num_frames: of the step.
            encoder_out: (num_frames, dim) of the step, where it will be needed at the end.
        """
        assert self._beam is not None
        self.num_frames += num_frames
        if encoder_out is not None:
            self._encoder_out.append(encoder_out.copy())  # a row of a larger array that would be kept with it
        settled = self._placed(self._beam.take_settled())
        self._builder.add(settled)
        self._settled += settled
        (best,) = self._beam.hypotheses(1)
        self._tail = self._placed(best.tokens)
        self._last = self._tail[-1] if self._tail else self._settled[-1] if self._settled else None

    @property
    def has_text(self) -> bool:
        """Whether any token has been found."""
        return self._last is not None

    @property
    def trailing_frames(self) -> int:
        """How many frames at its end are without a token."""
        if self._last is None:
            return self.num_frames
        return max(0, self.first_frame + self.num_frames - self._last.end_frame)

    def partial(self) -> Reading:
        """The best reading so far."""
        return self._builder.reading(self._tail)

    def encoder_out(self) -> Array:
        """All that was given to be kept, (frames, dim)."""
        return np.concatenate(self._encoder_out) if self._encoder_out else np.empty((0, 0), np.float32)

    def hypotheses(self) -> list[Hypothesis]:
        """What there is to choose from at the end, best first: whole hypotheses, in frames of the stream."""
        if self._beam is None:  # its builder has the tokens already
            return [Hypothesis((), 0.0)]
        return [
            replace(each, tokens=[*self._settled, *self._placed(each.tokens)])
            for each in self._beam.hypotheses(self.options.num_hypotheses, final=True)
        ]

    def reading(self, hypothesis: Hypothesis) -> Reading:
        """Write one of the hypotheses out that `hypotheses` gave."""
        return self._builder.reading(hypothesis.tokens[len(self._settled) :])

    def _placed(self, tokens: Sequence[Token]) -> list[Token]:
        offset = self.first_frame
        if not offset:
            return list(tokens)
        return [Token(t.id, t.start_frame + offset, t.end_frame + offset, t.confidence) for t in tokens]
