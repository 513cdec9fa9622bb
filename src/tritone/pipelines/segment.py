"""One utterance of a stream while it goes on: what its search has found so far.

    graph results of a step  ->  Segment  ->  partial readings; at its end the hypotheses to choose from

A stream without endpoints is one segment. Frames count from the start of the stream.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tritone.pipelines.assembly import Reading, ReadingBuilder
from tritone.pipelines.rescoring import Candidate
from tritone.pipelines.searching import Searching
from tritone.runtime.graph import Array
from tritone.search.ctc import CtcGreedy
from tritone.search.hypothesis import Hypothesis, Token
from tritone.search.options import SearchOptions

if TYPE_CHECKING:
    from tritone.search.prefix_beam import PrefixBeam


class Segment:
    """See the module. `options`: how it is searched; `first_frame`, `num_frames`: its place in the stream."""

    def __init__(
        self, builder: ReadingBuilder, options: SearchOptions, first_frame: int, beam: "PrefixBeam | None"
    ) -> None:
        """Start a segment; `beam` is None for greedy search."""
        self.options = options
        self.first_frame = first_frame
        self.num_frames = 0
        self._builder = builder
        self._greedy = CtcGreedy(first_frame)
        self._beam = beam
        self._settled: list[Token] = []  # of a beam: what all its hypotheses start with
        self._tail: Sequence[Token] = ()  # of its best hypothesis: what comes after that
        self._last: Token | None = None
        self._encoder_out: list[Array] = []

    def add_greedy(self, tokens: Sequence[Token], num_frames: int) -> None:
        """Take a step's greedy tokens, with frames counted from the start of the step."""
        placed, continues = self._greedy.join(tokens, num_frames)
        self._builder.add(placed, continues)
        self.num_frames += num_frames
        if placed:
            self._last = placed[-1]

    def add_beam(self, ids: Array, log_probs: Array, encoder_out: Array | None) -> None:
        """Take the best tokens of a step's frames, both (frames, beam), and its encoder_out (frames, dim) if needed."""
        assert self._beam is not None
        self._beam.advance(ids, log_probs)
        self.num_frames += len(ids)
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

    def candidate(self) -> Candidate:
        """What there is to choose from at the end, best first: whole hypotheses, in frames of the stream."""
        frames = np.concatenate(self._encoder_out) if self._encoder_out else np.empty((0, 0), np.float32)
        if self._beam is None:  # its builder has the tokens already
            return Candidate(frames, [Hypothesis((), 0.0)], self.options)
        hypotheses = [
            replace(each, tokens=[*self._settled, *self._placed(each.tokens)])
            for each in self._beam.hypotheses(self.options.num_hypotheses, final=True)
        ]
        return Candidate(frames, hypotheses, self.options)

    def reading(self, hypothesis: Hypothesis) -> Reading:
        """Write one of the hypotheses out that `candidate` gave."""
        return self._builder.reading(hypothesis.tokens[len(self._settled) :])

    def _placed(self, tokens: Sequence[Token]) -> list[Token]:
        offset = self.first_frame
        return [Token(t.id, t.start_frame + offset, t.end_frame + offset, t.confidence) for t in tokens]


def start_segment(
    searching: Searching, builder: ReadingBuilder, options: SearchOptions, first_frame: int = 0
) -> Segment:
    """Start a segment at a frame of its stream; `builder` is new."""
    beam = None if options.mode == "greedy" else searching.beam_of(options)
    return Segment(builder, options, first_frame, beam)


def take_step(searching: Searching, segments: Sequence[Segment], results: Mapping[str, Array]) -> None:
    """Let the segments of some streams take what the graph says of their next frames.

    Args:
        segments: one for each row, all different.
        results: `searching.outputs` of the graph for their options.
    """
    num_frames = results["num_frames"].tolist()
    greedy = [row for row, segment in enumerate(segments) if segment.options.mode == "greedy"]
    for row, hypothesis in zip(greedy, searching.greedy(results, greedy), strict=True):
        segments[row].add_greedy(hypothesis.tokens, num_frames[row])
    rows = [row for row, segment in enumerate(segments) if segment.options.mode != "greedy"]
    if not rows:
        return
    ids, log_probs = searching.top_tokens(results, rows, max(segments[row].options.beam for row in rows))
    for position, row in enumerate(rows):
        segment, count = segments[row], num_frames[row]
        beam = segment.options.beam
        keeps = segment.options.mode == "rescoring"
        segment.add_beam(
            ids[position, :count, :beam],
            log_probs[position, :count, :beam],
            results["encoder_out"][row, :count] if keeps else None,
        )


def finish_segments(searching: Searching, segments: Sequence[Segment]) -> list[list[Hypothesis]]:
    """The hypotheses of segments that have ended, best first; those to be rescored share graph calls."""
    return searching.rescore([segment.candidate() for segment in segments])
