"""The noise of a voice, the same at every call.

    RandomNormalLike(x)  ->  table[(start + i) mod size], in the shape of x

A graph draws noise for the lengths of phonemes and for the sound. onnxruntime draws other numbers at every call, from
nodes with a seed too, and a text would never sound the same twice. Here they are from a table in the graph.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from tritone.errors import ExportError
from tritone.families.onnx.large import inner_graphs

TABLE_SIZE = 2**18  # numbers, 1 MB: those of 15 s of speech with 192 channels, after which they come again
SEED = 0
PREFIX = "tritone.noise"
NORMAL = "RandomNormalLike"
RANDOM = frozenset({NORMAL, "RandomNormal", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"})


def fix_noise(model: Any) -> None:
    """Replace the nodes of a graph that draw noise, in place; each begins elsewhere in the table.

    Raises:
        ExportError: the graph draws noise of another kind than voices of Piper do.
    """
    num_nodes = sum(node.op_type in RANDOM for graph in inner_graphs(model.graph) for node in graph.node)
    if not num_nodes:
        return
    table = np.random.default_rng(SEED).standard_normal(TABLE_SIZE, dtype=np.float32)
    constants = {"table": table, "size": np.array(TABLE_SIZE), "one": np.array(1)}
    number = 0
    for graph in inner_graphs(model.graph):
        nodes: list[NodeProto] = []
        for node in graph.node:
            if node.op_type in RANDOM:
                constants[f"{number}.start"] = np.array(number * TABLE_SIZE // num_nodes)
                nodes += _looked_up(node, number)
                number += 1
            else:
                nodes.append(NodeProto.FromString(node.SerializeToString()))
        del graph.node[:]
        graph.node.extend(nodes)
    model.graph.initializer.extend(
        numpy_helper.from_array(value, f"{PREFIX}.{name}") for name, value in constants.items()
    )


def _looked_up(node: NodeProto, number: int) -> Iterator[NodeProto]:
    """The nodes that take the place of one that draws."""
    given = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    given.pop("seed", None)
    dtype = given.pop("dtype", TensorProto.FLOAT)
    if node.op_type != NORMAL or given.pop("mean", 0.0) != 0.0 or given.pop("scale", 1.0) != 1.0:
        raise ExportError(
            f"the node {node.name or node.output[0]!r} ({node.op_type}) draws noise that voices of Piper have not, "
            f"which is {NORMAL} of mean 0 and scale 1; export the voice with Piper's own script"
        )

    def own(name: str) -> str:
        return f"{PREFIX}.{number}.{name}"

    yield helper.make_node("Shape", [node.input[0]], [own("shape")])
    yield helper.make_node("ReduceProd", [own("shape")], [own("count")], keepdims=0)
    yield helper.make_node("Add", [own("start"), own("count")], [own("end")])
    yield helper.make_node("Range", [own("start"), own("end"), f"{PREFIX}.one"], [own("positions")])
    yield helper.make_node("Mod", [own("positions"), f"{PREFIX}.size"], [own("places")])
    yield helper.make_node("Gather", [f"{PREFIX}.table", own("places")], [own("numbers")])
    yield helper.make_node("Cast", [own("numbers")], [own("cast")], to=dtype)
    yield helper.make_node("Reshape", [own("cast"), own("shape")], [node.output[0]])
