"""The compiled part of fast beam search: one frame of many searches.

Arcs out of a state: a loop by which nothing is said, and one for each token. They lead to states, in which only the
best way there counts. Arcs that cannot be among the states kept are left out early, which changes nothing.

Source: `RnntDecodingStreams::Advance` of k2 (k2/csrc/rnnt_decode.cu), whose two prunings these are.
"""

from typing import Any

import numba
import numpy as np

from tritone.search.compiled.addresses import int32s, int64s
from tritone.search.compiled.compiler import compiled, inlined
from tritone.search.scoring.alphabet import ALONE, BORDER, BREAK
from tritone.search.scoring.scorer import LEXICON, OPEN, STATE_SIZE, close, extend_from, lent
from tritone.search.scoring.trie import child
from tritone.search.transducer.fast_records import entries_at, head_at, marks_at, scorers_at, states_at
from tritone.search.transducer.softmax import BLOCK, LOWEST, block_ranks, float_of, log_sum

ROUNDING = 1e-6  # how far sums may differ by the order in which they are added
LOOP, FINAL = -1, -2  # arcs that say nothing: back to the state itself, and to the end of the graph

# A state that may be kept, with the best arc that leads there: from state number `source` by `token`, or LOOP or FINAL.
CANDIDATE = np.dtype(
    [("total", np.float64), ("gain", np.float64), ("key", np.uint64), ("source", np.int32), ("token", np.int32)],
    align=True,
)

# An entry of a state to be, and the arc that it came by.
ARRIVAL = np.dtype(
    [
        ("total", np.float64),
        ("score", np.float64),
        ("bonus", np.float64),
        ("said", np.uint64),
        ("log_prob", np.float64),
        ("mark", np.int32),
        ("token", np.int32),
    ],
    align=True,
)


@inlined
def _mix(code: Any, value: Any) -> Any:
    mixed = (np.uint64(code) ^ np.uint64(value + 1)) * np.uint64(0x9E3779B97F4A7C15)
    return mixed ^ (mixed >> np.uint64(29))


@compiled
def ask(heads: Any, num_frames: Any, max_frames: Any, frame: Any, contexts: Any, places: Any) -> Any:
    """Say what the joiner is to be asked in a frame: one row for each context of each search that has this frame.

    Args:
        heads: (batch,) int64 addresses of `HEAD` records.
        num_frames: (batch,) int64; `max_frames`: the rows that each search has in the table of frames.
        contexts: (rows, context_size) int64, `places`: (rows,) int64 in the table of frames; both are filled.

    Returns:
        How many rows there are.
    """
    count = np.int64(0)
    for i in range(len(heads)):
        if frame < num_frames[i]:
            count = _ask(head_at(heads[i]), i * max_frames + frame, contexts, places, count)
    return count


@inlined
def _ask(head: Any, place: Any, contexts: Any, places: Any, count: Any) -> Any:
    size = contexts.shape[1]
    known = numba.carray(int64s(head.contexts), (2, min(head.max_contexts, head.room), size))
    for number in range(head.num_contexts):
        for i in range(size):
            contexts[count, i] = known[head.side, number, i]
        places[count] = place
        count += 1
    return count


@inlined
def _token_at(candidates: Any, number: Any, states: Any, contexts: Any, i: Any) -> Any:
    """Token `i` of the context of a candidate."""
    size = contexts.shape[1]
    context = states[candidates[number].source].context
    if candidates[number].token < 0:
        return contexts[context, i]
    return np.int64(candidates[number].token) if i == size - 1 else contexts[context, i + 1]


@inlined
def _before(candidates: Any, a: Any, b: Any, states: Any, contexts: Any) -> Any:
    """Whether candidate `a` is better than `b`; of equal ones, the one with the lower tokens, final states last."""
    if candidates[a].total != candidates[b].total:
        return candidates[a].total > candidates[b].total
    for i in range(contexts.shape[1]):
        x, y = _token_at(candidates, a, states, contexts, i), _token_at(candidates, b, states, contexts, i)
        if x != y:
            return x < y
    if (candidates[a].token == FINAL) != (candidates[b].token == FINAL):
        return candidates[b].token == FINAL
    return a < b


@inlined
def _sort(candidates: Any, order: Any, count: Any, states: Any, contexts: Any) -> None:
    """Bring the numbers of the candidates into `order`, best first."""
    for i in range(count):
        order[i] = i
    if count <= 16:
        for i in range(1, count):
            moved, at = order[i], i
            while at > 0 and _before(candidates, moved, order[at - 1], states, contexts):
                order[at] = order[at - 1]
                at -= 1
            order[at] = moved
        return
    for start in range(count // 2 - 1, -1, -1):
        _sift(candidates, order, count, start, states, contexts)
    for end in range(count - 1, 0, -1):
        order[0], order[end] = order[end], order[0]
        _sift(candidates, order, end, np.int64(0), states, contexts)


@inlined
def _sift(candidates: Any, heap: Any, size: Any, at: Any, states: Any, contexts: Any) -> None:
    """Restore a heap with the worst on top, of which only the one at `at` may be misplaced."""
    moved = heap[at]
    while True:
        below = 2 * at + 1
        if below >= size:
            break
        if below + 1 < size and _before(candidates, heap[below], heap[below + 1], states, contexts):
            below += 1
        if not _before(candidates, moved, heap[below], states, contexts):
            break
        heap[at] = heap[below]
        at = below
    heap[at] = moved


@inlined
def _key(contexts: Any, context: Any, token: Any, words: Any) -> Any:
    """A code of the state behind an arc: its context and `words`, its state of the scorer, if there is one."""
    key, size = np.uint64(0), contexts.shape[1]
    if token >= 0:
        for i in range(1, size):
            key = _mix(key, contexts[context, i])
        key = _mix(key, token)
    else:
        for i in range(size):
            key = _mix(key, contexts[context, i])
    for i in range(len(words)):
        key = _mix(key, words[i])
    return key


@inlined
def _place(
    candidates: Any, aheads: Any, table: Any, size: Any, key: Any, states: Any, contexts: Any, scored: Any
) -> Any:
    """Where in the table the candidate number `size`, which is not in it, has its like, or would be itself."""
    mask = len(table) - 1
    at = np.int64(key & np.uint64(mask))
    while table[at] >= 0:
        other = table[at]
        if candidates[other].key == key:
            same = True
            for i in range(contexts.shape[1]):
                x, y = (
                    _token_at(candidates, other, states, contexts, i),
                    _token_at(candidates, size, states, contexts, i),
                )
                same = same and x == y
            if scored:
                for i in range(STATE_SIZE):
                    same = same and aheads[other, i] == aheads[size, i]
            if same:
                break
        at = (at + 1) & mask
    return at


@inlined
def _consider(
    candidates: Any, aheads: Any, table: Any, size: Any, words: Any, states: Any, contexts: Any, scored: Any
) -> Any:
    """Take in candidate number `size`, which is filled in but for its key; returns how many there are then."""
    new = candidates[size]
    new.key = _key(contexts, states[new.source].context, np.int64(new.token), words)
    at = _place(candidates, aheads, table, size, new.key, states, contexts, scored)
    if table[at] < 0:
        table[at] = size
        return size + 1
    known = candidates[table[at]]
    if new.total > known.total:
        known.total, known.gain, known.source, known.token = new.total, new.gain, new.source, new.token
    return size


@inlined
def _extend(scorer: Any, states: Any, words: Any, source: Any, token: Any, ahead: Any) -> Any:
    """What a token adds after a state; `ahead` becomes the scorer's state behind it."""
    kind = int32s(scorer.kinds)[token]
    if kind in (BREAK, ALONE) and words[source, 0, OPEN]:
        if np.isnan(states[source].closing):
            states[source].closing = close(scorer, words[source, 0], words[source, 1])
        return extend_from(scorer, words[source, 0], words[source, 1], states[source].closing, token, ahead)
    return extend_from(scorer, words[source, 0], words[source, 0], 0.0, token, ahead)


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


@inlined
def _log_prob(row: Any, largest: Any, start: Any, temperature: Any, token: Any) -> Any:
    """The log-probability of a token; -inf where it is ruled out."""
    x = row[token]
    return start + (np.float64(x) - largest) / temperature if -np.inf < x < np.inf else -np.inf


@inlined
def _read_context(row: Any, bits: Any, blank_id: Any, unk_id: Any, head: Any, blocks: Any, reading: Any) -> None:
    """Find out what the logits of a context are worth.

    Args:
        blocks: is filled with the rank of the best logit of every `BLOCK` of them.
        reading: (4,) float64 is filled: the largest logit, the log-probability of that, of the blank, and of a loop,
            which is the blank's or, if that is larger, the unknown token's. -inf where they are ruled out.
    """
    if head.blank_penalty != 0.0:
        row[blank_id] = np.float32(row[blank_id] - head.blank_penalty)
    rank = block_ranks(bits, blocks)
    reading[0] = reading[1] = reading[2] = reading[3] = -np.inf
    if rank == LOWEST or float_of(rank) == -np.inf:
        return
    largest = float_of(rank)
    reading[0], reading[1] = largest, -log_sum(row, largest, head.temperature)
    reading[2] = reading[3] = _log_prob(row, reading[0], reading[1], head.temperature, blank_id)
    if unk_id >= 0:
        reading[3] = max(reading[3], _log_prob(row, reading[0], reading[1], head.temperature, unk_id))


@inlined
def _cut(
    candidates: Any, aheads: Any, table: Any, order: Any, spare: Any, size: Any, most: Any, states: Any, contexts: Any
) -> Any:
    """Leave the best `most` of the candidates; returns the total of the last of them."""
    _sort(candidates, order, size, states, contexts)
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
def _arrive(arrivals: Any, count: Any, entries: Any, state: Any, log_prob: Any, gain: Any, token: Any) -> Any:
    """Take in what comes from a state by one arc: the best of each token sequence, best first; returns how many."""
    for number in range(state.first, state.first + state.count):
        entry = entries[number]
        score, bonus = entry.score + log_prob, entry.bonus + gain
        total = score + bonus
        said = entry.said if token < 0 else _mix(entry.said, token)
        if count == len(arrivals) and total <= arrivals[count - 1].total:
            break  # and so are those after it
        at = count
        for other in range(count):
            if arrivals[other].said == said:
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
        out.total, out.score, out.bonus, out.said = total, score, bonus, said
        out.log_prob, out.mark, out.token = log_prob, entry.mark, token
    return count


@inlined
def _collect(
    head: Any,
    scorer: Any,
    logits: Any,
    readings: Any,
    blocks: Any,
    states: Any,
    contexts: Any,
    words: Any,
    blank_id: Any,
    unk_id: Any,
    candidates: Any,
    aheads: Any,
    table: Any,
    order: Any,
    spare: Any,
) -> Any:
    """Fill `candidates` with the states that may be kept, each with its best arc; returns how many there are."""
    table[:] = -1
    num, temperature, scored = head.num_states, head.temperature, head.scored
    # No more than this many can be kept, and a state beyond has as many that are better.
    most = head.room
    room = 4 * most + 64
    nothing = aheads[0, :0]
    size, least = np.int64(0), states[0].total - head.beam  # the best state comes first
    for i in range(num):
        loop = readings[states[i].context, 3]
        if loop > -np.inf:
            new = candidates[size]
            new.total, new.gain, new.source, new.token = states[i].total + loop, 0.0, i, LOOP
            if scored:
                for j in range(STATE_SIZE):
                    aheads[size, j] = words[i, 0, j]
            ahead = aheads[size] if scored else nothing
            size = _consider(candidates, aheads, table, size, ahead, states, contexts, scored)
    for i in range(num):
        context, total = states[i].context, states[i].total
        row, largest, start = logits[context], readings[context, 0], readings[context, 1]
        gains = 0.0
        if scored:
            gains = min(head.most_gain, head.ceiling - lent(scorer, words[i, 0])) + ROUNDING
        for number in range(blocks.shape[1] if start > -np.inf else 0):
            # The best of most blocks tells that none of them will do.
            if blocks[context, number] == LOWEST:
                continue
            log_prob = start + (np.float64(float_of(blocks[context, number])) - largest) / temperature
            if not total + log_prob + gains >= least:
                continue
            for token in range(number * BLOCK, min(len(row), (number + 1) * BLOCK)):
                log_prob = _log_prob(row, largest, start, temperature, token)
                if not total + log_prob + gains >= least or token in (blank_id, unk_id):
                    continue
                gain = 0.0
                if scored:
                    if head.restrict and not _is_known(scorer, words[i, 0], token):
                        continue
                    gain = _extend(scorer, states, words, i, token, aheads[size])
                    if not total + log_prob + gain >= least:
                        continue
                if not log_prob > -np.inf:
                    continue
                new = candidates[size]
                new.total, new.gain, new.source, new.token = total + log_prob + gain, gain, i, token
                ahead = aheads[size] if scored else nothing
                size = _consider(candidates, aheads, table, size, ahead, states, contexts, scored)
                if size >= room:
                    least = max(least, _cut(candidates, aheads, table, order, spare, size, most, states, contexts))
                    size = np.int64(most)
    return size


@inlined
def _choose(
    head: Any, candidates: Any, size: Any, states: Any, contexts: Any, chosen: Any, order: Any, spare: Any
) -> Any:
    """Put the numbers of the candidates that are kept into `order`, best first, and those of their contexts in `spare`.

    Args:
        chosen: (room, context_size), is filled with the contexts.

    Returns:
        How many states and how many contexts there are.
    """
    _sort(candidates, order, size, states, contexts)
    least = candidates[order[0]].total - head.beam
    kept, num_contexts = np.int64(0), np.int64(0)
    for rank in range(min(size, head.max_states)):
        number = order[rank]
        if candidates[number].total < least:
            break
        context: Any = np.int64(-1)
        for known in range(num_contexts):
            same = True
            for i in range(contexts.shape[1]):
                same = same and chosen[known, i] == _token_at(candidates, number, states, contexts, i)
            if same:
                context = known
                break
        if context < 0:
            if num_contexts == head.max_contexts:
                continue
            context = num_contexts
            num_contexts += 1
            for i in range(contexts.shape[1]):
                chosen[context, i] = _token_at(candidates, number, states, contexts, i)
        order[kept] = number
        spare[kept] = context
        kept += 1
    return kept, num_contexts


@inlined
def _advance(
    head: Any,
    logits: Any,
    bits: Any,
    blank_id: Any,
    unk_id: Any,
    context_size: Any,
    blocks: Any,
    readings: Any,
    candidates: Any,
    aheads: Any,
    slots: Any,
    order: Any,
    spare: Any,
    arrivals: Any,
) -> None:
    """Search one frame; `logits` (contexts, vocab) are those of the search's own contexts, `bits` the same memory."""
    now, scored, nbest = head.num_frames, head.scored, head.nbest
    head.num_frames += 1
    all_states = numba.carray(states_at(head.states), (2, head.room))
    all_entries = numba.carray(entries_at(head.entries), (2, head.room * nbest))
    all_contexts = numba.carray(int64s(head.contexts), (2, min(head.max_contexts, head.room), context_size))
    all_words = numba.carray(int32s(head.words), (2, head.room if scored else 0, 2, STATE_SIZE))
    marks = numba.carray(marks_at(head.marks), (head.marks_room,))
    scorer = numba.carray(scorers_at(head.scorer), (1,))[0]
    states, contexts, words, entries = (
        all_states[head.side],
        all_contexts[head.side],
        all_words[head.side],
        all_entries[head.side],
    )
    new_states, new_contexts, new_words, new_entries = (
        all_states[1 - head.side],
        all_contexts[1 - head.side],
        all_words[1 - head.side],
        all_entries[1 - head.side],
    )
    for context in range(head.num_contexts):
        _read_context(logits[context], bits[context], blank_id, unk_id, head, blocks[context], readings[context])

    num_slots = 4
    while num_slots < 2 * (4 * head.room + 64):
        num_slots *= 2
    size = _collect(
        head,
        scorer,
        logits,
        readings,
        blocks,
        states,
        contexts,
        words,
        blank_id,
        unk_id,
        candidates,
        aheads,
        slots[:num_slots],
        order,
        spare,
    )
    if size == 0:
        return  # the frame rules out everything: it is passed over
    if head.final_arc:
        for i in range(head.num_states):
            end = readings[states[i].context, 2]
            if end > -np.inf:
                new = candidates[size]
                new.total, new.gain, new.source, new.token = states[i].total + end, 0.0, i, FINAL
                size += 1
    kept, num_contexts = _choose(head, candidates, size, states, contexts, new_contexts, order, spare)

    lowest = states[0].total - head.beam
    count, filled, num_states = np.int64(0), np.int64(0), np.int64(0)
    for final in range(2):
        for rank in range(kept):
            chosen = candidates[order[rank]]
            if (chosen.token == FINAL) != (final == 1):
                continue
            source, token = np.int64(chosen.source), np.int64(chosen.token)
            context, new = states[source].context, new_states[count]
            new.context, new.closing, new.before = spare[rank], np.nan, states[source].total
            log_prob = readings[context, 2 if final else 3]
            if token >= 0:
                log_prob = _log_prob(
                    logits[context], readings[context, 0], readings[context, 1], head.temperature, token
                )
            if scored:
                for i in range(STATE_SIZE):
                    new_words[count, 0, i] = aheads[order[rank], i]
                if token == LOOP:
                    new.closing = states[source].closing
                    for i in range(STATE_SIZE):
                        new_words[count, 1, i] = words[source, 1, i]
            arrived = _arrive(arrivals[:nbest], np.int64(0), entries, states[source], log_prob, chosen.gain, token)
            if nbest > 1 and final == 0:
                arrived = _arrive_otherwise(
                    arrivals[:nbest],
                    arrived,
                    source,
                    token,
                    new_contexts[spare[rank]],
                    new_words[count, 0] if scored else aheads[0, :0],
                    lowest,
                    head,
                    scorer,
                    logits,
                    readings,
                    blank_id,
                    unk_id,
                    states,
                    entries,
                    contexts,
                    words,
                    aheads[size],
                )
            new.first, new.count, new.total = filled, arrived, arrivals[0].total
            for i in range(arrived):
                here, out = arrivals[i], new_entries[filled]
                out.score, out.bonus, out.said, out.mark = here.score, here.bonus, here.said, here.mark
                if here.token >= 0:
                    mark = marks[head.num_marks]
                    mark.token, mark.frame, mark.log_prob, mark.parent = here.token, now, here.log_prob, here.mark
                    out.mark = head.num_marks
                    head.num_marks += 1
                filled += 1
            count += 1
        if final == 0:
            num_states = count
    head.num_states, head.num_finals, head.num_contexts = num_states, count - num_states, num_contexts
    head.side = 1 - head.side


@inlined
def _arrive_otherwise(
    arrivals: Any,
    arrived: Any,
    source: Any,
    arc: Any,
    target: Any,
    target_words: Any,
    lowest: Any,
    head: Any,
    scorer: Any,
    logits: Any,
    readings: Any,
    blank_id: Any,
    unk_id: Any,
    states: Any,
    entries: Any,
    contexts: Any,
    words: Any,
    ahead: Any,
) -> Any:
    """Take in what comes to a state by other arcs than its best one, which is `arc` out of state number `source`.

    Args:
        target: (context_size,) the context of the state, `target_words` the scorer's state.
        lowest: the least total of an arc.

    Returns:
        How many entries there are.
    """
    size = len(target)
    token = target[size - 1]
    is_token = token >= 0 and token != blank_id and token != unk_id
    for i in range(head.num_states):
        context = states[i].context
        is_same, is_next = True, is_token
        for j in range(size):
            is_same = is_same and contexts[context, j] == target[j]
            is_next = is_next and (j == 0 or contexts[context, j] == target[j - 1])
        if is_same and not (arc == LOOP and source == i):
            for j in range(len(target_words)):
                is_same = is_same and words[i, 0, j] == target_words[j]
            if is_same and readings[context, 3] > -np.inf:
                arrived = _arrive(arrivals, arrived, entries, states[i], readings[context, 3], 0.0, np.int64(LOOP))
        if not is_next or (arc == token and source == i):
            continue
        log_prob, gain = (
            _log_prob(logits[context], readings[context, 0], readings[context, 1], head.temperature, token),
            0.0,
        )
        if not log_prob > -np.inf:
            continue
        if head.scored:
            if head.restrict and not _is_known(scorer, words[i, 0], token):
                continue
            gain = _extend(scorer, states, words, i, token, ahead)
            for j in range(len(target_words)):
                is_next = is_next and ahead[j] == target_words[j]
        if is_next and states[i].total + log_prob + gain >= lowest:
            arrived = _arrive(arrivals, arrived, entries, states[i], log_prob, gain, token)
    return arrived


@compiled
def step(
    heads: Any,
    num_frames: Any,
    max_frames: Any,
    frame: Any,
    logits: Any,
    blank_id: Any,
    unk_id: Any,
    contexts: Any,
    places: Any,
) -> Any:
    """Search one frame, and ask for the next one; arguments and result are as those of `ask`, and

    Args:
        logits: (rows, vocab) float32, the answers; blank penalties are taken off in place.
        unk_id: a token that is never said and counts as blank, or -1.
    """
    most_states, most_contexts, most_entries, any_scored = np.int64(1), np.int64(1), np.int64(1), False
    for i in range(len(heads)):
        if frame < num_frames[i]:
            head = head_at(heads[i])
            most_states = max(most_states, head.room)
            most_contexts = max(most_contexts, head.num_contexts)
            most_entries = max(most_entries, head.nbest)
            any_scored = any_scored or head.scored
    bits = logits.view(np.int32)
    blocks = np.empty((most_contexts, (logits.shape[1] + BLOCK - 1) // BLOCK), dtype=np.int32)
    readings = np.empty((most_contexts, 4), dtype=np.float64)
    most = 5 * most_states + 66  # candidates, final states and one to try with
    candidates = np.empty(most, dtype=CANDIDATE)
    aheads = np.empty((most, STATE_SIZE if any_scored else 0), dtype=np.int32)
    num_slots = 4
    while num_slots < 2 * most:
        num_slots *= 2
    slots = np.empty(num_slots, dtype=np.int32)
    order, spare = np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int64)
    arrivals = np.empty(most_entries, dtype=ARRIVAL)
    first, count = np.int64(0), np.int64(0)
    for i in range(len(heads)):
        if frame >= num_frames[i]:
            continue
        head = head_at(heads[i])
        last = first + head.num_contexts
        _advance(
            head,
            logits[first:last],
            bits[first:last],
            blank_id,
            unk_id,
            contexts.shape[1],
            blocks,
            readings,
            candidates,
            aheads,
            slots,
            order,
            spare,
            arrivals,
        )
        first = last
        if frame + 1 < num_frames[i]:
            count = _ask(head, i * max_frames + frame + 1, contexts, places, count)
    return count
