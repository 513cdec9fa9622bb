"""The constants of Kaldi's log-mel features: windows, mel filters and the DFT as matrices.

    a frame of samples  ->  window and DFT (one matrix product)  ->  power  ->  mel filters (another)  ->  log

Everything is float64 numpy; the exporter puts these matrices into graphs. Kaldi works on samples in int16 range,
subtracts each frame's mean, applies pre-emphasis with the first sample as its own predecessor, and floors the mel
energies at the float32 epsilon before the logarithm. `kaldi-native-fbank` is the reference these are tested against.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float64]

LOG_FLOOR = float(np.finfo(np.float32).eps)  # mel energies below this are raised to it
SAMPLE_SCALE = 32768.0  # Kaldi's samples are int16 numbers
POVEY_POWER = 0.85
BLACKMAN = 0.42  # Kaldi's default coefficient


def fft_size(frame_length: int) -> int:
    """The power of two that a frame is zero-padded to."""
    return 1 << (frame_length - 1).bit_length()


def mel(hz: Any) -> Any:
    """Frequencies on Kaldi's mel scale."""
    return 1127.0 * np.log1p(np.asarray(hz, dtype=np.float64) / 700.0)


def mel_banks(
    num_bins: int, sample_rate: int, fft_size: int, low: float, high: float, *, empty_filters: bool = False
) -> Matrix:
    """The triangular mel filters: triangles on the mel axis, evenly spaced, each reaching its neighbours' centres.

    Args:
        num_bins: number of filters.
        sample_rate, low, high: in Hz; a `high` of 0 or below counts from the Nyquist frequency.
        fft_size: length of the DFT, samples.
        empty_filters: whether filters may be so narrow that they cover no DFT bin, and say nothing.

    Returns:
        (fft_size // 2, num_bins): power spectrum without the Nyquist bin to mel energies.

    Raises:
        ValueError: the band is empty or reaches beyond Nyquist, or a filter would cover no DFT bin.

    Source: Kaldi `MelBanks`, src/feat/mel-computations.cc.
    """
    nyquist = sample_rate / 2
    top = high if high > 0 else nyquist + high
    if not 0 <= low < top <= nyquist:
        raise ValueError(f"need 0 <= low < high <= {nyquist:g} Hz, got low {low:g} and high {top:g}")
    edges = np.linspace(mel(low), mel(top), num_bins + 2)
    left, centre, right = edges[:-2], edges[1:-1], edges[2:]
    position = mel(np.arange(fft_size // 2) * (sample_rate / fft_size))[:, None]
    rising = (position - left) / (centre - left)
    falling = (right - position) / (right - centre)
    banks: Matrix = np.maximum(np.minimum(rising, falling), 0.0)
    empty = np.flatnonzero(banks.sum(axis=0) == 0)
    if len(empty) and not empty_filters:
        raise ValueError(f"mel filter {empty[0]} of {num_bins} covers no DFT bin; use fewer filters or a longer window")
    return banks


def window(name: str, length: int) -> Matrix:
    """An analysis window of Kaldi: (length,).

    Raises:
        ValueError: unknown name, or a length below 2.
    """
    if length < 2:
        raise ValueError(f"a window has at least 2 samples, got {length}")
    phase = 2 * np.pi * np.arange(length) / (length - 1)
    if name == "povey":
        return (0.5 - 0.5 * np.cos(phase)) ** POVEY_POWER
    if name == "hanning":
        return 0.5 - 0.5 * np.cos(phase)
    if name == "hamming":
        return 0.54 - 0.46 * np.cos(phase)
    if name == "blackman":
        return BLACKMAN - 0.5 * np.cos(phase) + (0.5 - BLACKMAN) * np.cos(2 * phase)
    if name == "rectangular":
        return np.ones(length)
    raise ValueError(f"unknown window {name!r}; known are povey, hanning, hamming, blackman and rectangular")


def preemphasis_matrix(length: int, coefficient: float) -> Matrix:
    """Pre-emphasis of a frame, `y[t] = x[t] - coefficient * x[t-1]` where x[-1] is x[0].

    Returns:
        (length, length), applied as `x @ m`.
    """
    matrix = np.eye(length) - coefficient * np.eye(length, k=1)
    matrix[0, 0] -= coefficient
    return matrix


def dft_matrix(length: int, fft_size: int) -> Matrix:
    """The DFT of a frame zero-padded to `fft_size`, without the Nyquist bin.

    Returns:
        (length, 2 * (fft_size // 2)), applied as `x @ m`: real parts of all bins, then imaginary parts.
    """
    # The product is reduced modulo the period as integers, so that large angles lose no digits.
    turns = np.outer(np.arange(length), np.arange(fft_size // 2)) % fft_size
    angle = 2 * np.pi * turns / fft_size
    return np.hstack((np.cos(angle), -np.sin(angle)))


def spectrum_matrix(frame_length: int, window_name: str, preemphasis: float) -> Matrix:
    """Pre-emphasis, window and DFT of a frame (whose mean was subtracted) in one: (frame_length, fft_size), `x @ m`.

    The first half of the columns are real parts, the second half imaginary parts; the Nyquist bin is left out.
    """
    shaped = preemphasis_matrix(frame_length, preemphasis) * window(window_name, frame_length)
    return shaped @ dft_matrix(frame_length, fft_size(frame_length))
