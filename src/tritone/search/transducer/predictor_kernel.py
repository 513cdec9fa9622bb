"""The compiled part of `PredictorCache`: a hash table from contexts to rows of a table of vectors.

`keys` (room, context_size) are the contexts of the rows, `slots` the hash table: a row or -1; a power of two slots, at
least twice as many as rows. `found` says where each context is: its row, or -1 - n for the n-th one that is missing.
"""

from typing import Any

import numpy as np

from tritone.search.compiled.compiler import compiled, inlined


@inlined
def _slot(keys: Any, slots: Any, context: Any) -> Any:
    """Where the row of a context is in the hash table, or the empty slot where it belongs."""
    mask = len(slots) - 1
    mixed = np.uint64(0)
    for i in range(len(context)):
        mixed = (mixed ^ np.uint64(context[i])) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    at = np.int64(mixed & np.uint64(mask))
    while slots[at] >= 0:
        same = True
        for i in range(len(context)):
            same = same and keys[slots[at], i] == context[i]
        if same:
            break
        at = (at + 1) & mask
    return at


@compiled
def look_up(contexts: Any, keys: Any, slots: Any, found: Any, missing: Any) -> Any:
    """Fill `found` (rows,); the first of `missing` (rows,) are the places of the distinct missing contexts.

    Returns:
        How many are missing.
    """
    count = np.int64(0)
    for row in range(len(contexts)):
        found[row] = slots[_slot(keys, slots, contexts[row])]
        count += found[row] < 0
    if count == 0:
        return count
    size = 2
    while size < 2 * count:
        size *= 2
    seen = np.full(size, -1, dtype=np.int32)  # rows of `contexts`
    count = np.int64(0)
    for row in range(len(contexts)):
        if found[row] >= 0:
            continue
        at = _slot(contexts, seen, contexts[row])
        if seen[at] < 0:
            seen[at] = row
            missing[count] = row
            count += 1
            found[row] = -count
        else:
            found[row] = found[seen[at]]
    return count


@compiled
def add(contexts: Any, vectors: Any, keys: Any, table: Any, slots: Any, count: Any) -> Any:
    """Append contexts and their vectors unless they are there already; returns how many rows there are now."""
    for row in range(len(contexts)):
        at = _slot(keys, slots, contexts[row])
        if slots[at] >= 0:
            continue
        slots[at] = count
        for i in range(keys.shape[1]):  # loops compile faster than slices
            keys[count, i] = contexts[row, i]
        for i in range(table.shape[1]):
            table[count, i] = vectors[row, i]
        count += 1
    return count


@compiled
def index(keys: Any, count: Any, slots: Any) -> None:
    """Fill the hash table again."""
    slots[:] = -1
    for row in range(count):
        slots[_slot(keys, slots, keys[row])] = row
