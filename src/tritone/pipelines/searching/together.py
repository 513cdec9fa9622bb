"""Outputs of several calls of a network as those of one, so that a search asks its own graphs once for all of them.

outputs of each call  ->  groups of utterances, each with outputs (rows, frames, …)
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from tritone.pipelines.graphs.batching import EVERY_LENGTH, BatchLimits, plan_batches
from tritone.runtime.graph import Array

Outputs = Mapping[str, Array]

# Of a group, in frames: where more than a third would be padding, there are several. An utterance of an hour among
# short ones would make all of them an hour long.
LIMITS = BatchLimits(
    max_batch=2**30, max_padded_s=math.inf, max_square_s2=math.inf, max_waste=1 / 3, steps_per_octave=EVERY_LENGTH
)


def together(calls: Sequence[Outputs]) -> Iterator[tuple[Sequence[int], Outputs]]:
    """Join the outputs of calls, whose rows are utterances.

    Args:
        calls: each with `num_frames` (rows,) and further outputs, (rows, frames, …) of any number of frames or (rows,).

    Yields:
        The indices of some utterances, counted over all calls, and their outputs in this order. Frames that an
        utterance does not have are zeros or anything.
    """
    places = [(call, row) for call in calls for row in range(len(call["num_frames"]))]
    for batch in plan_batches([int(call["num_frames"][row]) for call, row in places], LIMITS, sample_rate=1):
        members = [places[index] for index in batch.indices]
        yield (
            batch.indices,
            {name: _stacked([call[name][row] for call, row in members], batch.num_samples) for name in calls[0]},
        )


def _stacked(rows: Sequence[Array], frames: int) -> Array:
    """Rows (frames, …) of any number of frames as (rows, frames, …); numbers as (rows,)."""
    if np.ndim(rows[0]) == 0:
        return np.array(rows)
    stacked = np.zeros((len(rows), frames, *rows[0].shape[1:]), rows[0].dtype)
    for given, row in zip(rows, stacked, strict=True):
        row[: len(given)] = given[:frames]
    return stacked
