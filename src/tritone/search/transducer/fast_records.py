"""What a fast beam search is made of, and how compiled code reaches many searches at once.

**States** are places in the graph after a frame: a context of the predictor and a state of the scorer. **Entries** are
the token sequences that lead to a state, best first; there is more than one only if alternatives are asked for.
**Marks** are lists of tokens with their times, which share beginnings; they are only ever appended, a parent always
before its children, and `fast_room.py` moves those that are still needed to the front.

States, entries and contexts have two sides: those after the last frame, and room for those after the next.

A **head** is all that is not an array of one search, and where its arrays lie (`memory.py`): one call of compiled code
is given the addresses of the heads of a batch.
"""

from typing import Any

import numba
import numpy as np

from tritone.search.compiled.addresses import pointer_to
from tritone.search.compiled.compiler import inlined
from tritone.search.scoring.scorer import NUMBERS

# A list of tokens with their times: its last one, and the mark of the token before, or -1.
MARK = np.dtype([("token", np.int32), ("frame", np.int32), ("log_prob", np.float32), ("parent", np.int32)], align=True)

# A token sequence: the log-probability of its best alignment that leads to the state, and what the scorer adds. `said`
# is a code of the sequence, 64 bits wide: different ones have different codes but for one pair in 10^19.
ENTRY = np.dtype([("score", np.float64), ("bonus", np.float64), ("said", np.uint64), ("mark", np.int32)], align=True)

# `total`: score and bonus of its best entry. `before`: of a state behind a final arc, the total before that arc.
# `closing`: what the scorer adds when the open word ends, NaN until somebody needs it. `context`: its number.
STATE = np.dtype(
    [
        ("total", np.float64),
        ("before", np.float64),
        ("closing", np.float64),
        ("first", np.int32),
        ("count", np.int32),
        ("context", np.int32),
    ],
    align=True,
)

# States alive are followed by `num_finals` states behind final arcs. `room`: the most states, with these, and
# each has room for `nbest` entries. `scored`: whether `scorer` is one. The last six are addresses.
HEAD = np.dtype(
    [
        *((name, np.int64) for name in ("num_frames", "num_states", "num_finals", "num_contexts", "num_marks", "side")),
        *((name, np.int64) for name in ("max_states", "max_contexts", "nbest", "room", "marks_room")),
        *((name, np.bool_) for name in ("final_arc", "restrict", "scored")),
        *((name, np.float64) for name in ("beam", "blank_penalty", "temperature", "most_gain", "ceiling")),
        *((name, np.int64) for name in ("states", "entries", "contexts", "words", "marks", "scorer")),
    ],
    align=True,
)

_heads_at = pointer_to(numba.from_dtype(HEAD))
states_at = pointer_to(numba.from_dtype(STATE))
entries_at = pointer_to(numba.from_dtype(ENTRY))
marks_at = pointer_to(numba.from_dtype(MARK))
scorers_at = pointer_to(numba.from_dtype(NUMBERS))


@inlined
def head_at(address: Any) -> Any:
    """The head at an address."""
    return numba.carray(_heads_at(address), (1,))[0]
