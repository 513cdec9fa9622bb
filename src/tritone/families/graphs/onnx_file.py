"""ONNX files of any use: what one declares, with other names, and what it computes in.

    model.onnx, its weights beside it  ->  OnnxSource, GraphFacts

A file comes from anywhere: what it names is checked, and nothing of it is run.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto

from tritone.bundle.bundle import MANIFEST, MODEL_CARD
from tritone.bundle.manifest import Precision
from tritone.bundle.part import TensorType
from tritone.errors import BundleError, ExportError
from tritone.families.graphs.proposal import GraphFacts, TensorFacts
from tritone.families.onnx.forms import open_axes, weights_of
from tritone.runtime.files.external_data import inspect
from tritone.runtime.files.onnx_description import types

GRAPH = "model.onnx"
MAX_GRAPH_BYTES = 2**31 - 1  # of a protobuf message
TYPES: Mapping[int, TensorType] = {
    number: name  # type: ignore[misc]
    for number, name in types().items()
    if name in get_args(TensorType)
}
"""By ONNX's numbers, those that Triton knows."""


@dataclass(frozen=True)
class OnnxSource:
    """An ONNX file that was read: the graph without its external weights, and the files that hold those."""

    path: Path
    model: Any  # onnx.ModelProto
    weights: tuple[Path, ...]

    @property
    def facts(self) -> GraphFacts:
        """What the graph declares.

        Raises:
            ExportError: a tensor has a type that Triton does not know, or names occur twice.
        """
        graph = self.model.graph
        constants = {each.name for each in (*graph.initializer, *(each.values for each in graph.sparse_initializer))}
        inputs = [each for each in graph.input if each.name not in constants]
        for what, values in (("input", inputs), ("output", graph.output)):
            names = [each.name for each in values]
            if twice := sorted({name for name in names if names.count(name) > 1}):
                raise ExportError(f"{self.path}: {what} {', '.join(twice)} occurs twice; the graph is damaged")
        size = sum(path.stat().st_size for path in (self.path, *self.weights))
        about: tuple[str, ...] = (self.path.name, f"opset {self.opset}", f"{size / 1e6:.2f} MB")
        if self.weights:
            about += (f"weights in {len(self.weights)} file{'s' if len(self.weights) > 1 else ''} beside it",)
        return GraphFacts(
            name=self.path.stem,
            inputs=tuple(self._tensor(each) for each in inputs),
            outputs=tuple(self._tensor(each) for each in graph.output),
            about=about,
        )

    @property
    def opset(self) -> int:
        """Of ONNX's own operators."""
        return max((each.version for each in self.model.opset_import if each.domain in ("", "ai.onnx")), default=0)

    def _tensor(self, value: Any) -> TensorFacts:
        kind = value.type.WhichOneof("value")
        if kind != "tensor_type":
            raise ExportError(
                f"{self.path}: {value.name} is a {(kind or 'value without a type').removesuffix('_type')}, and Triton "
                f"knows tensors alone. {self._instead(value.name)}"
            )
        tensor = value.type.tensor_type
        if tensor.elem_type not in TYPES:
            name = types().get(tensor.elem_type, tensor.elem_type)
            raise ExportError(
                f"{self.path}: {value.name} is of type {name}, which Triton does not know; cast it in the graph"
            )
        shape = None
        if tensor.HasField("shape"):
            shape = tuple(self._axis(value.name, axis) for axis in tensor.shape.dim)
        return TensorFacts(value.name, TYPES[tensor.elem_type], shape)

    def _instead(self, name: str) -> str:
        if any(node.op_type == "ZipMap" and name in node.output for node in self.model.graph.node):
            return 'Convert the classifier without ZipMap: convert_sklearn(..., options={"zipmap": False}).'
        return "Export the graph with tensors in their place."

    def _axis(self, name: str, axis: Any) -> int | str | None:
        if axis.HasField("dim_value"):
            if axis.dim_value < 1:
                raise ExportError(f"{self.path}: {name} has an axis of {axis.dim_value} elements; sizes start at 1")
            return int(axis.dim_value)
        return str(axis.dim_param) or None


def read_onnx(path: str | Path) -> OnnxSource:
    """Read an ONNX file; weights beside it are not.

    Raises:
        ExportError: there is no such file, it is no valid ONNX graph, or it takes weights from outside its folder.
    """
    path = Path(path)
    if not path.is_file():
        raise ExportError(f"there is no file {path}; give the path of an ONNX graph")
    if path.stat().st_size > MAX_GRAPH_BYTES:
        raise ExportError(
            f"{path} has more than 2 GB, which no ONNX graph has; its weights belong into a file beside it"
        )
    try:
        model = onnx.load(path, load_external_data=False)
        open_axes(model)
        weights = tuple(inspect(path).weights)
    except (DecodeError, OSError) as error:
        raise ExportError(f"{path} is no ONNX graph: {error}") from error
    except BundleError as error:
        raise ExportError(str(error).replace("bundle", "graph")) from error
    if not model.graph.output:
        raise ExportError(f"{path} is no ONNX graph: it has no outputs")
    for each in weights:
        if not each.is_file():
            raise ExportError(f"{path} has weights in {each.name}, which is not beside it. Copy that file there, too.")
        if each.name in (MANIFEST, MODEL_CARD, GRAPH) or each.name.startswith("labels"):
            raise ExportError(f"{path} has weights in a file called {each.name}, a name that a bundle has for others")
    return OnnxSource(path, model, weights)


def renamed(source: OnnxSource, names: Mapping[str, str]) -> Any:
    """A copy of a graph whose inputs and outputs have other names.

    Raises:
        ExportError: there is no such tensor, or the new name is taken.
    """
    model = onnx.ModelProto()
    model.CopyFrom(source.model)
    values = [*model.graph.input, *model.graph.output]
    known = {each.name for each in values}
    taken = known | {name for node in model.graph.node for name in (*node.input, *node.output)}
    taken |= {each.name for each in model.graph.initializer}
    for old, new in names.items():
        if old not in known:
            raise ExportError(
                f"--rename {old}={new}: there is no tensor {old}; the graph has {', '.join(sorted(known))}"
            )
        if new in taken or not new:
            raise ExportError(f"--rename {old}={new}: the graph has a tensor {new!r} already; choose another name")
        taken.add(new)
    for each in values:
        each.name = names.get(each.name, each.name)
    _rename_nodes(model.graph, names)
    return model


def precision_of(model: Any) -> Precision:
    """The precision of a graph's arithmetic, by what most numbers of its weights are."""
    counts: Counter[int] = Counter()
    for each in weights_of(model):
        counts[each.data_type] += math.prod(each.dims)
    ((most, _),) = counts.most_common(1) or [(TensorProto.FLOAT, 0)]
    precisions: Mapping[int, Precision] = {
        TensorProto.FLOAT16: "fp16",
        TensorProto.BFLOAT16: "bf16",
        TensorProto.INT8: "int8",
        TensorProto.UINT8: "int8",
    }
    return precisions.get(most, "fp32")


def _rename_nodes(graph: Any, names: Mapping[str, str]) -> None:
    for node in graph.node:
        for part in (node.input, node.output):
            for index, each in enumerate(part):
                part[index] = names.get(each, each)
        for attribute in node.attribute:  # inner graphs see the names of the outer one
            for inner in (attribute.g, *attribute.graphs):
                _rename_nodes(inner, names)
