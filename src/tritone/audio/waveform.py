"""Checking waveforms: mono audio, (samples,) float32, nominally in [-1, 1]."""

from typing import Any

import numpy as np
import numpy.typing as npt

from tritone.errors import AudioError

Waveform = npt.NDArray[np.float32]


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
        AudioError: empty, not one-dimensional, not of a floating type, too long, or not finite somewhere.
    """
    array: npt.NDArray[Any] = np.asarray(waveform)
    if array.ndim != 1:
        raise AudioError(f"a waveform is one-dimensional (samples,), got shape {array.shape}; mix channels down first")
    if not np.issubdtype(array.dtype, np.floating):
        raise AudioError(f"a waveform is float32 in [-1, 1], got {array.dtype}; divide 16-bit samples by 32768")
    if array.size == 0 and not allow_empty:
        raise AudioError("empty audio: the waveform has no samples")
    if max_audio_s is not None and array.size > max_audio_s * sample_rate:
        raise AudioError(
            f"the audio is {array.size / sample_rate:.3f} s long ({array.size} samples at {sample_rate} Hz), "
            f"the limit is {max_audio_s:g} s. Cut it, stream it, or raise the limit."
        )
    finite = np.isfinite(array)
    if not finite.all():
        index = int(np.argmin(finite))
        raise AudioError(
            f"sample {index} ({index / sample_rate:.3f} s) is {array[index]}; samples must be finite numbers"
        )
    with np.errstate(over="ignore"):  # reported below
        result = np.ascontiguousarray(array, dtype=np.float32)
    if result.dtype != array.dtype and not np.isfinite(result).all():
        raise AudioError(f"samples reach {np.abs(array).max():g}, beyond float32; a waveform is in [-1, 1]")
    return result
