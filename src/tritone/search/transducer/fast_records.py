"""The records of a fast beam search: states, entries, and the search they belong to.

**States** are places in the graph after a frame: a context of the predictor and a state of the scorer. **Entries** are
the token sequences that lead to a state, best first; there is more than one only if alternatives are asked for. Their
tokens and times are marks, see `beam/records.py`.

States, entries and contexts have two sides: those after the last frame, and room for those after the next.
"""

import numpy as np

# A token sequence that leads to a state.
ENTRY = np.dtype(
    [
        ("score", np.float64),  # the log-probability of its best alignment that leads to the state
        ("bonus", np.float64),  # what the scorer adds
        ("code", np.uint64),  # of the sequence: different ones have different codes but for one pair in 10^19
        ("mark", np.int32),  # of its last token, or -1
    ],
    align=True,
)

STATE = np.dtype(
    [
        ("total", np.float64),  # score and bonus of its best entry
        ("before", np.float64),  # of a state behind a final arc, the total before that arc
        ("closing", np.float64),  # what the scorer adds when the open word ends, NaN until somebody needs it
        ("first", np.int32),  # its entries are `count` from `first` on
        ("count", np.int32),
        ("context", np.int32),  # index of its context
    ],
    align=True,
)

# A search under way. The int64 of the first line are addresses, see `addresses.py`.
GRAPH = np.dtype(
    [
        *((name, np.int64) for name in ("states", "entries", "contexts", "words", "marks", "scorer")),
        ("room", np.int64),  # `states` are (2, room), `entries` (2, room * nbest), and with a scorer `words`
        # (2, room, 2, STATE_SIZE) int32: the scorer's state, and that after the end of the open word
        ("max_contexts", np.int64),  # `contexts` are (2, min(max_contexts, room), context_size) int64
        ("marks_room", np.int64),
        ("num_frames", np.int64),
        ("num_states", np.int64),  # alive; `num_finals` states behind final arcs follow them
        ("num_finals", np.int64),
        ("num_contexts", np.int64),
        ("num_marks", np.int64),
        ("side", np.int64),
        ("max_states", np.int64),
        ("nbest", np.int64),  # entries of a state at the most
        ("final_arc", np.bool_),  # whether paths end by an arc to a final state
        ("restrict", np.bool_),  # whether only words of the scorer's language model may be output
        ("beam", np.float64),  # natural-log units below the best state
        ("blank_penalty", np.float64),
        ("temperature", np.float64),
    ],
    align=True,
)
