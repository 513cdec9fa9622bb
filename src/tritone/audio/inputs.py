"""Audio as callers give it, files and arrays  ->  the mono waveform a model expects."""

import os
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO, TypeGuard

import numpy as np
import numpy.typing as npt
import soxr

from tritone.audio.channels import Mixer
from tritone.audio.files import Source, check_sample_rate, read_audio, read_samples, resample
from tritone.audio.pcm import to_pcm
from tritone.audio.waveform import Samples, Waveform, check_waveform, widened
from tritone.errors import AudioError
from tritone.result import AnyResult

AudioInput = str | os.PathLike[str] | bytes | BinaryIO | npt.NDArray[Any]
MAX_CHANNELS = 16  # an axis of an array that is longer is time


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
        item: path, bytes of a file, open file, or array or tensor as of `mono`.
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
    if is_file(item):
        return read_audio(item, wanted, max_audio_s=max_audio_s)
    rate = wanted if sample_rate is None else check_sample_rate(sample_rate)
    waveform = widened(mono(item, whole=True))
    if check:
        waveform = check_waveform(waveform, sample_rate=rate, max_audio_s=max_audio_s)
    return resample(waveform, rate, wanted)


def load_samples(item: AudioInput | bytes, sample_rate: int | None, wanted: int, *, pcm: bool | None) -> Samples:
    """Read a file or take an array as it is sent: (samples,) int16 or float32.

    Args:
        item: as of `load`, or the bytes of a file.
        sample_rate, wanted: see `load`.
        pcm: None makes int16 of what has 16 bits already, False of nothing, True of everything, by rounding.

    Raises: as `load`.
    """
    if is_file(item):
        return narrow(read_samples(item, wanted, pcm=pcm is not False), wanted, pcm=pcm)
    rate = wanted if sample_rate is None else check_sample_rate(sample_rate)
    return narrow(resample(mono(item, whole=True), rate, wanted), wanted, pcm=pcm)


def narrow(samples: Samples, sample_rate: int, *, pcm: bool | None) -> Samples:
    """Samples as they are sent; see `load_samples` for `pcm`. Raises `AudioError` if what is rounded is no audio."""
    if pcm and samples.dtype != np.int16:  # which would hide NaN from the server
        return to_pcm(check_waveform(samples, sample_rate=sample_rate, allow_empty=True))
    return samples if pcm is None or pcm else widened(samples)


def is_single(inputs: object) -> bool:
    """Whether inputs are one file or waveform instead of several; a list of numbers is a waveform, too."""
    if is_file(inputs) or (isinstance(inputs, list | tuple) and inputs and isinstance(inputs[0], int | float)):
        return True
    shape = getattr(inputs, "shape", (0, 0))
    return len(shape) < 2 or (len(shape) == 2 and shape[1] <= MAX_CHANNELS < shape[0])


def is_file(item: object) -> TypeGuard[Source]:
    """Whether an input is a file: its path, its bytes, or one that is open, as `io.BytesIO` is."""
    return isinstance(item, str | os.PathLike | bytes) or hasattr(item, "read")


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


def mono(samples: Any, *, whole: bool = False) -> Samples:
    """One channel of an array, a tensor or a list of numbers: the mean of its channels.

    The rule: (samples,), or (samples, channels) of at most `MAX_CHANNELS` channels, or else (channels, samples), as
    torchaudio and librosa have it. Floating point in [-1, 1], or int16.

    Args:
        whole: it is all of a recording, of which channels that cancel each other are refused.

    Returns:
        (samples,) float32; int16 of a single channel of that type.

    Raises:
        AudioError: another shape or type, or on a GPU.
    """
    if hasattr(samples, "__cuda_array_interface__"):
        raise AudioError("the array is on a GPU, which is not possible here: copy it to the host")
    if hasattr(samples, "detach"):  # a tensor of torch, which may have a gradient, or a type that numpy does not know
        samples = samples.detach()
        samples = (samples.float() if samples.is_floating_point() else samples).cpu().numpy()
    try:
        array = np.asarray(samples)
    except ValueError as error:  # lists of several lengths
        raise AudioError(f"a waveform is an array (samples,), got a {type(samples).__name__} that is none") from error
    if array.ndim == 2 and array.shape[1] > MAX_CHANNELS >= array.shape[0]:
        array = array.T
    if array.ndim not in (1, 2) or (array.ndim == 2 and not 1 <= array.shape[1] <= MAX_CHANNELS):
        raise AudioError(
            f"an array of shape {array.shape} is no waveform; give (samples,), or (samples, channels) or (channels, "
            f"samples) of at most {MAX_CHANNELS} channels"
        )
    if array.dtype != np.int16 and array.dtype.kind != "f":
        raise AudioError(
            f"a waveform of type {array.dtype} and shape {array.shape} is ambiguous; give floats in [-1, 1], or int16 "
            "samples"
        )
    if array.ndim == 2:
        mixer = Mixer("the array")
        mixed: Samples = mixer.mix(array if array.shape[1] == 1 or array.dtype != np.int16 else widened(array))
        if whole:
            mixer.check()
        array = mixed
    return array if array.dtype == np.int16 else array.astype(np.float32, copy=False)


class StreamResampler:
    """Resamples a waveform that comes in pieces; equal rates pass through untouched. Rates in Hz."""

    def __init__(self, rate: int, wanted: int) -> None:
        check_sample_rate(rate)
        self._stream = None if rate == wanted else soxr.ResampleStream(rate, wanted, 1, dtype="float32")

    def push(self, samples: Samples) -> Samples:
        """Take a piece and return what can be computed by now; the filter delays a few milliseconds."""
        return samples if self._stream is None else self._stream.resample_chunk(widened(samples))

    def flush(self) -> Waveform:
        """Give the rest. Nothing may be pushed afterwards."""
        empty = np.zeros(0, np.float32)
        return empty if self._stream is None else self._stream.resample_chunk(empty, last=True)
