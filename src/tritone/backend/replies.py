"""Answers to requests: arrays as tensors, errors as Triton's errors."""

from collections.abc import Mapping
from typing import Any

import triton_python_backend_utils as pb_utils

from tritone.errors import MODEL_FAILED, InputError, OperatorError, RetryError, TritoneError
from tritone.paths import without_paths
from tritone.pipelines.isolation import UnexpectedError
from tritone.runtime.graph import Array

MAX_MESSAGE = 1000  # characters, since a message may quote what a client sent


class StepError(OperatorError):
    """The pipeline failed for no reason that a request gave; nobody knows the state of its streams any more."""


def reply(tensors: Mapping[str, Array]) -> Any:
    """Answer with these outputs."""
    return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor(name, array) for name, array in tensors.items()])


def error_reply(error: TritoneError) -> Any:
    """Answer with an error. The code tells a client whose turn it is: its own, a later try, or the operator's.

    What the operator has to mend goes to the server's log, with its traceback where it was not expected. It may name
    files of the server, so the client gets a sentence without them.
    """
    message = str(error)
    if isinstance(error, InputError):
        code = pb_utils.TritonError.INVALID_ARG
    elif isinstance(error, RetryError):
        code = pb_utils.TritonError.UNAVAILABLE
    else:
        code = pb_utils.TritonError.INTERNAL
        if not isinstance(error, StepError):  # which is logged once for all streams of the step
            report = error.report if isinstance(error, UnexpectedError) else ""
            pb_utils.Logger.log_error(_sendable(f"a request failed: {message}\n{report}".rstrip()))
            message = MODEL_FAILED
    if message != (outward := without_paths(message)):
        pb_utils.Logger.log_info(_sendable(f"a request was refused: {message}"))
        message = outward
    if len(message) > MAX_MESSAGE:
        message = f"{message[:MAX_MESSAGE]} [...]"
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(_sendable(message), code))


def _sendable(text: str) -> str:
    """Text without half characters, which no message can have."""
    return text.encode(errors="replace").decode()
