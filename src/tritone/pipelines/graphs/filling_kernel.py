"""The compiled part of `filling`: rows are copied and widened at addresses. Importing it loads numba."""

from typing import Any

import numba
import numpy as np
from numba import types

from tritone.audio.waveform import PCM_SCALE
from tritone.runtime.graph import Array
from tritone.search.compiled.addresses import float32s, int32s, pointer_to
from tritone.search.compiled.compiler import compiled

SCALE = np.float32(1 / PCM_SCALE)
int16s = pointer_to(types.int16)
PART = 4096  # samples that are in the fastest cache when they are read again
WITHOUT_SIGN = np.int32(0x7FFFFFFF)

# Functions of the C library; a pointer is an integer.
external: Any = types.ExternalFunction
memcpy = external("memcpy", types.uintp(types.uintp, types.uintp, types.uintp))
memset = external("memset", types.uintp(types.uintp, types.int32, types.uintp))


def _fill(block: int, itemsize: int, padded: int, table: Array, first: int, end: int) -> None:
    """Fill the rows from `first` to `end` of a block at an address; `table` (rows, 4) as in `_fill_compiled`."""
    for index in range(first, end):
        source, count, source_size = table[index, 0], table[index, 1], table[index, 2]
        row = block + index * padded * itemsize
        if count and source_size == 4:
            largest = np.int32(0)
            for begin in range(0, count, PART):
                size = min(PART, count - begin)
                memcpy(row + begin * 4, source + begin * 4, size * 4)
                bits = numba.carray(int32s(source + begin * 4), (size,))
                for i in range(size):
                    largest = max(largest, np.int32(bits[i] & WITHOUT_SIGN))
            table[index, 3] = largest
        elif count and itemsize == 2:
            memcpy(row, source, count * 2)
        elif count:
            samples, wide = numba.carray(int16s(source), (count,)), numba.carray(float32s(row), (count,))
            for i in range(count):
                wide[i] = np.float32(samples[i]) * SCALE
        memset(row + count * itemsize, 0, (padded - count) * itemsize)


fill: Any = compiled(_fill)
