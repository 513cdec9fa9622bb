"""The records of a tree of prefixes: nodes, marks, prefixes, and the search they belong to.

**Nodes** are the tree of prefixes: one for each distinct token sequence, so that a prefix that comes back is known
again; a hash table finds them by parent and token. **Marks** are lists of tokens with their times; they share
beginnings as prefixes do. **Prefixes** are the ones alive, in two rows: of the last frame and of the one before. Nodes
and marks are only ever appended, a parent always before its children; `pruning.py` moves those still needed to the
front.
"""

import numpy as np

# A prefix in the tree. With a scorer a node has two states beside it: its own, and that after the end of the open word,
# which is known once its `closing` is: what the scorer adds for the word, NaN until somebody needs it. In the search of
# transducers the second one is the context instead, the newest tokens, with a scorer or without; or the row of what a
# predictor with a state says after the node, -1 for none.
NODE = np.dtype(
    [
        ("token", np.int32),
        ("parent", np.int32),
        ("rank", np.int32),  # among the prefixes alive, or -1
        ("bonus", np.float64),  # what the scorer adds for all its tokens
    ],
    align=True,
)

# One token of a list of times.
MARK = np.dtype(
    [
        ("token", np.int32),
        ("frame", np.int32),
        ("log_prob", np.float32),  # in that frame
        ("parent", np.int32),  # the mark of the token before, or -1
        ("span", np.int32),  # frames that it takes: more than one of models with durations alone
    ],
    align=True,
)

# A prefix alive. All but the last four are log-probabilities.
PREFIX = np.dtype(
    [
        ("blank", np.float64),  # the sum over alignments that end in a blank,
        ("token", np.float64),  # over those that do not,
        ("score", np.float64),  # and over both
        ("total", np.float64),  # `score` and the node's bonus
        ("best_blank", np.float64),  # the best single alignment of either kind,
        ("best_token", np.float64),
        ("node", np.int32),
        ("blank_mark", np.int32),  # and the mark of its last token, or -1
        ("token_mark", np.int32),
        ("place", np.int32),  # of transducers, the frame that it goes on with; there may be two of the same tokens
    ],
    align=True,
)

# A search under way. The int64 of the first line are addresses, see `addresses.py`.
TREE = np.dtype(
    [
        *((name, np.int64) for name in ("nodes", "states", "closings", "slots", "marks", "prefixes", "scorer")),
        ("nodes_room", np.int64),  # rows of `nodes`, `states` and `closings`
        ("slots_room", np.int64),  # of the hash table: a power of two
        ("marks_room", np.int64),
        ("beam", np.int64),  # columns of `prefixes`, of which there are two rows
        ("state_size", np.int64),  # `states` are (nodes_room, 2, state_size) int32
        ("num_closings", np.int64),  # `closings` are (nodes_room, num_closings) float64: 1 with a scorer, else 0
        ("num_nodes", np.int64),
        ("num_marks", np.int64),
        ("num_prefixes", np.int64),
        ("num_frames", np.int64),
        ("side", np.int64),  # the row of `prefixes` after the last frame
        ("blank_penalty", np.float64),  # of transducers, natural-log units
        ("temperature", np.float64),  # of transducers, divides the logits
    ],
    align=True,
)
