"""Room for a prefix beam search: dropping what no prefix alive needs, and deciding what has been open for too long."""

from typing import Any

import numpy as np

from tritone.search.beam.records import NUM_MARKS, NUM_NODES, NUM_PREFIXES, SIDE, child_slot
from tritone.search.compiled.compiler import compiled, inlined

ASTRAY = -2  # in place of a mark: the list cannot be what was wanted


@compiled
def make_room(nodes: Any, states: Any, closings: Any, marks: Any, prefixes: Any, counters: Any, settled: Any) -> Any:
    """Move the nodes and marks that are still needed to the front; `index_nodes` must follow.

    Tokens whose times are the same in every prefix alive are settled: their marks are moved to `settled`, as long as
    `marks`.

    Returns:
        How many marks were settled.
    """
    alive = prefixes[counters[SIDE]][: counters[NUM_PREFIXES]]

    count = counters[NUM_NODES]
    uses = np.zeros(max(count, counters[NUM_MARKS]), dtype=np.int32)
    for rank in range(len(alive)):
        uses[alive[rank].node] += 1
    base = -1
    for node in range(count - 1, -1, -1):
        if uses[node] == len(alive) and base < 0:
            base = node  # all prefixes begin with it, so nothing before it can be reached again
        if nodes[node].parent >= 0:
            uses[nodes[node].parent] += uses[node]
    moved = np.empty(len(uses), dtype=np.int32)
    kept = 0
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
    counters[NUM_NODES] = kept
    for rank in range(len(alive)):
        alive[rank].node = moved[alive[rank].node]

    count = counters[NUM_MARKS]
    uses[:] = 0
    lists, empty = 0, False
    for rank in range(len(alive)):
        prefix = alive[rank]
        for best, mark in ((prefix.best_blank, prefix.blank_mark), (prefix.best_token, prefix.token_mark)):
            if best > -np.inf:
                lists += 1
                if mark >= 0:
                    uses[mark] += 1
                else:
                    empty = True
    common = -1
    for mark in range(count - 1, -1, -1):
        if uses[mark] == lists and common < 0 and not empty:
            common = mark
        if marks[mark].parent >= 0:
            uses[marks[mark].parent] += uses[mark]
    # The last token that all lists share may still move in time. Those before it cannot.
    num_settled = 0
    if common >= 0:
        mark = marks[common].parent
        while mark >= 0:
            num_settled += 1
            mark = marks[mark].parent
        at, mark = num_settled, marks[common].parent
        while mark >= 0:
            at -= 1
            settled[at] = marks[mark]
            mark = marks[mark].parent
    kept = 0
    for mark in range(max(common, 0), count):
        if uses[mark] > 0:
            moved[mark] = kept
            marks[kept] = marks[mark]
            before = marks[mark].parent
            marks[kept].parent = -1 if before < 0 or mark == common else moved[before]
            kept += 1
    counters[NUM_MARKS] = kept
    for rank in range(len(alive)):
        prefix = alive[rank]
        if prefix.blank_mark >= 0:
            prefix.blank_mark = moved[prefix.blank_mark]
        if prefix.token_mark >= 0:
            prefix.token_mark = moved[prefix.token_mark]
    return num_settled


@compiled
def decide(nodes: Any, marks: Any, prefixes: Any, counters: Any, best: Any, before: Any) -> None:
    """Make final what prefix number `best` says before frame `before`: drop the prefixes that say something else.

    The others take over the times of these tokens too, so that all lists of times share their marks. A list whose next
    token comes before the last of these cannot; the prefix's other list stands for it then, and without one the prefix
    is dropped.
    """
    alive = prefixes[counters[SIDE]][: counters[NUM_PREFIXES]]
    mark = alive[best].blank_mark if alive[best].best_blank > alive[best].best_token else alive[best].token_mark
    node = np.int64(alive[best].node)
    while mark >= 0 and marks[mark].frame >= before:
        mark = marks[mark].parent
        if nodes[node].parent >= 0:  # the first node is in all prefixes; of what comes before it only times may differ
            node = np.int64(nodes[node].parent)
    final_mark, final_node, length = mark, node, length_of(marks, mark)
    if length == 0:
        return
    kept = 0
    for rank in range(len(alive)):
        node = np.int64(alive[rank].node)
        nodes[node].rank = -1
        ancestor = node
        while ancestor > final_node:  # parents come before their children
            ancestor = np.int64(nodes[ancestor].parent)
        if ancestor != final_node:
            continue
        blank_mark = _grafted(marks, alive[rank].blank_mark, final_mark, length)
        token_mark = _grafted(marks, alive[rank].token_mark, final_mark, length)
        if blank_mark == ASTRAY:
            blank_mark = token_mark
        if token_mark == ASTRAY:
            token_mark = blank_mark
        if blank_mark < 0 and token_mark < 0:
            continue
        nodes[node].rank = kept
        alive[kept] = alive[rank]
        alive[kept].blank_mark, alive[kept].token_mark = blank_mark, token_mark
        kept += 1
    counters[NUM_PREFIXES] = kept


@inlined
def length_of(marks: Any, last: Any) -> Any:
    """How many marks the list has that ends in mark `last`."""
    length, mark = 0, last
    while mark >= 0:
        length += 1
        mark = marks[mark].parent
    return length


@inlined
def _grafted(marks: Any, last: Any, onto: Any, length: Any) -> Any:
    """Let the list that ends in `last` begin with the list of `length` marks that ends in `onto`.

    Returns:
        Its new end; -1 if there is no list; `ASTRAY` if its token after those comes no later than the last of them:
        marks are in the order of their frames, and a parent before its children.
    """
    if last < 0:
        return np.int64(-1)
    later = length_of(marks, last) - length
    if later == 0:
        return np.int64(onto)
    mark = np.int64(last)
    for _ in range(later - 1):
        mark = np.int64(marks[mark].parent)
    if marks[mark].frame <= marks[onto].frame:
        return np.int64(ASTRAY)
    marks[mark].parent = onto
    return np.int64(last)


@compiled
def index_nodes(nodes: Any, count: Any, slots: Any) -> None:
    """Fill the hash table of children; it has room for at least twice `len(nodes)` and a power of two slots."""
    slots[:] = -1
    for node in range(count):
        if nodes[node].parent >= 0:
            parent, token = np.int64(nodes[node].parent), np.int64(nodes[node].token)
            slots[child_slot(nodes, slots, parent, token)] = node


@compiled
def read_marks(marks: Any, last: Any, out: Any) -> Any:
    """Write the marks of the list that ends in mark `last` to the end of `out`; returns how many they are."""
    at, mark = len(out), last
    while mark >= 0:
        at -= 1
        out[at] = mark
        mark = marks[mark].parent
    return len(out) - at
