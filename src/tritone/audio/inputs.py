"""Audio as callers give it, files and arrays  ->  the mono waveform a model expects."""

import os
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import soxr

from tritone.audio.files import check_sample_rate, read_audio, resample
from tritone.audio.waveform import Waveform, check_waveform
from tritone.errors import AudioError
from tritone.result import AnyResult

AudioInput = str | os.PathLike[str] | npt.NDArray[Any]


def load(
    item: AudioInput,
    sample_rate: int | None,
    wanted: int,
    *,
    max_audio_s: float | None = None,
    check: bool = False,
) -> Waveform:
    """Read a file or take an array.

    Args:
        item: path, or (samples,) or (samples, channels) in [-1, 1].
        sample_rate: of an array, in Hz; None means `wanted`. Files know their own.
        wanted: rate of the result, in Hz.
        max_audio_s: longer audio is an error, in seconds; None takes any.
        check: whether to check the samples of arrays, as those of files are; a server does it itself.

    Returns:
        (samples,) float32.

    Raises:
        AudioError: the file cannot be read, or the array has another shape or type, or samples that cannot be used.
        ValueError: `sample_rate` is no rate that audio has.
    """
    if isinstance(item, (str, os.PathLike)):
        return read_audio(item, wanted, max_audio_s=max_audio_s)
    rate = wanted if sample_rate is None else check_sample_rate(sample_rate)
    waveform = mono(item)
    if check:
        waveform = check_waveform(waveform, sample_rate=rate, max_audio_s=max_audio_s)
    return resample(waveform, rate, wanted)


def is_single(inputs: object) -> bool:
    """Whether inputs are one path or waveform instead of several."""
    return isinstance(inputs, (str, os.PathLike)) or (isinstance(inputs, np.ndarray) and inputs.ndim < 2)


def all_or_one(
    inputs: Any, run: Callable[[Iterable[AudioInput]], Iterable[AnyResult]]
) -> "AnyResult | list[AnyResult]":
    """The results of inputs, in their order; of a single input its own result, whose error is raised."""
    if is_single(inputs):
        (result,) = run([inputs])
        result.get()
        return result
    return sorted(run(inputs), key=lambda result: result.index)


def source_of(item: object, index: int) -> str:
    """The name of an input in results and messages: its path, or "input 3" for an array."""
    return os.fspath(item) if isinstance(item, (str, os.PathLike)) else f"input {index}"


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
