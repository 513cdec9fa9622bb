"""Waveforms of one call as rows of its block, zeros behind them.

    block (rows, padded), waveforms (samples,) float32 or int16 each  ->  the block filled

A block of float32 takes both, a 16-bit n as n / 32768; one of int16 takes int16. Rows beyond the waveforms are silence.
"""

from collections.abc import Sequence

import numpy as np

from tritone.audio.waveform import PCM_SCALE, Samples
from tritone.runtime.graph import Array
from tritone.search.compiled.threads import num_cores, share

SHARED_BYTES = 4 * 2**20  # blocks from this size on are filled by several threads
MAX_THREADS = 4  # more of them are not faster: memory is the limit


def fill_rows(block: Array, waveforms: Sequence[Samples]) -> None:
    """Fill a block. None of the waveforms is longer than a row."""
    if block.nbytes >= SHARED_BYTES:
        _fill_shared(block, waveforms, min(MAX_THREADS, num_cores()))
        return
    for row, waveform in zip(block, waveforms, strict=False):
        if waveform.dtype == block.dtype:
            row[: len(waveform)] = waveform
        else:
            np.multiply(waveform, np.float32(1 / PCM_SCALE), out=row[: len(waveform)])
        row[len(waveform) :] = 0
    block[len(waveforms) :] = 0


def _fill_shared(block: Array, waveforms: Sequence[Samples], threads: int) -> None:
    """Fill a block by some threads at once, each without the interpreter's lock.

    Copies by numpy would give the lock back and wait for it again at every row, as long as 5 ms where another thread
    computes.
    """
    from tritone.pipelines.graphs.filling_kernel import fill

    rows, padded = block.shape
    table = np.zeros((rows, 3), np.int64)  # address, samples, bytes of one
    contiguous = [np.ascontiguousarray(each) for each in waveforms]
    for row, each in zip(table, contiguous, strict=False):
        row[:] = each.__array_interface__["data"][0], len(each), each.itemsize
    address, itemsize = block.__array_interface__["data"][0], block.itemsize
    borders = np.linspace(0, rows, threads + 1).astype(int).tolist()

    def part(index: int) -> None:
        fill(address, itemsize, padded, table, borders[index], borders[index + 1])

    share(part, range(threads), threads)
