"""Heaps and sorting in compiled code, for items in any order.

    heap_of(first)  ->  Heap, functions for compiled code

On top of a heap is the item that comes before all others; sorting puts it last. Items are numbers, mostly indices.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tritone.search.compiled.compiler import inlined

FEW = 32  # items that sort faster by insertion


class Heap(NamedTuple):
    """Functions on heaps of one order; `data` is what that order looks items up in."""

    sift_down: Callable[..., None]  # (heap, size, at, data): moves the item at `at` away from the top to its place
    sift_up: Callable[..., None]  # (heap, at, data): moves the item at `at` towards the top to its place
    heapify: Callable[..., None]  # (items, size, data): makes a heap of the first `size` items
    sort_heap: Callable[..., None]  # (heap, size, data): sorts the items of a heap
    sort: Callable[..., None]  # (items, count, data): sorts the first `count` items


def heap_of(first: Callable[..., Any]) -> Heap:
    """The heap of an order: `first(data, a, b)`, a compiled function, is whether item `a` comes before item `b`.

    Not an argument of the functions, because numba could not cache what calls them.
    """

    @inlined
    def sift_down(heap: Any, size: Any, at: Any, data: Any) -> None:
        moved = heap[at]
        while True:
            below = 2 * at + 1
            if below >= size:
                break
            if below + 1 < size and first(data, heap[below + 1], heap[below]):
                below += 1
            if not first(data, heap[below], moved):
                break
            heap[at] = heap[below]
            at = below
        heap[at] = moved

    @inlined
    def sift_up(heap: Any, at: Any, data: Any) -> None:
        moved = heap[at]
        while at > 0 and first(data, moved, heap[(at - 1) // 2]):
            heap[at] = heap[(at - 1) // 2]
            at = (at - 1) // 2
        heap[at] = moved

    @inlined
    def heapify(items: Any, size: Any, data: Any) -> None:
        for at in range(size // 2 - 1, -1, -1):
            sift_down(items, size, at, data)

    @inlined
    def sort_heap(heap: Any, size: Any, data: Any) -> None:
        for end in range(size - 1, 0, -1):
            heap[0], heap[end] = heap[end], heap[0]
            sift_down(heap, end, np.int64(0), data)  # numba would compile it once more for the literal 0

    @inlined
    def sort(items: Any, count: Any, data: Any) -> None:
        if count > FEW:
            heapify(items, count, data)
            sort_heap(items, count, data)
            return
        for i in range(1, count):
            moved, at = items[i], i
            while at > 0 and first(data, items[at - 1], moved):
                items[at] = items[at - 1]
                at -= 1
            items[at] = moved

    return Heap(sift_down, sift_up, heapify, sort_heap, sort)
