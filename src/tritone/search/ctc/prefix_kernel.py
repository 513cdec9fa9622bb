"""The compiled part of CTC prefix beam search: what happens in each frame.

Without a scorer, prefixes and tokens are gone through best first, until the rest cannot enter the beam. With one, each
extension has a bound that is cheap to tell (`_reach`); they are scored in the order of their bounds, while these are
good enough.
"""

import math
from typing import Any

import numpy as np

from tritone.search.beam.records import (
    NUM_FRAMES,
    NUM_MARKS,
    NUM_NODES,
    NUM_PREFIXES,
    SIDE,
    add_child,
    child_slot,
    hash_of,
)
from tritone.search.compiled.compiler import compiled, inlined
from tritone.search.ctc.candidates import (
    ADDED,
    CANDIDATE,
    MOVED,
    NONE,
    consider,
    pop,
    sift_down,
    sift_up,
    sink,
)
from tritone.search.scoring.alphabet import ALONE, BREAK, LETTERS, MIXED, NUM_KINDS, SILENT
from tritone.search.scoring.scorer import OPEN, close, credit, extend_from, finish, look_ahead, outlook

ROUNDING = 1e-6  # added to bounds, so that rounding of sums cannot make them too low


@inlined
def _log_add(a: Any, b: Any) -> Any:
    if a < b:
        a, b = b, a
    if b == -np.inf:
        return a
    return a + math.log(1.0 + math.exp(b - a))


@inlined
def _scored_child(
    nodes: Any,
    states: Any,
    closings: Any,
    slots: Any,
    counters: Any,
    parent: Any,
    token: Any,
    kind: Any,
    arrays: Any,
) -> Any:
    """The node of `parent` and `token`, made and scored if there is none."""
    slot = child_slot(nodes, slots, parent, token)
    if slots[slot] >= 0:
        return np.int64(slots[slot])
    state, begin, gain = states[parent, 0], states[parent, 0], 0.0
    if kind in (BREAK, ALONE) and not np.isnan(closings[parent, 0]):
        begin, gain = states[parent, 1], closings[parent, 0]
    gain = extend_from(arrays, state, begin, gain, token, states[counters[NUM_NODES], 0])
    closings[counters[NUM_NODES], 0] = np.nan
    return add_child(nodes, slots, slot, counters, parent, token, nodes[parent].bonus + gain)


@inlined
def _read_outlook(
    tokens: Any, values: Any, count: Any, blank_place: Any, kinds: Any, worth: Any, best: Any, arrays: Any
) -> None:
    """Fill in what each of the frame's tokens is worth at most, beside a part that depends on the prefix and the kind.

    Args:
        kinds: (width,), see `alphabet.py`.
        worth: (2, width), for prefixes without and with an open word.
        best: (2, kinds), the best worth of any token of a kind; the blank is none.
    """
    for kind in range(NUM_KINDS):
        best[0, kind] = best[1, kind] = -np.inf
    for j in range(count):
        kind, begun, most_credit = outlook(arrays, tokens[j])
        kinds[j] = kind
        worth[0, j] = values[j] + begun + most_credit
        worth[1, j] = values[j] + most_credit if kind == LETTERS else worth[0, j]
        if j != blank_place:
            best[0, kind] = max(best[0, kind], worth[0, j])
            best[1, kind] = max(best[1, kind], worth[1, j])


@inlined
def _reach(
    node: Any,
    total: Any,
    states: Any,
    closings: Any,
    best: Any,
    least: Any,
    ceiling: Any,
    reach: Any,
    arrays: Any,
) -> Any:
    """Fill `reach` (kinds,): a token's worth added to that of its kind is the most that the longer prefix can have.

    Args:
        best: the best worths of the frame, see `_read_outlook`. Where not even they lead to `least`, `reach` is -inf,
            and what the end of the open word adds is not asked for.

    Returns:
        Whether any token may lead to `least`, and whether a word is open.
    """
    state = states[node, 0]
    is_open = np.int64(state[OPEN] != 0)
    ahead = look_ahead(arrays, state)
    without = total - (ahead + credit(arrays, state)) + ROUNDING
    closing = 0.0
    words = max(best[is_open, BREAK], best[is_open, ALONE])
    if is_open and words > -np.inf:
        closing = closings[node, 0]
        if np.isnan(closing) and without + arrays.most_closing + words >= least:
            closing = closings[node, 0] = close(arrays, state, states[node, 1])
        elif np.isnan(closing):
            closing = -np.inf
    reach[SILENT] = total + ROUNDING
    reach[LETTERS] = without + ahead
    reach[BREAK] = reach[ALONE] = without + closing
    reach[MIXED] = without + ceiling
    any_reaches = False
    for kind in range(NUM_KINDS):
        if reach[kind] + best[is_open, kind] >= least:
            any_reaches = True
        else:
            reach[kind] = -np.inf
    return any_reaches, is_open


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
        at = hash_of(tokens[j], np.int64(0), mask)
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
    at = hash_of(token, np.int64(0), mask)
    while places[at] >= 0 and tokens[places[at]] != token:
        at = (at + 1) & mask
    return places[at]


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
    out.token, out.best_token, out.token_mark, out.timing = -np.inf, -np.inf, -1, NONE
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
    place = _place(tokens, places, np.int64(last)) if last >= 0 else -1
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
            out.best_token, out.token_mark, out.timing = max(best_added, best_again), added_mark, ADDED
        else:
            if best_again > -np.inf:
                out.best_token, out.token_mark, out.timing = best_again, prefix.token_mark, MOVED
            if best_added > out.best_token:
                out.best_token, out.token_mark, out.timing = best_added, added_mark, ADDED
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
    closings: Any,
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
            to the prefix), its arrays; its tokens must cover `ids`.

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
    candidates = np.empty(beam, dtype=CANDIDATE)
    heap = np.empty(beam, dtype=np.int32)
    # With a scorer: what may be the extension of prefix i by token j, at i * width + j, and a heap of those places.
    bounds = np.empty(beam * width if scored else 0, dtype=np.float64)
    pending = np.empty(len(bounds), dtype=np.int32)
    kinds, worth = np.empty(width, dtype=np.int64), np.empty((2, width), dtype=np.float64)
    best_worth, reach = np.empty((2, NUM_KINDS), dtype=np.float64), np.empty(NUM_KINDS, dtype=np.float64)

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
        blank_place = _place(tokens, places, np.int64(blank_id))

        size = np.int64(0)  # numba would compile what it is passed to once for the literal 0 and once for numbers
        for i in range(num):
            if _keep(old[i], i, old, nodes, places, blank_place, tokens, values, num, taken, candidates[size]):
                heap[size] = size
                size += 1
                sift_up(candidates, heap, size - 1)

        for i in range(num if not scored else 0):
            prefix = old[i]
            if size == beam and prefix.total + values[0] < candidates[heap[0]].total:
                break  # and those of lower rank reach it even less
            last, bonus = nodes[prefix.node].token, nodes[prefix.node].bonus
            for j in range(count):
                if size == beam and prefix.total + values[j] < candidates[heap[0]].total:
                    break
                if j == blank_place or taken[i, j]:
                    continue
                score, best, mark = _extension(prefix, tokens[j] == last, values[j])
                order = (j * num + i) * 2 + 1
                at = consider(candidates, heap, size, score, best, mark, score + bonus, order, i, j)
                if at >= 0:
                    candidates[at].node = -1
                    size = min(size + 1, beam)

        waiting = np.int64(0)
        if scored:
            _read_outlook(tokens, values, count, blank_place, kinds, worth, best_worth, arrays)
            least = candidates[heap[0]].total if size == beam else -np.inf
        for i in range(num if scored else 0):
            prefix = old[i]
            node = prefix.node
            may, is_open = _reach(node, prefix.total, states, closings, best_worth, least, ceiling, reach, arrays)
            if not may:
                continue
            for j in range(count):
                bound = reach[kinds[j]] + worth[is_open, j]
                if not bound >= least or j == blank_place or taken[i, j]:
                    continue
                if tokens[j] == nodes[node].token:  # only after a blank
                    bound += prefix.blank - prefix.score
                    if not bound >= least:
                        continue
                if bound > -np.inf:
                    bounds[i * width + j] = bound
                    pending[waiting] = i * width + j
                    waiting += 1
        # The most promising first, so that few are scored for nothing.
        for at in range(waiting // 2 - 1, -1, -1):
            sink(bounds, pending, waiting, at)
        while waiting > 0 and (size < beam or bounds[pending[0]] >= candidates[heap[0]].total):
            top = pop(bounds, pending, waiting)
            waiting -= 1
            i, j = top // width, top % width
            prefix = old[i]
            score, best, mark = _extension(prefix, tokens[j] == nodes[prefix.node].token, values[j])
            parent = np.int64(prefix.node)
            node = _scored_child(nodes, states, closings, slots, counters, parent, tokens[j], kinds[j], arrays)
            order = (j * num + i) * 2 + 1
            at = consider(candidates, heap, size, score, best, mark, score + nodes[node].bonus, order, i, j)
            if at >= 0:
                candidates[at].node = node
                size = min(size + 1, beam)

        for i in range(num):  # leave `taken` clean for the next frame
            parent, last = np.int64(nodes[old[i].node].parent), nodes[old[i].node].token
            if parent >= 0 and nodes[parent].rank >= 0:
                place = _place(tokens, places, np.int64(last))
                if place >= 0:
                    taken[nodes[parent].rank, place] = False
        if size == 0:
            continue

        for place in range(size - 1, 0, -1):  # the worst goes last
            heap[0], heap[place] = heap[place], heap[0]
            sift_down(candidates, heap, place, np.int64(0))
        for i in range(num):
            nodes[old[i].node].rank = -1
        for rank in range(size):
            chosen, out = candidates[heap[rank]], new[rank]
            own: Any = np.int64(chosen.node)
            if own < 0:
                parent = np.int64(old[chosen.source].node)
                slot = child_slot(nodes, slots, parent, tokens[chosen.place])
                own = np.int64(slots[slot])
                if own < 0:
                    own = add_child(nodes, slots, slot, counters, parent, tokens[chosen.place], nodes[parent].bonus)
            nodes[own].rank = rank
            out.node = own
            out.blank, out.token, out.score, out.total = chosen.blank, chosen.token, chosen.score, chosen.total
            out.best_blank, out.best_token = chosen.best_blank, chosen.best_token
            out.blank_mark, out.token_mark = chosen.blank_mark, -1
            if chosen.timing != NONE:
                mark = counters[NUM_MARKS]
                counters[NUM_MARKS] += 1
                before = chosen.token_mark
                if chosen.timing == MOVED:
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
        bonuses[rank] = finish(arrays, states[prefixes[counters[SIDE], rank].node, 0])
