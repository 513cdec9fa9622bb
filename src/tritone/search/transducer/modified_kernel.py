"""The compiled part of modified beam search: one frame of all utterances of a batch.

Hypotheses are prefixes as `beam_records.py` has them, with one sum over all alignments (`blank`, `score`) and one list
of times (`blank_mark`). A node's second state is its context: the newest tokens, which the predictor sees.
"""

import math
from typing import Any

import numba
import numpy as np

from tritone.search.beam.records import (
    MARK,
    NODE,
    NUM_COUNTERS,
    NUM_FRAMES,
    NUM_MARKS,
    NUM_NODES,
    NUM_PREFIXES,
    PREFIX,
    SIDE,
    add_child,
    child_slot,
)
from tritone.search.compiled.addresses import int32s, int64s, pointer_to
from tritone.search.compiled.compiler import compiled, inlined
from tritone.search.scoring.scorer import NUMBERS, extend
from tritone.search.transducer.softmax import BLOCK, LOWEST, block_ranks, float_of, log_sum

# One search of a batch: where its arrays are and how long, and its options. `scored`: whether `scorer` is one.
SEARCH = np.dtype(
    [
        ("nodes", np.int64),
        ("states", np.int64),
        ("slots", np.int64),
        ("marks", np.int64),
        ("prefixes", np.int64),
        ("counters", np.int64),
        ("scorer", np.int64),
        ("num_nodes", np.int64),
        ("num_slots", np.int64),
        ("num_marks", np.int64),
        ("state_size", np.int64),
        ("beam", np.int64),
        ("blank_penalty", np.float64),
        ("temperature", np.float64),
        ("scored", np.bool_),
    ],
    align=True,
)

# One of the best extensions in a frame: hypothesis number `source` by `token`. `log_prob`: of the token after it.
EXTENSION = np.dtype(
    [("total", np.float64), ("log_prob", np.float64), ("source", np.int64), ("token", np.int64)], align=True
)

_searches_at = pointer_to(numba.from_dtype(SEARCH))
_nodes_at = pointer_to(numba.from_dtype(NODE))
_marks_at = pointer_to(numba.from_dtype(MARK))
_prefixes_at = pointer_to(numba.from_dtype(PREFIX))
_scorers_at = pointer_to(numba.from_dtype(NUMBERS))


@inlined
def _search(address: Any) -> Any:
    return numba.carray(_searches_at(address), (1,))[0]


@compiled
def ask(searches: Any, num_frames: Any, max_frames: Any, frame: Any, contexts: Any, places: Any) -> Any:
    """Say what the joiner is to be asked in a frame: one row for each hypothesis of each search that has this frame.

    Args:
        searches: (batch,) int64 addresses of `SEARCH` records.
        num_frames: (batch,) int64; `max_frames`: the rows that each search has in the table of frames.
        contexts: (rows, context_size) int64, `places`: (rows,) int64 in the table of frames; both are filled.

    Returns:
        How many rows there are.
    """
    count = np.int64(0)
    for i in range(len(searches)):
        if frame < num_frames[i]:
            count = _ask(_search(searches[i]), i * max_frames + frame, contexts, places, count)
    return count


@inlined
def _ask(search: Any, place: Any, contexts: Any, places: Any, count: Any) -> Any:
    counters = int64s(search.counters)
    prefixes = numba.carray(_prefixes_at(search.prefixes), (2, search.beam))
    states = numba.carray(int32s(search.states), (search.num_nodes, 2, search.state_size))
    for rank in range(counters[NUM_PREFIXES]):
        node = prefixes[counters[SIDE], rank].node
        for i in range(contexts.shape[1]):
            contexts[count, i] = states[node, 1, i]
        places[count] = place
        count += 1
    return count


@compiled
def step(
    searches: Any,
    num_frames: Any,
    max_frames: Any,
    frame: Any,
    logits: Any,
    blank_id: Any,
    unk_id: Any,
    best: Any,
    contexts: Any,
    places: Any,
) -> Any:
    """Search one frame, and ask for the next one; arguments and result are as those of `ask`, and

    Args:
        logits: (rows, vocab) float32, the answers; blank penalties are taken off in place.
        unk_id: a token that counts as blank, or -1.
        best: `EXTENSION` records, as many as the largest beam at least; for use in here.
    """
    bits = logits.view(np.int32)
    blocks = np.empty((logits.shape[1] + BLOCK - 1) // BLOCK, dtype=np.int32)
    first, count = np.int64(0), np.int64(0)
    for i in range(len(searches)):
        if frame >= num_frames[i]:
            continue
        search = _search(searches[i])
        num = int64s(search.counters)[NUM_PREFIXES]
        last = first + num
        size = _find_best(search, logits[first:last], bits[first:last], blank_id, best, blocks)
        _keep(search, best, size, blank_id, unk_id, contexts.shape[1])
        first = last
        if frame + 1 < num_frames[i]:
            count = _ask(search, i * max_frames + frame + 1, contexts, places, count)
    return count


@inlined
def _find_best(search: Any, logits: Any, bits: Any, blank_id: Any, best: Any, blocks: Any) -> Any:
    """Fill `best` with the best extensions of all hypotheses, best first; returns how many there are.

    Of equal ones the first is kept, by hypothesis and then by token.
    """
    prefixes = numba.carray(_prefixes_at(search.prefixes), (2, search.beam))
    alive = prefixes[int64s(search.counters)[SIDE]]
    beam, temperature = search.beam, search.temperature
    size = np.int64(0)
    for source in range(len(logits)):
        row = logits[source]
        if search.blank_penalty != 0.0:
            row[blank_id] = np.float32(row[blank_id] - search.blank_penalty)
        rank = block_ranks(bits[source], blocks)
        if rank == LOWEST:
            continue
        largest = float_of(rank)
        if largest == -np.inf:
            continue
        start = -log_sum(row, largest, temperature)
        for number in range(len(blocks)):
            if blocks[number] == LOWEST:
                continue
            # What a logit must be above; the largest of most blocks tells that none is.
            log_prob = start + (float_of(blocks[number]) - largest) / temperature
            if size == beam and alive[source].total + log_prob <= best[size - 1].total:
                continue
            for token in range(number * BLOCK, min(len(row), (number + 1) * BLOCK)):
                if not -np.inf < row[token] < np.inf:
                    continue
                log_prob = start + (row[token] - largest) / temperature
                total = alive[source].total + log_prob
                if size == beam and total <= best[size - 1].total:
                    continue
                size = min(size + 1, beam)
                at = size - 1
                while at > 0 and best[at - 1].total < total:
                    best[at].total, best[at].log_prob = best[at - 1].total, best[at - 1].log_prob
                    best[at].source, best[at].token = best[at - 1].source, best[at - 1].token
                    at -= 1
                best[at].total, best[at].log_prob = total, log_prob
                best[at].source, best[at].token = source, token
    return size


@inlined
def _keep(search: Any, best: Any, size: Any, blank_id: Any, unk_id: Any, context_size: Any) -> None:
    """Make the first `size` of `best` the hypotheses of the search; those with the same tokens become one.

    With none, the frame is passed over.
    """
    counters = numba.carray(int64s(search.counters), (NUM_COUNTERS,))
    now = counters[NUM_FRAMES]
    counters[NUM_FRAMES] += 1
    if size == 0:
        return
    nodes = numba.carray(_nodes_at(search.nodes), (search.num_nodes,))
    states = numba.carray(int32s(search.states), (search.num_nodes, 2, search.state_size))
    slots = numba.carray(int32s(search.slots), (search.num_slots,))
    marks = numba.carray(_marks_at(search.marks), (search.num_marks,))
    prefixes = numba.carray(_prefixes_at(search.prefixes), (2, search.beam))
    old, new = prefixes[counters[SIDE]], prefixes[1 - counters[SIDE]]
    scorer = numba.carray(_scorers_at(search.scorer), (1,))[0]
    for i in range(counters[NUM_PREFIXES]):
        nodes[old[i].node].rank = -1
    kept = np.int64(0)
    for place in range(size):
        extension = best[place]
        before = old[extension.source]
        token = extension.token
        own: Any = np.int64(before.node)
        says = token not in (blank_id, unk_id)
        if says:
            own = _child(nodes, states, slots, counters, own, token, search.scored, scorer, context_size)
        score = before.score + extension.log_prob
        rank: Any = np.int64(nodes[own].rank)
        if rank >= 0:  # the times are those of the better one
            out = new[rank]
            score = _log_add(out.score, score)
        else:
            rank = kept
            kept += 1
            nodes[own].rank = rank
            out = new[rank]
            out.node, out.token_mark, out.blank_mark = own, -1, before.blank_mark
            out.token, out.best_token = -np.inf, -np.inf
            if says:
                mark = counters[NUM_MARKS]
                counters[NUM_MARKS] += 1
                marks[mark].token, marks[mark].frame = token, now
                marks[mark].log_prob, marks[mark].parent = extension.log_prob, before.blank_mark
                out.blank_mark = mark
        out.blank, out.best_blank, out.score = score, score, score
        out.total = score + nodes[own].bonus
    counters[NUM_PREFIXES] = kept
    counters[SIDE] = 1 - counters[SIDE]


@inlined
def _child(
    nodes: Any,
    states: Any,
    slots: Any,
    counters: Any,
    parent: Any,
    token: Any,
    scored: Any,
    scorer: Any,
    context_size: Any,
) -> Any:
    """The node of `parent` and `token`, made and scored if there is none."""
    slot = child_slot(nodes, slots, parent, token)
    if slots[slot] >= 0:
        return np.int64(slots[slot])
    own = counters[NUM_NODES]
    gain = 0.0
    if scored:
        gain = extend(scorer, states[parent, 0], token, states[own, 0])
    for i in range(context_size - 1):
        states[own, 1, i] = states[parent, 1, i + 1]
    states[own, 1, context_size - 1] = token
    return add_child(nodes, slots, slot, counters, parent, token, nodes[parent].bonus + gain)


@inlined
def _log_add(a: Any, b: Any) -> Any:
    if a < b:
        a, b = b, a
    return a + math.log1p(math.exp(b - a))
