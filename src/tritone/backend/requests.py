"""Requests as waveforms.

    WAV (rows, samples) float32, WAV_LENS (rows, 1) int32  ->  rows waveforms, padding cut off

A request has one row unless its client batches by itself. Waveforms are views of the request's memory: they are gone
when `execute` returns.
"""

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tritone.audio.waveform import check_waveform
from tritone.backend.wire import WAV, WAV_LENS
from tritone.errors import AudioError

Waveform = npt.NDArray[np.float32]


class Request(Protocol):
    """The part of Triton's `InferenceRequest` that is used here."""

    def inputs(self) -> list[Any]: ...


def waveforms_of(
    request: Request, *, sample_rate: int, max_audio_s: float, allow_empty: bool = False
) -> list[Waveform]:
    """Read the waveforms of one request and check them.

    Args:
        sample_rate: of the model, in Hz.
        max_audio_s: the longest waveform to accept, in seconds.
        allow_empty: accept waveforms without samples, as chunks of a stream may be.

    Raises:
        AudioError: the tensors do not fit each other, or a waveform cannot be used; says which and why.
    """
    tensors = {tensor.name(): tensor for tensor in request.inputs()}
    rows = cut_rows(tensors[WAV].as_numpy(), tensors[WAV_LENS].as_numpy())
    for index, row in enumerate(rows):
        try:
            check_waveform(row, sample_rate=sample_rate, max_audio_s=max_audio_s, allow_empty=allow_empty)
        except AudioError as error:
            if len(rows) == 1:
                raise
            raise AudioError(f"row {index}: {error}") from error
    return rows


def cut_rows(wav: npt.NDArray[Any], lens: npt.NDArray[Any]) -> list[Waveform]:
    """Cut a padded batch into its waveforms, without copying.

    Raises:
        AudioError: wrong type or rank, or `lens` does not fit `wav`.
    """
    if wav.dtype != np.float32 or wav.ndim != 2:
        raise AudioError(f"{WAV} must be float32 of shape (rows, samples), got {wav.dtype} of shape {wav.shape}")
    rows, samples = wav.shape
    if lens.dtype != np.int32 or lens.size != rows:
        raise AudioError(
            f"{WAV_LENS} must be int32 of shape ({rows}, 1), one number for each row of {WAV}, got {lens.dtype} of "
            f"shape {lens.shape}"
        )
    result = []
    for index, length in enumerate(lens.ravel().tolist()):
        if not 0 <= length <= samples:
            where = f" in row {index}" if rows > 1 else ""
            raise AudioError(
                f"{WAV_LENS} is {length}{where}, but {WAV} has {samples} samples a row. {WAV_LENS} counts the valid "
                f"samples: send 0 to {samples}."
            )
        result.append(wav[index, :length])
    return result
