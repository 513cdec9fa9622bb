"""Tries over symbols in three flat arrays, for compiled look-ups.

sequences of symbols, sorted  ->  nodes in breadth-first order, so that the children of a node lie side by side
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tritone.search.compiled.addresses import int32s
from tritone.search.compiled.compiler import compiled, inlined

Ids = npt.NDArray[np.int32]
Places = npt.NDArray[np.int64]


class Trie(NamedTuple):
    """Node 0 is the root; the children of node n are first[n] to first[n + 1], by ascending `symbol`."""

    first: Ids  # (nodes + 1,)
    symbol: Ids  # (nodes,), on the way to a node
    parent: Ids  # (nodes,)


def grow(symbols: Ids, first: Places, order: Places) -> tuple[Trie, Ids]:
    """Make the trie of the sequences symbols[first[i]:first[i + 1]].

    Args:
        order: the sequences to take, in lexicographic order; the same sequence may come several times.

    Returns:
        The trie, and the node at which each sequence of `order` ends.
    """
    most = int((first[order + 1] - first[order]).sum()) + 1
    children, symbol, parent, ends, count = _grow(symbols, first, order, most)
    return Trie(children[: count + 1].copy(), symbol[:count].copy(), parent[:count].copy()), ends


@compiled
def _grow(symbols: Ids, first: Places, order: Places, most: Any) -> tuple[Ids, Ids, Ids, Ids, int]:
    children = np.zeros(most + 1, dtype=np.int32)
    symbol = np.zeros(most, dtype=np.int32)
    parent = np.zeros(most, dtype=np.int32)
    low = np.zeros(most, dtype=np.int64)  # the sequences that go through a node, as places in `order`
    high = np.zeros(most, dtype=np.int64)
    depth = np.zeros(most, dtype=np.int32)
    ends = np.zeros(len(order), dtype=np.int32)
    high[0] = len(order)
    count = 1
    node = 0
    while node < count:
        children[node] = count
        at = low[node]
        while at < high[node] and first[order[at]] + depth[node] == first[order[at] + 1]:
            ends[at] = node  # the shortest come first
            at += 1
        while at < high[node]:
            begin = at
            edge = symbols[first[order[at]] + depth[node]]
            while at < high[node] and symbols[first[order[at]] + depth[node]] == edge:
                at += 1
            symbol[count] = edge
            parent[count] = node
            low[count] = begin
            high[count] = at
            depth[count] = depth[node] + 1
            count += 1
        node += 1
    children[count] = count
    return children, symbol, parent, ends, count


@inlined
def child(first: Any, symbols: Any, node: Any, symbol: Any) -> Any:
    """The child of a node by a symbol, -1 if there is none. `first` and `symbols` are addresses of a trie's arrays."""
    low = np.int64(int32s(first)[node])
    end = np.int64(int32s(first)[node + 1])
    high = end
    while low < high:
        middle = (low + high) >> 1
        if int32s(symbols)[middle] < symbol:
            low = middle + 1
        else:
            high = middle
    if low < end and int32s(symbols)[low] == symbol:
        return low
    return np.int64(-1)
