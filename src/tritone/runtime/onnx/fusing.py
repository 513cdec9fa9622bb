"""Chains of operators that onnxruntime passes over one by one, as one operator.

Sub(Max(x, Log(Add(Exp(Clip(x)), 1))), Mul(x, slope))  ->  Swoosh(x)                         this project's own
MatMul(Softmax(MatMul(split(q) * scale, split(k)ᵀ)), split(v))  ->  MultiHeadAttention(q, k, v)  onnxruntime's

The activations of Zipformers are a fifth of their time on a CPU, a third in int8, nearly all of it for passing over
tensors and for the logarithm. Attention as one operator never has the scores of all positions in memory, which are most
of what Whisper's encoder takes, and is a quarter faster. A graph's file keeps the operators of the standard, which run
everywhere; its copy in memory has these when a session is opened. Our own are in `fused.c`, which an installation
compiles where there is a compiler; without it, graphs have theirs as they are in the file.
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
DOMAIN, OPERATOR = "tritone", "Swoosh"
ATTENTION_DOMAIN, ATTENTION = "com.microsoft", "MultiHeadAttention"
FLOAT, INT64 = 1, 7  # onnx.TensorProto
ONE_FLOAT, ONE_INT = 1, 2  # onnx.AttributeProto
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


def slow() -> str | None:
    """What is slower than it could be, and why; None if nothing is."""
    return f"Zipformers are slower than they could be on a CPU, since {reason}" if (reason := obstacle()) else None


def fused(model: Any, folder: Path, options: onnxruntime.SessionOptions) -> bytes | None:
    """A graph with attention and the operators of `fused.c`, which are added to the options; None if it has none.

    Args:
        model: of `external_data.inspect`; it is changed.
        folder: where the graph lies, and its weights.
    """
    if Version(onnxruntime.__version__) < SINCE:
        return None
    path = library()
    domains = _Chains(model.graph).replace(own=path is not None)
    if not domains:
        return None
    there = {each.domain for each in model.opset_import}
    for domain in sorted(domains - there):
        model.opset_import.add(domain=domain, version=1)
    if path is not None and DOMAIN in domains:
        options.register_custom_ops_library(path)
    options.add_session_config_entry(FOLDER_OPTION, os.fspath(folder))
    found: bytes = model.SerializeToString()
    return found


class _Chains:
    """The nodes of a graph by what they make, and what is made of that."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self._made_by = {name: node for node in graph.node for name in node.output}
        self._weights = {tensor.name: tensor for tensor in graph.initializer}
        self._uses = Counter(name for node in graph.node for name in node.input)
        self._uses.update(each.name for each in graph.output)
        # Graphs inside of nodes may take anything by its name.
        self._uses.update(name for node in graph.node for each in node.attribute for name in _names_in(each))

    def replace(self, *, own: bool) -> set[str]:
        """Replace every chain; the domains of what there is instead. `own`: this project's operators, too."""
        dead: set[str] = set()
        domains: set[str] = set()
        for node in self._graph.node:
            if own and (chain := self._swoosh(node)) is not None:
                inputs, slope, inner = chain
                if len(inputs) == 2 and self._inputs(product := self._made_by[inputs[0]], "Gemm"):
                    del product.input[2]  # the bias, which ours adds
                node.input[:], node.op_type, node.domain = inputs, OPERATOR, DOMAIN
                node.attribute.add(name="slope", f=slope, type=ONE_FLOAT)
            elif (found := self._attention(node)) is not None:
                inputs, heads, scale, inner = found
                node.input[:], node.op_type, node.domain = inputs, ATTENTION, ATTENTION_DOMAIN
                del node.attribute[:]
                node.attribute.add(name="num_heads", i=heads, type=ONE_INT)
                node.attribute.add(name="scale", f=scale, type=ONE_FLOAT)
            else:
                continue
            dead |= inner
            domains.add(node.domain)
        for index in reversed(range(len(self._graph.node))):
            if dead.intersection(self._graph.node[index].output):
                del self._graph.node[index]
        return domains

    def _attention(self, node: Any) -> tuple[list[str], int, float, set[str]] | None:
        """What attention takes: (batch, length, width) of queries, keys and values; its heads and scale.

        Last what is made on the way to the node, which joins the heads again.
        """
        inner: set[str] = set()
        ends = self._inputs(node, "Reshape")
        mixed = self._once(ends[0], "Transpose", inner, perm=(0, 2, 1, 3)) if ends else None
        products = self._once(mixed[0], "MatMul", inner) if mixed else None
        weights = self._once(products[0], "Softmax", inner, axis=-1) if products else None
        scores = self._once(weights[0], "MatMul", inner) if weights else None
        if not (ends and products and scores):
            return None
        scaled = self._once(scores[0], "Mul", inner) or scores[:1]  # or queries that come scaled
        parts = [
            self._split(name, perm, inner)
            for name, perm in ((scaled[0], (0, 2, 1, 3)), (scores[1], (0, 2, 3, 1)), (products[1], (0, 2, 1, 3)))
        ]
        scale, shape = self._number(scaled[1]) if scaled[1:] else 1.0, self._numbers(ends[1])
        if None in parts or scale is None or len({each[1:] for each in parts if each}) != 1:
            return None
        [(_, heads, width), *_] = found = [each for each in parts if each]
        return ([each[0] for each in found], heads, scale, inner) if shape == [0, 0, heads * width] else None

    def _split(self, name: str, perm: tuple[int, ...], inner: set[str]) -> tuple[str, int, int] | None:
        """What is cut into heads and turned, the heads, and the width of each."""
        turned = self._once(name, "Transpose", inner, perm=perm)
        apart = self._once(turned[0], "Reshape", inner) if turned else None
        shape = self._numbers(apart[1]) if apart else None
        return (apart[0], *shape[2:]) if apart and shape and len(shape) == 4 and shape[:2] == [0, 0] else None  # type: ignore[return-value]

    def _once(self, name: str, operator: str, inner: set[str], **attributes: Any) -> list[str] | None:
        """The inputs of the operator with these attributes that makes `name` for one reader; `name` is added."""
        node = self._made_by.get(name)
        inputs = self._inputs(node, operator)
        if node is None or inputs is None or self._uses[name] != 1:
            return None
        given = {each.name: tuple(each.ints) or (each.i,) for each in node.attribute}
        for key, value in attributes.items():
            if given.get(key) != (value if isinstance(value, tuple) else (value,)):
                return None
        inner.add(name)
        return inputs

    def _swoosh(self, node: Any) -> tuple[list[str], float, set[str]] | None:
        """The inputs and the slope of the chain that ends in a node, and what is made inside of it."""
        if (ends := self._inputs(node, "Sub")) is None:
            return None
        for log, x in self._either(ends[0], "Max", once=True):
            for scaled, slope in self._either(ends[1], "Mul", once=True):
                value, softplus = self._number(slope), self._softplus(log, x)
                if scaled != x or value is None or softplus is None:
                    continue
                inner = softplus | {ends[0], ends[1]}
                inputs = [x]
                if self._uses[x] == 3 and (biased := self._biased(x)):
                    inputs, inner = biased, inner | {x}.difference(biased)
                return inputs, value, inner
        return None

    def _softplus(self, log: str, x: str) -> set[str] | None:
        """What is made on the way from x to log(exp(min(x, a large number)) + 1)."""
        made = [log]
        for operator in ("Log", "Add", "Exp"):
            inputs = self._inputs(self._made_by.get(made[-1]), operator)
            if inputs is None or self._uses[made[-1]] != 1:
                return None
            if operator == "Add":
                inputs = [name for name in inputs if self._number(name) != 1.0]
            if len(inputs) != 1:
                return None
            made.append(inputs[0])
        node = self._made_by.get(made[-1])
        lower, clipped = self._inputs(node, "Min"), self._inputs(node, "Clip")
        if clipped is not None and len(clipped) == 3 and not clipped[1]:
            lower = [clipped[0], clipped[2]]
        if lower is None or x not in lower or self._uses[made[-1]] != 1:
            return None
        given = [name for name in lower if name != x]
        limit = self._number(given[0]) if len(given) == 1 else None
        return set(made) if limit is not None and limit >= LEAST_CLIP else None

    def _biased(self, x: str) -> list[str] | None:
        """The inputs of x = product + bias, if the bias is as long as the product's rows; x and the bias of a Gemm."""
        gemm = self._made_by.get(x)
        if (inputs := self._inputs(gemm, "Gemm")) is not None and len(inputs) == 3:
            # What is longer than one number and has one axis is as long as the rows of any Gemm.
            return [x, inputs[2]] if _has_beta_1(gemm) and self._length(inputs[2]) > 1 else None
        for product, bias in self._either(x, "Add"):
            factors = self._inputs(self._made_by.get(product), "MatMul")
            weight = self._weights.get(factors[1]) if factors and len(factors) == 2 else None
            if weight is None or len(weight.dims) < 2 or self._uses[product] != 1:
                continue
            if self._length(bias) == weight.dims[-1] > 0:
                return [product, bias]
        return None

    def _length(self, name: str) -> int:
        """The length of a constant of one axis in float32; of anything else 0."""
        tensor = self._weights.get(name)
        if tensor is None or tensor.data_type != FLOAT or len(tensor.dims) != 1:
            return 0
        return int(tensor.dims[0])

    def _inputs(self, node: Any, operator: str) -> list[str] | None:
        """The inputs of a node of an operator of the standard; None of another one."""
        if node is None or node.op_type != operator or node.domain:
            return None
        return list(node.input)

    def _either(self, name: str, operator: str, *, once: bool = False) -> Iterator[tuple[str, str]]:
        """The two inputs of what makes `name`, either one first; none if another operator does, or others use it."""
        inputs = self._inputs(self._made_by.get(name), operator)
        if inputs is not None and len(inputs) == 2 and not (once and self._uses[name] != 1):
            yield inputs[0], inputs[1]
            yield inputs[1], inputs[0]

    def _numbers(self, name: str) -> list[int] | None:
        """A constant vector of int64 numbers."""
        tensor = self._weights.get(name)
        if tensor is None or tensor.data_type != INT64 or len(tensor.dims) != 1:
            return None
        data = tensor.raw_data
        return list(struct.unpack(f"<{len(data) // 8}q", data)) if len(data) == 8 * tensor.dims[0] else None

    def _number(self, name: str) -> float | None:
        """A constant of a single float32 number."""
        tensor = self._weights.get(name)
        if (node := self._made_by.get(name)) is not None and node.op_type == "Constant":
            tensor = next((each.t for each in node.attribute if each.HasField("t")), None)
        if tensor is None or tensor.data_type != FLOAT or len(tensor.raw_data) != 4:
            return None
        (number,) = struct.unpack("<f", tensor.raw_data)
        return float(number)


def _has_beta_1(gemm: Any) -> bool:
    """Whether a Gemm adds its third input as it is."""
    return all(each.f == 1.0 for each in gemm.attribute if each.name == "beta")


def _names_in(attribute: Any) -> Iterator[str]:
    """The names that the graphs of an attribute may take from the graph around them."""
    for graph in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
        for node in graph.node:
            yield from node.input
            for each in node.attribute:
                yield from _names_in(each)
        yield from (each.name for each in graph.output)
