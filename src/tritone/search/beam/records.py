"""What a prefix beam search is made of: records of the tree of prefixes, of token times, and of the prefixes alive.

**Nodes** are the tree of prefixes: one for each distinct token sequence, so that a prefix that comes back is known
again; a hash table finds them by parent and token. **Marks** are lists of token times; they share beginnings as
prefixes do. **Prefixes** are the ones alive, in two rows: of the last frame and of the one before. Nodes and marks are
only ever appended, a parent always before its children; `beam_room.py` moves those that are still needed to the front.
"""

from typing import Any

import numpy as np

from tritone.search.compiled.compiler import inlined

# A prefix in the tree. `rank`: its place among those alive, or -1; `bonus`: what the scorer adds for all its tokens.
# With a scorer a node has two states beside it: its own, and that after the end of the open word, which is known once
# its `closing` is: what the scorer adds for the word, NaN until somebody needs it. In the search of transducers the
# second one is the context instead, the newest tokens, with a scorer or without.
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

# Places in `counters`.
NUM_NODES, NUM_MARKS, NUM_PREFIXES, NUM_FRAMES, SIDE = range(5)
NUM_COUNTERS = 5


@inlined
def hash_of(a: Any, b: Any, mask: Any) -> Any:
    mixed = np.uint64(a) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(b) * np.uint64(0xC2B2AE3D27D4EB4F)
    return np.int64((mixed ^ (mixed >> np.uint64(29))) & np.uint64(mask))


@inlined
def child_slot(nodes: Any, slots: Any, parent: Any, token: Any) -> Any:
    """Where the child of `parent` with `token` is in the hash table, or the empty slot where it belongs."""
    mask = len(slots) - 1
    at = hash_of(np.int64(parent), np.int64(token), mask)
    while slots[at] >= 0:
        node = slots[at]
        if nodes[node].parent == parent and nodes[node].token == token:
            break
        at = (at + 1) & mask
    return at


@inlined
def add_child(nodes: Any, slots: Any, slot: Any, counters: Any, parent: Any, token: Any, bonus: Any) -> Any:
    """Make the node of `parent` and `token`, which belongs into `slot`."""
    node = counters[NUM_NODES]
    counters[NUM_NODES] += 1
    slots[slot] = node
    nodes[node].token = token
    nodes[node].parent = parent
    nodes[node].rank = -1
    nodes[node].bonus = bonus
    return node
