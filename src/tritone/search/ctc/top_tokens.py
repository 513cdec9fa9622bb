"""The compiled part of `top_tokens`: the best tokens of each frame, in little more than one pass over the vocabulary.

rows (frames, vocab) float32, k  ->  ids (frames, k) int32, values (frames, k) float32, best first
"""

from typing import Any

import numpy as np

from tritone.search.compiled.compiler import compiled, inlined

_LOWEST = np.int32(-(2**31))
_INFINITY = np.int32(0x7F800000)  # the bits of +inf; NaN lie above
_MAGNITUDE = np.int32(0x7FFFFFFF)  # all bits but the sign
_LOW_BITS = np.int64(0xFFFFFFFF)


@inlined
def _rank(bits: Any) -> Any:
    """A number that is ordered as the float32 with these bits is; NaN is lowest.

    Integers, because the compiler makes vector instructions of a search for their largest. Of floats it does not.
    """
    ordered = bits ^ ((bits >> np.int32(31)) & _MAGNITUDE)
    return ordered if ordered <= _INFINITY else _LOWEST


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
def _sort_descending(keys: Any, count: Any) -> None:
    """Sort the first `count`: by insertion while they are few, else by a heap with the smallest on top."""
    if count <= 32:
        for i in range(1, count):
            key, at = keys[i], i
            while at > 0 and keys[at - 1] < key:
                keys[at] = keys[at - 1]
                at -= 1
            keys[at] = key
        return
    for start in range(count // 2 - 1, -1, -1):
        _sift(keys, count, start)
    for end in range(count - 1, 0, -1):
        keys[0], keys[end] = keys[end], keys[0]
        _sift(keys, end, np.int64(0))


@inlined
def _sift(keys: Any, size: Any, at: Any) -> None:
    moved = keys[at]
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and keys[child + 1] < keys[child]:
            child += 1
        if keys[child] >= moved:
            break
        keys[at] = keys[child]
        at = child
    keys[at] = moved


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
            best = _LOWEST
            for at in range(len(part)):
                best = max(best, _rank(part[at]))
            largest[number] = best
        bound = _LOWEST
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
        _sort_descending(keys, count)
        for place in range(k):
            id = _LOW_BITS - (keys[place] & _LOW_BITS)
            ids[frame, place] = id
            values[frame, place] = row[id]
