"""Other models of the same server, for a Python function that decides which to call (Triton calls it BLS).

models["NAME"](text=array)  ->  a request to that model  ->  its outputs by name
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from tritone.errors import MODEL_FAILED, InputError, OperatorError, RetryError, TritoneError
from tritone.runtime.graph import Array


class ServedModels:
    """See `tritone.Models`. Which models there are is for the server to know, so it is asked by calling one."""

    def __getitem__(self, name: str) -> Callable[..., Mapping[str, Array]]:
        def call(**inputs: Array) -> dict[str, Array]:
            tensors = [pb_utils.Tensor(key, _sent(array)) for key, array in inputs.items()]
            # No output is named: all of them are wanted.
            request = pb_utils.InferenceRequest(model_name=name, inputs=tensors, requested_output_names=[])
            response = request.exec()
            if response.has_error():
                raise _as_ours(name, response.error())
            return {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}

        return call


def _sent(array: Array) -> Array:
    """Text as Triton takes it: arrays of objects."""
    array = np.asarray(array)
    return array.astype(object) if array.dtype.kind in "US" else array


def _as_ours(name: str, error: Any) -> TritoneError:
    """The error of a called model. Triton 2.51 loses its code on the way: then only our own sentence tells failures."""
    message, code = f"the model {name}: {error.message()}", error.code()
    if code == pb_utils.TritonError.UNAVAILABLE:
        return RetryError(message)
    return OperatorError(message) if MODEL_FAILED in message else InputError(message)
