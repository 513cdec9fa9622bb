"""What may be in the beam after a frame: candidates, the best of them in a heap, and a heap of those not scored yet."""

from typing import Any

import numpy as np

from tritone.search.compiled.compiler import inlined

# What may be a prefix after this frame, before it is chosen. `node` is -1 for one that is not in the tree yet: it is
# prefix number `source` and the frame's token number `place`. `order`: of its first mention, which decides ties.
CANDIDATE = np.dtype(
    [
        ("blank", np.float64),
        ("token", np.float64),
        ("score", np.float64),
        ("total", np.float64),
        ("best_blank", np.float64),
        ("best_token", np.float64),
        ("order", np.int64),
        ("node", np.int32),
        ("source", np.int32),
        ("place", np.int32),
        ("blank_mark", np.int32),
        ("token_mark", np.int32),
        ("timing", np.int32),
    ],
    align=True,
)

# How the list of times of a candidate that ends in a token comes about: not at all; the source's with the last token
# moved to this frame; the source's with a token of this frame added.
NONE, MOVED, ADDED = range(3)


@inlined
def worse(candidates: Any, a: Any, b: Any) -> Any:
    if candidates[a].total != candidates[b].total:
        return candidates[a].total < candidates[b].total
    return candidates[a].order > candidates[b].order


@inlined
def sift_down(candidates: Any, heap: Any, size: Any, at: Any) -> None:
    """Restore a heap with the worst candidate on top, of which only the one at `at` may be misplaced."""
    moved = heap[at]
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and worse(candidates, heap[child + 1], heap[child]):
            child += 1
        if not worse(candidates, heap[child], moved):
            break
        heap[at] = heap[child]
        at = child
    heap[at] = moved


@inlined
def sift_up(candidates: Any, heap: Any, at: Any) -> None:
    moved = heap[at]
    while at > 0 and worse(candidates, moved, heap[(at - 1) // 2]):
        heap[at] = heap[(at - 1) // 2]
        at = (at - 1) // 2
    heap[at] = moved


@inlined
def consider(
    candidates: Any, heap: Any, size: Any, score: Any, best: Any, mark: Any, total: Any, order: Any, i: Any, j: Any
) -> Any:
    """Let prefix `i` with the frame's token number `j` into the beam if it is good enough.

    Returns:
        Its place among the candidates, whose `node` is left to the caller, or -1.
    """
    if not total > -np.inf:
        return -1
    at = size
    if size == len(heap):
        at = np.int64(heap[0])
        worst = candidates[at]
        if total < worst.total or (total == worst.total and order > worst.order):
            return -1
    out = candidates[at]
    out.blank, out.best_blank, out.blank_mark = -np.inf, -np.inf, -1
    out.token, out.best_token, out.token_mark, out.timing = score, best, mark, ADDED
    out.score, out.total, out.order = score, total, order
    out.source, out.place = i, j
    if size == len(heap):
        sift_down(candidates, heap, size, np.int64(0))
    else:
        heap[size] = size
        sift_up(candidates, heap, size)
    return at


@inlined
def pop(bounds: Any, pending: Any, size: Any) -> Any:
    """Take the largest from a heap of `size` places in `bounds`."""
    top = pending[0]
    pending[0] = pending[size - 1]
    sink(bounds, pending, size - 1, np.int64(0))
    return top


@inlined
def sink(bounds: Any, pending: Any, size: Any, at: Any) -> None:
    """Restore a heap with the largest on top, of which only the one at `at` may be misplaced."""
    moved = pending[at]
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and bounds[pending[child + 1]] > bounds[pending[child]]:
            child += 1
        if not bounds[pending[child]] > bounds[moved]:
            break
        pending[at] = pending[child]
        at = child
    pending[at] = moved
