"""What users hand to the client  ->  the mono waveform a model expects."""

import os
from typing import Any

import numpy as np
import numpy.typing as npt
import soxr

from tritone.audio.files import check_sample_rate, read_audio, resample
from tritone.audio.waveform import Waveform
from tritone.errors import AudioError


def load(item: str | os.PathLike[str] | npt.NDArray[Any], sample_rate: int | None, wanted: int) -> Waveform:
    """Read a file or take an array.

    Args:
        item: path, or (samples,) or (samples, channels) in [-1, 1].
        sample_rate: of an array, in Hz; None means `wanted`. Files know their own.
        wanted: rate of the result, in Hz.

    Returns:
        (samples,) float32.

    Raises:
        AudioError: the file cannot be read, or the array has another shape or type.
    """
    if isinstance(item, (str, os.PathLike)):
        return read_audio(item, wanted)
    waveform = mono(item)
    return resample(waveform, wanted if sample_rate is None else check_sample_rate(sample_rate), wanted)


def mono(samples: npt.NDArray[Any]) -> Waveform:
    """Average the channels of (samples,) or (samples, channels) into (samples,) float32.

    Raises:
        AudioError: another shape, or not floating point.
    """
    array = np.asarray(samples)
    if array.ndim not in (1, 2):
        raise AudioError(f"an array of shape {array.shape} is no waveform; give (samples,) or (samples, channels)")
    if array.dtype.kind != "f":
        raise AudioError(
            f"a waveform of type {array.dtype} is ambiguous; give floats in [-1, 1] (int16 samples: divide by 32768)"
        )
    return array.astype(np.float32, copy=False) if array.ndim == 1 else array.mean(axis=1, dtype=np.float32)


class StreamResampler:
    """Resamples a waveform that comes in pieces; equal rates pass through untouched. Rates in Hz."""

    def __init__(self, rate: int, wanted: int) -> None:
        check_sample_rate(rate)
        self._stream = None if rate == wanted else soxr.ResampleStream(rate, wanted, 1, dtype="float32")

    def push(self, samples: Waveform) -> Waveform:
        """Take a piece and give what can be computed by now; the filter delays a few milliseconds."""
        return samples if self._stream is None else self._stream.resample_chunk(samples)

    def flush(self) -> Waveform:
        """Give the rest. Nothing may be pushed afterwards."""
        empty = np.zeros(0, np.float32)
        return empty if self._stream is None else self._stream.resample_chunk(empty, last=True)
