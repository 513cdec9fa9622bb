"""What a frame's logits are worth: their largest and their sum, in the compiled code of searches.

    log_softmax(logits / temperature)[token] = (logits[token] - largest) / temperature - ln(sum)

The exponentials of a whole vocabulary are most of what a beam search computes, so they are written such that the
compiler makes vector instructions of them: about 0.2 ns each.
"""

import math
from typing import Any

import numpy as np

from tritone.search.compiled.addresses import float_of_bits
from tritone.search.compiled.compiler import inlined, summing
from tritone.search.compiled.ranks import LOWEST, float_of, largest_rank

BLOCK = 64  # tokens whose largest logit is kept
_LOG2_E = np.float32(1.4426950408889634)
# Of 2^x for x in -0.5..0.5: the polynomial whose relative error at Chebyshev nodes is least, 8e-8 at most.
_C0, _C1, _C2, _C3, _C4, _C5 = (
    np.float32(c) for c in (1.00000007, 0.69314695, 0.24022122, 0.05550743, 0.00967546, 0.0013266970)
)


@inlined
def block_ranks(bits: Any, blocks: Any) -> Any:
    """Fill `blocks` with the largest rank of every `BLOCK` logits; returns the largest of all."""
    best = LOWEST
    for number in range(len(blocks)):
        blocks[number] = largest_rank(bits[number * BLOCK : (number + 1) * BLOCK])
        best = max(best, blocks[number])
    return best


@summing
def sum_exp(row: Any, largest: Any, temperature: Any) -> Any:
    """The sum of e^((x - largest) / temperature) over logits x; those that are NaN or above it are left out."""
    scale = np.float32(_LOG2_E / np.float32(temperature))
    total = np.float32(0.0)
    for at in range(len(row)):
        x = row[at]
        power = max((min(x, largest) - largest) * scale, np.float32(-126.0))
        whole = np.int32(power - np.float32(0.5))  # towards zero, so the nearest integer
        f = power - np.float32(whole)
        value = _C0 + f * (_C1 + f * (_C2 + f * (_C3 + f * (_C4 + f * _C5))))
        value *= float_of_bits(np.int32((whole + np.int32(127)) << np.int32(23)))
        total += value if x <= largest else np.float32(0.0)
    return total


@inlined
def log_sum(row: Any, largest: Any, temperature: Any) -> Any:
    """ln of `sum_exp`, which is at least ln 1."""
    return math.log(sum_exp(row, largest, temperature))


@inlined
def normalise(row: Any, bits: Any, blocks: Any, blank_id: Any, search: Any) -> Any:
    """Subtract the blank's penalty from logits, given with their bits, and fill `blocks` with their `block_ranks`.

    Args:
        search: a record with `blank_penalty` and `temperature`.

    Returns:
        The largest logit, and its log-probability: -inf if all logits are ruled out.
    """
    if search.blank_penalty != 0.0:
        row[blank_id] = np.float32(row[blank_id] - search.blank_penalty)
    rank = block_ranks(bits, blocks)
    if rank == LOWEST or float_of(rank) == -np.inf:
        return np.float32(-np.inf), -np.inf
    largest = float_of(rank)
    return largest, -log_sum(row, largest, search.temperature)
