"""Tensors of a request to waveforms.

    WAV (rows, samples) float32, WAV_LENS (rows, 1) int32  ->  rows waveforms, padding cut off

Waveforms are views of the tensors' memory.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tritone.audio.waveform import Waveform, check_waveform
from tritone.errors import AudioError
from tritone.pipelines.wire import WAV, WAV_LENS


def read_waveforms(
    tensors: Mapping[str, npt.NDArray[Any]],
    *,
    sample_rate: int,
    max_audio_s: float,
    allow_empty: bool = False,
    names: tuple[str, str] = (WAV, WAV_LENS),
) -> list[Waveform]:
    """The waveforms of a request, checked. Without lengths, all samples are valid.

    Args:
        sample_rate: of the model, in Hz.
        max_audio_s: the longest waveform to accept, in seconds.
        allow_empty: accept waveforms without samples, as chunks of a stream may be.
        names: what the client calls the tensors, for messages.

    Raises:
        AudioError: the tensors do not fit each other, or a waveform cannot be used; says which and why.
    """
    if WAV not in tensors:
        raise AudioError(f"the request has no input {names[0]}; send float32 samples of shape (rows, samples)")
    rows = cut_rows(tensors[WAV], tensors.get(WAV_LENS), names)
    for index, row in enumerate(rows):
        try:
            check_waveform(row, sample_rate=sample_rate, max_audio_s=max_audio_s, allow_empty=allow_empty)
        except AudioError as error:
            if len(rows) == 1:
                raise
            raise AudioError(f"row {index}: {error}") from error
    return rows


def cut_rows(
    wav: npt.NDArray[Any], lens: npt.NDArray[Any] | None, names: tuple[str, str] = (WAV, WAV_LENS)
) -> list[Waveform]:
    """Cut a padded batch into its waveforms, without copying; `lens` None: nothing of it is padding.

    Args:
        names: what the client calls the two, for messages.

    Raises:
        AudioError: wrong type or rank, or `lens` does not fit `wav`.
    """
    wav_name, lens_name = names
    if wav.dtype != np.float32 or wav.ndim != 2:
        raise AudioError(f"{wav_name} must be float32 of shape (rows, samples), got {wav.dtype} of shape {wav.shape}")
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
