"""Integers in the order of floats, in compiled code.

The compiler makes vector instructions of a search for the largest integer, of one for the largest float it does not.
"""

from typing import Any

import numpy as np

from tritone.search.compiled.addresses import float_of_bits
from tritone.search.compiled.compiler import inlined

LOWEST = np.int32(-(2**31))  # rank of a number that is ruled out
INFINITY = np.int32(0x7F800000)  # the bits of +inf, and its rank; NaN lie above or are below all other ranks
_MAGNITUDE = np.int32(0x7FFFFFFF)  # all bits but the sign


@inlined
def ordered(bits: Any) -> Any:
    """An integer that is ordered as the float32 with these bits is, and positive NaN above all."""
    return bits ^ ((bits >> np.int32(31)) & _MAGNITUDE)


@inlined
def rank_of(bits: Any) -> Any:
    """The same, but NaN and +inf are `LOWEST`."""
    rank = ordered(bits)
    return rank if rank < INFINITY else LOWEST


@inlined
def float_of(rank: Any) -> Any:
    """The float32 of a rank that is not `LOWEST`."""
    return float_of_bits(np.int32(ordered(rank)))


@inlined
def largest_rank(bits: Any) -> Any:
    """The largest rank of floats, given by their bits."""
    best = LOWEST
    for at in range(len(bits)):
        best = max(best, rank_of(bits[at]))
    return best
