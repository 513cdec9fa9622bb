"""The compiled part of `filling`: rows are copied and widened at addresses. Importing it loads numba."""

from typing import Any

import numba
import numpy as np
from numba import types

from tritone.audio.waveform import PCM_SCALE
from tritone.runtime.graph import Array
from tritone.search.compiled.addresses import float32s, pointer_to
from tritone.search.compiled.compiler import compiled

SCALE = np.float32(1 / PCM_SCALE)
int16s = pointer_to(types.int16)

# Functions of the C library; a pointer is an integer.
external: Any = types.ExternalFunction
memcpy = external("memcpy", types.uintp(types.uintp, types.uintp, types.uintp))
memset = external("memset", types.uintp(types.uintp, types.int32, types.uintp))


def _fill(block: int, itemsize: int, padded: int, table: Array, first: int, end: int) -> None:
    """Fill the rows from `first` to `end` of a block at an address; `table` (rows, 3) as in `_fill_shared`."""
    for index in range(first, end):
        source, count, source_size = table[index, 0], table[index, 1], table[index, 2]
        row = block + index * padded * itemsize
        if count and source_size == itemsize:
            memcpy(row, source, count * itemsize)
        elif count:
            samples, wide = numba.carray(int16s(source), (count,)), numba.carray(float32s(row), (count,))
            for i in range(count):
                wide[i] = np.float32(samples[i]) * SCALE
        memset(row + count * itemsize, 0, (padded - count) * itemsize)


fill: Any = compiled(_fill)
