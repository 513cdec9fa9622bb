"""The matrices of log-mel features whose powers are kept within a range below the loudest, and their limits.

Source: openai/whisper, whisper/audio.py, log_mel_spectrogram.
"""

import numpy as np
import numpy.typing as npt

from tritone.families.layers.mel import mel_banks, spectrum_and_filters

SAMPLE_RATE = 16_000
FRAME_LENGTH = 400  # samples, 25 ms, as long as the DFT
FRAME_SHIFT = 160  # samples, 10 ms
POWER_FLOOR = 1e-10
RANGE = 8.0  # powers of ten below the maximum that are kept

Floats = npt.NDArray[np.float32]


def matrices(num_bins: int) -> tuple[Floats, Floats]:
    """The window with its DFT (frame_length, 2 · used), real parts first, and the filters (used, num_bins)."""
    banks = mel_banks(num_bins, SAMPLE_RATE, FRAME_LENGTH, 0.0, SAMPLE_RATE / 2)
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(FRAME_LENGTH) / FRAME_LENGTH)  # periodic, as torch's
    return spectrum_and_filters(hann, FRAME_LENGTH, banks)
