"""The compiled part of modified beam search: one frame of all utterances of a batch.

Hypotheses are prefixes as `beam/records.py` has them, with one sum over all alignments (`blank`, `score`) and one list
of times (`blank_mark`). A node's second state is its context: the newest tokens, which the predictor sees.
"""

import math
from typing import Any

import numpy as np

from tritone.search.beam.pruning import add_child, add_mark, child_slot, tree_at
from tritone.search.compiled.compiler import compiled, inlined, merged
from tritone.search.compiled.ranks import LOWEST, float_of
from tritone.search.scoring.scorer import adds, extend, scorer_at
from tritone.search.transducer.rows import rows_at
from tritone.search.transducer.softmax import BLOCK, normalise

# One of the best extensions in a frame: hypothesis number `source` by `token`.
EXTENSION = np.dtype(
    [
        ("total", np.float64),
        ("log_prob", np.float64),  # of the token after the hypothesis
        ("source", np.int64),
        ("token", np.int64),
    ],
    align=True,
)


@compiled
def ask(address: Any, frame: Any) -> Any:
    """Choose what the joiner computes in a frame: a row for each hypothesis of each search that has this frame.

    Args:
        address: of a `ROWS` record of `TREE` records.

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
    tree = tree_at(rows.searches[i])
    for rank in range(tree.search.num_prefixes):
        node = tree.prefixes[tree.search.side, rank].node
        for j in range(rows.contexts.shape[1]):
            rows.contexts[count, j] = tree.states[node, 1, j]
        rows.places[count] = i * rows.max_frames + frame
        count += 1
    return count


@compiled
def step(address: Any, frame: Any, logits: Any) -> Any:
    """Search one frame, and choose what the joiner computes in the next one, as `ask` does.

    Args:
        address: as of `ask`.
        logits: (rows, vocab) float32, the joiner's; blank penalties are subtracted in place.
    """
    rows, bits = rows_at(address), logits.view(np.int32)
    blocks = np.empty((logits.shape[1] + BLOCK - 1) // BLOCK, dtype=np.int32)
    most = np.int64(1)
    for i in range(len(rows.searches)):
        most = max(most, tree_at(rows.searches[i]).search.beam)
    best = np.empty(most, dtype=EXTENSION)
    first, count = np.int64(0), np.int64(0)
    for i in range(len(rows.searches)):
        if frame >= rows.num_frames[i]:
            continue
        tree = tree_at(rows.searches[i])
        last = first + tree.search.num_prefixes
        size = _find_best(tree, logits[first:last], bits[first:last], rows.blank_id, best, blocks)
        _keep(tree, best[:size], rows)
        first = last
        if frame + 1 < rows.num_frames[i]:
            count = _ask(rows, i, frame + 1, count)
    return count


@merged
def _find_best(tree: Any, logits: Any, bits: Any, blank_id: Any, best: Any, blocks: Any) -> Any:
    """Fill `best` with the best extensions of all hypotheses, best first; returns how many there are.

    Of equal ones the first is kept, by hypothesis and then by token.
    """
    search = tree.search
    alive = tree.prefixes[search.side]
    beam, temperature = search.beam, search.temperature
    size = np.int64(0)
    for source in range(len(logits)):
        row = logits[source]
        largest, start = normalise(row, bits[source], blocks, blank_id, search)
        if start == -np.inf:
            continue
        for number in range(len(blocks)):
            if blocks[number] == LOWEST:
                continue
            # What a logit must be above; by the largest of most blocks none is.
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


@merged
def _keep(tree: Any, best: Any, rows: Any) -> None:
    """Make the extensions the hypotheses of the search; those with the same tokens become one.

    With none, the frame is passed over.
    """
    search, nodes = tree.search, tree.nodes
    now = search.num_frames
    search.num_frames += 1
    if len(best) == 0:
        return
    old, new = tree.prefixes[search.side], tree.prefixes[1 - search.side]
    for i in range(search.num_prefixes):
        nodes[old[i].node].rank = -1
    kept = np.int64(0)
    for place in range(len(best)):
        extension = best[place]
        before = old[extension.source]
        token = extension.token
        own: Any = np.int64(before.node)
        adds_token = token not in (rows.blank_id, rows.unk_id)
        if adds_token:
            own = _child(tree, own, token, rows.contexts.shape[1])
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
            if adds_token:
                out.blank_mark = add_mark(tree, token, now, extension.log_prob, before.blank_mark)
        out.blank, out.best_blank, out.score = score, score, score
        out.total = score + nodes[own].bonus
    search.num_prefixes = kept
    search.side = 1 - search.side


@merged
def _child(tree: Any, parent: Any, token: Any, context_size: Any) -> Any:
    """The node of `parent` and `token`, made and scored if there is none."""
    slot = child_slot(tree, parent, token)
    if tree.slots[slot] >= 0:
        return np.int64(tree.slots[slot])
    states, own, gain = tree.states, tree.search.num_nodes, 0.0
    if adds(scorer_at(tree.search.scorer)):
        gain = extend(tree.search.scorer, states[parent, 0], token, states[own, 0])
    for i in range(context_size - 1):
        states[own, 1, i] = states[parent, 1, i + 1]
    states[own, 1, context_size - 1] = token
    return add_child(tree, slot, parent, token, tree.nodes[parent].bonus + gain)


@inlined
def _log_add(a: Any, b: Any) -> Any:
    if a < b:
        a, b = b, a
    return a + math.log1p(math.exp(b - a))
