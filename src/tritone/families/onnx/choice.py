"""One ONNX graph of two: a faster one for batches without padding, and one for any.

    even, any  ->  If(all rows are as long as the batch): even, else any

Each branch holds its own weights, since a runtime computes constants of them (a norm's scale into a convolution) only
in the graph that they are part of; in the file beside the graph they are the same bytes. A runtime that opens the graph
has them twice in memory.
"""

import onnx
from onnx import compose, helper
from torch import Tensor, nn

from tritone.families.export.exportable import ExportableGraph
from tritone.families.onnx.large import check
from tritone.families.onnx.writer import export_graph
from tritone.runtime.graph import EVEN_ROWS


class _IsEven(nn.Module):
    def __init__(self, graph: ExportableGraph) -> None:
        super().__init__()
        self._graph = (graph,)  # not a part of this module

    def forward(self, *inputs: Tensor) -> Tensor:
        return self._graph[0].is_even(*inputs)


def even_or_any(graph: ExportableGraph, even: onnx.ModelProto, ragged: onnx.ModelProto) -> onnx.ModelProto:
    """`ragged` with `even` for those inputs that `graph.is_even`; both as of `export_graph`."""
    result = export_graph(_IsEven(graph), graph.example(), [EVEN_ROWS], graph.dynamic, graph.metadata)
    branches = {"then_branch": _branch(even, "even."), "else_branch": _branch(ragged, "any.")}
    names = [value.name for value in ragged.graph.output]
    result.graph.node.append(helper.make_node("If", [EVEN_ROWS], names, name=EVEN_ROWS, **branches))
    del result.graph.output[:]
    result.graph.output.extend(ragged.graph.output)
    check(result)
    return result


def _branch(model: onnx.ModelProto, prefix: str) -> onnx.GraphProto:
    """A graph that takes the inputs of the one around it; names of its own must not be known there."""
    graph = compose.add_prefix(model, prefix, rename_nodes=False, rename_inputs=False).graph
    del graph.input[:]
    return graph
