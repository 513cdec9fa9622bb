"""The compiled part of fast beam search: one frame of many searches.

Arcs out of a state: a loop, which adds no token, and one for each token. They lead to states, in which only the best
way there counts. Arcs that cannot be among the states kept are left out early, which changes nothing.

Source: `RnntDecodingStreams::Advance` of k2 (k2/csrc/rnnt_decode.cu), whose two prunings these are.
"""

from typing import Any, NamedTuple

import numba
import numpy as np

from tritone.search.beam.records import MARK
from tritone.search.compiled.addresses import after_use, borrowed, int32s, int64s, pointer_to
from tritone.search.compiled.compiler import compiled, inlined, merged
from tritone.search.compiled.heap import heap_of
from tritone.search.compiled.ranks import LOWEST, float_of
from tritone.search.scoring.alphabet import ALONE, BORDER, BREAK
from tritone.search.scoring.scorer import LEXICON, OPEN, STATE_SIZE, adds, close, extend_from, lent, scorer_at
from tritone.search.scoring.trie import child
from tritone.search.transducer.fast_records import ENTRY, GRAPH, STATE
from tritone.search.transducer.rows import rows_at
from tritone.search.transducer.softmax import BLOCK, normalise

ROUNDING = 1e-6  # how far sums may differ by the order in which they are added
LOOP, FINAL = -1, -2  # arcs without a token: back to the state itself, and to the end of the graph

# A state that may be kept, with the best arc that leads there.
CANDIDATE = np.dtype(
    [
        ("total", np.float64),
        ("gain", np.float64),  # what the scorer adds for the arc
        ("key", np.uint64),  # code of the state
        ("source", np.int32),  # the state that the arc comes from
        ("token", np.int32),  # of the arc, or LOOP or FINAL
    ],
    align=True,
)

# An entry of a state to be, and the arc that it came by.
ARRIVAL = np.dtype(
    [
        ("total", np.float64),
        ("score", np.float64),
        ("bonus", np.float64),
        ("code", np.uint64),
        ("log_prob", np.float64),  # of the arc
        ("mark", np.int32),  # before the arc
        ("token", np.int32),  # of the arc, or LOOP or FINAL
    ],
    align=True,
)

# What the logits of a context are worth; log-probabilities are -inf where they are ruled out.
READING = np.dtype(
    [
        ("largest", np.float64),  # logit
        ("start", np.float64),  # its log-probability
        ("blank", np.float64),  # log-probability of the blank
        ("loop", np.float64),  # the same or, if that is larger, that of the unknown token
    ],
    align=True,
)

_graphs_at = pointer_to(numba.from_dtype(GRAPH))
_states_at = pointer_to(numba.from_dtype(STATE))
_entries_at = pointer_to(numba.from_dtype(ENTRY))
_marks_at = pointer_to(numba.from_dtype(MARK))


class Side(NamedTuple):
    """The states of a search after a frame."""

    states: Any  # (states,) STATE
    entries: Any  # (entries,) ENTRY
    contexts: Any  # (contexts, context_size) int64
    words: Any  # (states, 2, STATE_SIZE) int32: of the scorer, and that after the end of the open word


class Logits(NamedTuple):
    """What the joiner computed for the contexts of one search."""

    values: Any  # (contexts, vocab) float32
    readings: Any  # (contexts,) READING
    blocks: Any  # (contexts, blocks) int32, the rank of the largest of every BLOCK of them
    temperature: Any
    blank_id: Any
    unk_id: Any


class Arcs(NamedTuple):
    """The candidates of a frame, and where they come from."""

    candidates: Any  # (n,) CANDIDATE
    aheads: Any  # (n, STATE_SIZE) int32, the scorer's states behind the arcs
    width: Any  # how much of `aheads` counts: STATE_SIZE, or 0 without a scorer
    table: Any  # (slots,) int32, hash table of their indices, -1 where it is empty; a power of two
    states: Any  # as of the `Side` that they come from
    contexts: Any


class Target(NamedTuple):
    """A state to be."""

    side: Any  # it is state number `at` of this `Side`, its context and words are filled
    at: Any
    ahead: Any  # (STATE_SIZE,) int32, for use


class Scratch(NamedTuple):
    """Memory for one frame of any search of a batch."""

    readings: Any  # as in `Logits` and `Arcs`
    blocks: Any
    candidates: Any
    aheads: Any
    table: Any
    order: Any  # (n,) int64, of candidates
    spare: Any  # (n,) int64
    arrivals: Any  # (nbest,) ARRIVAL


@inlined
def _graph_at(address: Any) -> Any:
    return numba.carray(_graphs_at(address), (1,))[0]


@inlined
def _side(graph: Any, side: Any, context_size: Any) -> Any:
    """One of the two sides of a search."""
    return Side(
        numba.carray(_states_at(graph.states), (2, graph.room))[side],
        numba.carray(_entries_at(graph.entries), (2, graph.room * graph.nbest))[side],
        numba.carray(int64s(graph.contexts), (2, min(graph.max_contexts, graph.room), context_size))[side],
        numba.carray(int32s(graph.words), (2, graph.room, 2, STATE_SIZE))[side],
    )


@inlined
def _mix(code: Any, value: Any) -> Any:
    mixed = (np.uint64(code) ^ np.uint64(value + 1)) * np.uint64(0x9E3779B97F4A7C15)
    return mixed ^ (mixed >> np.uint64(29))


@compiled
def ask(address: Any, frame: Any) -> Any:
    """Choose what the joiner computes in a frame: a row for each context of each search that has this frame.

    Args:
        address: of a `ROWS` record of `GRAPH` records.

    Returns:
        How many rows there are.
    """
    rows, count = rows_at(address), np.int64(0)
    for i in range(len(rows.searches)):
        if frame < rows.num_frames[i]:
            count = _ask(rows, i, frame, count)
    return count


@inlined
def _ask(rows: Any, i: Any, frame: Any, count: Any) -> Any:
    graph, size = _graph_at(rows.searches[i]), rows.contexts.shape[1]
    known = _side(graph, graph.side, size).contexts
    for number in range(graph.num_contexts):
        for j in range(size):
            rows.contexts[count, j] = known[number, j]
        rows.places[count] = i * rows.max_frames + frame
        count += 1
    return count


@merged
def _token_at(arcs: Any, number: Any, i: Any) -> Any:
    """Token `i` of the context of a candidate."""
    token, size = arcs.candidates[number].token, arcs.contexts.shape[1]
    context = np.int64(arcs.states[arcs.candidates[number].source].context)
    if token < 0:
        return arcs.contexts[context, i]
    return np.int64(token) if i == size - 1 else arcs.contexts[context, i + 1]


@inlined
def _worse(arcs: Any, a: Any, b: Any) -> Any:
    """Whether candidate `a` is worse than `b`; of equal ones, that with higher tokens, and final states are."""
    arcs = borrowed(arcs)
    candidates = arcs.candidates
    if candidates[a].total != candidates[b].total:
        return candidates[a].total < candidates[b].total
    for i in range(arcs.contexts.shape[1]):
        x, y = _token_at(arcs, a, i), _token_at(arcs, b, i)
        if x != y:
            return x > y
    if (candidates[a].token == FINAL) != (candidates[b].token == FINAL):
        return candidates[a].token == FINAL
    return a > b


_sort_candidates = heap_of(_worse).sort


@inlined
def _sort(arcs: Any, order: Any, count: Any) -> None:
    """Bring the indices of the candidates into `order`, best first."""
    for i in range(count):
        order[i] = i
    _sort_candidates(order, count, arcs)


@inlined
def _key(arcs: Any, size: Any) -> Any:
    """A code of the state of candidate number `size`: its context and the scorer's state."""
    key = np.uint64(0)
    for i in range(arcs.contexts.shape[1]):
        key = _mix(key, _token_at(arcs, size, i))
    for i in range(arcs.width):
        key = _mix(key, arcs.aheads[size, i])
    return key


@inlined
def _slot(arcs: Any, size: Any, key: Any) -> Any:
    """Where in the table the state of candidate number `size`, which is not in it, is or would be."""
    arcs = borrowed(arcs)
    mask = len(arcs.table) - 1
    at = np.int64(key & np.uint64(mask))
    while arcs.table[at] >= 0:
        other = np.int64(arcs.table[at])
        if arcs.candidates[other].key == key:
            same = True
            for i in range(arcs.contexts.shape[1]):
                same = same and _token_at(arcs, other, i) == _token_at(arcs, size, i)
            for i in range(arcs.width):
                same = same and arcs.aheads[other, i] == arcs.aheads[size, i]
            if same:
                break
        at = (at + 1) & mask
    return at


@inlined
def _consider(arcs: Any, size: Any, source: Any, token: Any, total: Any, gain: Any) -> Any:
    """Take in an arc as candidate number `size`, whose `aheads` are filled; returns how many there are then."""
    arcs = borrowed(arcs)
    new = arcs.candidates[size]
    new.total, new.gain, new.source, new.token = total, gain, source, token
    new.key = _key(arcs, size)
    at = _slot(arcs, size, new.key)
    if arcs.table[at] < 0:
        arcs.table[at] = size
        return size + 1
    known = arcs.candidates[arcs.table[at]]
    if total > known.total:
        known.total, known.gain, known.source, known.token = total, gain, source, token
    return size


@inlined
def _extend(scorer: Any, side: Any, source: Any, token: Any, ahead: Any) -> Any:
    """What a token adds after a state; `ahead` becomes the scorer's state behind it."""
    side = borrowed(side)
    state, words = side.states[source], side.words[source]
    if int32s(scorer.kinds)[token] in (BREAK, ALONE) and words[0, OPEN]:
        if np.isnan(state.closing):
            state.closing = close(scorer, words[0], words[1])
        return extend_from(scorer, words[0], words[1], state.closing, token, ahead)
    return extend_from(scorer, words[0], words[0], 0.0, token, ahead)


@inlined
def _is_known(scorer: Any, state: Any, token: Any) -> Any:
    """Whether a token goes on with a word of the lexicon, and those that it ends are words of it."""
    if not scorer.has_lm:
        return True
    if scorer.by_token:
        return int32s(scorer.token_words)[token] != 0
    node, is_open = np.int64(state[LEXICON]), state[OPEN] != 0
    for i in range(int64s(scorer.symbol_first)[token], int64s(scorer.symbol_first)[token + 1]):
        symbol = np.int64(int32s(scorer.symbols)[i])
        alone = symbol == BORDER or int32s(scorer.ideographs)[symbol] != 0
        if alone and is_open:
            if int32s(scorer.lexicon_word)[node] < 0:
                return False
            node, is_open = np.int64(0), False
        if symbol == BORDER:
            continue
        node = child(scorer.lexicon_first, scorer.lexicon_symbol, node, symbol)
        if node < 0:
            return False
        is_open = True
        if alone:
            if int32s(scorer.lexicon_word)[node] < 0:
                return False
            node, is_open = np.int64(0), False
    return True


@merged
def _log_prob(logits: Any, context: Any, token: Any) -> Any:
    """The log-probability of a token in a context; -inf where it is ruled out."""
    x, reading = logits.values[context, token], logits.readings[context]
    if not -np.inf < x < np.inf:
        return -np.inf
    return reading.start + (np.float64(x) - reading.largest) / logits.temperature


@inlined
def _read(logits: Any, context: Any, bits: Any, search: Any) -> None:
    """Fill in the reading and the blocks of a context, whose logits have these bits."""
    reading = logits.readings[context]
    largest, start = normalise(logits.values[context], bits, logits.blocks[context], logits.blank_id, search)
    reading.largest, reading.start, reading.blank, reading.loop = largest, start, -np.inf, -np.inf
    if start > -np.inf:
        reading.blank = reading.loop = _log_prob(logits, context, logits.blank_id)
        if logits.unk_id >= 0:
            reading.loop = max(reading.loop, _log_prob(logits, context, logits.unk_id))


@inlined
def _cut(arcs: Any, size: Any, most: Any, order: Any, spare: Any) -> Any:
    """Leave the best `most` of the candidates; returns the total of the last of them."""
    candidates, aheads, table = arcs.candidates, arcs.aheads, arcs.table
    _sort(arcs, order, size)
    for i in range(most):
        spare[i] = order[i]
    # Those that stay are moved to the front in the order of their numbers, which overwrites none of them.
    spare[:most].sort()
    least = candidates[order[most - 1]].total
    table[:] = -1
    mask = len(table) - 1
    for number in range(most):
        if spare[number] != number:
            candidates[number] = candidates[spare[number]]
            for i in range(aheads.shape[1]):
                aheads[number, i] = aheads[spare[number], i]
        at = np.int64(candidates[number].key & np.uint64(mask))
        while table[at] >= 0:
            at = (at + 1) & mask
        table[at] = number
    return least


@inlined
def _arrive(arrivals: Any, count: Any, side: Any, source: Any, log_prob: Any, gain: Any, token: Any) -> Any:
    """Take in the entries of state `source` by one arc: the best of each sequence, best first; returns how many."""
    state, entries = side.states[source], side.entries
    for number in range(state.first, state.first + state.count):
        entry = entries[number]
        score, bonus = entry.score + log_prob, entry.bonus + gain
        total = score + bonus
        code = entry.code if token < 0 else _mix(entry.code, token)
        if count == len(arrivals) and total <= arrivals[count - 1].total:
            break  # and so are those after it
        at = count
        for other in range(count):
            if arrivals[other].code == code:
                at = other
        if at < count:
            if total <= arrivals[at].total:
                continue
        elif count < len(arrivals):
            count += 1
        else:
            at = count - 1
        while at > 0 and total > arrivals[at - 1].total:
            arrivals[at] = arrivals[at - 1]
            at -= 1
        out = arrivals[at]
        out.total, out.score, out.bonus, out.code = total, score, bonus, code
        out.log_prob, out.mark, out.token = log_prob, entry.mark, token
    return count


@inlined
def _collect(graph: Any, scorer: Any, logits: Any, side: Any, arcs: Any, order: Any, spare: Any) -> Any:
    """Fill `arcs` with the states that may be kept, each with its best arc; returns how many there are."""
    logits, side, arcs = borrowed(logits), borrowed(side), borrowed(arcs)
    states, words = side.states, side.words
    arcs.table[:] = -1
    scored = adds(scorer)
    # No more than this many can be kept, and a state beyond has as many that are better.
    most = graph.room
    room = 4 * most + 64
    size, least = np.int64(0), states[0].total - graph.beam  # the best state comes first
    for i in range(graph.num_states):
        loop = logits.readings[states[i].context].loop
        if loop > -np.inf:
            for j in range(arcs.width):
                arcs.aheads[size, j] = words[i, 0, j]
            size = _consider(arcs, size, i, np.int64(LOOP), states[i].total + loop, 0.0)
    for i in range(graph.num_states):
        context, total = np.int64(states[i].context), states[i].total
        reading = logits.readings[context]
        gains = 0.0
        if scored:
            gains = min(scorer.max_gain, scorer.ceiling - lent(scorer, words[i, 0])) + ROUNDING
        for number in range(logits.blocks.shape[1] if reading.start > -np.inf else 0):
            # By the best of most blocks none of them will do.
            rank = logits.blocks[context, number]
            if rank == LOWEST:
                continue
            log_prob = reading.start + (np.float64(float_of(rank)) - reading.largest) / logits.temperature
            if not total + log_prob + gains >= least:
                continue
            for token in range(number * BLOCK, min(logits.values.shape[1], (number + 1) * BLOCK)):
                log_prob = _log_prob(logits, context, token)
                if not total + log_prob + gains >= least or token in (logits.blank_id, logits.unk_id):
                    continue
                gain = 0.0
                if scored:
                    if graph.restrict and not _is_known(scorer, words[i, 0], token):
                        continue
                    gain = _extend(scorer, side, i, token, arcs.aheads[size])
                    if not total + log_prob + gain >= least:
                        continue
                if not log_prob > -np.inf:
                    continue
                size = _consider(arcs, size, i, token, total + log_prob + gain, gain)
                if size >= room:
                    least = max(least, _cut(arcs, size, most, order, spare))
                    size = np.int64(most)
    return size


@inlined
def _choose(graph: Any, arcs: Any, size: Any, chosen: Any, order: Any, spare: Any) -> Any:
    """Put the indices of the candidates that are kept into `order`, best first, those of their contexts into `spare`.

    Args:
        chosen: (room, context_size), is filled with the contexts.

    Returns:
        How many states and how many contexts there are.
    """
    _sort(arcs, order, size)
    least = arcs.candidates[order[0]].total - graph.beam
    kept, num_contexts = np.int64(0), np.int64(0)
    for rank in range(min(size, graph.max_states)):
        number = order[rank]
        if arcs.candidates[number].total < least:
            break
        context: Any = np.int64(-1)
        for known in range(num_contexts):
            same = True
            for i in range(chosen.shape[1]):
                same = same and chosen[known, i] == _token_at(arcs, number, i)
            if same:
                context = known
                break
        if context < 0:
            if num_contexts == graph.max_contexts:
                continue
            context = num_contexts
            num_contexts += 1
            for i in range(chosen.shape[1]):
                chosen[context, i] = _token_at(arcs, number, i)
        order[kept] = number
        spare[kept] = context
        kept += 1
    return kept, num_contexts


@inlined
def _advance(graph: Any, logits: Any, bits: Any, context_size: Any, scratch: Any) -> None:
    """Search one frame; `bits` is the memory of the logits as integers."""
    logits, scratch = borrowed(logits), borrowed(scratch)
    now = graph.num_frames
    graph.num_frames += 1
    scorer = scorer_at(graph.scorer)
    old, new = _side(graph, graph.side, context_size), _side(graph, 1 - graph.side, context_size)
    for context in range(graph.num_contexts):
        _read(logits, context, bits[context], graph)

    num_slots = 4
    while num_slots < 2 * (4 * graph.room + 64):
        num_slots *= 2
    width = STATE_SIZE if adds(scorer) else 0
    table = scratch.table[:num_slots]
    arcs = Arcs(scratch.candidates, scratch.aheads, width, table, old.states, old.contexts)
    order, spare = scratch.order, scratch.spare
    size = _collect(graph, scorer, logits, old, arcs, order, spare)
    if size == 0:
        return  # the frame rules out everything: it is passed over
    if graph.final_arc:
        for i in range(graph.num_states):
            end = logits.readings[old.states[i].context].blank
            if end > -np.inf:
                last = arcs.candidates[size]
                last.total, last.gain, last.source, last.token = old.states[i].total + end, 0.0, i, FINAL
                size += 1
    kept, num_contexts = _choose(graph, arcs, size, new.contexts, order, spare)

    count, filled, num_states = np.int64(0), np.int64(0), np.int64(0)
    for final in range(2):
        for rank in range(kept):
            chosen = arcs.candidates[order[rank]]
            if (chosen.token == FINAL) != (final == 1):
                continue
            state = new.states[count]
            state.first, state.context = filled, spare[rank]
            state.closing, state.before = np.nan, old.states[chosen.source].total
            for i in range(width):
                new.words[count, 0, i] = scratch.aheads[order[rank], i]
            if chosen.token == LOOP and width:
                state.closing = old.states[chosen.source].closing
                for i in range(STATE_SIZE):
                    new.words[count, 1, i] = old.words[chosen.source, 1, i]
            arrivals = scratch.arrivals[: graph.nbest]
            arrived = _arrive_by_best(arrivals, logits, old, chosen)
            if graph.nbest > 1 and final == 0:
                ahead = scratch.aheads[len(scratch.aheads) - 1]
                arrived = _arrive_otherwise(arrivals, arrived, graph, logits, old, chosen, Target(new, count, ahead))
            state.total = arrivals[0].total
            state.count = arrived
            _write(graph, arrivals[:arrived], new.entries[filled : filled + arrived], now)
            filled += arrived
            count += 1
        if final == 0:
            num_states = count
    graph.num_states, graph.num_finals, graph.num_contexts = num_states, count - num_states, num_contexts
    graph.side = 1 - graph.side


@inlined
def _arrive_by_best(arrivals: Any, logits: Any, side: Any, chosen: Any) -> Any:
    """Take in the entries by the best arc to a state; returns how many there are."""
    source, token = np.int64(chosen.source), np.int64(chosen.token)
    context = np.int64(side.states[source].context)
    log_prob = logits.readings[context].loop
    if token == FINAL:
        log_prob = logits.readings[context].blank
    elif token >= 0:
        log_prob = _log_prob(logits, context, token)
    return _arrive(arrivals, np.int64(0), side, source, log_prob, chosen.gain, token)


@inlined
def _arrive_otherwise(arrivals: Any, arrived: Any, graph: Any, logits: Any, side: Any, chosen: Any, target: Any) -> Any:
    """Take in the entries by other arcs to a state than its best one, `chosen`; returns how many there are.

    Args:
        arrived: how many there are already.
        target: the state.
    """
    logits, side = borrowed(logits), borrowed(side)
    scorer = scorer_at(graph.scorer)
    width = STATE_SIZE if adds(scorer) else 0
    wanted, words = target.side.contexts[target.side.states[target.at].context], target.side.words
    lowest = side.states[0].total - graph.beam
    size = len(wanted)
    token = wanted[size - 1]
    is_token = token >= 0 and token != logits.blank_id and token != logits.unk_id
    for i in range(graph.num_states):
        context, total = np.int64(side.states[i].context), side.states[i].total
        is_same, is_next = True, is_token
        for j in range(size):
            is_same = is_same and side.contexts[context, j] == wanted[j]
            is_next = is_next and (j == 0 or side.contexts[context, j] == wanted[j - 1])
        if is_same and not (chosen.token == LOOP and chosen.source == i):
            for j in range(width):
                is_same = is_same and side.words[i, 0, j] == words[target.at, 0, j]
            loop = logits.readings[context].loop
            if is_same and loop > -np.inf:
                arrived = _arrive(arrivals, arrived, side, i, loop, 0.0, np.int64(LOOP))
        if not is_next or (chosen.token == token and chosen.source == i):
            continue
        log_prob, gain = _log_prob(logits, context, token), 0.0
        if not log_prob > -np.inf:
            continue
        if width:
            if graph.restrict and not _is_known(scorer, side.words[i, 0], token):
                continue
            gain = _extend(scorer, side, i, token, target.ahead)
            for j in range(width):
                is_next = is_next and target.ahead[j] == words[target.at, 0, j]
        if is_next and total + log_prob + gain >= lowest:
            arrived = _arrive(arrivals, arrived, side, i, log_prob, gain, token)
    return arrived


@inlined
def _write(graph: Any, arrivals: Any, entries: Any, now: Any) -> None:
    """Make arrivals in frame `now` the entries of a state."""
    marks = numba.carray(_marks_at(graph.marks), (graph.marks_room,))
    for i in range(len(arrivals)):
        here, out = arrivals[i], entries[i]
        out.score, out.bonus, out.code, out.mark = here.score, here.bonus, here.code, here.mark
        if here.token >= 0:
            mark = marks[graph.num_marks]
            mark.token, mark.frame, mark.log_prob, mark.parent = here.token, now, here.log_prob, here.mark
            mark.span = 1
            out.mark = graph.num_marks
            graph.num_marks += 1


@compiled
def step(address: Any, frame: Any, logits: Any) -> Any:
    """Search one frame, and choose what the joiner computes in the next one, as `ask` does.

    Args:
        address: as of `ask`.
        logits: (rows, vocab) float32, the joiner's; blank penalties are subtracted in place.
    """
    rows = rows_at(address)
    most_states, most_contexts, most_entries, any_scored = np.int64(1), np.int64(1), np.int64(1), False
    for i in range(len(rows.searches)):
        if frame < rows.num_frames[i]:
            graph = _graph_at(rows.searches[i])
            most_states = max(most_states, graph.room)
            most_contexts = max(most_contexts, graph.num_contexts)
            most_entries = max(most_entries, graph.nbest)
            any_scored = any_scored or adds(scorer_at(graph.scorer))
    most = 5 * most_states + 66  # candidates, final states and one to try with
    num_slots = 4
    while num_slots < 2 * most:
        num_slots *= 2
    memory = Scratch(
        np.empty(most_contexts, dtype=READING),
        np.empty((most_contexts, (logits.shape[1] + BLOCK - 1) // BLOCK), dtype=np.int32),
        np.empty(most, dtype=CANDIDATE),
        np.empty((most, STATE_SIZE if any_scored else 0), dtype=np.int32),
        np.empty(num_slots, dtype=np.int32),
        np.empty(most, dtype=np.int64),
        np.empty(most, dtype=np.int64),
        np.empty(most_entries, dtype=ARRIVAL),
    )
    scratch = borrowed(memory)
    answers, bits = borrowed((logits, logits.view(np.int32)))
    first, count = np.int64(0), np.int64(0)
    for i in range(len(rows.searches)):
        if frame >= rows.num_frames[i]:
            continue
        graph = _graph_at(rows.searches[i])
        last = first + graph.num_contexts
        own = Logits(
            answers[first:last], scratch.readings, scratch.blocks, graph.temperature, rows.blank_id, rows.unk_id
        )
        _advance(graph, own, bits[first:last], rows.contexts.shape[1], scratch)
        first = last
        if frame + 1 < rows.num_frames[i]:
            count = _ask(rows, i, frame + 1, count)
    return after_use(memory, count)
