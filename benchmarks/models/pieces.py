"""What random models say, and to what: word pieces, and speech to balance them on.

pieces(500)  ->  ["a", "▁b", ...]        speech(10, 16000)  ->  waveform
"""

import numpy as np

from tritone.audio.waveform import Waveform
from tritone.loadtest.workload.speech import Tape


def pieces(count: int) -> list[str]:
    """Different word pieces, half of which begin a word."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    bodies = [first + second for first in ("", *letters) for second in letters]
    bodies += [first + second + third for first in letters for second in letters for third in letters]
    return [("▁" if index % 2 else "") + body for index, body in enumerate(bodies[:count])]


def speech(seconds: float, sample_rate: int = 16000) -> Waveform:
    """(samples,) float32 of the shipped clips, the same every time."""
    return Tape.shipped(sample_rate).cut(round(seconds * sample_rate), np.random.default_rng(1))
