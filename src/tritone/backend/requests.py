"""Requests as waveforms and search options.

    WAV (rows, samples) float32, WAV_LENS (rows, 1) int32  ->  rows waveforms, padding cut off
    parameters, as Triton's JSON  ->  what the client asked of the search, or of the embedding

A request has one row unless its client batches by itself. Waveforms are views of the request's memory: they are gone
when `execute` returns.
"""

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tritone.audio.waveform import check_waveform
from tritone.backend.wire import DETAILS, WAV, WAV_LENS
from tritone.errors import AudioError, InputError
from tritone.pipelines import embed_options
from tritone.search import options as search_options
from tritone.search.options import SearchOptions

Waveform = npt.NDArray[np.float32]

# Triton's own parameters, most of which it keeps to itself.
RESERVED = ("sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "binary_data_output")
RESERVED_PREFIX = "triton_"
OURS = {*search_options.PARAMETERS, *embed_options.PARAMETERS}


class Request(Protocol):
    """The part of Triton's `InferenceRequest` that is used here."""

    def inputs(self) -> list[Any]: ...

    def parameters(self) -> str: ...

    def requested_output_names(self) -> Iterable[str]: ...


def waveforms_of(
    request: Request, *, sample_rate: int, max_audio_s: float, allow_empty: bool = False
) -> list[Waveform]:
    """Read the waveforms of one request and check them. Without lengths, all samples are valid.

    Args:
        sample_rate: of the model, in Hz.
        max_audio_s: the longest waveform to accept, in seconds.
        allow_empty: accept waveforms without samples, as chunks of a stream may be.

    Raises:
        AudioError: the tensors do not fit each other, or a waveform cannot be used; says which and why.
    """
    tensors = {tensor.name(): tensor for tensor in request.inputs()}
    rows = cut_rows(tensors[WAV].as_numpy(), tensors[WAV_LENS].as_numpy() if WAV_LENS in tensors else None)
    for index, row in enumerate(rows):
        try:
            check_waveform(row, sample_rate=sample_rate, max_audio_s=max_audio_s, allow_empty=allow_empty)
        except AudioError as error:
            if len(rows) == 1:
                raise
            raise AudioError(f"row {index}: {error}") from error
    return rows


def parameters_of(request: Request) -> dict[str, Any]:
    """Read what a request asks of a model: its parameters without Triton's own and forwarded headers.

    A header looks like a parameter where an operator lets Triton forward some. Those have a hyphen in their names,
    which ours never have: `ctc-weight` is a slip of the pen, `x-request-id` is not for us.

    Raises:
        InputError: Triton passed on what is no JSON, as for a number that is not finite.
    """
    text = request.parameters()
    if not text or text == "{}":
        return {}
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InputError(
            f"the request's parameters cannot be read ({error}); send finite numbers, text, true or false"
        ) from error
    return {name: value for name, value in found.items() if not _is_foreign(name)}


class Searches(Protocol):
    """What knows how to search: `options` where a request asks for nothing else, and `check` of what it asks for."""

    @property
    def options(self) -> SearchOptions: ...

    def check(self, options: SearchOptions) -> SearchOptions: ...


def options_of(request: Request, searching: Searches) -> SearchOptions:
    """How to search in the audio of a request: the usual way, with what the request asks for, checked.

    A request that does not take details gets no times, which nobody would see.

    Raises:
        InputError: it asks for what the model does not have.
    """
    parameters = parameters_of(request)
    options = searching.check(searching.options.changed(parameters)) if parameters else searching.options
    if options.timestamps and DETAILS not in request.requested_output_names():
        return replace(options, timestamps=False)
    return options


def _is_foreign(name: str) -> bool:
    if name in RESERVED or name.startswith(RESERVED_PREFIX):
        return True
    return "-" in name and name.lower().replace("-", "_") not in OURS


def cut_rows(wav: npt.NDArray[Any], lens: npt.NDArray[Any] | None) -> list[Waveform]:
    """Cut a padded batch into its waveforms, without copying; None says that nothing of it is padding.

    Raises:
        AudioError: wrong type or rank, or `lens` does not fit `wav`.
    """
    if wav.dtype != np.float32 or wav.ndim != 2:
        raise AudioError(f"{WAV} must be float32 of shape (rows, samples), got {wav.dtype} of shape {wav.shape}")
    rows, samples = wav.shape
    if lens is None:
        return list(wav)
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
