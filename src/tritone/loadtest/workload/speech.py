"""Real speech of any length: recordings one after the other on a tape, cut where it is needed.

Random samples would not do as a load: a search has next to nothing to do with noise, and much with words.
"""

import os
from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from tritone.audio import read_audio
from tritone.audio.waveform import Waveform
from tritone.corpus.clips import read_clips
from tritone.errors import InputError

MAX_TAPE_S = 3600.0  # of user files; what is beyond adds nothing to a load test


class Tape:
    """Speech without an end: after the last sample comes the first again."""

    def __init__(self, waveform: Waveform, sample_rate: int) -> None:
        self.sample_rate = sample_rate
        self._waveform = waveform

    @classmethod
    def shipped(cls, sample_rate: int) -> "Tape":
        """The demo clips, at a rate in Hz."""
        return cls(_shipped(sample_rate), sample_rate)

    @classmethod
    def of(cls, paths: Iterable[str | os.PathLike[str]], sample_rate: int) -> "Tape":
        """Files in the order given, at a rate in Hz; the first hour of them.

        Raises:
            InputError: no files, or one that cannot be read (`AudioError`, which names it).
        """
        parts: list[Waveform] = []
        room = round(MAX_TAPE_S * sample_rate)
        for path in paths:
            parts.append(read_audio(path, sample_rate)[:room])
            room -= len(parts[-1])
            if not room:
                break
        if not parts:
            raise InputError("no audio files given to cut speech from; name at least one")
        return cls(np.concatenate(parts), sample_rate)

    def cut(self, num_samples: int, rng: np.random.Generator) -> Waveform:
        """(num_samples,) float32 from a random place on."""
        start = int(rng.integers(len(self._waveform)))
        return np.take(self._waveform, np.arange(start, start + num_samples), mode="wrap")


@lru_cache(maxsize=2)
def _shipped(sample_rate: int) -> Waveform:
    return np.concatenate([read_audio(clip.path, sample_rate) for clip in read_clips()])
