"""One utterance of a stream while it goes on: what its search has found so far, at its place in the stream.

    News after each step  ->  Segment  ->  partial readings; at its end readings of the hypotheses

A stream without endpoints is one segment. Frames of a segment count from the start of the stream, those of its search
from the start of the segment.
"""

import math
from collections.abc import Sequence

from tritone.pipelines.searching.readings import Reading, ReadingBuilder
from tritone.pipelines.searching.search import News, Search
from tritone.search.hypothesis import Hypothesis, Token, moved_by


class Segment:
    """A part of a stream that is transcribed by itself.

    `search` finds its tokens; `first_frame` and `num_frames` are where it begins and how long it is. `is_followed`:
    whether another segment begins at its end, so that no token lasts beyond it.
    """

    def __init__(self, search: Search, builder: ReadingBuilder, first_frame: int = 0) -> None:
        """Start a segment with a new search and a new builder."""
        self.search = search
        self.first_frame = first_frame
        self.num_frames = 0
        self.is_followed = False
        self._builder = builder
        self._tail: Sequence[Token] = ()
        self._last: Token | None = None  # of the tokens before the tail

    def take(self, news: News, num_frames: int) -> None:
        """Take what the search has found in a step of `num_frames` frames."""
        self._tail = self._placed(news.tail)
        self.num_frames += num_frames
        if news.tokens:
            tokens = self._placed(news.tokens)
            self._builder.add(tokens, news.replaces_last)
            self._last = tokens[-1]

    @property
    def has_text(self) -> bool:
        """Whether any token has been found."""
        return bool(self._tail) or self._last is not None

    @property
    def trailing_frames(self) -> int:
        """How many frames at its end are without a token."""
        last = self._tail[-1] if self._tail else self._last
        return self.num_frames if last is None else max(0, self._end_frame - last.end_frame)

    def text(self, hypothesis: Hypothesis | None = None) -> str:
        """The text of the best reading so far, or of one of the hypotheses of the search."""
        tail = self._tail if hypothesis is None else self._placed(hypothesis.tokens[self._builder.num_tokens :])
        return self._builder.text(tail)

    def partial(self) -> Reading:
        """The best reading so far."""
        return self._builder.reading(self._tail, self._end_frame)

    def reading(self, hypothesis: Hypothesis) -> Reading:
        """One of the hypotheses of the search, written out."""
        until_frame = self._end_frame if self.is_followed else math.inf
        return self._builder.reading(self._placed(hypothesis.tokens[self._builder.num_tokens :]), until_frame)

    @property
    def _end_frame(self) -> int:
        return self.first_frame + self.num_frames

    def _placed(self, tokens: Sequence[Token]) -> Sequence[Token]:
        return moved_by(tokens, self.first_frame) if self.first_frame and tokens else tokens
