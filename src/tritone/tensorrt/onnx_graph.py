"""An exported graph as TensorRT's parser takes it.

    encoder.onnx (+ weights.bin)  ->  inputs and their axes; a graph whose weights are all stored wide

Weights may be stored as int8 or fp16, with nodes that widen them. onnxruntime folds these when it opens a graph;
TensorRT takes int8 numbers for those of a quantised network and refuses them, so here they are folded beforehand. Of a
graph that has a faster form for batches without padding, engines are built of the form for any batch.
"""

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from tritone.errors import BundleError
from tritone.runtime.files.external_data import inspect
from tritone.runtime.graph import EVEN_ROWS

# Operators of precision int8, which the exporter makes: activations become uint8 as they go.
QUANTISED = {"DynamicQuantizeLinear", "MatMulInteger", "MatMulIntegerToFloat", "ConvInteger"}
WIDENED_WEIGHTS = "widened.bin"


def input_axes(path: Path) -> dict[str, tuple[int | None, ...]]:
    """The inputs of a graph, and the axes of each, None for those that vary.

    Raises:
        BundleError: the file is no ONNX graph.
    """
    return {name: axes for name, (_, axes) in tensors(path)["inputs"].items()}


def tensors(path: Path) -> dict[str, dict[str, tuple[str, tuple[int | None, ...]]]]:
    """The `inputs` and `outputs` of a graph by name: type, by ONNX's name of it, and axes, None for those that vary.

    Raises:
        BundleError: the file is no ONNX graph.
    """
    graph = _read(path).graph
    weights = {tensor.name for tensor in graph.initializer}
    return {
        key: {
            value.name: (onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type), _axes(value))
            for value in values
            if value.name not in weights
        }
        for key, values in (("inputs", graph.input), ("outputs", graph.output))
    }


def with_wide_weights(path: Path, folder: Path) -> Path:
    """A graph for any rows whose weights are stored as they are used: `path` itself, or else a new one in `folder`.

    Raises:
        BundleError: the file is no ONNX graph.
        ValueError: it quantises its activations, which no engine does.
    """
    model = _read(path)
    had_choice = _choose_any(model.graph)
    if found := QUANTISED & {node.op_type for node in model.graph.node}:
        raise ValueError(
            f"{path.name} computes in int8 ({', '.join(sorted(found))}): activations become uint8 as it goes, and "
            "TensorRT has no such type. Build engines of fp32 or fp16"
        )
    narrow = {
        tensor.name
        for tensor in model.graph.initializer
        if tensor.data_type in (onnx.TensorProto.INT8, onnx.TensorProto.FLOAT16)
    }
    if not had_choice and not any(node.op_type == "Cast" and node.input[0] in narrow for node in model.graph.node):
        return path
    onnx.load_external_data_for_model(model, str(path.parent))
    _fold(model.graph, narrow)
    wide = folder / path.name
    onnx.save_model(model, wide, save_as_external_data=True, location=WIDENED_WEIGHTS)
    return wide


def _axes(value: onnx.ValueInfoProto) -> tuple[int | None, ...]:
    axes = value.type.tensor_type.shape.dim
    return tuple(axis.dim_value if axis.HasField("dim_value") and axis.dim_value >= 0 else None for axis in axes)


def _read(path: Path) -> onnx.ModelProto:
    """The graph without the weights that lie beside it."""
    inspect(path)
    try:
        return onnx.load(path, load_external_data=False)
    except Exception as error:  # protobuf's errors have no base of their own
        raise BundleError(f"{path} is no ONNX graph ({error}). Export the bundle again.") from error


def _choose_any(graph: onnx.GraphProto) -> bool:
    """Keep the branch for any rows alone, where there is one for even rows too. Was there?"""
    choices = [node for node in graph.node if node.op_type == "If" and node.name == EVEN_ROWS]
    if not choices:
        return False
    [branch] = [each.g for each in choices[0].attribute if each.name == "else_branch"]
    names = {ours.name: name for ours, name in zip(branch.output, choices[0].output, strict=True)}
    for node in branch.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    nodes, tensors = list(branch.node), list(branch.initializer)
    del graph.node[:], graph.initializer[:]  # the rest finds out how long rows are
    graph.node.extend(nodes)
    graph.initializer.extend(tensors)
    return True


def _fold(graph: onnx.GraphProto, narrow: set[str]) -> None:
    """Compute the nodes that widen `narrow` weights: casts of them, and products of these with scales."""
    values = {tensor.name: tensor for tensor in graph.initializer}
    wide: dict[str, np.ndarray] = {}
    kept: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.op_type == "Cast" and node.input[0] in narrow:
            kind = onnx.helper.tensor_dtype_to_np_dtype(node.attribute[0].i)
            wide[node.output[0]] = numpy_helper.to_array(values[node.input[0]]).astype(kind)
        elif node.op_type == "Mul" and set(node.input) & wide.keys() and set(node.input) <= {*wide, *values}:
            factors = [wide[name] if name in wide else numpy_helper.to_array(values[name]) for name in node.input]
            wide[node.output[0]] = factors[0] * factors[1]
        else:
            kept.append(node)
    used = {name for node in kept for name in node.input} | {value.name for value in graph.output}
    tensors = [tensor for tensor in graph.initializer if tensor.name in used or tensor.name not in narrow]
    tensors += [numpy_helper.from_array(value, name) for name, value in wide.items() if name in used]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(kept)
    graph.initializer.extend(tensors)
