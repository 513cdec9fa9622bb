"""Cutting a row of things into calls, one after the other, that cost least together.

count, the calls that may begin at each place  ->  the calls to make
"""

import math
from collections.abc import Callable, Iterable
from typing import TypeVar

Size = TypeVar("Size")


def cheapest_cuts(
    count: int, options: Callable[[int], Iterable[tuple[float, int, Size]]]
) -> list[tuple[int, int, Size]]:
    """Choose calls for all of `count` things.

    Args:
        options: the calls that may begin with a thing, at least one: the cost of each, where it ends, and its size. It
            is asked for the last thing first. Of calls that cost the same the first is taken.

    Returns:
        Of each call its first thing, its end, and its size, in order.
    """
    # Of the things from each one on: what they cost at least, and the call that begins there.
    least = [0.0] * (count + 1)
    taken: list[tuple[int, Size]] = []
    for first in range(count - 1, -1, -1):
        best = math.inf
        for cost, end, size in options(first):
            if cost + least[end] < best:
                best, chosen = cost + least[end], (end, size)
        least[first] = best
        taken.append(chosen)
    cuts, first = [], 0
    while first < count:
        end, size = taken[count - 1 - first]
        cuts.append((first, end, size))
        first = end
    return cuts
