"""The compiled part of CTC prefix beam search: what happens in each frame, and making room.

Three arrays of records hold a search. **Nodes** are the tree of prefixes: one for each distinct token sequence, so that
a prefix that comes back is known again. **Marks** are lists of token times; they share beginnings as prefixes do.
**Prefixes** are the ones alive, in two rows: of the last frame and of the one before. Nodes and marks are only ever
appended, a parent always before its children; `make_room` moves those that are still needed to the front.
"""

import math
from typing import Any

import numpy as np

from tritone.search.compiled import compiled, inlined
from tritone.search.scorer import extend, finish, lent

# A prefix in the tree. `rank`: its place among those alive, or -1; `bonus`: what the scorer adds for all its tokens.
NODE = np.dtype([("token", np.int32), ("parent", np.int32), ("rank", np.int32), ("bonus", np.float64)], align=True)

# One token of a list of times: its frame, and its log-probability there. `parent`: the mark of the token before, or -1.
MARK = np.dtype([("token", np.int32), ("frame", np.int32), ("log_prob", np.float32), ("parent", np.int32)], align=True)

# A prefix alive. Sums over alignments that end in a blank and that do not: `blank`, `token`; both: `score`; with the
# bonus: `total`. The best single alignment of either kind: `best_blank`, `best_token`, and its times: `blank_mark`,
# `token_mark`, the mark of the last token or -1.
PREFIX = np.dtype(
    [
        ("blank", np.float64),
        ("token", np.float64),
        ("score", np.float64),
        ("total", np.float64),
        ("best_blank", np.float64),
        ("best_token", np.float64),
        ("node", np.int32),
        ("blank_mark", np.int32),
        ("token_mark", np.int32),
    ],
    align=True,
)

# What may be a prefix after this frame, before it is chosen. `node` is -1 for one that is not in the tree yet: it is
# prefix number `source` and the frame's token number `place`. `order`: of its first mention, which decides ties.
_CANDIDATE = np.dtype(
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

# Places in `counters`.
NUM_NODES, NUM_MARKS, NUM_PREFIXES, NUM_FRAMES, SIDE = range(5)
NUM_COUNTERS = 5

# How the list of times of a candidate that ends in a token comes about: not at all; the source's with the last token
# moved to this frame; the source's with a token of this frame added.
_NONE, _MOVED, _ADDED = range(3)


@inlined
def _log_add(a: Any, b: Any) -> Any:
    if a < b:
        a, b = b, a
    if b == -np.inf:
        return a
    return a + math.log(1.0 + math.exp(b - a))


@inlined
def _hash(a: Any, b: Any, mask: Any) -> Any:
    mixed = np.uint64(a) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(b) * np.uint64(0xC2B2AE3D27D4EB4F)
    return np.int64((mixed ^ (mixed >> np.uint64(29))) & np.uint64(mask))


@inlined
def _child_slot(nodes: Any, slots: Any, parent: Any, token: Any) -> Any:
    """Where the child of `parent` with `token` is in the hash table, or the empty slot where it belongs."""
    mask = len(slots) - 1
    at = _hash(parent, token, mask)
    while slots[at] >= 0:
        node = slots[at]
        if nodes[node].parent == parent and nodes[node].token == token:
            break
        at = (at + 1) & mask
    return at


@inlined
def _child(
    nodes: Any, states: Any, slots: Any, counters: Any, parent: Any, token: Any, scored: Any, arrays: Any
) -> Any:
    """The node of `parent` and `token`, made if there is none."""
    slot = _child_slot(nodes, slots, parent, token)
    if slots[slot] < 0:
        node = counters[NUM_NODES]
        counters[NUM_NODES] += 1
        slots[slot] = node
        nodes[node].token = token
        nodes[node].parent = parent
        nodes[node].rank = -1
        nodes[node].bonus = nodes[parent].bonus
        if scored:
            nodes[node].bonus += extend(arrays, states[parent], token, states[node])
    return slots[slot]


@inlined
def _read_frame(ids: Any, log_probs: Any, tokens: Any, values: Any, places: Any) -> Any:
    """Take the usable tokens of a frame, best first, and index them in `places`; returns how many there are."""
    count = 0
    for j in range(len(ids)):
        value = np.float64(log_probs[j])
        if ids[j] < 0 or not -np.inf < value < np.inf:
            continue
        at = count
        while at > 0 and value > values[at - 1]:  # in order already, unless the caller did not sort
            tokens[at], values[at] = tokens[at - 1], values[at - 1]
            at -= 1
        tokens[at], values[at] = ids[j], value
        count += 1
    places[:] = -1
    mask, distinct = len(places) - 1, 0
    for j in range(count):
        at = _hash(tokens[j], 0, mask)
        while places[at] >= 0 and tokens[places[at]] != tokens[j]:
            at = (at + 1) & mask
        if places[at] < 0:
            tokens[distinct], values[distinct] = tokens[j], values[j]
            places[at] = distinct
            distinct += 1
    return distinct


@inlined
def _place(tokens: Any, places: Any, token: Any) -> Any:
    """Which of the frame's tokens this is, or -1."""
    mask = len(places) - 1
    at = _hash(token, 0, mask)
    while places[at] >= 0 and tokens[places[at]] != token:
        at = (at + 1) & mask
    return places[at]


@inlined
def _worse(candidates: Any, a: Any, b: Any) -> Any:
    if candidates[a].total != candidates[b].total:
        return candidates[a].total < candidates[b].total
    return candidates[a].order > candidates[b].order


@inlined
def _sift_down(candidates: Any, heap: Any, size: Any, at: Any) -> None:
    """Restore a heap with the worst candidate on top, of which only the one at `at` may be misplaced."""
    moved = heap[at]
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and _worse(candidates, heap[child + 1], heap[child]):
            child += 1
        if not _worse(candidates, heap[child], moved):
            break
        heap[at] = heap[child]
        at = child
    heap[at] = moved


@inlined
def _sift_up(candidates: Any, heap: Any, at: Any) -> None:
    moved = heap[at]
    while at > 0 and _worse(candidates, moved, heap[(at - 1) // 2]):
        heap[at] = heap[(at - 1) // 2]
        at = (at - 1) // 2
    heap[at] = moved


@inlined
def _keep(
    prefix: Any,
    i: Any,
    old: Any,
    nodes: Any,
    places: Any,
    blank_place: Any,
    tokens: Any,
    values: Any,
    num: Any,
    taken: Any,
    out: Any,
) -> Any:
    """Fill candidate `out` with prefix `i` as it stays; returns whether anything leads to it.

    It stays by a blank, by its last token once more, or because its parent, alive too, is extended by that token.
    """
    out.blank, out.best_blank, out.blank_mark = -np.inf, -np.inf, -1
    out.token, out.best_token, out.token_mark, out.timing = -np.inf, -np.inf, -1, _NONE
    out.node, out.source, out.place = prefix.node, i, -1
    out.order = np.int64(1) << 62
    if blank_place >= 0:
        p = values[blank_place]
        out.blank = prefix.score + p
        if prefix.best_blank > prefix.best_token:
            out.best_blank, out.blank_mark = prefix.best_blank + p, prefix.blank_mark
        else:
            out.best_blank, out.blank_mark = prefix.best_token + p, prefix.token_mark
        out.order = (blank_place * num + i) * 2
    last = nodes[prefix.node].token
    place = _place(tokens, places, last) if last >= 0 else -1
    if place >= 0:
        p = values[place]
        out.place = place
        out.order = min(out.order, (place * num + i) * 2)
        again, best_again = prefix.token + p, prefix.best_token + p
        added, best_added, added_mark, parent_rank = -np.inf, -np.inf, -1, -1
        parent = nodes[prefix.node].parent
        if parent >= 0 and nodes[parent].rank >= 0:
            parent_rank = nodes[parent].rank
            taken[parent_rank, place] = True
            out.order = min(out.order, (place * num + parent_rank) * 2 + 1)
            other = old[parent_rank]
            added, best_added, added_mark = _extension(other, nodes[parent].token == last, p)
        out.token = _log_add(again, added)
        # Upstream looks at prefixes in the order of their ranks. If the parent came first, a better alignment by
        # repetition takes over its score but not its times: the token's probability in this frame is no higher.
        if parent_rank >= 0 and parent_rank < i and best_added > -np.inf:
            out.best_token, out.token_mark, out.timing = max(best_added, best_again), added_mark, _ADDED
        else:
            if best_again > -np.inf:
                out.best_token, out.token_mark, out.timing = best_again, prefix.token_mark, _MOVED
            if best_added > out.best_token:
                out.best_token, out.token_mark, out.timing = best_added, added_mark, _ADDED
    out.score = _log_add(out.blank, out.token)
    out.total = out.score + nodes[prefix.node].bonus
    return out.total > -np.inf


@inlined
def _extension(prefix: Any, repeats: Any, p: Any) -> Any:
    """Score, best alignment and its times of a prefix with one more token; between equal tokens there is a blank."""
    if repeats:
        return prefix.blank + p, prefix.best_blank + p, prefix.blank_mark
    if prefix.best_blank > prefix.best_token:
        return prefix.score + p, prefix.best_blank + p, prefix.blank_mark
    return prefix.score + p, prefix.best_token + p, prefix.token_mark


@compiled
def advance(
    ids: Any,
    log_probs: Any,
    first: Any,
    end: Any,
    blank_id: Any,
    nodes: Any,
    states: Any,
    slots: Any,
    marks: Any,
    prefixes: Any,
    counters: Any,
    scored: Any,
    ceiling: Any,
    arrays: Any,
) -> Any:
    """Search the frames from `first` up to `end`.

    Args:
        ids, log_probs: (frames, k) int32 and float32, tokens of each frame.
        scored, ceiling, arrays: whether there is a scorer, the most that it adds for one token (less what it has lent
            to the prefix), its arrays.

    Returns:
        `end`, or the first frame that was not searched, because there was no room left for what it may need.
    """
    beam, width = prefixes.shape[1], ids.shape[1]
    tokens, values = np.empty(width, dtype=np.int64), np.empty(width, dtype=np.float64)
    num_places = 4
    while num_places < 4 * width:
        num_places *= 2
    places = np.empty(num_places, dtype=np.int32)
    taken = np.zeros((beam, width), dtype=np.bool_)  # extensions that are prefixes alive: their scores are added up
    candidates = np.empty(beam, dtype=_CANDIDATE)
    heap = np.empty(beam, dtype=np.int32)

    for frame in range(first, end):
        num = counters[NUM_PREFIXES]
        most_nodes = num * width if scored else beam
        if counters[NUM_NODES] + most_nodes > len(nodes) or counters[NUM_MARKS] + beam > len(marks):
            return frame
        now = counters[NUM_FRAMES]
        counters[NUM_FRAMES] += 1
        old, new = prefixes[counters[SIDE]], prefixes[1 - counters[SIDE]]
        count = _read_frame(ids[frame], log_probs[frame], tokens, values, places)
        if count == 0:
            continue
        blank_place = _place(tokens, places, blank_id)

        size = 0
        for i in range(num):
            if _keep(old[i], i, old, nodes, places, blank_place, tokens, values, num, taken, candidates[size]):
                heap[size] = size
                size += 1
                _sift_up(candidates, heap, size - 1)

        for i in range(num):
            prefix = old[i]
            last = nodes[prefix.node].token
            most = prefix.total
            if scored:
                most += ceiling - lent(arrays, states[prefix.node])
            elif size == beam and most + values[0] < candidates[heap[0]].total:
                break  # and those of lower rank reach it even less
            for j in range(count):
                if j == blank_place or taken[i, j]:
                    continue
                if size == beam and most + values[j] < candidates[heap[0]].total:
                    break
                score, best, mark = _extension(prefix, tokens[j] == last, values[j])
                if score == -np.inf:
                    continue
                node, bonus = -1, 0.0
                if scored:
                    node = _child(nodes, states, slots, counters, prefix.node, tokens[j], scored, arrays)
                    bonus = nodes[node].bonus
                total, order = score + bonus, (j * num + i) * 2 + 1
                if not total > -np.inf:
                    continue
                full = size == beam
                if full:
                    worst = candidates[heap[0]]
                    if total < worst.total or (total == worst.total and order > worst.order):
                        continue
                else:
                    heap[size] = size
                    size += 1
                out = candidates[heap[0] if full else size - 1]
                out.blank, out.best_blank, out.blank_mark = -np.inf, -np.inf, -1
                out.token, out.best_token, out.token_mark, out.timing = score, best, mark, _ADDED
                out.score, out.total, out.order = score, total, order
                out.node, out.source, out.place = node, i, j
                if full:
                    _sift_down(candidates, heap, size, 0)
                else:
                    _sift_up(candidates, heap, size - 1)

        for i in range(num):  # leave `taken` clean for the next frame
            node = old[i].node
            parent, last = nodes[node].parent, nodes[node].token
            if parent >= 0 and nodes[parent].rank >= 0:
                place = _place(tokens, places, last)
                if place >= 0:
                    taken[nodes[parent].rank, place] = False
        if size == 0:
            continue

        for place in range(size - 1, 0, -1):  # the worst goes last
            heap[0], heap[place] = heap[place], heap[0]
            _sift_down(candidates, heap, place, 0)
        for i in range(num):
            nodes[old[i].node].rank = -1
        for rank in range(size):
            chosen, out = candidates[heap[rank]], new[rank]
            own: Any = np.int64(chosen.node)
            if own < 0:
                parent = old[chosen.source].node
                own = np.int64(_child(nodes, states, slots, counters, parent, tokens[chosen.place], scored, arrays))
            nodes[own].rank = rank
            out.node = own
            out.blank, out.token, out.score, out.total = chosen.blank, chosen.token, chosen.score, chosen.total
            out.best_blank, out.best_token = chosen.best_blank, chosen.best_token
            out.blank_mark, out.token_mark = chosen.blank_mark, -1
            if chosen.timing != _NONE:
                mark = counters[NUM_MARKS]
                counters[NUM_MARKS] += 1
                before = chosen.token_mark
                if chosen.timing == _MOVED:
                    before = marks[before].parent
                marks[mark].token = tokens[chosen.place]
                marks[mark].frame = now
                marks[mark].log_prob = values[chosen.place]
                marks[mark].parent = before
                out.token_mark = mark
        counters[NUM_PREFIXES] = size
        counters[SIDE] = 1 - counters[SIDE]
    return end


@compiled
def finish_all(prefixes: Any, counters: Any, states: Any, arrays: Any, bonuses: Any) -> None:
    """Fill `bonuses` with what the scorer adds to each prefix alive when nothing follows any more."""
    for rank in range(counters[NUM_PREFIXES]):
        bonuses[rank] = finish(arrays, states[prefixes[counters[SIDE], rank].node])


@compiled
def make_room(nodes: Any, states: Any, marks: Any, prefixes: Any, counters: Any, settled: Any) -> Any:
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
            states[kept] = states[node]
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
def decide(nodes: Any, marks: Any, prefixes: Any, counters: Any, before: Any) -> None:
    """Make final what the best prefix says before frame `before`: drop the prefixes that say something else.

    The others take over the times of these tokens too, so that all lists of times share their marks.
    """
    alive = prefixes[counters[SIDE]][: counters[NUM_PREFIXES]]
    mark = alive[0].blank_mark if alive[0].best_blank > alive[0].best_token else alive[0].token_mark
    node = np.int64(alive[0].node)
    while mark >= 0 and marks[mark].frame >= before:
        mark, node = marks[mark].parent, np.int64(nodes[node].parent)
    final_mark, final_node, length = mark, node, _length(marks, mark)
    if length == 0:
        return
    kept = 0
    for rank in range(len(alive)):
        node = np.int64(alive[rank].node)
        nodes[node].rank = -1
        ancestor = node
        while ancestor > final_node:  # parents come before their children
            ancestor = np.int64(nodes[ancestor].parent)
        if ancestor == final_node:
            nodes[node].rank = kept
            alive[kept] = alive[rank]
            alive[kept].blank_mark = _grafted(marks, alive[kept].blank_mark, final_mark, length)
            alive[kept].token_mark = _grafted(marks, alive[kept].token_mark, final_mark, length)
            kept += 1
    counters[NUM_PREFIXES] = kept


@inlined
def _length(marks: Any, last: Any) -> Any:
    length, mark = 0, last
    while mark >= 0:
        length += 1
        mark = marks[mark].parent
    return length


@inlined
def _grafted(marks: Any, last: Any, onto: Any, length: Any) -> Any:
    """Let the list that ends in `last` begin with the list of `length` marks that ends in `onto`; gives its new end."""
    if last < 0:
        return last
    later = _length(marks, last) - length
    if later == 0:
        return onto
    mark = last
    for _ in range(later - 1):
        mark = marks[mark].parent
    marks[mark].parent = onto
    return last


@compiled
def index_nodes(nodes: Any, count: Any, slots: Any) -> None:
    """Fill the hash table of children; it has room for at least twice `len(nodes)` and a power of two slots."""
    slots[:] = -1
    for node in range(count):
        if nodes[node].parent >= 0:
            slots[_child_slot(nodes, slots, nodes[node].parent, nodes[node].token)] = node


@compiled
def read_marks(marks: Any, last: Any, out: Any) -> Any:
    """Write the marks of the list that ends in mark `last` to the end of `out`; returns how many they are."""
    at, mark = len(out), last
    while mark >= 0:
        at -= 1
        out[at] = mark
        mark = marks[mark].parent
    return len(out) - at
