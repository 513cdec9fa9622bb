"""Compiled work on trees of prefixes: finding and adding nodes, and dropping those that no prefix alive needs."""

from typing import Any, NamedTuple

import numba
import numpy as np

from tritone.search.beam.marks import compact, graft, length_of
from tritone.search.beam.records import MARK, NODE, PREFIX, TREE
from tritone.search.compiled.addresses import float64s, int32s, pointer_to
from tritone.search.compiled.compiler import compiled, inlined, merged
from tritone.search.scoring.scorer import finish

_trees_at = pointer_to(numba.from_dtype(TREE))
_nodes_at = pointer_to(numba.from_dtype(NODE))
_marks_at = pointer_to(numba.from_dtype(MARK))
_prefixes_at = pointer_to(numba.from_dtype(PREFIX))


class Tree(NamedTuple):
    """A `TREE` and its arrays, as compiled code sees them; their shapes are told there."""

    search: Any
    nodes: Any
    states: Any
    closings: Any
    slots: Any
    marks: Any
    prefixes: Any


@inlined
def search_at(address: Any) -> Any:
    """The `TREE` at an address."""
    return numba.carray(_trees_at(address), (1,))[0]


@numba.njit(inline="always")  # numba cannot return a tuple with a record
def tree_at(address: Any) -> Any:
    """The `Tree` of the record at an address."""
    search = search_at(address)
    return Tree(
        search,
        numba.carray(_nodes_at(search.nodes), (search.nodes_room,)),
        numba.carray(int32s(search.states), (search.nodes_room, 2, search.state_size)),
        numba.carray(float64s(search.closings), (search.nodes_room, search.num_closings)),
        numba.carray(int32s(search.slots), (search.slots_room,)),
        numba.carray(_marks_at(search.marks), (search.marks_room,)),
        numba.carray(_prefixes_at(search.prefixes), (2, search.beam)),
    )


@inlined
def hash_of(a: Any, b: Any, mask: Any) -> Any:
    mixed = np.uint64(a) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(b) * np.uint64(0xC2B2AE3D27D4EB4F)
    return np.int64((mixed ^ (mixed >> np.uint64(29))) & np.uint64(mask))


@merged
def child_slot(tree: Any, parent: Any, token: Any) -> Any:
    """Where the child of `parent` with `token` is in the hash table, or the empty slot where it belongs."""
    mask = len(tree.slots) - 1
    at = hash_of(np.int64(parent), np.int64(token), mask)
    while tree.slots[at] >= 0:
        node = tree.slots[at]
        if tree.nodes[node].parent == parent and tree.nodes[node].token == token:
            break
        at = (at + 1) & mask
    return at


@merged
def add_child(tree: Any, slot: Any, parent: Any, token: Any, bonus: Any) -> Any:
    """Add the node of `parent` and `token`, which belongs into `slot`."""
    own = tree.search.num_nodes
    tree.search.num_nodes += 1
    tree.slots[slot] = own
    node = tree.nodes[own]
    node.token, node.parent, node.rank, node.bonus = token, parent, -1, bonus
    return own


@merged
def add_mark(tree: Any, token: Any, frame: Any, log_prob: Any, parent: Any) -> Any:
    """Append a mark; returns its index."""
    own = tree.search.num_marks
    tree.search.num_marks += 1
    mark = tree.marks[own]
    mark.token, mark.frame, mark.log_prob, mark.parent, mark.span = token, frame, log_prob, parent, 1
    return own


@compiled
def make_room(address: Any, settled: Any) -> Any:
    """Move the nodes and marks that are still needed to the front; `index_nodes` must follow.

    Tokens whose times are the same in every prefix alive are settled: their marks are moved to `settled`, which has
    room for all.

    Returns:
        How many marks were settled.
    """
    tree = tree_at(address)
    search = tree.search
    alive = tree.prefixes[search.side][: search.num_prefixes]
    _drop_nodes(tree, alive)
    lists = np.empty(2 * len(alive), dtype=np.int32)
    count = np.int64(0)
    for rank in range(len(alive)):
        prefix = alive[rank]
        if prefix.best_blank > -np.inf:
            lists[count] = prefix.blank_mark
            count += 1
        if prefix.best_token > -np.inf:
            lists[count] = prefix.token_mark
            count += 1
    search.num_marks, num_settled = compact(tree.marks, search.num_marks, lists[:count], settled, True)
    count = np.int64(0)
    for rank in range(len(alive)):
        prefix = alive[rank]
        if prefix.best_blank > -np.inf:
            prefix.blank_mark = lists[count]
            count += 1
        if prefix.best_token > -np.inf:
            prefix.token_mark = lists[count]
            count += 1
    return num_settled


@merged
def _drop_nodes(tree: Any, alive: Any) -> None:
    nodes, states, closings, count = tree.nodes, tree.states, tree.closings, tree.search.num_nodes
    uses = np.zeros(count, dtype=np.int32)
    for rank in range(len(alive)):
        uses[alive[rank].node] += 1
    base = -1
    for node in range(count - 1, -1, -1):
        if uses[node] == len(alive) and base < 0:
            base = node  # all prefixes begin with it, so nothing before it can be reached again
        if nodes[node].parent >= 0:
            uses[nodes[node].parent] += uses[node]
    moved = np.empty(count, dtype=np.int32)
    kept = np.int64(0)
    for node in range(base, count):
        if uses[node] > 0:
            moved[node] = kept
            nodes[kept] = nodes[node]
            for i in range(states.shape[2]):  # loops compile faster than slices
                states[kept, 0, i] = states[node, 0, i]
                states[kept, 1, i] = states[node, 1, i]
            for i in range(closings.shape[1]):
                closings[kept, i] = closings[node, i]
            nodes[kept].parent = -1 if node == base else moved[nodes[node].parent]
            kept += 1
    tree.search.num_nodes = kept
    for rank in range(len(alive)):
        alive[rank].node = moved[alive[rank].node]


@compiled
def decide(address: Any, best: Any, before: Any) -> None:
    """Keep only the prefixes that begin with the tokens which prefix number `best` has before frame `before`.

    They take over the times of these tokens too, so that all lists of times share their marks. A list whose next token
    comes before the last of these cannot; the prefix's other list stands for it then, and without one the prefix is
    dropped.
    """
    tree = tree_at(address)
    nodes, marks = tree.nodes, tree.marks
    alive = tree.prefixes[tree.search.side][: tree.search.num_prefixes]
    final = np.int64(alive[best].token_mark)
    if alive[best].best_blank > alive[best].best_token:
        final = np.int64(alive[best].blank_mark)
    while final >= 0 and marks[final].frame >= before:
        final = np.int64(marks[final].parent)
    length = length_of(marks, final)
    if length == 0:
        return
    kept = np.int64(0)
    for rank in range(len(alive)):
        prefix = alive[rank]
        nodes[prefix.node].rank = -1
        blank_mark = graft(marks, prefix.blank_mark, final, length)
        token_mark = graft(marks, prefix.token_mark, final, length)
        if blank_mark < 0 and token_mark < 0:
            continue
        if blank_mark < 0 and prefix.best_blank > -np.inf:
            blank_mark = token_mark
        if token_mark < 0 and prefix.best_token > -np.inf:
            token_mark = blank_mark
        nodes[prefix.node].rank = kept
        alive[kept] = prefix
        alive[kept].blank_mark, alive[kept].token_mark = blank_mark, token_mark
        kept += 1
    tree.search.num_prefixes = kept


@compiled
def index_nodes(address: Any) -> None:
    """Fill the hash table of children; it has room for at least twice the nodes."""
    tree = tree_at(address)
    tree.slots[:] = -1
    for node in range(tree.search.num_nodes):
        parent, token = np.int64(tree.nodes[node].parent), np.int64(tree.nodes[node].token)
        if parent >= 0:
            tree.slots[child_slot(tree, parent, token)] = node


@compiled
def finish_all(address: Any, bonuses: Any) -> None:
    """Fill `bonuses` with what the scorer adds to each prefix alive when nothing follows any more."""
    tree = tree_at(address)
    for rank in range(tree.search.num_prefixes):
        node = tree.prefixes[tree.search.side, rank].node
        bonuses[rank] = finish(tree.search.scorer, tree.states[node, 0])
