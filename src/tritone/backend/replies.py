"""Answers to requests: transcripts as tensors, errors as Triton's errors."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from tritone.backend.wire import DETAILS, TRANSCRIPTS
from tritone.errors import InputError, RetryError, TritoneError
from tritone.transcript import Transcript


def reply(request: Any, transcripts: Sequence[Transcript], *, axes: int = 1, more: Sequence[Any] = ()) -> Any:
    """Answer `request` with one transcript for each of its rows; `DETAILS` only if the request names it.

    Args:
        axes: of the outputs, 1 or 2: (rows,) or (rows, 1).
        more: further tensors to send.
    """
    # Of a stream with endpoints all that was said: no client shall lose text because it looks at nothing else.
    tensors = [_strings(TRANSCRIPTS, [transcript.whole_text for transcript in transcripts], axes)]
    if DETAILS in request.requested_output_names():
        details = [json.dumps(transcript.to_dict(), ensure_ascii=False) for transcript in transcripts]
        tensors.append(_strings(DETAILS, details, axes))
    return pb_utils.InferenceResponse(output_tensors=[*tensors, *more])


def error_reply(error: Exception) -> Any:
    """Answer with an error. The code tells a client whose turn it is: its own, a later try, or the operator's."""
    if isinstance(error, InputError):
        code = pb_utils.TritonError.INVALID_ARG
    elif isinstance(error, RetryError):
        code = pb_utils.TritonError.UNAVAILABLE
    else:
        code = pb_utils.TritonError.INTERNAL
    text = str(error) if isinstance(error, TritoneError) else f"{type(error).__name__}: {error}"
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(text, code))


def _strings(name: str, values: list[str], axes: int) -> Any:
    # Triton sends the shape as it is, whatever is declared.
    cells = np.array([value.encode() for value in values], dtype=object)
    return pb_utils.Tensor(name, cells.reshape(len(cells), *[1] * (axes - 1)))
