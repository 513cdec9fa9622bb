"""Tensors of generic models as arrays: types, and whether arrays are what a model declares.

    {"pixels": array, ...}, Generic  ->  the same arrays with the types and shapes of the graph, or an InputError

Strings are arrays of bytes (dtype object). Numpy has no BF16: such tensors are float32 here, and rounded where they
enter a graph or a message.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tritone.errors import InputError, OperatorError
from tritone.kinds.generic.part import GenericInput, GenericPart, GenericTensor, SequenceState
from tritone.runtime.functions.signature import TYPES
from tritone.runtime.graph import Array

DTYPES: Mapping[str, np.dtype[Any]] = {**TYPES, "BF16": np.dtype(np.float32)}
"""The arrays of each of Triton's types."""


def checked(tensors: Mapping[str, npt.ArrayLike], generic: GenericPart) -> dict[str, Array]:
    """The inputs of one request as the graph takes them, with the batch axis where the model has one.

    Raises:
        InputError: an input is missing or unknown, has another type or other axes, or not as many rows as the others.
    """
    known = {each.name: each for each in generic.inputs}
    if unknown := [name for name in tensors if name not in known]:
        raise InputError(f"there is no input {', '.join(unknown)}; the model takes {', '.join(known) or 'none'}")
    if missing := [name for name, each in known.items() if name not in tensors and not each.optional]:
        raise InputError(f"input {', '.join(missing)} is missing; the model takes {', '.join(known)}")
    arrays = {name: _checked(np.asarray(value), known[name], generic) for name, value in tensors.items()}
    if generic.max_batch_size and arrays:
        rows = {name: len(array) for name, array in arrays.items()}
        if len(set(rows.values())) > 1:
            counts = ", ".join(f"{name} {count}" for name, count in rows.items())
            raise InputError(f"all inputs of a request have the same number of rows, got {counts}")
        if not 0 < (count := next(iter(rows.values()))) <= generic.max_batch_size:
            raise InputError(f"a request has 1 to {generic.max_batch_size} rows, got {count}; send them apart")
    return {name: as_shape(array, known[name].dims, known[name].reshape) for name, array in arrays.items()}


def declared(tensor: GenericTensor, generic: GenericPart) -> str:
    """The type and shape that a tensor has for clients, in words."""
    sizes = ["rows"] if generic.max_batch_size else []
    return f"{tensor.type} [{', '.join(sizes + ['any' if size < 0 else str(size) for size in tensor.dims])}]"


def initial_state(state: SequenceState, generic: GenericPart) -> Array:
    """The value of a state when a sequence starts, of one row."""
    rows = (1,) if generic.max_batch_size else ()
    return np.full((*rows, *state.dims), state.initial, DTYPES[state.type])


def sample(tensor: GenericInput, rows: int, generic: GenericPart, *, size: int = 1) -> Array:
    """A value of an input, as clients send it: zeros, or empty strings, in the sizes that its export was tried with.

    Args:
        size: of open axes where nothing was tried.
    """
    dims = tensor.sample or tuple(size if each < 0 else each for each in tensor.dims)
    shape = (rows, *dims) if generic.max_batch_size else dims
    return np.full(shape, b"", object) if tensor.type == "STRING" else np.zeros(shape, DTYPES[tensor.type])


def _checked(array: Array, tensor: GenericTensor, generic: GenericPart) -> Array:
    dims = array.shape[1:] if generic.max_batch_size else array.shape
    fits = len(array.shape) == len(tensor.dims) + bool(generic.max_batch_size) and all(
        wanted in (-1, found) for wanted, found in zip(tensor.dims, dims, strict=True)
    )
    if not fits:
        raise InputError(f"{tensor.name} has shape {list(array.shape)}, {declared(tensor, generic)} is needed")
    wanted = DTYPES[tensor.type]
    if tensor.type == "STRING":
        return _as_bytes(array, tensor.name)
    # A float64 array for FP32 is what people have; numbers of another kind would lose more than digits.
    if array.dtype != wanted and not np.can_cast(array.dtype, wanted, "same_kind"):
        raise InputError(f"{tensor.name} is of type {array.dtype}, {declared(tensor, generic)} is needed")
    return np.ascontiguousarray(array, wanted)


def _as_bytes(array: Array, name: str) -> Array:
    if array.dtype.kind not in "OSU":
        raise InputError(f"{name} is of type {array.dtype}, text or bytes are needed")
    found = np.empty(array.shape, object)
    for index, value in enumerate(array.ravel()):
        if not isinstance(value, (str, bytes)):
            raise InputError(f"{name} holds {type(value).__name__}, text or bytes are needed")
        found.flat[index] = value.encode() if isinstance(value, str) else bytes(value)
    return found


def as_declared(name: str, array: Array, tensor: GenericTensor, rows: int, generic: GenericPart) -> Array:
    """An output of the graph as clients get it.

    Raises:
        OperatorError: the graph returned another number of rows or another shape than the manifest declares.
    """
    if tensor.type == "STRING":
        array = _as_bytes(np.asarray(array), name)
    shape = array.shape[1:] if generic.max_batch_size else array.shape
    wanted = tensor.shape
    fits = (not generic.max_batch_size or array.shape[:1] == (rows,)) and len(shape) == len(wanted)
    if not fits or any(size not in (-1, found) for size, found in zip(wanted, shape, strict=True)):
        raise OperatorError(
            f"output {name} of the model has shape {list(array.shape)} for a call of {rows} rows, its manifest "
            f"declares {declared(tensor, generic)}. Export the model again with the right --dims and --max-batch-size "
            "(0 where its tensors have no batch axis)."
        )
    return as_shape(array, tensor.shape, None if tensor.reshape is None else tensor.dims)


def as_shape(array: Array, declared: tuple[int, ...], wanted: tuple[int, ...] | None) -> Array:
    """The array with `wanted` in place of the last axes `declared`; sizes -1 of both are the same, in their order."""
    if wanted is None:
        return array
    axes = array.ndim - len(declared)
    found = iter(size for size, known in zip(array.shape[axes:], declared, strict=True) if known < 0)
    return array.reshape((*array.shape[:axes], *(next(found) if size < 0 else size for size in wanted)))
