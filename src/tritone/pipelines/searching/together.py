"""Outputs of several calls of a network as those of one, so that a search asks its own graphs once for all of them.

outputs of each call  ->  groups of calls, each with outputs (rows, frames, …)
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from tritone.runtime.graph import Array

Outputs = Mapping[str, Array]

MOST_PADDED = 1.5  # what a group may take, in frames that its calls have


def together(calls: Sequence[Outputs]) -> Iterator[tuple[list[int], Outputs]]:
    """Join the outputs of calls, whose rows are utterances.

    Args:
        calls: each with the same names: (rows, frames, …) of any number of frames, or (rows,).

    Yields:
        The indices of some calls, and their outputs, whose rows are those of the calls in this order. Frames that a
        call does not have are zeros; where these would be more than a third of a group, calls are in several.
    """
    longest_first = sorted(range(len(calls)), key=lambda index: -_size(calls[index])[1])
    group: list[int] = []
    for index in longest_first:
        sizes = [_size(calls[each]) for each in (*group, index)]
        padded = sum(rows for rows, _ in sizes) * sizes[0][1]
        if group and padded > MOST_PADDED * sum(rows * frames for rows, frames in sizes):
            yield group, _joined([calls[each] for each in group])
            group = []
        group.append(index)
    if group:
        yield group, _joined([calls[each] for each in group])


def _size(call: Outputs) -> tuple[int, int]:
    """Rows and frames of a call."""
    shape = max((array.shape for array in call.values()), key=len)
    return shape[0], shape[1] if len(shape) > 1 else 1


def _joined(calls: Sequence[Outputs]) -> Outputs:
    return calls[0] if len(calls) == 1 else {name: _stacked([call[name] for call in calls]) for name in calls[0]}


def _stacked(arrays: Sequence[Array]) -> Array:
    """All rows of some arrays, those longest in the second axis first."""
    if arrays[0].ndim == 1:
        return np.concatenate(arrays)
    stacked = np.zeros((sum(map(len, arrays)), *arrays[0].shape[1:]), arrays[0].dtype)
    start = 0
    for array in arrays:
        stacked[start : start + len(array), : array.shape[1]] = array
        start += len(array)
    return stacked
