"""Reading ONNX graphs that come from strangers.

    encoder.onnx  ->  Source: the graph with its weights, inputs and outputs, numbers of its metadata

Sizes are limited, weights must lie beside the graph, and nodes that need code of somebody else's are refused.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError, EncodeError
from onnx import TensorProto

from tritone.bundle.part import MAX_COUNT
from tritone.errors import BundleError, ExportError
from tritone.families.onnx.forms import open_axes
from tritone.families.onnx.large import point_into
from tritone.runtime.files.external_data import inspect

MAX_BYTES = 2**31 - 1
"""Largest size of a graph in bytes: what one protobuf message, and so one ONNX file, can hold. Weights beside it that
would make it larger stay where they are, see `large`."""

MAX_WEIGHT_BYTES = 64 * 2**30  # of all files beside a graph

MAX_VECTOR = 64  # numbers of a vector in the metadata; zipformers have one for each of 4 to 6 stacks
OLDEST_OPSET = 13
DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")
"""Where operators may come from: those that onnxruntime brings."""

NUMBER = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True)
class Tensor:
    """An input or output: `dtype` as of `onnx.TensorProto`; a dynamic axis is None in `shape`."""

    name: str
    dtype: int
    shape: tuple[int | None, ...]

    def __str__(self) -> str:
        axes = ", ".join("any" if axis is None else str(axis) for axis in self.shape)
        return f"{self.name}: {TensorProto.DataType.Name(self.dtype).lower()} ({axes})"


@dataclass(frozen=True)
class Source:
    """A graph that was read and found harmless."""

    path: Path
    model: onnx.ModelProto

    @cached_property
    def inputs(self) -> tuple[Tensor, ...]:
        """What must be fed, in order. Old files list their weights as inputs too; those are left out."""
        weights = {tensor.name for tensor in self.model.graph.initializer}
        return tuple(_tensor(value) for value in self.model.graph.input if value.name not in weights)

    @cached_property
    def outputs(self) -> tuple[Tensor, ...]:
        """What comes out, in order."""
        return tuple(_tensor(value) for value in self.model.graph.output)

    @cached_property
    def metadata(self) -> dict[str, str]:
        """The strings that sherpa-onnx's exporters store in the file."""
        return _metadata(self.model)

    def integer(self, key: str, least: int = 1) -> int:
        """A number of the metadata.

        Raises:
            ExportError: it is missing, no number, or not between `least` and what any model can have.
        """
        value = self._number(key, self._text(key))
        if not least <= value <= MAX_COUNT:
            raise ExportError(f"{self.path}: the metadata has {key} = {value}; expected {least} to {MAX_COUNT}")
        return value

    def vector(self, key: str, length: int | None = None) -> tuple[int, ...]:
        """Numbers of the metadata, written with commas; of that many, each from 1 to what any model can have.

        Raises:
            ExportError: they are missing, or something else.
        """
        parts = self._text(key).split(",", MAX_VECTOR)
        if len(parts) > MAX_VECTOR or (length is not None and len(parts) != length):
            count = f"more than {MAX_VECTOR}" if len(parts) > MAX_VECTOR else str(len(parts))
            raise ExportError(
                f"{self.path}: the metadata has {count} numbers for {key}; expected "
                f"{length if length is not None else f'at most {MAX_VECTOR}'}"
            )
        values = tuple(self._number(key, part.strip()) for part in parts)
        if not all(1 <= value <= MAX_COUNT for value in values):
            raise ExportError(f"{self.path}: the metadata has {key} = {values}; expected 1 to {MAX_COUNT} for each")
        return values

    def _text(self, key: str) -> str:
        if key not in self.metadata:
            held = ", ".join(sorted(self.metadata)[:20])
            raise ExportError(
                f"{self.path}: the metadata has no {key!r} (it has {held or 'nothing'}). Export the model again with "
                "an export-onnx script of its toolkit or of sherpa-onnx, which writes it."
            )
        return self.metadata[key]

    def _number(self, key: str, text: str) -> int:
        """No more digits than 18 are turned into a number, whatever a file may hold."""
        if not NUMBER.fullmatch(text):
            raise ExportError(f"{self.path}: the metadata has {key} = {text[:40]!r}; expected decimal numbers")
        return int(text)


def read_metadata(path: Path) -> dict[str, str]:
    """The strings that are stored in a graph's file, as of `Source.metadata`; weights beside it are not read.

    Raises:
        ExportError: the file is missing, damaged or too large, or names weights outside of its folder.
    """
    try:
        _check_size(path, path.stat().st_size)
        return _metadata(inspect(path).model)
    except BundleError as error:
        raise _of_a_model(error) from error
    except OSError as error:
        raise ExportError(f"cannot read {path}: {error.strerror or error}") from error


def read_source(path: Path, *, oldest: int = OLDEST_OPSET) -> Source:
    """Read a graph with all of its weights.

    Args:
        oldest: the first opset that is taken.

    Raises:
        ExportError: the file is missing, damaged, too large or for operators that are unknown here, or it takes weights
            from elsewhere.
    """
    try:
        _check_size(path, path.stat().st_size)
        size = sum(file.stat().st_size for file in (path, *inspect(path).weights))
        _check_size(path, size, MAX_WEIGHT_BYTES)
        if size <= MAX_BYTES:
            model = onnx.load(path)
            onnx.checker.check_model(model)
        else:
            onnx.checker.check_model(str(path))
            model = onnx.load(path, load_external_data=False)
            point_into(model, path.parent)
    except BundleError as error:
        raise _of_a_model(error) from error
    except OSError as error:
        raise ExportError(f"cannot read {path} or its weights: {error.strerror or error}") from error
    except (DecodeError, EncodeError, ValueError, onnx.checker.ValidationError) as error:
        raise ExportError(f"{path} is not a valid ONNX graph: {_short(error)}") from error
    _check_operators(path, model, oldest)
    if any(isinstance(value.name, bytes) for value in (*model.graph.input, *model.graph.output)):
        raise ExportError(f"{path} is not a valid ONNX graph: names of inputs and outputs are not UTF-8")
    open_axes(model)
    return Source(path, model)


def check_features(source: Source) -> None:
    """Make sure that a graph takes features of Kaldi's fbank, for any number of rows, and with them lengths or states.

    Raises:
        ExportError: it takes something else.
    """
    feature = source.metadata.get("feature", "")
    if feature not in ("", "fbank") or "normalize_type" in source.metadata:
        raise ExportError(
            f"{source.path}, a model of type {source.metadata.get('model_type', '')[:40]!r}, takes other features than "
            f"Kaldi's fbank: {feature[:40] or 'normalised ones, as NeMo does'}"
        )
    if not source.inputs or source.inputs[0].dtype != TensorProto.FLOAT or len(source.inputs[0].shape) != 3:
        raise ExportError(
            f"{source.path} takes {_listed(source.inputs)}; first should come features, float32 (batch, frames, bins)"
        )
    if source.inputs[0].shape[0] is not None:
        raise ExportError(
            f"{source.path} takes batches of {source.inputs[0].shape[0]} alone; export it with a free batch"
        )
    if len(source.inputs) == 2:
        check_types(source, (TensorProto.FLOAT, None), outputs=2)


def check_types(source: Source, inputs: tuple[int | None, ...], outputs: int) -> None:
    """Make sure of the types of all inputs, where None is any integer, and of so many outputs, the first in float32.

    Raises:
        ExportError: inputs or outputs are others.
    """
    integers = (TensorProto.INT64, TensorProto.INT32)
    fits = len(source.inputs) == len(inputs) and all(
        tensor.dtype in (integers if wanted is None else (wanted,))
        for tensor, wanted in zip(source.inputs, inputs, strict=True)
    )
    if not fits or len(source.outputs) < outputs or source.outputs[0].dtype != TensorProto.FLOAT:
        raise ExportError(
            f"{source.path} takes {_listed(source.inputs)} and gives {_listed(source.outputs)}; this is not the "
            "interface of upstream's export-onnx scripts, with inputs and outputs in float32"
        )


def _metadata(model: onnx.ModelProto) -> dict[str, str]:
    # What is not UTF-8 arrives as bytes.
    found = {entry.key: entry.value for entry in model.metadata_props}
    return {key: value for key, value in found.items() if isinstance(key, str) and isinstance(value, str)}


def _of_a_model(error: BundleError) -> ExportError:
    return ExportError(str(error).replace("this bundle", "this model").replace("the bundle", "the model"))


def _listed(tensors: Sequence[Tensor]) -> str:
    return "; ".join(map(str, tensors[:4])) or "nothing"


def _check_size(path: Path, size: int, most: int = MAX_BYTES) -> None:
    if size > most:
        raise ExportError(
            f"{path} has {size} bytes{'' if most == MAX_BYTES else ' with its weights'}; at most {most} can be imported"
        )


def _check_operators(path: Path, model: onnx.ModelProto, oldest: int) -> None:
    opset = max((each.version for each in model.opset_import if each.domain in ("", "ai.onnx")), default=0)
    if opset < oldest:
        raise ExportError(
            f"{path} is written in opset {opset}; at least {oldest} is needed. Export the model again, or convert it: "
            f"tritone convert {path} --opset {OLDEST_OPSET} --output FILE"
        )
    own = {function.domain for function in model.functions}
    graphs = [model.graph.node, *(function.node for function in model.functions)]
    foreign = {node.domain for nodes in graphs for node in _nodes(nodes)} - {*DOMAINS, *own}
    if foreign:
        raise ExportError(
            f"{path} needs operators of {', '.join(sorted(foreign))}; known are those that onnxruntime brings"
        )


def _nodes(nodes: Iterable[Any]) -> Iterator[Any]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (*attribute.graphs, *((attribute.g,) if attribute.HasField("g") else ())):
                yield from _nodes(graph.node)


def _tensor(value: Any) -> Tensor:
    kind = value.type.tensor_type
    axes = (axis.dim_value if axis.HasField("dim_value") else None for axis in kind.shape.dim)
    return Tensor(value.name, kind.elem_type, tuple(axes))


def _short(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:200]
