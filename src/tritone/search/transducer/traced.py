"""Reading what beams on a device found: back-pointers to tokens, in compiled code.

log-probabilities (batch, beam), back-pointers (batch, frames, beam)  ->  hypotheses of each row, best first
back-pointers of further frames  ->  lists of marks, for `device_beam.py`
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from tritone.search.beam.marks import compact, graft, length_of
from tritone.search.compiled.addresses import float_of_bits
from tritone.search.compiled.compiler import compiled
from tritone.search.hypothesis import Hypothesis, TokenRow

SOURCE_BITS = 8  # see `device/modified_beam.py`


def traced(
    totals: npt.NDArray[np.float64],
    pointers: npt.NDArray[np.int32],
    log_probs: npt.NDArray[np.float32],
    num_frames: npt.NDArray[np.int64],
    context_size: int,
    counts: list[int],
) -> list[list[Hypothesis]]:
    """The hypotheses of each row, as `ModifiedBeam.hypotheses` returns them.

    Args:
        totals, pointers, log_probs: of the search; rows beyond those of `num_frames` are ignored.
        counts: how many hypotheses of each row.
    """
    batch, (_, frames, beam) = len(num_frames), pointers.shape
    tokens = np.empty((batch, beam, 2, frames), dtype=np.int32)
    gains = np.empty((batch, beam, frames), dtype=np.float32)
    lengths = np.empty((batch, beam), dtype=np.int64)
    _trace(pointers, log_probs, np.ascontiguousarray(num_frames, dtype=np.int64), tokens, gains, lengths)
    scores = totals[:batch] / (context_size + lengths)
    order = np.argsort(-scores, axis=1, kind="stable")
    confidences = np.exp(np.minimum(gains, 0, out=gains), out=gains)
    found = []
    for row, count in enumerate(counts):
        hypotheses = []
        for rank in order[row, :count].tolist():
            if totals[row, rank] == -np.inf:
                break
            first = frames - int(lengths[row, rank])
            ids, times = tokens[row, rank, :, first:]
            said = TokenRow(ids, times, times + 1, confidences[row, rank, first:])
            hypotheses.append(Hypothesis(said, float(totals[row, rank]), score=float(scores[row, rank])))
        found.append(hypotheses)
    return found


@compiled
def _trace(pointers: Any, log_probs: Any, num_frames: Any, tokens: Any, gains: Any, lengths: Any) -> None:
    """Fill `tokens` (batch, beam, 2, frames) with ids and frames, and `gains` likewise; each list is at the end."""
    frames, beam = pointers.shape[1], pointers.shape[2]
    for row in range(len(num_frames)):
        for rank in range(beam):
            at, now = frames, rank
            for frame in range(num_frames[row] - 1, -1, -1):
                pointer = pointers[row, frame, now]
                before = pointer & ((1 << SOURCE_BITS) - 1)
                if pointer >> SOURCE_BITS:
                    at -= 1
                    tokens[row, rank, 0, at] = (pointer >> SOURCE_BITS) - 1
                    tokens[row, rank, 1, at] = frame
                    gains[row, rank, at] = log_probs[row, frame, now]
                now = before
            lengths[row, rank] = frames - at
            for i in range(at):  # what is not there is not to warn of
                gains[row, rank, i] = 0.0


@compiled
def follow(marks: Any, count: Any, lasts: Any, found: Any, first: Any, num_frames: Any) -> Any:
    """Append the tokens of further frames to lists of marks.

    Args:
        marks: (room,) MARK, of which `count` are used; there is room for a token of each hypothesis in each frame.
        lasts: (beam,) int32, the last marks of the hypotheses before these frames, and then after them.
        found: (3, frames, beam) int32, of `StatefulBeamLoop.finish`.
        first: the number of the first frame.

    Returns:
        How many marks there are then.
    """
    before = np.empty_like(lasts)
    for frame in range(num_frames):
        for rank in range(len(lasts)):
            before[rank] = lasts[rank]
        for rank in range(len(lasts)):
            pointer = found[0, frame, rank]
            lasts[rank] = before[pointer & ((1 << SOURCE_BITS) - 1)]
            if pointer >> SOURCE_BITS:
                mark = marks[count]
                mark.token, mark.frame, mark.parent = (pointer >> SOURCE_BITS) - 1, first + frame, lasts[rank]
                mark.span, mark.log_prob = found[1, frame, rank], float_of_bits(found[2, frame, rank])
                lasts[rank] = count
                count += 1
    return count


@compiled
def decide(marks: Any, lasts: Any, ranks: Any, best: Any, before: Any) -> Any:
    """Which hypotheses `ranks` begin with the tokens that `best` has before a frame; they take over their times.

    As `pruning.decide` does with those of a search on the host.
    """
    keeps = np.ones(len(ranks), dtype=np.bool_)
    final = np.int64(lasts[best])
    while final >= 0 and marks[final].frame >= before:
        final = np.int64(marks[final].parent)
    length = length_of(marks, final)
    if length == 0:
        return keeps
    for i in range(len(ranks)):
        mark = graft(marks, np.int64(lasts[ranks[i]]), final, length)
        keeps[i] = mark >= 0
        if mark >= 0:
            lasts[ranks[i]] = mark
    return keeps


@compiled
def drop(marks: Any, count: Any, lists: Any, settled: Any) -> Any:
    """As `compact`; the last token that all lists share stays."""
    return compact(marks, count, lists, settled, True)
