"""The rows that the joiner computes in a frame, for the compiled code of beam searches."""

from typing import Any, NamedTuple

import numba
import numpy as np

from tritone.search.compiled.addresses import int64s, pointer_to
from tritone.search.compiled.compiler import inlined

# What a batch of searches asks the joiner for. The int64 of the first line are addresses of int64, see `addresses.py`.
ROWS = np.dtype(
    [
        *((name, np.int64) for name in ("searches", "num_frames", "contexts", "places")),
        ("batch", np.int64),
        ("room", np.int64),
        ("context_size", np.int64),
        ("max_frames", np.int64),
        ("blank_id", np.int64),
        ("unk_id", np.int64),
    ],
    align=True,
)

_rows_at = pointer_to(numba.from_dtype(ROWS))


class Rows(NamedTuple):
    """A `ROWS` record and its arrays."""

    searches: Any  # (batch,) addresses of the records of the searches
    num_frames: Any  # (batch,)
    contexts: Any  # (room, context_size), filled by `ask` and `step`
    places: Any  # (room,) indices in the table of frames, filled too
    max_frames: Any  # rows that each search has in the table of frames
    blank_id: Any
    unk_id: Any  # a token that is never output and counts as blank, or -1


@inlined
def rows_at(address: Any) -> Any:
    """The `Rows` of the record at an address."""
    record = numba.carray(_rows_at(address), (1,))[0]
    return Rows(
        numba.carray(int64s(record.searches), (record.batch,)),
        numba.carray(int64s(record.num_frames), (record.batch,)),
        numba.carray(int64s(record.contexts), (record.room, record.context_size)),
        numba.carray(int64s(record.places), (record.room,)),
        record.max_frames,
        record.blank_id,
        record.unk_id,
    )
