"""Tensors of a request to waveforms.

    WAV (rows, samples) float32, WAV_LENS (rows, 1) int32  ->  rows waveforms, padding cut off
    PCM (rows, samples) int16, WAV_LENS                    ->  the same in 16 bits; n stands for n / 32768

Waveforms are views of the tensors' memory.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tritone.audio.waveform import Samples, check_length, check_level
from tritone.errors import AudioError
from tritone.pipelines.wire import PCM, WAV, WAV_LENS

SHAPE = "of shape (rows, samples)"


def read_waveforms(
    tensors: Mapping[str, npt.NDArray[Any]],
    *,
    sample_rate: int,
    max_audio_s: float,
    allow_empty: bool = False,
    levels: bool = True,
    names: tuple[str, str] = (WAV, WAV_LENS),
) -> list[Samples]:
    """The waveforms of a request, checked: float32, or int16 where it has `PCM`. Without lengths all samples are valid.

    Args:
        sample_rate: of the model, in Hz.
        max_audio_s: the longest waveform to accept, in seconds.
        allow_empty: accept waveforms without samples, as chunks of a stream may be.
        levels: whether to look for samples that are not finite or far beyond [-1, 1], which reads all of them.
        names: what the client calls `WAV` and `WAV_LENS`, for messages.

    Raises:
        AudioError: the tensors do not fit each other, or a waveform cannot be used; says which and why.
    """
    wav, pcm = tensors.get(WAV), tensors.get(PCM)
    if wav is None and pcm is None:
        raise AudioError(
            f"the request has no input {names[0]}; send samples {SHAPE}: float32 in [-1, 1] as {names[0]}, or int16 as "
            f"{PCM}"
        )
    if wav is not None and pcm is not None:
        raise AudioError(
            f"the request has both inputs {names[0]} and {PCM}, which are two forms of the same audio; send one"
        )
    lens = tensors.get(WAV_LENS)
    rows = cut_rows(wav, lens, names) if wav is not None else cut_rows(tensors[PCM], lens, (PCM, names[1]), np.int16)
    for index, row in enumerate(rows):
        try:
            check_length(len(row), sample_rate=sample_rate, max_audio_s=max_audio_s, allow_empty=allow_empty)
            if levels:
                check_level(row, sample_rate=sample_rate)
        except AudioError as error:
            if len(rows) == 1:
                raise
            raise AudioError(f"row {index}: {error}") from error
    return rows


def read_chunk(tensors: Mapping[str, npt.NDArray[Any]], *, sample_rate: int, max_audio_s: float) -> Samples:
    """The samples of a chunk of a stream, possibly none; arguments and errors as of `read_waveforms`."""
    pcm, lens = tensors.get(PCM), tensors.get(WAV_LENS)
    # Thousands of them come in a second, and nearly all are like this.
    if pcm is not None and lens is not None and len(tensors) == 2 and len(pcm) == 1 == lens.size and pcm.ndim == 2:
        length = lens.item()
        is_whole = pcm.dtype == np.int16 and lens.dtype == np.int32 and 0 <= length <= pcm.shape[1]
        if is_whole and length <= max_audio_s * sample_rate:
            samples: Samples = pcm[0, :length]
            return samples
    (samples,) = read_waveforms(tensors, sample_rate=sample_rate, max_audio_s=max_audio_s, allow_empty=True)
    return samples


def cut_rows(
    wav: npt.NDArray[Any],
    lens: npt.NDArray[Any] | None,
    names: tuple[str, str] = (WAV, WAV_LENS),
    dtype: npt.DTypeLike = np.float32,
) -> list[Samples]:
    """Cut a padded batch into its waveforms, without copying; `lens` None: nothing of it is padding.

    Args:
        names: what the client calls the two, for messages.
        dtype: of the samples.

    Raises:
        AudioError: wrong type or rank, or `lens` does not fit `wav`.
    """
    wav_name, lens_name = names
    if wav.dtype != dtype or wav.ndim != 2:
        raise AudioError(f"{wav_name} must be {np.dtype(dtype)} {SHAPE}, got {wav.dtype} of shape {wav.shape}")
    rows, samples = wav.shape
    if lens is None:
        return list(wav)
    if lens.dtype != np.int32 or lens.size != rows:
        raise AudioError(
            f"{lens_name} must be int32 of shape ({rows}, 1), one number for each row of {wav_name}, got {lens.dtype} "
            f"of shape {lens.shape}"
        )
    result = []
    for index, length in enumerate(lens.ravel().tolist()):
        if not 0 <= length <= samples:
            where = f" in row {index}" if rows > 1 else ""
            raise AudioError(
                f"{lens_name} is {length}{where}, but {wav_name} has {samples} samples a row. {lens_name} counts the "
                f"valid samples: send 0 to {samples}."
            )
        result.append(wav[index, :length])
    return result
