"""Waveforms of one call as rows of its block, zeros behind them.

    block (rows, padded), waveforms (samples,) float32 or int16 each  ->  the block filled, rows that are unfit

A row is unfit if a sample is not finite or far beyond [-1, 1]; that is seen in passing, when the sample is read anyway.
A block of float32 takes both, a 16-bit n as n / 32768; one of int16 takes int16. Rows beyond the waveforms are silence.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tritone.audio.waveform import MAX_LEVEL, PCM_SCALE, Samples, is_level
from tritone.container import usable_cpus
from tritone.later import later
from tritone.runtime.graph import Array
from tritone.search.compiled.threads import share

if TYPE_CHECKING:
    from tritone.pipelines.graphs import filling_kernel
else:
    filling_kernel = later("filling_kernel")

SHARED_BYTES = 4 * 2**20  # blocks from this size on are filled by several threads
# Blocks of float32 from this size on are filled by compiled code in half the time, where it has been loaded already.
COMPILED_BYTES = 2**19
MAX_THREADS = 4  # more of them are not faster: memory is the limit
# Of float32 without their sign: NaN and infinities are the largest numbers.
MAX_LEVEL_BITS = int(np.float32(MAX_LEVEL).view(np.int32))

_is_loaded = False  # the compiled code


def fill_rows(block: Array, waveforms: Sequence[Samples]) -> list[int]:
    """Fill a block and return the rows that are unfit. None of the waveforms is longer than a row."""
    if block.nbytes >= SHARED_BYTES:
        return _fill_compiled(block, waveforms, min(MAX_THREADS, usable_cpus()))
    if _is_loaded and block.nbytes >= COMPILED_BYTES and block.dtype == np.float32:
        return _fill_compiled(block, waveforms, 1)
    for row, waveform in zip(block, waveforms, strict=False):
        if waveform.dtype == block.dtype:
            row[: len(waveform)] = waveform
        else:
            np.multiply(waveform, np.float32(1 / PCM_SCALE), out=row[: len(waveform)])
        row[len(waveform) :] = 0
    block[len(waveforms) :] = 0
    return [row for row, waveform in enumerate(waveforms) if not is_level(waveform)]


def prepare() -> None:
    """Compile what fills large blocks, or load it from the cache, so that no request waits for it."""
    _fill_compiled(np.zeros((1, 1), np.float32), [np.zeros(1, np.float32)], 1)


def _fill_compiled(block: Array, waveforms: Sequence[Samples], threads: int) -> list[int]:
    """Fill a block by compiled code in some threads at once, each without the interpreter's lock.

    Copies by numpy would give the lock back and wait for it again at every row, as long as 5 ms where another thread
    computes.
    """
    global _is_loaded
    _is_loaded = True
    rows, padded = block.shape
    contiguous = [np.ascontiguousarray(each) for each in waveforms]
    table = np.zeros((rows, 4), np.int64)  # address, samples, bytes of one; the bits of the largest, which is found
    if contiguous:
        table[: len(contiguous), :3] = [
            (each.__array_interface__["data"][0], len(each), each.itemsize) for each in contiguous
        ]
    address, itemsize = block.__array_interface__["data"][0], block.itemsize
    borders = [rows * index // threads for index in range(threads + 1)]

    def part(index: int) -> None:
        filling_kernel.fill(address, itemsize, padded, table, borders[index], borders[index + 1])

    share(part, range(threads), threads)
    return np.flatnonzero(table[:, 3] > MAX_LEVEL_BITS).tolist()
