"""Reading what `device.modified_beam` found: back-pointers to token rows, in compiled code.

log-probabilities (batch, beam), back-pointers (batch, frames, beam)  ->  hypotheses of each row, best first
"""

from typing import Any

import numpy as np
import numpy.typing as npt

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
