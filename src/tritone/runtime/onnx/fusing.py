"""Chains of operators that onnxruntime passes over one by one, as one operator of this project's own.

Sub(Max(x, Log(Add(Exp(Clip(x)), 1))), Mul(x, slope))  ->  Swoosh(x)

The activations of Zipformers are a fifth of their time on a CPU, a third in int8, nearly all of it for passing over
tensors and for the logarithm. A graph's file keeps the operators of the standard, which run everywhere; its copy in
memory has ours when a session is opened. They are in `fused.c`, which an installation compiles where there is a
compiler; without it, graphs run as they are in the file.
"""

import importlib.util
import os
import struct
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import onnxruntime
from packaging.version import Version

LIBRARY = "tritone.runtime.onnx._fused"
FOLDER_OPTION = "session.model_external_initializers_file_folder_path"
SINCE = Version("1.21")  # of onnxruntime, which finds the weights beside a graph in memory by `FOLDER_OPTION`
DOMAIN, OPERATOR = b"tritone", b"Swoosh"
FLOAT, ONE_FLOAT = 1, 1  # onnx.TensorProto.FLOAT, onnx.AttributeProto.FLOAT
LEAST_CLIP = 17.0  # where softplus(x) is x in float32


@cache
def library() -> str | None:
    """The path of the compiled operators; None where they cannot be used (see `obstacle`)."""
    found = importlib.util.find_spec(LIBRARY)
    return found.origin if found and Version(onnxruntime.__version__) >= SINCE else None


def obstacle() -> str | None:
    """Why graphs keep onnxruntime's own operators, with the way out; None if they do not."""
    if library() is not None:
        return None
    if importlib.util.find_spec(LIBRARY) is not None:
        return (
            f"onnxruntime {onnxruntime.__version__} takes no weights beside a graph in memory. Install {SINCE} or later"
        )
    return "there was no C compiler when Tritone was installed. Install one (gcc), then Tritone again"


def fused(model: Any, folder: Path, options: onnxruntime.SessionOptions) -> bytes | None:
    """A graph with the operators of `fused.c`, which are added to the options; None if it has nothing for them.

    Args:
        model: of `external_data.inspect`; it is changed.
        folder: where the graph lies, and its weights.
    """
    path = library()
    if path is None or not any([_Chains(graph).replace() for graph in model.graph]):
        return None
    model.opset_import.add(domain=[DOMAIN], version=[1])
    options.register_custom_ops_library(path)
    options.add_session_config_entry(FOLDER_OPTION, os.fspath(folder))
    found: bytes = model.SerializeToString()
    return found


class _Chains:
    """The nodes of a graph by what they make, and what is made of that."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self._made_by = {name: node for node in graph.node for name in node.output}
        self._weights = {tensor.name[0]: tensor for tensor in graph.initializer if tensor.name}
        self._uses = Counter(name for node in graph.node for name in node.input)
        self._uses.update(name for each in graph.output for name in each.name)
        # Graphs inside of nodes may take anything by its name.
        self._uses.update(name for node in graph.node for each in node.attribute for name in _names_in(each))

    def replace(self) -> bool:
        """Replace every chain; says if there were any."""
        dead: set[bytes] = set()
        for node in self._graph.node:
            if (chain := self._swoosh(node)) is not None:
                inputs, slope, inner = chain
                if len(inputs) == 2 and self._inputs(product := self._made_by[inputs[0]], b"Gemm"):
                    del product.input[2]  # the bias, which ours adds
                node.input[:], node.op_type[:], node.domain[:] = inputs, [OPERATOR], [DOMAIN]
                node.attribute.add(name=[b"slope"], f=[slope], type=[ONE_FLOAT])
                dead |= inner
        for index in reversed(range(len(self._graph.node))):
            if dead.intersection(self._graph.node[index].output):
                del self._graph.node[index]
        return bool(dead)

    def _swoosh(self, node: Any) -> tuple[list[bytes], float, set[bytes]] | None:
        """The inputs and the slope of the chain that ends in a node, and what is made inside of it."""
        if (ends := self._inputs(node, b"Sub")) is None:
            return None
        for log, x in self._either(ends[0], b"Max", once=True):
            for scaled, slope in self._either(ends[1], b"Mul", once=True):
                value, softplus = self._number(slope), self._softplus(log, x)
                if scaled != x or value is None or softplus is None:
                    continue
                inner = softplus | {ends[0], ends[1]}
                inputs = [x]
                if self._uses[x] == 3 and (biased := self._biased(x)):
                    inputs, inner = biased, inner | {x}.difference(biased)
                return inputs, value, inner
        return None

    def _softplus(self, log: bytes, x: bytes) -> set[bytes] | None:
        """What is made on the way from x to log(exp(min(x, a large number)) + 1)."""
        made = [log]
        for operator in (b"Log", b"Add", b"Exp"):
            inputs = self._inputs(self._made_by.get(made[-1]), operator)
            if inputs is None or self._uses[made[-1]] != 1:
                return None
            if operator == b"Add":
                inputs = [name for name in inputs if self._number(name) != 1.0]
            if len(inputs) != 1:
                return None
            made.append(inputs[0])
        node = self._made_by.get(made[-1])
        lower, clipped = self._inputs(node, b"Min"), self._inputs(node, b"Clip")
        if clipped is not None and len(clipped) == 3 and not clipped[1]:
            lower = [clipped[0], clipped[2]]
        if lower is None or x not in lower or self._uses[made[-1]] != 1:
            return None
        given = [name for name in lower if name != x]
        limit = self._number(given[0]) if len(given) == 1 else None
        return set(made) if limit is not None and limit >= LEAST_CLIP else None

    def _biased(self, x: bytes) -> list[bytes] | None:
        """The inputs of x = product + bias, if the bias is as long as the product's rows; x and the bias of a Gemm."""
        gemm = self._made_by.get(x)
        if (inputs := self._inputs(gemm, b"Gemm")) is not None and len(inputs) == 3:
            # What is longer than one number and has one axis is as long as the rows of any Gemm.
            return [x, inputs[2]] if _has_beta_1(gemm) and self._length(inputs[2]) > 1 else None
        for product, bias in self._either(x, b"Add"):
            factors = self._inputs(self._made_by.get(product), b"MatMul")
            weight = self._weights.get(factors[1]) if factors and len(factors) == 2 else None
            if weight is None or len(weight.dims) < 2 or self._uses[product] != 1:
                continue
            if self._length(bias) == weight.dims[-1] > 0:
                return [product, bias]
        return None

    def _length(self, name: bytes) -> int:
        """The length of a constant of one axis in float32; of anything else 0."""
        tensor = self._weights.get(name)
        if tensor is None or [*tensor.data_type] != [FLOAT] or len(tensor.dims) != 1:
            return 0
        return int(tensor.dims[0])

    def _inputs(self, node: Any, operator: bytes) -> list[bytes] | None:
        """The inputs of a node of an operator of the standard; None of another one."""
        if node is None or [*node.op_type] != [operator] or any(node.domain):
            return None
        return list(node.input)

    def _either(self, name: bytes, operator: bytes, *, once: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """The two inputs of what makes `name`, either one first; none if another operator does, or others use it."""
        inputs = self._inputs(self._made_by.get(name), operator)
        if inputs is not None and len(inputs) == 2 and not (once and self._uses[name] != 1):
            yield inputs[0], inputs[1]
            yield inputs[1], inputs[0]

    def _number(self, name: bytes) -> float | None:
        """A constant of a single float32 number."""
        tensor = self._weights.get(name)
        if (node := self._made_by.get(name)) is not None and [*node.op_type] == [b"Constant"]:
            tensor = next((each for attribute in node.attribute for each in attribute.t), None)
        if tensor is None or [*tensor.data_type] != [FLOAT] or [len(each) for each in tensor.raw_data] != [4]:
            return None
        (number,) = struct.unpack("<f", tensor.raw_data[0])
        return float(number)


def _has_beta_1(gemm: Any) -> bool:
    """Whether a Gemm adds its third input as it is."""
    return all([*each.f] == [1.0] for each in gemm.attribute if b"beta" in each.name)


def _names_in(attribute: Any) -> Iterator[bytes]:
    """The names that the graphs of an attribute may take from the graph around them."""
    for graph in (*attribute.g, *attribute.graphs):
        for node in graph.node:
            yield from node.input
            for each in node.attribute:
                yield from _names_in(each)
        yield from (name for each in graph.output for name in each.name)
