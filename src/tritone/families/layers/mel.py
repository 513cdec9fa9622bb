"""Triangular filters on Slaney's mel scale, of log-mel features, and the DFT before them.

    number of filters, sample rate, length of the DFT  ->  matrix (bins of the DFT, filters)
    window, filters                                    ->  matrices of a frame's spectrum and of its energies

Source: librosa.filters.mel with its defaults.
"""

import numpy as np
import numpy.typing as npt

SLANEY_HZ = 1000.0  # up to here mels are linear, 200/3 Hz each
SLANEY_LOG_STEP = np.log(6.4) / 27  # of the logarithm of a frequency, for one mel above

Matrix = npt.NDArray[np.float64]


def mel_banks(num_bins: int, sample_rate: int, n_fft: int, low: float, high: float) -> Matrix:
    """Triangular filters on Slaney's mel scale, each of area one: (n_fft // 2 + 1, num_bins).

    Args:
        num_bins: number of filters; one may be so narrow that it has no bin, as in upstream's.
        sample_rate, low, high: in Hz.
        n_fft: length of the DFT, samples.

    Source: librosa.filters.mel with its defaults.
    """
    edges = _slaney_hz(np.linspace(_slaney_mel(low), _slaney_mel(high), num_bins + 2))
    left, centre, right = edges[:-2], edges[1:-1], edges[2:]
    frequency = (np.arange(n_fft // 2 + 1) * (sample_rate / n_fft))[:, None]
    rising, falling = (frequency - left) / (centre - left), (right - frequency) / (right - centre)
    triangles: Matrix = np.maximum(np.minimum(rising, falling), 0.0)
    return triangles * (2.0 / (right - left))


def spectrum_and_filters(
    window: Matrix, n_fft: int, banks: Matrix
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Window and DFT of a frame in one, and the filters of its powers.

    Args:
        window: (length,), as long as a frame, at most as long as the DFT.
        banks: (n_fft // 2 + 1, filters).

    Returns:
        (length, 2 · used), real parts first, and (used, filters). Bins of the DFT that no filter uses are left out: the
        first and the last one, as a rule.
    """
    used = np.flatnonzero(banks.any(axis=1))
    angles = 2 * np.pi * (np.outer(np.arange(len(window)), used) % n_fft) / n_fft
    spectrum = window[:, None] * np.concatenate([np.cos(angles), -np.sin(angles)], axis=1)
    return spectrum.astype(np.float32), banks[used].astype(np.float32)


def _slaney_mel(hz: float) -> float:
    linear = hz * 3 / 200
    return linear if hz < SLANEY_HZ else SLANEY_HZ * 3 / 200 + float(np.log(hz / SLANEY_HZ)) / SLANEY_LOG_STEP


def _slaney_hz(mel: Matrix) -> Matrix:
    bend = SLANEY_HZ * 3 / 200
    return np.where(mel < bend, mel * 200 / 3, SLANEY_HZ * np.exp(SLANEY_LOG_STEP * (np.maximum(mel, bend) - bend)))
