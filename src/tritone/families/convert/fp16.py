"""ONNX graphs that compute in float16, by onnxruntime's converter.

    onnx.ModelProto in float32  ->  onnx.ModelProto in float16, whose inputs and outputs stay float32

Source of the converter: onnxruntime/python/tools/transformers/float16.py.
"""

import itertools
import warnings
from collections.abc import Collection

import numpy as np
import onnx
from onnx import TensorProto, defs, helper

from tritone.families.convert.chosen import by_type_and_name
from tritone.families.onnx.large import array_of, inner_graphs

LARGEST, LEAST = 65504.0, 2.0**-20
"""Of float16; below the least its numbers have fewer than four binary digits."""

INFINITE = 1e9
"""From here a number that is the only one of its size in a weight stands for infinity."""

SUMS = ("Add", "Sub", "Max", "Clip")  # what epsilons are summed or compared in


def to_fp16(model: onnx.ModelProto, keep: Collection[str] = (), *, narrow_io: bool = False) -> onnx.ModelProto:
    """A copy of a float32 graph that computes in float16.

    A number that stands for infinity, such as a mask of -3.4e38, becomes the largest that float16 has. Operators that
    onnxruntime knows to need float32 keep it, and so do those that read a weight which float16 cannot hold.

    Args:
        keep: types (`Softmax`) or names of nodes that stay float32.
        narrow_io: float16 inputs and outputs as well.

    Raises:
        ValueError: the graph has no nodes of a type or name in `keep`.
    """
    from onnxruntime.quantization.onnx_model import ONNXModel
    from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST, convert_float_to_float16

    types, names = by_type_and_name(model, keep)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    names += _readers_of_wide(copy)
    _type_outputs(copy)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about each number that is cut
        converted = convert_float_to_float16(
            copy,
            keep_io_types=not narrow_io,
            op_block_list=[*DEFAULT_OP_BLOCK_LIST, *types],
            node_block_list=names,
        )
    _keep_unrounded(converted)
    # The converter appends the casts of inputs at the end, where ONNX's checker does not want them.
    ONNXModel(converted).topological_sort()
    return converted


def _readers_of_wide(model: onnx.ModelProto) -> list[str]:
    """The names of the nodes that read a weight which float16 cannot hold; nodes without a name get one."""
    graphs, found = list(inner_graphs(model.graph)), []
    sums = {name for graph in graphs for node in graph.node if node.op_type in SUMS for name in node.input}
    wide = {
        tensor.name
        for graph in graphs
        for tensor in graph.initializer
        if tensor.data_type == TensorProto.FLOAT and not _fits(array_of(tensor), tensor.name in sums)
    }
    taken = {node.name for graph in graphs for node in graph.node}
    for graph in graphs:
        for node in graph.node:
            if wide.isdisjoint(node.input):
                continue
            if not node.name:
                node.name = next(name for count in itertools.count() if (name := f"wide_{count}") not in taken)
                taken.add(node.name)
            found.append(node.name)
    return found


def _type_outputs(model: onnx.ModelProto) -> None:
    """Say which outputs of scikit-learn's operators are float32: the converter must know, and ONNX infers few."""
    versions = {each.domain: each.version for each in model.opset_import}
    for graph in inner_graphs(model.graph):
        known = {value.name for value in (*graph.output, *graph.value_info)}
        for node in graph.node:
            if node.domain != "ai.onnx.ml" or not defs.has(node.op_type, versions[node.domain], node.domain):
                continue
            schema = defs.get_schema(node.op_type, versions[node.domain], node.domain)
            for name, output in zip(node.output, schema.outputs, strict=False):
                if name and name not in known and set(output.types) == {"tensor(float)"}:
                    graph.value_info.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))


def _fits(weight: np.ndarray, is_summed: bool) -> bool:
    """Whether float16 holds a weight: its largest numbers, or at least its scale. A tiny summand may grow."""
    sizes = np.abs(weight[np.isfinite(weight) & (weight != 0)])
    beyond = np.unique(sizes[sizes > LARGEST])
    if beyond.size:
        return beyond.size == 1 and float(beyond[0]) >= INFINITE
    return not sizes.size or float(sizes.max()) >= LEAST or (weight.size == 1 and is_summed)


def _keep_unrounded(model: onnx.ModelProto) -> None:
    """Let nodes that stay float32 read float32 inputs and each other's outputs without a detour through float16."""
    graph = model.graph
    inferred = onnx.shape_inference.infer_shapes(model).graph
    wide = {
        value.name
        for value in (*graph.input, *inferred.value_info)
        if value.type.tensor_type.elem_type == TensorProto.FLOAT
    }
    halves = {
        node.output[0]: node.input[0]
        for node in graph.node
        if _casts_to(node, TensorProto.FLOAT16) and node.input[0] in wide
    }
    same = {
        node.output[0]: halves[node.input[0]]
        for node in graph.node
        if _casts_to(node, TensorProto.FLOAT) and node.input[0] in halves
    }
    for node in graph.node:
        node.input[:] = [same.get(name, name) for name in node.input]


def _casts_to(node: onnx.NodeProto, kind: int) -> bool:
    return node.op_type == "Cast" and any(each.name == "to" and each.i == kind for each in node.attribute)
