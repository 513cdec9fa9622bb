"""The inputs and outputs of a Python function, read from its annotations.

    def normalise(points: Annotated[NDArray[np.float32], ("points", 2)]) -> Annotated[NDArray[np.float32], (2,)]
        ->  Signature: points FP32 [-1, 2]  ->  output FP32 [2]

A function works on a batch: every argument has a row for each input, and so has every result.

    Annotated[NDArray[np.float32], ("frames", 80)]   array (rows, frames, 80); a word or -1 is an axis of any size
    Annotated[NDArray[np.int64], ()]                 array (rows,): one number for each row
    list[str], list[bytes]                           one text for each row
    list[list[str]]                                  several texts for each row
    list[int], list[float], list[bool]               one number for each row (INT64, FP64, BOOL)

A parameter with the default None is optional. Several results are a NamedTuple, a dataclass or a TypedDict, whose
fields are the outputs; a single one is called `output`. A generator answers many times. A parameter annotated with
`Models` is no input: through it a function calls other models.
"""

import dataclasses
import inspect
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints, is_typeddict

import numpy as np

from tritone.errors import InputError, OperatorError
from tritone.runtime.graph import Array, Models

TYPES: Mapping[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    "STRING": np.dtype(object),
}
"""Triton's types of tensors and numpy's. Elements of STRING are bytes."""

SCALARS = {str: "STRING", bytes: "STRING", int: "INT64", float: "FP64", bool: "BOOL"}
SINGLE = "output"
FORMS = (
    "Annotated[NDArray[np.float32], (3, 224, 224)] with the sizes after the rows (a word for any size), list[str], "
    "list[bytes], list[int], list[float], list[bool], or lists of such lists"
)


@dataclass(frozen=True, kw_only=True)
class Argument:
    """An input or output. `type`: Triton's name. `dims`: without the axis of rows; -1 is any size.

    `item`: type of the elements of a Python list, None for a numpy array.
    """

    name: str
    type: str
    dims: tuple[int, ...]
    item: Callable[..., Any] | None = None
    optional: bool = False

    def value(self, array: Array) -> Any:
        """What the function takes for an input (rows, *dims).

        Raises:
            InputError: text is not UTF-8, or the array has another type or shape.
        """
        if array.dtype != TYPES[self.type] or not self._fits(array.shape):
            raise InputError(
                f"input {self.name} is {array.dtype} of shape {list(array.shape)}; expected {self.type} of shape "
                f"{[-1, *self.dims]}"
            )
        if self.item is None:
            return array
        if self.item is str:
            return _decoded(array.tolist(), self.name)
        return array.tolist()

    def array(self, value: Any, rows: int) -> Array:
        """What is answered for a result of the function: (rows, *dims).

        Raises:
            OperatorError: it has another type or shape than the annotation, or another number of rows.
        """
        wanted = TYPES[self.type]
        if self.item is None:
            found = np.asarray(value)
            if wanted.kind == "O" and found.dtype.kind in "US":
                found = found.astype(object)
            if found.dtype != wanted:
                raise OperatorError(
                    f"the function returned {found.dtype} for {self.name}, which is annotated as {wanted}; convert it"
                )
        else:
            try:
                found = np.array(value, dtype=wanted)
            except (TypeError, ValueError, OverflowError) as error:
                raise OperatorError(
                    f"the function returned what is no {self.type} for {self.name} ({error}): {value!r:.100}"
                ) from error
        if not self._fits(found.shape) or len(found) != rows:
            raise OperatorError(
                f"the function returned shape {list(found.shape)} for {self.name}; expected {[rows, *self.dims]}, a "
                "row for each row of the inputs, and -1 for any size"
            )
        return _encoded(found, self.name) if wanted.kind == "O" else found

    def _fits(self, shape: Sequence[int]) -> bool:
        return len(shape) == len(self.dims) + 1 and all(
            wanted in (-1, size) for wanted, size in zip(self.dims, shape[1:], strict=True)
        )


@dataclass(frozen=True)
class Signature:
    """The inputs and outputs of a function. `decoupled`: it is a generator, and each item is an answer.

    `models`: the parameter through which it calls other models, or None. `fields`: its results have fields.
    """

    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    decoupled: bool = False
    models: str | None = None
    fields: bool = False

    def results(self, result: Any, rows: int) -> dict[str, Array]:
        """A result of the function as arrays by output; raises `OperatorError` if it is not as annotated."""
        if not self.fields:
            return {SINGLE: self.outputs[0].array(result, rows)}
        names = [each.name for each in self.outputs]
        try:
            values = [result[name] if isinstance(result, Mapping) else getattr(result, name) for name in names]
        except (AttributeError, KeyError) as error:
            raise OperatorError(
                f"the function returned a {type(result).__name__} without {error}; annotated are {', '.join(names)}"
            ) from error
        return {each.name: each.array(value, rows) for each, value in zip(self.outputs, values, strict=True)}


def read_signature(function: Callable[..., Any], name: str) -> Signature:
    """Read the annotations of a function, or of a class whose instances are called.

    Args:
        name: of the function in messages.

    Raises:
        ValueError: an annotation is missing or is none of those that can be served; says which can.
    """
    called: Any = inspect.unwrap(function)
    if inspect.isclass(called):
        called = called.__call__
    elif not inspect.isfunction(called):
        called = type(called).__call__ if callable(called) else None
    if not inspect.isfunction(called):
        raise ValueError(f"{name} is a {type(function).__name__}; expected a function, or a class with __call__")
    try:
        hints = get_type_hints(called, include_extras=True)
    except (NameError, TypeError) as error:
        raise ValueError(f"the annotations of {name} cannot be read: {error}") from error
    parameters = list(inspect.signature(called).parameters.values())
    if parameters and parameters[0].name == "self":
        parameters = parameters[1:]
    inputs, models = [], None
    for each in parameters:
        if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD, each.POSITIONAL_ONLY):
            raise ValueError(f"{name}: parameter {each.name} must be an ordinary one, which can be passed by name")
        hint = hints.get(each.name)
        if hint is Models:
            models = each.name
            continue
        if each.default is not each.empty and each.default is not None:
            raise ValueError(f"{name}: parameter {each.name} has the default {each.default!r}; only None is possible")
        argument = _argument(each.name, _without_none(hint), f"{name}, parameter {each.name}")
        inputs.append(dataclasses.replace(argument, optional=each.default is None))
    if not inputs:
        raise ValueError(f"{name} has no inputs; a model takes at least one")
    result, decoupled = hints.get("return"), inspect.isgeneratorfunction(called)
    if decoupled:
        if getattr(get_origin(result), "__name__", "") not in ("Iterator", "Generator", "Iterable"):
            raise ValueError(f"{name} is a generator; annotate its result as Iterator[...] of one answer")
        result = get_args(result)[0]
    named = _fields(result)
    if named is None:
        outputs = [_argument(SINGLE, result, f"{name}, result")]
    else:
        outputs = [_argument(field, hint, f"{name}, result {field}") for field, hint in named.items()]
    return Signature(tuple(inputs), tuple(outputs), decoupled, models, named is not None)


def _argument(name: str, hint: Any, where: str) -> Argument:
    dims: Any = None
    if get_origin(hint) is Annotated:
        hint, *notes = get_args(hint)
        dims = next((note for note in notes if isinstance(note, tuple | list)), None)
    alias = get_origin(hint)
    if hasattr(alias, "__value__"):  # NDArray since numpy 2.5: an alias with a parameter, for the array itself
        hint = alias.__value__[get_args(hint)]
    if get_origin(hint) is np.ndarray:
        kind = get_args(get_args(hint)[1])[0] if len(get_args(hint)) > 1 else None
        type_ = next((key for key, dtype in TYPES.items() if _is_type(kind, dtype)), None)
        if type_ is not None and dims is not None and all(_is_axis(axis) for axis in dims):
            sizes = tuple(axis if isinstance(axis, int) else -1 for axis in dims)
            return Argument(name=name, type=type_, dims=sizes)
    item, axes = hint, 0
    while get_origin(item) is list:
        (item,), axes = get_args(item), axes + 1
    if axes and item in SCALARS and dims is None:
        return Argument(name=name, type=SCALARS[item], dims=(-1,) * (axes - 1), item=item)
    seen = "has no annotation" if hint is None else f"is annotated as {_shown(hint)}"
    raise ValueError(f"{where} {seen}; expected {FORMS}")


def _is_type(kind: Any, dtype: np.dtype[Any]) -> bool:
    return isinstance(kind, type) and (kind is dtype.type or (dtype.kind == "O" and kind in (np.bytes_, np.str_)))


def _is_axis(axis: Any) -> bool:
    return axis is None or isinstance(axis, str) or (type(axis) is int and (axis > 0 or axis == -1))


def _without_none(hint: Any) -> Any:
    """X of `X | None`."""
    if get_origin(hint) in (Union, types.UnionType):
        kept = [each for each in get_args(hint) if each is not type(None)]
        return kept[0] if len(kept) == 1 else hint
    return hint


def _fields(hint: Any) -> dict[str, Any] | None:
    if not isinstance(hint, type):
        return None
    if is_typeddict(hint) or dataclasses.is_dataclass(hint) or hasattr(hint, "_fields"):
        return get_type_hints(hint, include_extras=True)
    return None


def _shown(hint: Any) -> str:
    return str(getattr(hint, "__name__", hint) if isinstance(hint, type) and not get_args(hint) else hint)[:120]


def _decoded(value: Any, name: str) -> Any:
    if isinstance(value, list):
        return [_decoded(each, name) for each in value]
    try:
        return value.decode() if isinstance(value, bytes) else str(value)
    except UnicodeDecodeError as error:
        raise InputError(
            f"input {name} has a text that is not UTF-8: byte 0x{error.object[error.start]:02x}"
        ) from error


def _encoded(array: Array, name: str) -> Array:
    flat: Iterable[Any] = array.ravel()
    found = [each.encode() if isinstance(each, str) else each for each in flat]
    if wrong := next((each for each in found if not isinstance(each, bytes)), None):
        raise OperatorError(f"the function returned {wrong!r:.60} among the texts of {name}; expected str or bytes")
    result = np.empty(len(found), object)
    result[:] = found
    return result.reshape(array.shape)
