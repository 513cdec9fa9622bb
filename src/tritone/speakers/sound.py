"""Whether a recording has any sound: silence is no voice, though every model has an embedding for it."""

from collections.abc import Iterable
from contextlib import closing

import numpy as np

from tritone.audio.files import AudioBlocks
from tritone.audio.waveform import widened
from tritone.errors import AudioError, TritoneError
from tritone.systems.stored_audio import audio_inputs

RATE = 16000  # Hz
WINDOW = RATE // 10  # samples
SILENT = 10 ** (-70 / 20)
"""Effective value, 1 being full scale, that no window of a silent recording reaches; noise of 12 bits is louder."""


def check_sound(paths: Iterable[str]) -> None:
    """Make sure that recordings have sound; those that cannot be read are left to who embeds them.

    Raises:
        AudioError: one is silent all through.
    """
    for name, source in zip(paths := list(paths), audio_inputs(paths), strict=True):
        try:
            with closing(AudioBlocks(source, RATE)) as blocks:
                loudest = max((_loudest(widened(block)) for block in blocks), default=0.0)
        except TritoneError:
            continue
        if loudest < SILENT:
            raise AudioError(f"{name} is silent, so it has no voice; record it again, closer to the microphone")


def _loudest(samples: "np.ndarray[tuple[int], np.dtype[np.float32]]") -> float:
    """The greatest effective value of a window."""
    edges = np.arange(0, len(samples), WINDOW)
    if not len(edges):
        return 0.0
    powers = np.add.reduceat(np.square(samples, dtype=np.float64), edges) / WINDOW
    return float(np.sqrt(powers.max()))
