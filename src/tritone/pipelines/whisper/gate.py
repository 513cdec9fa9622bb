"""Voice activity in front of live streams: which frames are loud enough to be speech.

    samples (samples,)  ->  whether each frame of 20 ms stands out from the noise

The noise is the quietest frame of the last seconds. What is clearly audible always passes, and the model decides.
"""

import numpy as np

from tritone.audio.waveform import Samples, widened

FRAME_S = 0.02
BLOCK_FRAMES, BLOCKS = 25, 12  # the noise is followed in blocks of half a second, for six seconds
OVER_NOISE_DB = 10.0
LEAST_DB, MOST_DB = -60.0, -35.0  # full scale: nothing below is speech; everything above may be
SILENCE_DB = -100.0  # of digital silence


class LevelGate:
    """The gate of one stream; what it finds of a frame does not depend on how the audio is cut."""

    def __init__(self, sample_rate: int) -> None:
        """Take the rate, in Hz."""
        self.frame = round(FRAME_S * sample_rate)
        self._minima: list[float] = []  # dB, of the last blocks; the last of them is under way
        self._count = 0  # frames of the block under way

    def take(self, frames: Samples) -> list[bool]:
        """Whether each of some whole frames (count · frame,) may be speech."""
        powers = np.square(widened(frames).reshape(-1, self.frame), dtype=np.float64).mean(axis=1)
        return [self._passes(level) for level in (10 * np.log10(powers + 10 ** (SILENCE_DB / 10))).tolist()]

    def _passes(self, level: float) -> bool:
        if self._count % BLOCK_FRAMES == 0:
            self._minima = [*self._minima[1 - BLOCKS :], level]
            self._count = 0
        self._count += 1
        self._minima[-1] = min(self._minima[-1], level)
        return level > min(max(min(self._minima) + OVER_NOISE_DB, LEAST_DB), MOST_DB)
