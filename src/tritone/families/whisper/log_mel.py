"""The matrices of Whisper's log-mel features, and the limits of their powers; see `features` for the method."""

import numpy as np
import numpy.typing as npt

from tritone.families.layers.mel import mel_banks
from tritone.families.whisper.dims import FRAME_LENGTH, SAMPLE_RATE

POWER_FLOOR = 1e-10
RANGE = 8.0  # powers of ten below the maximum that are kept

Floats = npt.NDArray[np.float32]


def matrices(num_bins: int) -> tuple[Floats, Floats]:
    """The window with its DFT (frame_length, 2 · used), real parts first, and the filters (used, num_bins).

    Bins of the DFT that no filter uses are left out.
    """
    banks = mel_banks(num_bins, SAMPLE_RATE, FRAME_LENGTH, 0.0, SAMPLE_RATE / 2)
    used = np.flatnonzero(banks.any(axis=1))
    angles = 2 * np.pi * (np.outer(np.arange(FRAME_LENGTH), used) % FRAME_LENGTH) / FRAME_LENGTH
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(FRAME_LENGTH) / FRAME_LENGTH)  # periodic, as torch's
    matrix = hann[:, None] * np.concatenate([np.cos(angles), -np.sin(angles)], axis=1)
    return matrix.astype(np.float32), banks[used].astype(np.float32)
