"""The rows that the joiner computes in a frame, for the compiled code of beam searches."""

from typing import Any, NamedTuple

import numba
import numpy as np

from tritone.search.compiled.addresses import int64s, pointer_to
from tritone.search.compiled.compiler import inlined

# What a batch of searches asks the joiner for. The int64 of the first line are addresses of int64, see `addresses.py`.
ROWS = np.dtype(
    [
        *((name, np.int64) for name in ("searches", "num_frames", "contexts", "places", "fresh", "num_fresh", "steps")),
        ("batch", np.int64),
        ("room", np.int64),
        ("context_size", np.int64),
        ("max_frames", np.int64),
        ("blank_id", np.int64),
        ("unk_id", np.int64),
        ("num_steps", np.int64),
        ("num_durations", np.int64),
        ("stateful", np.bool_),
    ],
    align=True,
)

_rows_at = pointer_to(numba.from_dtype(ROWS))


class Rows(NamedTuple):
    """A `ROWS` record and its arrays."""

    searches: Any  # (batch,) addresses of the records of the searches
    num_frames: Any  # (batch,)
    contexts: Any  # (room, context_size), filled by `ask` and `step`; with a state, rows of what the predictor said
    places: Any  # (room,) indices in the table of frames, filled too
    fresh: Any  # (room, 3), filled by `step`: for each new hypothesis the rows of its parent's and its own, its token
    num_fresh: Any  # (1,) how many of these
    steps: Any  # (n,) frames that each duration takes, 1 at least; one of 1 frame where there are no durations
    max_frames: Any  # rows that each search has in the table of frames
    blank_id: Any
    unk_id: Any  # a token that is never output and counts as blank, or -1
    num_durations: Any  # logits after those of the tokens
    stateful: Any  # whether the predictor has a state


@inlined
def rows_at(address: Any) -> Any:
    """The `Rows` of the record at an address."""
    record = numba.carray(_rows_at(address), (1,))[0]
    return Rows(
        numba.carray(int64s(record.searches), (record.batch,)),
        numba.carray(int64s(record.num_frames), (record.batch,)),
        numba.carray(int64s(record.contexts), (record.room, record.context_size)),
        numba.carray(int64s(record.places), (record.room,)),
        numba.carray(int64s(record.fresh), (record.room, 3)),
        numba.carray(int64s(record.num_fresh), (1,)),
        numba.carray(int64s(record.steps), (record.num_steps,)),
        record.max_frames,
        record.blank_id,
        record.unk_id,
        record.num_durations,
        record.stateful,
    )
