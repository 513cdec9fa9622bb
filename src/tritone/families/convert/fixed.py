"""Graphs for inputs of one size only.

    inputs (batch, length), Shapes "8x128"  ->  inputs (8, 128)

An axis that has a name has the same size wherever the name stands. Source: onnxruntime.tools.onnx_model_utils does the
same; importing it loads torch.
"""

import onnx

from tritone.families.onnx.large import inner_graphs
from tritone.families.onnx.source import Source
from tritone.runtime.shapes import Shapes


def fix_shapes(source: Source, shapes: Shapes) -> onnx.ModelProto:
    """A copy whose inputs have these shapes, and whose outputs have those that follow.

    Raises:
        ValueError: a shape does not fit, an input that varies has none, or two axes of one name get different sizes.
    """
    wanted = shapes.of({tensor.name: tensor.shape for tensor in source.inputs})
    model = onnx.ModelProto()
    model.CopyFrom(source.model)
    sizes: dict[str, int] = {}
    for value in model.graph.input:
        for axis, size in zip(value.type.tensor_type.shape.dim, wanted.get(value.name, ()), strict=False):
            name = axis.dim_param
            if name and sizes.setdefault(name, size) != size:
                raise ValueError(f"axis {name} is {sizes[name]} and {size} (of input {value.name}); it has one size")
            axis.Clear()
            axis.dim_value = size
    for graph in inner_graphs(model.graph):
        del graph.value_info[:]  # what was inferred for any size
        for value in graph.output:
            for axis in value.type.tensor_type.shape.dim:
                if axis.dim_param in sizes and axis.dim_param:
                    size = sizes[axis.dim_param]
                    axis.Clear()
                    axis.dim_value = size
                elif axis.dim_param:
                    axis.Clear()  # a name that stood for a formula; inference finds the size
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    del model.graph.output[:]
    model.graph.output.extend(inferred.graph.output)
    return model
