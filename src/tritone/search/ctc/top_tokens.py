"""The compiled part of `top_tokens`: the best tokens of each frame, in little more than one pass over the vocabulary.

rows (frames, vocab) float32, k  ->  ids (frames, k) int32, values (frames, k) float32, best first
"""

from typing import Any

import numpy as np

from tritone.search.compiled.compiler import compiled, inlined
from tritone.search.compiled.heap import heap_of
from tritone.search.compiled.ranks import INFINITY, LOWEST, ordered

_LOW_BITS = np.int64(0xFFFFFFFF)


@inlined
def _rank(bits: Any) -> Any:
    """An integer that is ordered as the float32 with these bits is; NaN is lowest."""
    rank = ordered(bits)
    return rank if rank <= INFINITY else LOWEST


@inlined
def _kth_largest(values: Any, k: Any) -> Any:
    """The k-th largest (from 1) of at least k integers, by quickselect; `values` are reordered."""
    low, high, target = 0, len(values) - 1, k - 1
    while low < high:
        pivot = values[(low + high) // 2]
        left, right = low, high
        while left <= right:
            while values[left] > pivot:
                left += 1
            while values[right] < pivot:
                right -= 1
            if left <= right:
                values[left], values[right] = values[right], values[left]
                left += 1
                right -= 1
        if target <= right:
            high = right
        elif target >= left:
            low = left
        else:
            break
    return values[target]


@inlined
def _lower(_: Any, a: Any, b: Any) -> Any:
    return a < b


_sort = heap_of(_lower).sort  # largest first


@compiled
def top_rows(rows: Any, ids: Any, values: Any) -> None:
    """Fill `ids` and `values` (frames, k); 1 <= k <= vocab.

    Args:
        rows: (frames, vocab) int32, the bits of float32 numbers.
        ids, values: (frames, k) int32, where the result goes; values are bits like `rows`.

    The row is cut into blocks, and the largest of each found. At least k tokens reach the k-th largest of these, so
    only the blocks whose largest reaches it can hold one of the k best, and only they are looked at again.
    """
    k, vocab = ids.shape[1], rows.shape[1]
    block = 64 if k <= vocab // 256 else 16
    num_blocks = (vocab + block - 1) // block
    largest, scratch = np.empty(num_blocks, dtype=np.int32), np.empty(num_blocks, dtype=np.int32)
    keys = np.empty(k * block + k, dtype=np.int64)
    for frame in range(rows.shape[0]):
        row = rows[frame]
        for number in range(num_blocks):
            part = row[number * block : (number + 1) * block]
            best = LOWEST
            for at in range(len(part)):
                best = max(best, _rank(part[at]))
            largest[number] = best
        bound = LOWEST
        if k <= num_blocks:
            for number in range(num_blocks):  # a slice assignment would take numba 3 s to compile
                scratch[number] = largest[number]
            bound = _kth_largest(scratch, k)
        count, equal = np.int64(0), 0
        for number in range(num_blocks):
            if largest[number] < bound:
                continue
            for id in range(number * block, min(vocab, (number + 1) * block)):
                value = _rank(row[id])
                if value < bound or (value == bound and equal == k):
                    continue
                equal += value == bound
                keys[count] = (np.int64(value) << 32) | (_LOW_BITS - id)
                count += 1
        _sort(keys, count, keys)
        for place in range(k):
            id = _LOW_BITS - (keys[place] & _LOW_BITS)
            ids[frame, place] = id
            values[frame, place] = row[id]
