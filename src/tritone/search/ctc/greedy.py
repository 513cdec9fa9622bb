"""CTC decoding: frame log-probabilities to tokens.

    log_probs (batch, frames, vocab) float32  ->  tokens with frames and confidences

The best label of each frame is taken, repeats are merged, blanks dropped. `ctc_greedy` does a whole batch; `CtcGreedy`
joins the results of consecutive chunks of one stream, so that any cutting gives the tokens of the whole.
"""

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from tritone.search.hypothesis import Token, TokenRow, moved_by

NOTHING = np.zeros(0, np.int64)
NO_TOKENS = TokenRow(NOTHING, NOTHING, NOTHING, np.zeros(0))


def ctc_greedy(
    log_probs: npt.NDArray[np.floating[Any]], num_frames: npt.NDArray[np.integer[Any]], blank_id: int
) -> list[TokenRow]:
    """Decode a batch.

    Args:
        log_probs: (batch, frames, vocab) natural logarithms; what lies at or beyond `num_frames` is ignored.
        num_frames: (batch,) valid frames of each row.
        blank_id: the CTC blank.

    Returns:
        The tokens of each row; frames count from the start of the row.
    """
    batch, frames, _ = log_probs.shape
    if batch == 0 or frames == 0:
        return [NO_TOKENS] * batch
    ids = log_probs.argmax(axis=2)
    scores = np.take_along_axis(log_probs, ids[:, :, None], axis=2)[:, :, 0]
    return ctc_greedy_best(ids, scores, num_frames, blank_id)


def ctc_greedy_best(
    ids: npt.NDArray[np.integer[Any]],
    scores: npt.NDArray[np.floating[Any]],
    num_frames: npt.NDArray[np.integer[Any]],
    blank_id: int,
) -> list[TokenRow]:
    """Decode a batch whose best labels are known: `ids` and their log-probabilities `scores`, both (batch, frames).

    All else as in `ctc_greedy`.
    """
    batch, frames = ids.shape
    if batch == 0 or frames == 0:
        return [NO_TOKENS] * batch
    # One flat sequence for the whole batch: a blank after each row keeps the rows apart.
    width = frames + 1
    flat = np.full((batch, width), blank_id, dtype=ids.dtype)
    valid = np.arange(frames) < np.asarray(num_frames)[:, None]
    np.copyto(flat[:, :frames], ids, where=valid)
    flat_scores = np.zeros((batch, width), dtype=scores.dtype)
    np.copyto(flat_scores[:, :frames], scores, where=valid)
    flat, flat_scores = flat.reshape(-1), flat_scores.reshape(-1)

    starts = np.flatnonzero(np.concatenate(([True], flat[1:] != flat[:-1])))
    ends = np.append(starts[1:], len(flat))
    best = np.maximum.reduceat(flat_scores, starts)
    spoken = flat[starts] != blank_id
    starts, ends, best = starts[spoken], ends[spoken], best[spoken]

    rows, first = np.divmod(starts, width)
    ids, ends = flat[starts], ends - rows * width
    confidences = np.exp(np.minimum(best, 0, dtype=np.float64))
    borders = np.searchsorted(rows, np.arange(batch + 1)).tolist()
    return [
        TokenRow(ids[begin:end], first[begin:end], ends[begin:end], confidences[begin:end])
        for begin, end in pairwise(borders)
    ]


def tokens_of_block(block: npt.NDArray[np.int32]) -> list[TokenRow]:
    """The tokens of each row in what `device.ctc.greedy_block` makes of a batch, as `ctc_greedy_best` returns them."""
    counts = (block[:, 0] == np.int32(2**31 - 1)).argmax(axis=1)
    found = _Block(block[:, :, : counts.max(initial=0)])
    return [_BlockRow(found, row, count) for row, count in enumerate(counts.tolist())]


class _Block:
    """The fields of such a block; what was made comparable for the device is undone for all rows when one is read."""

    def __init__(self, fields: npt.NDArray[np.int32]) -> None:
        self.fields = fields

    @cached_property
    def ends(self) -> npt.NDArray[np.int32]:
        return -self.fields[:, 2]

    @cached_property
    def confidences(self) -> npt.NDArray[np.float32]:
        with np.errstate(all="ignore"):  # behind the tokens of a row is anything
            found: npt.NDArray[np.float32] = np.exp(-np.ascontiguousarray(self.fields[:, 3]).view(np.float32))
        return found


class _BlockRow(TokenRow):
    """The tokens of one row of it."""

    __slots__ = ("_block", "_row")

    def __init__(self, block: _Block, row: int, count: int) -> None:
        self.ids, self.starts = block.fields[row, 0, :count], block.fields[row, 1, :count]
        self._block, self._row = block, row

    @property
    def ends(self) -> npt.NDArray[np.int32]:  # type: ignore[override]
        return self._block.ends[self._row, : len(self.ids)]

    @property
    def confidences(self) -> npt.NDArray[np.float32]:  # type: ignore[override]
        return self._block.confidences[self._row, : len(self.ids)]


class CtcGreedy:
    """The greedy decoding of one stream: joins what `ctc_greedy` found in consecutive chunks."""

    def __init__(self, first_frame: int = 0) -> None:
        """Start at a frame of the stream."""
        self.num_frames = first_frame  # up to here all frames have been seen
        self._last: Token | None = None

    def join(self, tokens: Sequence[Token], num_frames: int) -> tuple[list[Token], bool]:
        """Place the tokens of the next chunk in the stream.

        Args:
            tokens: from `ctc_greedy`, frames counted from the start of the chunk.
            num_frames: valid frames of the chunk.

        Returns:
            The tokens with frames counted from the start of the stream, and whether the first of them replaces the last
            token returned before, because its repeats go on across the border.
        """
        offset = self.num_frames
        self.num_frames += num_frames
        if not len(tokens):
            return [], False
        placed = moved_by(tokens, offset)
        first, last = placed[0], self._last
        continues = last is not None and (last.id, last.end_frame) == (first.id, first.start_frame)
        if last is not None and continues:
            confidence = max(last.confidence, first.confidence)
            placed[0] = Token(first.id, last.start_frame, first.end_frame, confidence)
        self._last = placed[-1]
        return placed, continues
