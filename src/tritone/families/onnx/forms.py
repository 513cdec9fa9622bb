"""What exporters write in several ways, written in one: axes of any size, and weights.

axes of -1 or called `?`, weights in Constant nodes  ->  axes without a size, initializers
"""

from collections.abc import Iterator

import onnx

from tritone.families.onnx.large import inner_graphs


def open_axes(model: onnx.ModelProto) -> None:
    """Have axes of any size say so as ONNX does, in place: paddle2onnx writes -1, or `?` as the name of each."""
    for graph in inner_graphs(model.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            for axis in value.type.tensor_type.shape.dim:
                if axis.dim_value < 0 or axis.dim_param == "?":
                    axis.Clear()


def weights_of(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """The weights of a graph and of those inside of it, whether they are initializers or values of Constant nodes."""
    for graph in inner_graphs(model.graph):
        yield from graph.initializer
        for node in graph.node:
            if (value := _value(node)) is not None:
                yield value


def constants_as_weights(model: onnx.ModelProto) -> None:
    """Make initializers of Constant nodes that hold a tensor, in place."""
    for graph in inner_graphs(model.graph):
        outputs, kept = {value.name for value in graph.output}, []
        for node in graph.node:
            value = _value(node)
            if value is None or node.output[0] in outputs:
                kept.append(node)
                continue
            graph.initializer.add().CopyFrom(value)
            graph.initializer[-1].name = node.output[0]
        nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in kept]
        del graph.node[:]
        graph.node.extend(nodes)


def _value(node: onnx.NodeProto) -> onnx.TensorProto | None:
    if node.op_type != "Constant" or node.domain not in ("", "ai.onnx"):
        return None
    return next((each.t for each in node.attribute if each.name == "value"), None)
