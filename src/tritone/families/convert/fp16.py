"""ONNX graphs that compute in float16, by onnxruntime's converter.

    onnx.ModelProto in float32  ->  onnx.ModelProto in float16, whose inputs and outputs stay float32

Source of the converter: onnxruntime/python/tools/transformers/float16.py.
"""

import warnings
from collections.abc import Collection

import onnx
from onnx import TensorProto

from tritone.families.convert.chosen import by_type_and_name


def to_fp16(model: onnx.ModelProto, keep: Collection[str] = (), *, narrow_io: bool = False) -> onnx.ModelProto:
    """A copy of a float32 graph that computes in float16.

    Numbers beyond 65504 become the largest that float16 has, such as masks of -3.4e38. Operators that onnxruntime knows
    to need float32 keep it.

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
