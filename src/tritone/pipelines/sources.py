"""What people hand to a model in their own process: audio files and arrays, mixed, as waveforms in piles.

["a.wav", array, ...]  ->  [waveform, waveform, ...], [...]
"""

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tritone.audio.files import check_sample_rate, read_audio, resample
from tritone.audio.waveform import Waveform, check_waveform
from tritone.errors import AudioError

MAX_PILE_S = 1800.0  # audio decoded ahead of the model, seconds; bounds memory when there are thousands of files

Input = str | os.PathLike[str] | npt.NDArray[np.floating[Any]]


class Sources:
    """Reads audio for a model of `sample_rate` Hz that takes up to `max_audio_s` seconds of it at once."""

    def __init__(self, sample_rate: int, max_audio_s: float) -> None:
        self.sample_rate = sample_rate
        self.max_audio_s = max_audio_s

    def rate(self, sample_rate: int | None) -> int:
        """The rate of arrays in Hz, of which None is the model's; raises `ValueError` if no audio has it."""
        return self.sample_rate if sample_rate is None else check_sample_rate(sample_rate)

    def piles(self, inputs: Sequence[Input], sample_rate: int) -> Iterator[list[Waveform]]:
        """Read inputs one after the other, and give as many at a time as fit in memory.

        Raises:
            AudioError: an input cannot be used; the message starts with its position.
        """
        pile: list[Waveform] = []
        waiting = 0
        for position, source in enumerate(inputs):
            try:
                pile.append(self.read(source, sample_rate))
            except AudioError as error:
                raise AudioError(f"input {position}: {error}") from error
            waiting += len(pile[-1])
            if waiting > MAX_PILE_S * self.sample_rate:
                yield pile
                pile, waiting = [], 0
        if pile:
            yield pile

    def read(self, source: Input, sample_rate: int) -> Waveform:
        """Read a file, or check an array of that rate; raises `AudioError` if it cannot be used."""
        if isinstance(source, str | os.PathLike):
            return read_audio(source, self.sample_rate, max_audio_s=self.max_audio_s)
        checked = check_waveform(source, sample_rate=sample_rate, max_audio_s=self.max_audio_s)
        return resample(checked, sample_rate, self.sample_rate)


def is_single(inputs: object) -> bool:
    """Whether inputs are one path or waveform instead of a sequence of them."""
    return isinstance(inputs, str | os.PathLike) or (isinstance(inputs, np.ndarray) and inputs.ndim < 2)
