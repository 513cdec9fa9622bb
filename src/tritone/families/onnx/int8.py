"""ONNX graphs that multiply in int8: dynamic quantisation of the weights of a network's matrix products.

    onnx.ModelProto in float32  ->  onnx.ModelProto whose large products take int8 weights

A weight has one scale per output channel. What it is multiplied with is brought to 8 bits when the graph runs, with one
scale per row, that is per frame or token: the usual way, one scale for the whole tensor (`DynamicQuantizeLinear`),
makes an utterance's result depend on its batch mates and on padding. Where a call takes a single utterance and no
padding, nothing but itself is in the tensor, and the usual way is a third faster. Products go on in float32, and
everything else stays float32: features, norms, softmax, convolutions, embeddings, and products of two activations.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tritone.families.onnx.large import array_of, check

BATCH_AXIS = "batch"

LEAST_ELEMENTS = 1024
"""Smaller weights stay float32: bringing their input to 8 bits would cost more than they gain."""

LARGEST_LEVEL, LARGEST_FINE_LEVEL = 63, 127
"""The largest int8 weight. CPUs without VNNI add two 8-bit products in 16 bits, which saturate above 64 levels: finer
weights are computed more slowly there (see `runtime.onnx.graph`), and lose half as much everywhere."""

MIDDLE, REACH = 128, 127
"""Inputs are uint8 around this zero point: onnxruntime is fast at uint8 times int8, and slow at int8 times int8."""

CONSTANTS = {
    "int8.last_axis": np.array([-1], np.int64),
    "int8.least": np.float32(1e-28),  # the largest number of a row of zeros, which must not be divided by 0
    "int8.step": np.float32(1 / REACH),
    "int8.zero_point": np.uint8(MIDDLE),
    "int8.weight_zero_point": np.int8(0),
}

CONTRIB = helper.make_opsetid("com.microsoft", 1)
"""Operators of onnxruntime alone. Its product of integers whose result is scaled to float32 needs one pass over that
where the operators of ONNX need three."""


def quantise_products(
    model: onnx.ModelProto, keep: Collection[str] = (), *, single_rows: bool = False, largest: int = LARGEST_LEVEL
) -> onnx.ModelProto:
    """Copy a float32 graph with int8 weights in its matrix products.

    Args:
        model: as of `tritone.families.onnx.writer.export_graph`, with its weights inside or in a file.
        keep: names of weights whose products stay float32.
        single_rows: what is multiplied with a weight gets one scale, and the graph takes calls of a single row: the
            axes of inputs and outputs that are called `BATCH_AXIS` become 1.
        largest: level of weights, `LARGEST_LEVEL` or `LARGEST_FINE_LEVEL`.

    Raises:
        ValueError: there is no product to quantise.
    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    _fold_weights(graph, result.opset_import)
    if single_rows:
        _take_single_rows(graph)
    weights = {  # read one by one: together they may be larger than memory
        tensor.name: tensor
        for tensor in graph.initializer
        if tensor.data_type == TensorProto.FLOAT
        and len(tensor.dims) == 2
        and tensor.dims[0] * tensor.dims[1] >= LEAST_ELEMENTS
        and tensor.name not in keep
    }
    biases = _biases(graph, weights) if single_rows else {}
    biased = {output for output, _ in biases.values()}
    nodes: list[NodeProto] = []
    inputs: set[str] = set()
    chosen: dict[str, tuple[str, bool]] = {}
    for node in graph.node:
        if not _is_product(node) or node.input[1] not in weights:
            if node.output[0] not in biased:
                nodes.append(node)
            continue
        x, weight, *bias = node.input
        turned = node.op_type == "Gemm" and any(each.name == "transB" and each.i for each in node.attribute)
        levels = f"{weight}.turned" if turned else weight
        if x not in inputs:  # queries, keys and values have one input
            inputs.add(x)
            nodes += _to_levels_together(x) if single_rows else _to_levels(x)
        chosen[levels] = weight, turned
        y = node.output[0]
        if single_rows:
            y, added = biases.get(y, (y, bias[0] if bias else ""))
            nodes.append(_product_together(x, levels, added, y))
            continue
        nodes += _product(x, levels, f"{y}.product" if bias else y)
        if bias:
            nodes.append(helper.make_node("Add", [f"{y}.product", bias[0]], [y]))
    nodes = [each for node in nodes for each in _rows_of_levels(node, chosen)]
    if not chosen:
        raise ValueError(f"the graph has no product with a weight of {LEAST_ELEMENTS} elements or more")
    read = {name for node in nodes for name in node.input}
    kept = [tensor for tensor in graph.initializer if tensor.name in read]
    kept += [numpy_helper.from_array(np.asarray(value), name) for name, value in CONSTANTS.items() if name in read]
    for name, (weight, turned) in chosen.items():
        array = array_of(weights[weight])
        levels, scale = quantise_columns(np.ascontiguousarray(array.T) if turned else array, largest)
        kept += [numpy_helper.from_array(levels, f"{name}.int8"), numpy_helper.from_array(scale, f"{name}.scale")]
    if CONTRIB.domain not in {opset.domain for opset in result.opset_import}:
        result.opset_import.append(CONTRIB)
    del graph.node[:], graph.initializer[:]
    graph.node.extend(nodes)
    graph.initializer.extend(kept)
    check(result)
    return result


def quantise_columns(
    weight: npt.NDArray[np.float32], largest: int = LARGEST_LEVEL
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """Symmetric levels of a weight (inputs, outputs) and scales (outputs,) of its columns; levels * scale ≈ weight."""
    most = np.maximum(np.abs(weight).max(axis=0), np.finfo(np.float32).tiny * largest)
    scale = (most / np.float32(largest)).astype(np.float32)
    return np.rint(weight / scale).astype(np.int8), scale


def _is_product(node: NodeProto) -> bool:
    """Is this a product of matrices as they are, but for a second one that is turned round and a bias?"""
    plain = {"alpha": 1.0, "beta": 1.0, "transA": 0}
    return node.op_type == "MatMul" or (
        node.op_type == "Gemm"
        and all(
            helper.get_attribute_value(each) == plain.get(each.name, helper.get_attribute_value(each))
            for each in node.attribute
        )
    )


def _fold_weights(graph: onnx.GraphProto, opsets: Sequence[onnx.OperatorSetIdProto]) -> None:
    """Compute what a graph makes of weights alone: a bias with the sum of a weight in it, a weight turned round.

    onnxruntime would do it as well, but a weight that is there in no other way than computed is not found for int8, and
    one that is also part of a sum would be kept in float32 beside its levels.
    """
    constants = {tensor.name: tensor for tensor in graph.initializer}
    constants |= {
        node.output[0]: node.attribute[0].t
        for node in graph.node
        if node.op_type == "Constant" and node.attribute[0].name == "value"
    }
    computed = {tensor.name for tensor in graph.initializer if len(tensor.dims) > 1}
    folded: list[NodeProto] = []
    for node in graph.node:
        inputs = {name for name in node.input if name}
        if inputs <= computed | constants.keys() and inputs & computed:
            folded.append(node)
            computed.update(node.output)
    if not folded:
        return
    made = {name for node in folded for name in node.output}
    left = [node for node in graph.node if node.output[0] not in made]
    wanted = sorted(made & ({name for node in left for name in node.input} | {value.name for value in graph.output}))
    read = {name for node in folded for name in node.input} & constants.keys()
    outputs = [helper.make_value_info(name, onnx.TypeProto()) for name in wanted]
    tensors = [numpy_helper.from_array(np.array(array_of(constants[name])), name) for name in sorted(read)]
    part = helper.make_model(helper.make_graph(folded, "weights", [], outputs, tensors), opset_imports=opsets)
    values = ReferenceEvaluator(part).run(None, {})
    del graph.node[:]
    graph.node.extend(left)
    graph.initializer.extend(
        numpy_helper.from_array(np.ascontiguousarray(value), name) for name, value in zip(wanted, values, strict=True)
    )


def _take_single_rows(graph: onnx.GraphProto) -> None:
    """Say of all inputs and outputs that their batch has one row."""
    for value in (*graph.input, *graph.output):
        for axis in value.type.tensor_type.shape.dim:
            if axis.dim_param == BATCH_AXIS:
                axis.dim_value = 1


def _biases(graph: onnx.GraphProto, weights: Collection[str]) -> dict[str, tuple[str, str]]:
    """Products that nothing reads but the sum with a bias: {product: (sum, bias)}."""
    vectors = {tensor.name for tensor in graph.initializer if len(tensor.dims) == 1}
    readers = Counter(name for node in graph.node for name in node.input)
    readers.update(value.name for value in graph.output)
    products = {node.output[0] for node in graph.node if node.op_type == "MatMul" and node.input[1] in weights}
    found: dict[str, tuple[str, str]] = {}
    for node in graph.node:
        if node.op_type == "Add":
            for product, bias in (node.input, reversed(node.input)):
                if product in products and bias in vectors and readers[product] == 1:
                    found[product] = node.output[0], bias
    return found


def _rows_of_levels(node: NodeProto, chosen: Mapping[str, tuple[str, bool]]) -> Sequence[NodeProto]:
    """A node; one that takes rows of a table which is a product's weight, too, takes columns of that one's levels.

    So Whisper's table of tokens, a third of a small model, is there once.
    """
    levels = f"{node.input[0]}.turned" if node.op_type == "Gather" else ""
    if levels not in chosen or any(each.name == "axis" and each.i for each in node.attribute):
        return [node]
    y, [_, ids] = node.output[0], node.input
    return [
        helper.make_node("Gather", [f"{levels}.int8", ids], [f"{y}.levels"], axis=1),
        helper.make_node("Cast", [f"{y}.levels"], [f"{y}.columns"], to=TensorProto.FLOAT),
        helper.make_node("Gather", [f"{levels}.scale", ids], [f"{y}.scale"]),
        helper.make_node("Mul", [f"{y}.columns", f"{y}.scale"], [f"{y}.scaled"]),
        helper.make_node("Transpose", [f"{y}.scaled"], [y], perm=[1, 2, 0]),
    ]


def _to_levels_together(x: str) -> Sequence[NodeProto]:
    """Nodes that make `x.uint8`, `x.step` and `x.zero_point` of `x`, one for all of it."""
    return (helper.make_node("DynamicQuantizeLinear", [x], [f"{x}.uint8", f"{x}.step", f"{x}.zero_point"]),)


def _product_together(x: str, weight: str, bias: str, y: str) -> NodeProto:
    """A node that multiplies `x.uint8` with `weight.int8`, brings the sum back to float32 and adds a bias, if any."""
    levels = [f"{x}.uint8", f"{weight}.int8", f"{x}.step", f"{weight}.scale", f"{x}.zero_point"]
    inputs = [*levels, "int8.weight_zero_point", *([bias] if bias else [])]
    return helper.make_node("MatMulIntegerToFloat", inputs, [y], domain=CONTRIB.domain)


def _to_levels(x: str) -> Sequence[NodeProto]:
    """Nodes that make `x.uint8` and `x.largest` (one a row) of `x`: a row is divided by its largest number."""
    return (
        helper.make_node("Abs", [x], [f"{x}.abs"]),
        helper.make_node("ReduceMax", [f"{x}.abs", "int8.last_axis"], [f"{x}.unsafe"], keepdims=1),
        helper.make_node("Max", [f"{x}.unsafe", "int8.least"], [f"{x}.largest"]),
        helper.make_node("Div", [x, f"{x}.largest"], [f"{x}.scaled"]),
        helper.make_node("QuantizeLinear", [f"{x}.scaled", "int8.step", "int8.zero_point"], [f"{x}.uint8"]),
    )


def _product(x: str, weight: str, y: str) -> Sequence[NodeProto]:
    """Nodes that multiply `x.uint8` with `weight.int8` and bring the sum back to float32, as `y`."""
    levels = [f"{x}.uint8", f"{weight}.int8", "int8.step", f"{weight}.scale"]
    # The zero point of the weight is left out: where onnxruntime makes unsigned weights of signed ones, one that
    # several products share is an error.
    return (
        helper.make_node("MatMulIntegerToFloat", [*levels, "int8.zero_point"], [f"{y}.columns"], domain=CONTRIB.domain),
        helper.make_node("Mul", [f"{y}.columns", f"{x}.largest"], [y]),
    )
