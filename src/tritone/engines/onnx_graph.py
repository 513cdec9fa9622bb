"""An exported graph as TensorRT's parser takes it.

    encoder.onnx (+ weights.bin)  ->  inputs and their axes; a graph whose weights are all stored wide

Weights may be stored as int8 or fp16, with nodes that widen them. onnxruntime folds these when it opens a graph;
TensorRT takes int8 numbers for those of a quantised network and refuses them, so here they are folded beforehand.
"""

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from tritone.errors import BundleError
from tritone.runtime.external_data import check_external_data

# Operators of precision int8, which the exporter makes: activations become uint8 as they go.
QUANTISED = {"DynamicQuantizeLinear", "MatMulInteger", "ConvInteger"}
WIDENED_WEIGHTS = "widened.bin"


def input_axes(path: Path) -> dict[str, tuple[int | None, ...]]:
    """The inputs of a graph, and the axes of each, None for those that vary.

    Raises:
        BundleError: the file is no ONNX graph.
    """
    graph = _read(path).graph
    weights = {tensor.name for tensor in graph.initializer}
    return {
        value.name: tuple(
            axis.dim_value if axis.HasField("dim_value") else None for axis in value.type.tensor_type.shape.dim
        )
        for value in graph.input
        if value.name not in weights
    }


def with_wide_weights(path: Path, folder: Path) -> Path:
    """A graph whose weights are stored as they are used: `path` itself if they are, or else a new one in `folder`.

    Raises:
        BundleError: the file is no ONNX graph.
        ValueError: it quantises its activations, which no engine does.
    """
    model = _read(path)
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
    if not any(node.op_type == "Cast" and node.input[0] in narrow for node in model.graph.node):
        return path
    onnx.load_external_data_for_model(model, str(path.parent))
    _fold(model.graph, narrow)
    wide = folder / path.name
    onnx.save_model(model, wide, save_as_external_data=True, location=WIDENED_WEIGHTS)
    return wide


def _read(path: Path) -> onnx.ModelProto:
    """The graph without the weights that lie beside it."""
    check_external_data(path)
    try:
        return onnx.load(path, load_external_data=False)
    except Exception as error:  # protobuf's errors have no base of their own
        raise BundleError(f"{path} is no ONNX graph ({error}). Export the bundle again.") from error


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
