"""Waveforms as 16-bit samples: the number n is the sample n / 32768, exactly (`waveform.widened` is the way back)."""

from typing import Any

import numpy as np
import numpy.typing as npt

from tritone.audio.waveform import PCM_SCALE, widened

Pcm = npt.NDArray[np.int16]


def to_pcm(samples: npt.NDArray[Any]) -> Pcm:
    """Samples as int16, rounded to the nearest and clipped at the ends; what is int16 already is returned as it is."""
    if samples.dtype == np.int16:
        return samples
    scaled = np.rint(samples * np.float32(PCM_SCALE))
    return scaled.clip(-PCM_SCALE, PCM_SCALE - 1, out=scaled).astype(np.int16)


def is_16_bit(samples: npt.NDArray[Any]) -> bool:
    """Whether `to_pcm` loses nothing of these samples."""
    return samples.dtype == np.int16 or bool(np.array_equal(widened(to_pcm(samples)), samples))
