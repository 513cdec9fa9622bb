"""The compiled part of modified beam search: one frame of all utterances of a batch.

Hypotheses are prefixes as `beam/records.py` has them, with one sum over all alignments (`blank`, `score`), one list of
times (`blank_mark`) and the frame that they go on with (`place`): others than the next one have those after a duration.
A node's second state is its context: the newest tokens, which the predictor sees; of a predictor with a state it is the
row of what that said, among the `ROWS_EACH * beam` rows of its search, or -1.
"""

import math
from typing import Any

import numpy as np

from tritone.search.beam.pruning import add_child, add_mark, child_slot, tree_at
from tritone.search.compiled.compiler import compiled, inlined, merged
from tritone.search.compiled.ranks import LOWEST, float_of
from tritone.search.scoring.scorer import STATE_SIZE, adds, extend, lent, scorer_at
from tritone.search.transducer.memory import ROWS_EACH
from tritone.search.transducer.rows import rows_at
from tritone.search.transducer.softmax import BLOCK, normalise

NOTHING = -1  # in place of a token: a hypothesis stays what it is

# One of the best extensions in a frame: hypothesis number `source` by `token`, to go on with frame `place`.
EXTENSION = np.dtype(
    [
        ("total", np.float64),
        ("log_prob", np.float64),  # of token and duration after the hypothesis,
        ("token_log_prob", np.float64),  # and of the token alone
        ("source", np.int64),
        ("token", np.int64),
        ("place", np.int64),
    ],
    align=True,
)


@compiled
def ask(address: Any, frame: Any) -> Any:
    """Choose what the joiner computes in a frame: a row for each hypothesis in it of each search that has this frame.

    Args:
        address: of a `ROWS` record of `TREE` records.

    Returns:
        How many rows there are.
    """
    rows, count, first_row = rows_at(address), np.int64(0), np.int64(0)
    for i in range(len(rows.searches)):
        if frame < rows.num_frames[i]:
            count = _ask(rows, i, frame, first_row, count)
        first_row += ROWS_EACH * tree_at(rows.searches[i]).search.beam
    return count


@inlined
def _ask(rows: Any, i: Any, frame: Any, first_row: Any, count: Any) -> Any:
    tree = tree_at(rows.searches[i])
    for rank in range(tree.search.num_prefixes):
        prefix = tree.prefixes[tree.search.side, rank]
        if prefix.place > tree.search.num_frames:
            continue
        for j in range(rows.contexts.shape[1]):
            rows.contexts[count, j] = tree.states[prefix.node, 1, j]
        if rows.stateful:
            rows.contexts[count, 0] += first_row
        rows.places[count] = i * rows.max_frames + frame
        count += 1
    return count


@compiled
def step(address: Any, frame: Any, logits: Any) -> Any:
    """Search one frame, and choose what the joiner computes in the next one, as `ask` does.

    Args:
        address: as of `ask`.
        logits: (rows, vocab + durations) float32, the joiner's; blank penalties are subtracted in place.
    """
    rows, bits = rows_at(address), logits.view(np.int32)
    vocab = logits.shape[1] - rows.num_durations
    blocks = np.empty((vocab + BLOCK - 1) // BLOCK, dtype=np.int32)
    spans = np.zeros(len(rows.steps), dtype=np.float64)
    most = np.int64(1)
    for i in range(len(rows.searches)):
        most = max(most, tree_at(rows.searches[i]).search.beam)
    best, used = np.empty(most, dtype=EXTENSION), np.empty(ROWS_EACH * most, dtype=np.bool_)
    first, count, first_row = np.int64(0), np.int64(0), np.int64(0)
    rows.num_fresh[0] = 0
    for i in range(len(rows.searches)):
        tree = tree_at(rows.searches[i])
        if frame < rows.num_frames[i]:
            last = first
            for rank in range(tree.search.num_prefixes):
                last += tree.prefixes[tree.search.side, rank].place <= tree.search.num_frames
            size = _find_best(tree, logits[first:last], bits[first:last], rows, best, blocks, spans)
            num_before = tree.search.num_prefixes
            _keep(tree, best[:size], rows)
            if rows.stateful:
                _give_rows(tree, num_before, rows, first_row, used)
            first = last
            if frame + 1 < rows.num_frames[i]:
                count = _ask(rows, i, frame + 1, first_row, count)
        first_row += ROWS_EACH * tree.search.beam
    return count


@merged
def _find_best(tree: Any, logits: Any, bits: Any, rows: Any, best: Any, blocks: Any, spans: Any) -> Any:
    """Fill `best` with the best extensions of all hypotheses, best first; returns how many there are.

    Hypotheses that are ahead stay as they are, and so do all where the frame rules out everything. Of equal ones the
    first is kept, by hypothesis and then by token and duration.
    """
    search, vocab = tree.search, logits.shape[1] - rows.num_durations
    alive, now = tree.prefixes[search.side], search.num_frames
    beam, temperature = search.beam, search.temperature
    scorer = scorer_at(search.scorer)
    scored = rows.stateful and adds(scorer)
    state = np.empty(STATE_SIZE, dtype=np.int32)
    size, at, speaks = np.int64(0), np.int64(0), False
    for source in range(search.num_prefixes):
        before = alive[source]
        if before.place > now:
            place = _place(best, size, beam, before.total)
            if place >= 0:
                size = min(size + 1, beam)
                _put(best[place], before.total, 0.0, 0.0, source, NOTHING, before.place)
            continue
        row = logits[at][:vocab]
        largest, start = normalise(row, bits[at][:vocab], blocks, rows.blank_id, search)
        usual = _find_spans(logits[at][vocab:], temperature, spans)
        at += 1
        if start == -np.inf:
            continue
        speaks = True
        ahead = before.total + usual  # what anything adds to, at most
        if scored:
            ahead += max(0.0, scorer.ceiling - lent(scorer, tree.states[before.node, 0]))
        for number in range(len(blocks)):
            if blocks[number] == LOWEST:
                continue
            # What a logit must be above; by the largest of most blocks none is.
            token_log_prob = start + (float_of(blocks[number]) - largest) / temperature
            if size == beam and ahead + token_log_prob <= best[size - 1].total:
                continue
            for token in range(number * BLOCK, min(vocab, (number + 1) * BLOCK)):
                if not -np.inf < row[token] < np.inf:
                    continue
                token_log_prob = start + (row[token] - largest) / temperature
                if size == beam and ahead + token_log_prob <= best[size - 1].total:
                    continue
                total = before.total + token_log_prob
                if scored and token not in (rows.blank_id, rows.unk_id):
                    total += extend(search.scorer, tree.states[before.node, 0], token, state)
                for span in range(len(spans)):
                    place = _place(best, size, beam, total + spans[span])
                    if place >= 0:
                        size = min(size + 1, beam)
                        step, log_prob = rows.steps[span], token_log_prob + spans[span]
                        _put(best[place], total + spans[span], log_prob, token_log_prob, source, token, now + step)
    if not speaks:
        for source in range(search.num_prefixes):
            if alive[source].place <= now:
                place = _place(best, size, beam, alive[source].total)
                if place >= 0:
                    size = min(size + 1, beam)
                    _put(best[place], alive[source].total, 0.0, 0.0, source, NOTHING, now + 1)
    return size


@merged
def _place(best: Any, size: Any, beam: Any, total: Any) -> Any:
    """Make a place for an extension among the best; -1 if it is none of them."""
    if total == -np.inf or (size == beam and total <= best[size - 1].total):
        return np.int64(-1)
    at = min(size, beam - 1)
    while at > 0 and best[at - 1].total < total:
        best[at] = best[at - 1]
        at -= 1
    return at


@inlined
def _put(extension: Any, total: Any, log_prob: Any, token_log_prob: Any, source: Any, token: Any, place: Any) -> None:
    extension.total, extension.log_prob, extension.token_log_prob = total, log_prob, token_log_prob
    extension.source, extension.token, extension.place = source, token, place


@inlined
def _find_spans(logits: Any, temperature: Any, spans: Any) -> Any:
    """Fill `spans` with the log-probabilities of the durations, and return the largest.

    Without logits, or if all are ruled out, the first is sure.
    """
    largest = -np.inf
    for span in range(len(logits)):
        spans[span] = -np.inf
        if -np.inf < logits[span] < np.inf:
            spans[span] = logits[span] / temperature
            largest = max(largest, spans[span])
    if largest == -np.inf:
        spans[0] = 0.0
        return 0.0
    total = 0.0
    for span in range(len(logits)):
        total += math.exp(spans[span] - largest)
    for span in range(len(logits)):
        spans[span] -= largest + math.log(total)
    return -math.log(total)


@merged
def _keep(tree: Any, best: Any, rows: Any) -> None:
    """Make the extensions the hypotheses of the search; those with the same tokens at the same place become one."""
    search, nodes = tree.search, tree.nodes
    now = search.num_frames
    search.num_frames += 1
    old, new = tree.prefixes[search.side], tree.prefixes[1 - search.side]
    for i in range(search.num_prefixes):
        nodes[old[i].node].rank = -1
    kept = np.int64(0)
    for place in range(len(best)):
        extension = best[place]
        before = old[extension.source]
        token = extension.token
        own: Any = np.int64(before.node)
        adds_token = token not in (rows.blank_id, rows.unk_id, NOTHING)
        if adds_token:
            own = _child(tree, own, token, rows)
        score = before.score + extension.log_prob
        rank: Any = np.int64(nodes[own].rank)  # of the first with these tokens
        is_first = rank < 0
        while 0 <= rank < kept and (new[rank].node != own or new[rank].place != extension.place):
            rank += 1
        if 0 <= rank < kept:  # the times are those of the better one
            out = new[rank]
            score = _log_add(out.score, score)
        else:
            if is_first:
                nodes[own].rank = kept
            out = new[kept]
            kept += 1
            out.node, out.token_mark, out.blank_mark, out.place = own, -1, before.blank_mark, extension.place
            out.token, out.best_token = -np.inf, -np.inf
            if adds_token:
                out.blank_mark = add_mark(tree, token, now, extension.token_log_prob, before.blank_mark)
                tree.marks[out.blank_mark].span = extension.place - now
        out.blank, out.best_blank, out.score = score, score, score
        out.total = score + nodes[own].bonus
    search.num_prefixes = kept
    search.side = 1 - search.side


@merged
def _child(tree: Any, parent: Any, token: Any, rows: Any) -> Any:
    """The node of `parent` and `token`, made and scored if there is none."""
    slot = child_slot(tree, parent, token)
    if tree.slots[slot] >= 0:
        return np.int64(tree.slots[slot])
    states, own, gain = tree.states, tree.search.num_nodes, 0.0
    if adds(scorer_at(tree.search.scorer)):
        gain = extend(tree.search.scorer, states[parent, 0], token, states[own, 0])
    newest = rows.contexts.shape[1] - 1
    for i in range(newest):
        states[own, 1, i] = states[parent, 1, i + 1]
    states[own, 1, newest] = -1 if rows.stateful else token
    return add_child(tree, slot, parent, token, tree.nodes[parent].bonus + gain)


@merged
def _give_rows(tree: Any, num_before: Any, rows: Any, first_row: Any, used: Any) -> None:
    """Give hypotheses without a row one that none has, for what the predictor says after them.

    Those that were dropped keep theirs while there is room: unlikely tokens come and go frame by frame.
    """
    search, nodes, states = tree.search, tree.nodes, tree.states
    # The last frame's hypotheses are on the other side now; new ones come from them.
    before, alive = tree.prefixes[1 - search.side][:num_before], tree.prefixes[search.side]
    used[: ROWS_EACH * search.beam] = False
    left = ROWS_EACH * search.beam
    for node in range(search.num_nodes):
        if states[node, 1, 0] >= 0:
            used[states[node, 1, 0]] = True
            left -= 1
    if left < search.beam:
        used[: ROWS_EACH * search.beam] = False
        for rank in range(num_before):
            used[states[before[rank].node, 1, 0]] = True
        for rank in range(search.num_prefixes):
            if states[alive[rank].node, 1, 0] >= 0:
                used[states[alive[rank].node, 1, 0]] = True
        for node in range(search.num_nodes):
            if states[node, 1, 0] >= 0 and not used[states[node, 1, 0]]:
                states[node, 1, 0] = -1
    free = np.int64(0)
    for rank in range(search.num_prefixes):
        node = alive[rank].node
        if states[node, 1, 0] >= 0:
            continue
        while used[free]:
            free += 1
        fresh = rows.fresh[rows.num_fresh[0]]
        fresh[0] = first_row + states[nodes[node].parent, 1, 0]
        fresh[1], fresh[2] = first_row + free, nodes[node].token
        rows.num_fresh[0] += 1
        states[node, 1, 0] = free
        used[free] = True


@inlined
def _log_add(a: Any, b: Any) -> Any:
    if a < b:
        a, b = b, a
    return a + math.log1p(math.exp(b - a))
