"""Writing ONNX nodes around a graph that is there already.

    b = Builder(); y = b.op("Add", "x", b.real(1)); b.op("Identity", y, output="net.x"); b.embed(net); b.model(...)

Only operators whose form is the same in all opsets from 13 on are written, so that graphs keep the opset they have.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from tritone.errors import ExportError
from tritone.families.onnx.large import WeightFile, is_large

EMBEDDED, OURS = "net.", "tritone."
"""Come before the names of an embedded graph and of the nodes around it, so that these never meet."""


class Builder:
    """Collects nodes in the order in which they run.

    `opset`: of a graph that no other is embedded in. `weights`: the file that takes them; None leaves them inside.
    """

    def __init__(self, opset: int | None = None, weights: WeightFile | None = None) -> None:
        self._file = weights
        self.nodes: list[onnx.NodeProto] = []
        self._weights: list[TensorProto] = []
        self._named: set[str] = set()
        self._renamed: dict[str, str] = {}
        self._functions: list[Any] = []
        self._sparse: list[Any] = []
        self._opsets: list[Any] = [] if opset is None else [helper.make_opsetid("", opset)]
        self._ir_version = 8
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    def constant(self, value: Any, dtype: npt.DTypeLike = np.int64) -> str:
        """The name of a constant tensor; equal ones are written once."""
        array = np.asarray(value, dtype)
        key = (str(array.dtype), array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = f"{OURS}constant_{len(self._constants)}"
            self._weights.append(numpy_helper.from_array(array, self._constants[key]))
        return self._constants[key]

    def real(self, value: Any) -> str:
        """A float32 constant."""
        return self.constant(value, np.float32)

    def weight(self, name: str, array: npt.NDArray[Any]) -> str:
        """A large constant tensor by a name of its own, written once."""
        if name not in self._named:
            self._named.add(name)
            if self._file is None:
                tensor = numpy_helper.from_array(np.ascontiguousarray(array), name)
            else:
                kind = helper.np_dtype_to_tensor_dtype(array.dtype)
                tensor = TensorProto(name=name, data_type=kind, dims=array.shape)
                self._file.keep(tensor, array)
            self._weights.append(tensor)
        return name

    def op(self, kind: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        """Add a node with one output; returns its name."""
        name = output or f"{OURS}{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def rename(self, x: str, name: str) -> None:
        """Give a tensor another name, as an output of the graph has it; it keeps the old one for later nodes."""
        self._renamed[x] = name

    def slice(self, x: str, start: Any, end: Any, axis: int, step: int = 1) -> str:
        """`x[start:end:step]` of an axis; the ends are numbers, or names of tensors of one number."""
        first, last = (each if isinstance(each, str) else self.constant([each]) for each in (start, end))
        return self.op("Slice", x, first, last, self.constant([axis]), self.constant([step]))

    def embed(self, model: onnx.ModelProto) -> None:
        """Add a whole graph; its names begin with `EMBEDDED` from now on. Its inputs are to be written before."""
        assert not self._opsets, "one graph is embedded at most"
        renamed = onnx.ModelProto()
        renamed.CopyFrom(model)
        _prefix(renamed.graph)
        self.nodes.extend(renamed.graph.node)
        self._weights.extend(renamed.graph.initializer)
        self._sparse.extend(renamed.graph.sparse_initializer)
        self._functions.extend(renamed.functions)
        self._opsets.extend(renamed.opset_import)
        self._ir_version = max(self._ir_version, renamed.ir_version)

    def model(
        self,
        inputs: Mapping[str, tuple[int, Sequence[int | str]]],
        outputs: Mapping[str, tuple[int, Sequence[int | str]]],
        metadata: Mapping[str, str],
    ) -> onnx.ModelProto:
        """The graph of all nodes; inputs and outputs as (type, shape), axes of any length with a name.

        Raises:
            ExportError: it is no valid graph.
        """
        for node in self.nodes:
            node.input[:] = [self._renamed.get(each, each) for each in node.input]
            node.output[:] = [self._renamed.get(each, each) for each in node.output]
        graph = helper.make_graph(
            self.nodes,
            "tritone",
            [helper.make_tensor_value_info(name, *spec) for name, spec in inputs.items()],
            [helper.make_tensor_value_info(name, *spec) for name, spec in outputs.items()],
            self._weights,
            sparse_initializer=self._sparse,
        )
        model = helper.make_model(
            graph, opset_imports=self._opsets, ir_version=self._ir_version, functions=self._functions
        )
        helper.set_model_props(model, dict(metadata))
        try:
            if not is_large(model):  # which is checked when it is written
                onnx.checker.check_model(model)
        except onnx.checker.ValidationError as error:
            raise ExportError(f"the graph cannot be taken over: {str(error).strip()[:300]}") from error
        return model


def _prefix(graph: Any) -> None:
    """Put `EMBEDDED` before all names of values, in the graphs inside of nodes too.

    onnx.compose.add_prefix forgets those that such a graph takes from the one around it.
    """
    for node in graph.node:
        node.input[:] = [EMBEDDED + name if name else "" for name in node.input]
        node.output[:] = [EMBEDDED + name if name else "" for name in node.output]
        for attribute in node.attribute:
            for inner in (*attribute.graphs, *((attribute.g,) if attribute.HasField("g") else ())):
                _prefix(inner)
    sparse = [tensor.values for tensor in graph.sparse_initializer]
    for value in (*graph.input, *graph.output, *graph.initializer, *sparse):
        value.name = EMBEDDED + value.name
