"""16-bit samples beside float32 waveforms: the number n is the sample n / 32768, exactly.

(samples,) int16  ->  widen  ->  (samples,) float32        and back, where nothing is lost: to_pcm
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from tritone.audio.waveform import Waveform

Pcm = npt.NDArray[np.int16]
Samples = Waveform | Pcm
"""Mono audio, (samples,): float32 in [-1, 1], or int16."""

SCALE = 32768.0


def widen(samples: npt.NDArray[Any]) -> Waveform:
    """Samples as float32; what is float32 already is returned as it is."""
    if samples.dtype != np.int16:
        return samples.astype(np.float32, copy=False)
    waveform = samples.astype(np.float32)
    waveform *= np.float32(1 / SCALE)  # a power of two, so that nothing is rounded
    return waveform


def to_pcm(samples: npt.NDArray[Any]) -> Pcm:
    """Samples as int16, rounded to the nearest and clipped at the ends; what is int16 already is returned as it is."""
    if samples.dtype == np.int16:
        return samples
    scaled = np.rint(samples * np.float32(SCALE))
    return scaled.clip(-SCALE, SCALE - 1, out=scaled).astype(np.int16)


def is_16_bit(samples: npt.NDArray[Any]) -> bool:
    """Whether `to_pcm` loses nothing of these samples."""
    return samples.dtype == np.int16 or bool(np.array_equal(widen(to_pcm(samples)), samples))
