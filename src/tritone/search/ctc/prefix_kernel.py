"""The compiled part of CTC prefix beam search: what happens in each frame.

Without a scorer, prefixes and tokens are gone through best first, until the rest cannot enter the beam. With one, each
extension has a bound that is cheap to compute (`_reach`); they are scored in the order of their bounds, while these are
good enough.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from tritone.search.beam.pruning import add_child, add_mark, child_slot, hash_of, tree_at
from tritone.search.compiled.addresses import after_use, borrowed
from tritone.search.compiled.compiler import compiled, inlined, merged
from tritone.search.compiled.heap import heap_of
from tritone.search.scoring.alphabet import ALONE, BREAK, LETTERS, MIXED, NUM_KINDS, SILENT
from tritone.search.scoring.scorer import OPEN, adds, close, credit, extend_from, look_ahead, outlook, scorer_at

ROUNDING = 1e-6  # added to bounds, so that rounding of sums cannot make them too low

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
def _worse(candidates: Any, a: Any, b: Any) -> Any:
    if candidates[a].total != candidates[b].total:
        return candidates[a].total < candidates[b].total
    return candidates[a].order > candidates[b].order


_sink, _rise, _, _sort_best, _ = heap_of(_worse)


class Frame(NamedTuple):
    """The usable tokens of one frame, best first, and what each is worth to a scored prefix at most."""

    tokens: Any  # (width,) int64
    values: Any  # (width,) float64, their log-probabilities
    slots: Any  # hash table of indices of `tokens`, -1 where it is empty; a power of two
    kinds: Any  # (width,) int64, see `alphabet.py`
    worth: Any  # (2, width) float64, for prefixes without and with an open word; natural log
    best_worth: Any  # (2, NUM_KINDS) float64, the best worth of any token of a kind but the blank
    reach: Any  # (NUM_KINDS,) float64, of one prefix, see `_reach`


class Choice(NamedTuple):
    """The best candidates for the beam so far."""

    candidates: Any  # (beam,) CANDIDATE
    heap: Any  # (beam,) int32, indices of them: the worst one on top
    taken: Any  # (beam, width) bool, extensions that are prefixes alive: their scores are added up
    # With a scorer, float64: what may be the extension of prefix i by token j, at i * width + j.
    bounds: Any
    pending: Any  # a heap of those indices, int32: the largest bound on top


@inlined
def _log_add(a: Any, b: Any) -> Any:
    if a < b:
        a, b = b, a
    if b == -np.inf:
        return a
    return a + math.log(1.0 + math.exp(b - a))


@inlined
def _scored_child(tree: Any, parent: Any, token: Any, kind: Any, scorer: Any) -> Any:
    """The node of `parent` and `token`, made and scored if there is none."""
    slot = child_slot(tree, parent, token)
    if tree.slots[slot] >= 0:
        return np.int64(tree.slots[slot])
    states, closings, own = tree.states, tree.closings, tree.search.num_nodes
    state, begin, gain = states[parent, 0], states[parent, 0], 0.0
    if kind in (BREAK, ALONE) and not np.isnan(closings[parent, 0]):
        begin, gain = states[parent, 1], closings[parent, 0]
    gain = extend_from(scorer, state, begin, gain, token, states[own, 0])
    closings[own, 0] = np.nan
    return add_child(tree, slot, parent, token, tree.nodes[parent].bonus + gain)


@merged
def _read_outlook(frame: Any, count: Any, blank: Any, scorer: Any) -> None:
    """Fill in what each of the frame's tokens is worth at most, beside a part that depends on the prefix and the kind.

    Args:
        blank: the index of the blank, or -1.
    """
    frame = borrowed(frame)
    best = frame.best_worth
    for kind in range(NUM_KINDS):
        best[0, kind] = best[1, kind] = -np.inf
    for j in range(count):
        kind, opening, most_credit = outlook(scorer, frame.tokens[j])
        frame.kinds[j] = kind
        frame.worth[0, j] = frame.values[j] + opening + most_credit
        frame.worth[1, j] = frame.values[j] + most_credit if kind == LETTERS else frame.worth[0, j]
        if j != blank:
            best[0, kind] = max(best[0, kind], frame.worth[0, j])
            best[1, kind] = max(best[1, kind], frame.worth[1, j])


@merged
def _reach(tree: Any, prefix: Any, frame: Any, least: Any, scorer: Any) -> Any:
    """Fill the frame's `reach`: a token's worth added to that of its kind is the most that the longer prefix can have.

    Where not even the best worth leads to `least`, it is -inf, and what the end of the open word adds is not computed.

    Returns:
        Whether any token may lead to `least`, and whether a word is open.
    """
    frame = borrowed(frame)
    best, reach = frame.best_worth, frame.reach
    state = tree.states[prefix.node, 0]
    is_open = np.int64(state[OPEN] != 0)
    ahead = look_ahead(scorer, state)
    without = prefix.total - (ahead + credit(scorer, state)) + ROUNDING
    closing = 0.0
    words = max(best[is_open, BREAK], best[is_open, ALONE])
    if is_open and words > -np.inf:
        closing = tree.closings[prefix.node, 0]
        if np.isnan(closing) and without + scorer.most_closing + words >= least:
            closing = tree.closings[prefix.node, 0] = close(scorer, state, tree.states[prefix.node, 1])
        elif np.isnan(closing):
            closing = -np.inf
    reach[SILENT] = prefix.total + ROUNDING
    reach[LETTERS] = without + ahead
    reach[BREAK] = reach[ALONE] = without + closing
    reach[MIXED] = without + scorer.ceiling
    any_reaches = False
    for kind in range(NUM_KINDS):
        if reach[kind] + best[is_open, kind] >= least:
            any_reaches = True
        else:
            reach[kind] = -np.inf
    return any_reaches, is_open


@merged
def _read_frame(frame: Any, ids: Any, log_probs: Any) -> Any:
    """Take the usable tokens of a frame, best first, and index them; returns how many there are."""
    frame = borrowed(frame)
    tokens, values, slots = frame.tokens, frame.values, frame.slots
    count = np.int64(0)
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
    slots[:] = -1
    distinct = np.int64(0)
    for j in range(count):
        at = _slot(frame, tokens[j])
        if slots[at] < 0:
            tokens[distinct], values[distinct] = tokens[j], values[j]
            slots[at] = distinct
            distinct += 1
    return distinct


@merged
def _slot(frame: Any, token: Any) -> Any:
    """Where a token is in the hash table, or the empty slot where it belongs."""
    mask = len(frame.slots) - 1
    at = hash_of(token, np.int64(0), mask)
    while frame.slots[at] >= 0 and frame.tokens[frame.slots[at]] != token:
        at = (at + 1) & mask
    return at


@merged
def _place(frame: Any, token: Any) -> Any:
    """Index of a token among those of the frame, or -1."""
    return frame.slots[_slot(frame, np.int64(token))]


@merged
def _keep(tree: Any, frame: Any, i: Any, blank: Any, taken: Any, out: Any) -> Any:
    """Fill candidate `out` with prefix `i` as it stays; returns whether anything leads to it.

    It stays by a blank, by its last token once more, or because its parent, alive too, is extended by that token.
    """
    nodes, num = tree.nodes, tree.search.num_prefixes
    alive = tree.prefixes[tree.search.side]
    prefix = alive[i]
    out.blank, out.best_blank, out.blank_mark = -np.inf, -np.inf, -1
    out.token, out.best_token, out.token_mark, out.timing = -np.inf, -np.inf, -1, NONE
    out.node, out.source, out.place = prefix.node, i, -1
    out.order = np.int64(1) << 62
    if blank >= 0:
        p = frame.values[blank]
        out.blank = prefix.score + p
        if prefix.best_blank > prefix.best_token:
            out.best_blank, out.blank_mark = prefix.best_blank + p, prefix.blank_mark
        else:
            out.best_blank, out.blank_mark = prefix.best_token + p, prefix.token_mark
        out.order = (blank * num + i) * 2
    last = nodes[prefix.node].token
    place = _place(frame, last) if last >= 0 else -1
    if place >= 0:
        p = frame.values[place]
        out.place = place
        out.order = min(out.order, (place * num + i) * 2)
        again, best_again = prefix.token + p, prefix.best_token + p
        added, best_added, added_mark, parent_rank = -np.inf, -np.inf, -1, -1
        parent = nodes[prefix.node].parent
        if parent >= 0 and nodes[parent].rank >= 0:
            parent_rank = nodes[parent].rank
            taken[parent_rank, place] = True
            out.order = min(out.order, (place * num + parent_rank) * 2 + 1)
            other = alive[parent_rank]
            added, best_added, added_mark = _extension(other, nodes[parent].token == last, p)
        out.token = _log_add(again, added)
        # Upstream looks at prefixes in the order of their ranks. If the parent came first, a better alignment by
        # repetition takes over its score but not its times: the token's probability in this frame is no higher.
        if parent_rank >= 0 and parent_rank < i and best_added > -np.inf:
            out.best_token, out.token_mark, out.timing = max(best_added, best_again), added_mark, ADDED
        else:
            if best_again > -np.inf:
                out.best_token, out.token_mark, out.timing = best_again, prefix.token_mark, MOVED
            if best_added > out.best_token:
                out.best_token, out.token_mark, out.timing = best_added, added_mark, ADDED
    out.score = _log_add(out.blank, out.token)
    out.total = out.score + nodes[prefix.node].bonus
    return out.total > -np.inf


@merged
def _extension(prefix: Any, repeats: Any, p: Any) -> Any:
    """Score, best alignment and its times of a prefix with one more token; between equal tokens there is a blank."""
    if repeats:
        return prefix.blank + p, prefix.best_blank + p, prefix.blank_mark
    if prefix.best_blank > prefix.best_token:
        return prefix.score + p, prefix.best_blank + p, prefix.blank_mark
    return prefix.score + p, prefix.best_token + p, prefix.token_mark


@merged
def _consider(choice: Any, size: Any, extension: Any, total: Any, order: Any, i: Any, j: Any) -> Any:
    """Let prefix `i` with the frame's token `j` into the beam if it is good enough.

    Args:
        size: how many candidates there are.
        extension: what `_extension` returns, and `total` with the bonus.

    Returns:
        Its index among the candidates, whose `node` is left to the caller, or -1.
    """
    candidates, order_heap = choice.candidates, choice.heap
    if not total > -np.inf:
        return np.int64(-1)
    at = np.int64(size)
    if size == len(order_heap):
        at = np.int64(order_heap[0])
        worst = candidates[at]
        if total < worst.total or (total == worst.total and order > worst.order):
            return np.int64(-1)
    out = candidates[at]
    out.blank, out.best_blank, out.blank_mark = -np.inf, -np.inf, -1
    out.score, out.best_token, out.token_mark = extension
    out.token, out.timing = out.score, ADDED
    out.total, out.order = total, order
    out.source, out.place, out.node = i, j, -1
    if size == len(order_heap):
        _sink(order_heap, size, np.int64(0), candidates)
    else:
        order_heap[size] = size
        _rise(order_heap, size, candidates)
    return at


@inlined
def _larger(bounds: Any, a: Any, b: Any) -> Any:
    return bounds[a] > bounds[b]


_sink_bound, _, _heap_bounds, _, _ = heap_of(_larger)


@compiled
def advance(address: Any, ids: Any, log_probs: Any, blank_id: Any) -> Any:
    """Search frames.

    Args:
        address: of a `TREE`, whose scorer, if it has one, covers all tokens.
        ids, log_probs: (frames, k) int32 and float32, tokens of each frame.

    Returns:
        How many frames were searched: all, or those before the first one for which there may be no room.
    """
    tree = tree_at(address)
    search = tree.search
    scorer = scorer_at(search.scorer)
    scored = adds(scorer)
    beam, width = search.beam, ids.shape[1]
    num_slots = 4
    while num_slots < 4 * width:
        num_slots *= 2
    frame_memory = Frame(
        np.empty(width, dtype=np.int64),
        np.empty(width, dtype=np.float64),
        np.empty(num_slots, dtype=np.int32),
        np.empty(width, dtype=np.int64),
        np.empty((2, width), dtype=np.float64),
        np.empty((2, NUM_KINDS), dtype=np.float64),
        np.empty(NUM_KINDS, dtype=np.float64),
    )
    num_bounds = beam * width if scored else 0
    choice_memory = Choice(
        np.empty(beam, dtype=CANDIDATE),
        np.empty(beam, dtype=np.int32),
        np.zeros((beam, width), dtype=np.bool_),
        np.empty(num_bounds, dtype=np.float64),
        np.empty(num_bounds, dtype=np.int32),
    )
    frame, choice = borrowed(frame_memory), borrowed(choice_memory)
    nodes, prefixes = tree.nodes, tree.prefixes
    tokens, values = frame.tokens, frame.values
    candidates, best, taken = choice.candidates, choice.heap, choice.taken
    bounds, pending = choice.bounds, choice.pending
    for number in range(len(ids)):
        num = search.num_prefixes
        most_nodes = num * width if scored else beam
        if search.num_nodes + most_nodes > len(nodes) or search.num_marks + beam > len(tree.marks):
            return after_use((frame_memory, choice_memory), number)
        now = search.num_frames
        search.num_frames += 1
        old = prefixes[search.side]
        count = _read_frame(frame, ids[number], log_probs[number])
        if count == 0:
            continue
        blank = _place(frame, blank_id)

        size = np.int64(0)  # numba would compile what it is passed to once for the literal 0 and once for numbers
        for i in range(num):
            if _keep(tree, frame, i, blank, taken, candidates[size]):
                best[size] = size
                size += 1
                _rise(best, size - 1, candidates)

        for i in range(num if not scored else 0):
            prefix = old[i]
            if size == beam and prefix.total + values[0] < candidates[best[0]].total:
                break  # and those of lower rank reach it even less
            last, bonus = nodes[prefix.node].token, nodes[prefix.node].bonus
            for j in range(count):
                if size == beam and prefix.total + values[j] < candidates[best[0]].total:
                    break
                if j == blank or taken[i, j]:
                    continue
                extension = _extension(prefix, tokens[j] == last, values[j])
                if _consider(choice, size, extension, extension[0] + bonus, (j * num + i) * 2 + 1, i, j) >= 0:
                    size = min(size + 1, beam)

        waiting = np.int64(0)
        if scored:
            _read_outlook(frame, count, blank, scorer)
            least = candidates[best[0]].total if size == beam else -np.inf
        for i in range(num if scored else 0):
            prefix = old[i]
            may, is_open = _reach(tree, prefix, frame, least, scorer)
            if not may:
                continue
            for j in range(count):
                bound = frame.reach[frame.kinds[j]] + frame.worth[is_open, j]
                if not bound >= least or j == blank or taken[i, j]:
                    continue
                if tokens[j] == nodes[prefix.node].token:  # only after a blank
                    bound += prefix.blank - prefix.score
                    if not bound >= least:
                        continue
                if bound > -np.inf:
                    bounds[i * width + j] = bound
                    pending[waiting] = i * width + j
                    waiting += 1
        # The most promising first, so that few are scored for nothing.
        _heap_bounds(pending, waiting, bounds)
        while waiting > 0 and (size < beam or bounds[pending[0]] >= candidates[best[0]].total):
            top = pending[0]
            waiting -= 1
            pending[0] = pending[waiting]
            _sink_bound(pending, waiting, np.int64(0), bounds)
            i, j = top // width, top % width
            prefix = old[i]
            parent = np.int64(prefix.node)
            extension = _extension(prefix, tokens[j] == nodes[parent].token, values[j])
            node = _scored_child(tree, parent, tokens[j], frame.kinds[j], scorer)
            total = extension[0] + nodes[node].bonus
            at = _consider(choice, size, extension, total, (j * num + i) * 2 + 1, i, j)
            if at >= 0:
                candidates[at].node = node
                size = min(size + 1, beam)

        for i in range(num):  # leave `taken` clean for the next frame
            parent, last = np.int64(nodes[old[i].node].parent), nodes[old[i].node].token
            if parent >= 0 and nodes[parent].rank >= 0:
                place = _place(frame, last)
                if place >= 0:
                    taken[nodes[parent].rank, place] = False
        if size > 0:
            _sort_best(best, size, candidates)
            _turn(tree, frame, choice, size, now)
    return after_use((frame_memory, choice_memory), len(ids))


@merged
def _turn(tree: Any, frame: Any, choice: Any, size: Any, now: Any) -> None:
    """Make the candidates, sorted best first, the prefixes alive after frame `now`."""
    frame, choice = borrowed(frame), borrowed(choice)
    search, nodes, marks = tree.search, tree.nodes, tree.marks
    old, new = tree.prefixes[search.side], tree.prefixes[1 - search.side]
    for i in range(search.num_prefixes):
        nodes[old[i].node].rank = -1
    for rank in range(size):
        chosen, out = choice.candidates[choice.heap[rank]], new[rank]
        own: Any = np.int64(chosen.node)
        if own < 0:
            parent, token = np.int64(old[chosen.source].node), frame.tokens[chosen.place]
            slot = child_slot(tree, parent, token)
            own = np.int64(tree.slots[slot])
            if own < 0:
                own = add_child(tree, slot, parent, token, nodes[parent].bonus)
        nodes[own].rank = rank
        out.node = own
        out.blank, out.token, out.score, out.total = chosen.blank, chosen.token, chosen.score, chosen.total
        out.best_blank, out.best_token = chosen.best_blank, chosen.best_token
        out.blank_mark, out.token_mark = chosen.blank_mark, -1
        if chosen.timing != NONE:
            before = chosen.token_mark
            if chosen.timing == MOVED:
                before = marks[before].parent
            out.token_mark = add_mark(tree, frame.tokens[chosen.place], now, frame.values[chosen.place], before)
    search.num_prefixes = size
    search.side = 1 - search.side
