"""Answers to requests: arrays as tensors, errors as Triton's errors."""

from collections.abc import Mapping
from typing import Any

import triton_python_backend_utils as pb_utils

from tritone.errors import InputError, RetryError, TritoneError
from tritone.runtime.graph import Array


def reply(tensors: Mapping[str, Array]) -> Any:
    """Answer with these outputs."""
    return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor(name, array) for name, array in tensors.items()])


def error_reply(error: TritoneError) -> Any:
    """Answer with an error. The code tells a client whose turn it is: its own, a later try, or the operator's."""
    if isinstance(error, InputError):
        code = pb_utils.TritonError.INVALID_ARG
    elif isinstance(error, RetryError):
        code = pb_utils.TritonError.UNAVAILABLE
    else:
        code = pb_utils.TritonError.INTERNAL
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error), code))
