"""Checking waveforms: mono audio, (samples,) float32, nominally in [-1, 1].

Audio on its way to a model may be in 16 bits as well, `Samples`: an int16 n stands for n / 32768.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from tritone.errors import AudioError, AudioTooLongError

Waveform = npt.NDArray[np.float32]
Samples = npt.NDArray[np.float32] | npt.NDArray[np.int16]
PCM_SCALE = 32768  # a power of two: every quotient is an exact float32

# No recording comes near it, int16 numbers do. Very much larger ones overflow in the power spectrum, and the NaN that
# follows would stay in the state of a stream.
MAX_LEVEL = 1000.0


def check_waveform(
    waveform: npt.ArrayLike,
    *,
    sample_rate: int,
    max_audio_s: float | None = None,
    allow_empty: bool = False,
) -> Waveform:
    """Return a waveform that a pipeline can take, or say what is wrong with it.

    Args:
        waveform: (samples,) of a floating type; other float types are converted to float32.
        sample_rate: in Hz, to tell durations.
        max_audio_s: the longest audio to accept, in seconds; None accepts any.
        allow_empty: accept no samples at all, as a chunk of a stream may have.

    Raises:
        AudioError: empty, not one-dimensional, not of a floating type, too long, or somewhere not finite or far beyond
            [-1, 1].
    """
    array: npt.NDArray[Any] = np.asarray(waveform)
    if array.ndim != 1:
        raise AudioError(f"a waveform is one-dimensional (samples,), got shape {array.shape}; mix channels down first")
    if not np.issubdtype(array.dtype, np.floating):
        raise AudioError(f"a waveform is float32 in [-1, 1], got {array.dtype}; divide 16-bit samples by 32768")
    check_length(array.size, sample_rate=sample_rate, max_audio_s=max_audio_s, allow_empty=allow_empty)
    check_level(array, sample_rate=sample_rate)
    return np.ascontiguousarray(array, dtype=np.float32)


def check_length(
    num_samples: int, *, sample_rate: int, max_audio_s: float | None = None, allow_empty: bool = False
) -> None:
    """Make sure that audio is of a length that a pipeline can take; arguments and errors as of `check_waveform`."""
    if num_samples == 0 and not allow_empty:
        raise AudioError("empty audio: the waveform has no samples")
    if max_audio_s is not None and num_samples > max_audio_s * sample_rate:
        raise AudioTooLongError(
            f"the audio is {num_samples / sample_rate:.3f} s long ({num_samples} samples at {sample_rate} Hz), "
            f"the limit is {max_audio_s:g} s. Cut it, stream it, or raise the limit (max_audio_s)."
        )


def check_level(array: npt.NDArray[Any], *, sample_rate: int) -> None:
    """Make sure that samples are finite and not far beyond [-1, 1]; raises `AudioError` if one is."""
    if not is_level(array):
        raise AudioError(_explain_level(array, sample_rate))


def is_level(array: npt.NDArray[Any]) -> bool:
    """Whether samples are finite and not far beyond [-1, 1]; 16-bit ones always are."""
    if not array.size or array.dtype == np.int16:
        return True
    # NaN comes through min and max, and they make no array of their own.
    return bool(array.min() >= -MAX_LEVEL and array.max() <= MAX_LEVEL)


def widened(samples: Samples) -> Waveform:
    """The same audio in float32; what is that already is not copied."""
    if samples.dtype == np.int16:
        return np.multiply(samples, np.float32(1 / PCM_SCALE), dtype=np.float32)
    return samples  # type: ignore[return-value]  # of the two types that there are, it is not the other


def _explain_level(array: npt.NDArray[Any], sample_rate: int) -> str:
    finite = np.isfinite(array)
    if finite.all():
        return f"samples reach {np.abs(array).max():g}; a waveform is in [-1, 1] (16-bit samples: divide by 32768)"
    index = int(np.argmin(finite))
    return f"sample {index} ({index / sample_rate:.3f} s) is {array[index]}; samples must be finite numbers"
