"""Samples of many streams that wait for their next steps.

    new audio of some streams  ->  windows, one row each, and what is left of it for later

Between two calls of a pipeline a stream keeps less than a window: it lies in its row of one array for all streams.
During a call its new audio is read where the caller has it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tritone.audio.waveform import Samples, widened
from tritone.runtime.graph import Array

Index = npt.NDArray[np.int64]
COUNT, BEGIN, END, USED = range(4)  # columns of the table
FLOAT, PCM = np.dtype(np.float32), np.dtype(np.int16)
NO_FLOATS, NO_PCM = np.zeros(0, np.float32), np.zeros(0, np.int16)


class WaitingSamples:
    """The samples of up to `capacity` streams, by slot: float32, or int16 as long as a stream has no others.

    `count` (capacity,): how many wait. Calls of `add`, `fill` and `drop` are followed by one of `settle`, after which
    the audio that `add` was given may change.
    """

    def __init__(self, capacity: int, window: int) -> None:
        """Take the number of slots, and the samples of a window."""
        # A stream has samples `begin` to `end` of its row, then those of its new audio from `used` on, then silence.
        # One table, because for a few streams every look at an array costs more than its numbers.
        self._table: Index = np.zeros((capacity, 4), np.int64)
        self.count: Index = self._table[:, COUNT]
        self._capacity, self._window = capacity, window
        self._rows: dict[np.dtype[Any], Array] = {each: np.empty((0, window), each) for each in (FLOAT, PCM)}
        self._is_pcm: npt.NDArray[np.bool_] = np.zeros(capacity, np.bool_)
        self._silence: dict[np.dtype[Any], Array] = {each: np.zeros(window, each) for each in (FLOAT, PCM)}
        self._new: list[Samples | None] = [None] * capacity
        self._kept: dict[int, Samples] = {}  # in place of rows that are too short for it

    def open(self, slot: int, silence: int) -> None:
        """Start a stream, with so many zeros before its first sample."""
        self._table[slot] = 0
        self._is_pcm[slot] = True  # until it has other samples
        self._kept[slot] = np.zeros(silence, PCM)

    def close(self, slot: int) -> None:
        """End a stream, whose samples are of no use any more."""
        self._new[slot] = None
        self._kept.pop(slot, None)

    def add(self, slots: Index, audio: Sequence[Samples], silence: Index) -> None:
        """Append samples to streams, which may not change before `settle`, and so many zeros after them."""
        new, kept, lengths = self._new, self._kept, []
        for slot, samples, is_pcm in zip(slots.tolist(), audio, self._is_pcm[slots].tolist(), strict=True):
            if slot in kept or is_pcm != (samples.dtype == PCM):
                samples = self._matched(slot, samples)
            new[slot] = samples
            lengths.append(len(samples))
        self.count[slots] += silence + lengths

    def _matched(self, slot: int, samples: Samples) -> Samples:
        """New samples after those that were kept elsewhere, in the type of their stream, which they may change."""
        if slot in self._kept:
            self._table[slot] = 0
            if len(kept := self._kept.pop(slot)) and not len(samples):
                samples = kept
            elif len(kept):
                same = kept.dtype == samples.dtype
                both: list[Any] = [kept, samples] if same else [widened(kept), widened(samples)]
                samples = np.concatenate(both)
        if len(samples) and self._is_pcm[slot] != (samples.dtype == PCM):
            if not self._is_pcm[slot]:
                return widened(samples)
            held = slice(*self._table[slot, BEGIN : END + 1].tolist())
            if held.start < held.stop:
                self._row(slot, FLOAT)[held] = widened(self._row(slot, PCM)[held])
            self._is_pcm[slot] = False
        # Nothing of another type would make what is put before it numbers of that type, and not widened ones.
        return samples if len(samples) else (NO_PCM if self._is_pcm[slot] else NO_FLOATS)

    def are_pcm(self, slots: Index) -> bool:
        """Whether all of some streams have nothing but 16-bit samples."""
        return bool(self._is_pcm[slots].all())

    def fill(self, slots: Index, block: Array) -> Index:
        """Write the next window of each stream to its row of a block, zeros behind it; returns its samples.

        Args:
            slots: of the streams.
            block: (slots, window) float32, or int16 where `are_pcm`; contiguous.
        """
        places, are_pcm = self._table[slots].tolist(), self._is_pcm[slots].tolist()
        rows, news, window, valid = self._rows, self._new, self._window, []
        # One call copies them all: for each row a call would cost as much as the copy.
        pieces: list[Array] = []
        for slot, (count, begin, end, used), is_pcm in zip(slots.tolist(), places, are_pcm, strict=True):
            count = min(count, window)
            valid.append(count)
            if held := min(end - begin, count):
                pieces.append(rows[PCM if is_pcm else FLOAT][slot, begin : begin + held])
            if held < count and (new := news[slot]) is not None and used < len(new):
                pieces.append(new[used : used + count - held])
                held += len(pieces[-1])
            if held < window:
                pieces.append(self._silence[block.dtype][held:])
        same = [each if each.dtype == block.dtype else widened(each) for each in pieces]
        np.concatenate(same, out=block.reshape(-1))
        return np.array(valid, np.int64)

    def drop(self, slots: Index, shift: int) -> None:
        """Forget the oldest `shift` samples of each stream, or all there are."""
        table = self._table[slots]
        dropped = np.minimum(table[:, COUNT], shift)
        begin = table[:, BEGIN] + dropped
        table[:, COUNT] -= dropped
        table[:, USED] += np.maximum(begin - table[:, END], 0)
        table[:, BEGIN] = np.minimum(begin, table[:, END])
        self._table[slots] = table

    def settle(self, slots: Index) -> None:
        """Copy what is left of the new audio of some streams."""
        table, are_pcm = self._table[slots], self._is_pcm[slots].tolist()
        for slot, (count, begin, end, used), is_pcm in zip(slots.tolist(), table.tolist(), are_pcm, strict=True):
            new, self._new[slot] = self._new[slot], None
            if new is None and not begin:
                continue
            row = self._row(slot, PCM if is_pcm else FLOAT)
            rest, held = row[:0] if new is None else new[used:], end - begin
            if count > self._window:  # only after an error: else there would have been another step
                silence = np.zeros(count - held - len(rest), row.dtype)
                self._kept[slot] = np.concatenate((row[begin:end], rest, silence))
                continue
            if held and begin:
                row[:held] = row[begin:end].copy()
            if num_left := len(rest):
                row[held : held + num_left] = rest
            if held + num_left < count:
                row[held + num_left : count] = 0
        table[:, END] = np.minimum(table[:, COUNT], self._window)
        table[:, BEGIN] = table[:, USED] = 0
        self._table[slots] = table

    def _row(self, slot: int, kind: np.dtype[Any]) -> Array:
        rows = self._rows[kind]
        if slot >= len(rows):  # slots are taken from the first on: memory is taken for those in use alone
            grown = np.empty((min(self._capacity, max(2 * len(rows), slot + 1)), self._window), kind)
            grown[: len(rows)] = rows
            rows = self._rows[kind] = grown
        return rows[slot]
