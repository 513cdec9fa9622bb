"""Where in the audio each token of a text is, from the attention of heads that follow the audio.

    scores (heads, tokens, positions)  ->  for each token the position at which it begins

Weights of each head are normalised over the tokens, smoothed over time and averaged; the path through them that goes
on in both directions and has the most weight is found by dynamic time warping.
Source: openai/whisper whisper/timing.py.
"""

import numpy as np
import numpy.typing as npt

MEDIAN_WIDTH = 7  # positions

Matrix = npt.NDArray[np.float64]
Array = npt.NDArray[np.float32]


def token_starts(scores: Array, first: int) -> npt.NDArray[np.int64]:
    """The position at which each token begins.

    Args:
        scores: (heads, tokens, positions) before softmax, positions of the recording alone; tokens of the whole text,
            its start and its end included.
        first: the first token that is aligned; all from it on are, but the last.

    Returns:
        (tokens - first - 1,) int64, never falling.
    """
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    deviation = weights.std(axis=-2, keepdims=True)
    # Of a position that every token attends to alike, which says nothing, the deviation is 0.
    weights = (weights - weights.mean(axis=-2, keepdims=True)) / np.where(deviation > 0, deviation, 1.0)
    return starts_in(_median(weights).mean(axis=0)[first:-1])


def starts_in(matrix: Array) -> npt.NDArray[np.int64]:
    """The position at which each row begins, never falling: rows (tokens, positions) are how much each attends."""
    rows, columns = warp(-matrix.astype(np.float64))
    begins = np.concatenate([[True], np.diff(rows) > 0])
    return columns[begins]


def warp(cost: Matrix) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The cheapest path from the first to the last corner of a matrix: its rows and its columns, neither ever falling.

    A step goes on in both directions only if that is cheaper than in either one.
    """
    rows, columns = cost.shape
    total = np.full((rows + 1, columns + 1), np.inf)
    total[0, 0] = 0
    for row, line in enumerate(cost):
        # To come from above at some column and go right from there costs what lies between, a difference of sums.
        sums = line.cumsum()
        above = np.minimum(total[row, :-1], total[row, 1:])
        total[row + 1, 1:] = sums + np.minimum.accumulate(above - (sums - line))
    row, column = rows, columns
    path = []
    while row > 0 and column > 0:
        path.append((row - 1, column - 1))
        both, down, right = total[row - 1, column - 1], total[row - 1, column], total[row, column - 1]
        goes_down = (both < down and both < right) or (down < both and down < right)
        goes_right = not (down < both and down < right)
        row, column = row - goes_down, column - goes_right
    found = np.array(path[::-1], np.int64)
    return found[:, 0], found[:, 1]


def _median(weights: Array) -> Array:
    """The median of each position and those around it, mirrored at the ends."""
    pad = MEDIAN_WIDTH // 2
    if weights.shape[-1] <= pad:
        return weights
    padded = np.pad(weights, ((0, 0), (0, 0), (pad, pad)), mode="reflect")
    result: Array = np.median(np.lib.stride_tricks.sliding_window_view(padded, MEDIAN_WIDTH, axis=-1), axis=-1)
    return result
