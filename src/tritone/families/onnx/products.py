"""The weights of a network's products and norms in an ONNX graph in which they have no names of their own.

    graph  ->  products of tensors with matrices, what each takes and what takes its result

Matrices and their biases are told by the nodes around them. In int8 a matrix has a scale and a zero.
Source: onnxruntime, quantization/operators/matmul.py.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx

from tritone.errors import ExportError
from tritone.families.onnx.forms import constants_as_weights
from tritone.families.onnx.large import array_of
from tritone.families.onnx.source import Source

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Product:
    """A product of the tensor `of` with a matrix, with the bias that is added to it, if one is.

    `matrix`: names of initializers: (inputs, outputs), or if `turned` (outputs, inputs), perhaps with more axes that
    are taken together; in int8 with its scale and perhaps its zero. `made`: the tensor that comes of it.
    """

    of: str
    matrix: tuple[str, ...]
    bias: str | None
    made: str
    turned: bool = False


class Products:
    """Finds the tensors of a network in one of its graphs. A subclass says what its norms are."""

    models, written_by = "", ""  # for errors

    def __init__(self, source: Source) -> None:
        """Take a graph that was read; its constants become initializers."""
        self.path = source.path
        constants_as_weights(source.model)
        graph = source.model.graph
        self._nodes = list(graph.node)
        self._tensors = {tensor.name: tensor for tensor in graph.initializer}
        self._makers = {output: node for node in self._nodes for output in node.output}
        self._takers: dict[str, list[onnx.NodeProto]] = {}
        for node in self._nodes:
            for name in node.input:
                self._takers.setdefault(name, []).append(node)
        self._products = {each.made: each for each in self._find_products()}
        self._norms = self._find_norms()
        self._marks = {*self._products, *self._norms.values()}
        self._following: dict[str, list[Product]] = {}  # the next products after a norm or a product
        for each in self._products.values():
            for name in self._before(each.of, past_softmax=True):
                self._following.setdefault(name, []).append(each)

    def _find_norms(self) -> dict[str, str]:
        """What comes of each norm, by its name."""
        raise NotImplementedError

    def _find_products(self) -> Iterator[Product]:
        """In int8 a product of numbers of 8 bits is made float32 and multiplied with both scales."""
        for node in self._nodes:
            made, of, matrix = node.output[0], node.input[0] if node.input else "", tuple(node.input[1:2])
            if node.op_type == "MatMulInteger":
                scaled = next((each for each in self._next(made, "Cast", "Mul")), None)
                scales = [self._makers.get(name) for name in scaled.input] if scaled is not None else []
                scale = [name for each in scales if each and each.op_type == "Mul" for name in each.input]
                scale = [name for name in scale if name in self._tensors]
                if scaled is None or len(scale) != 1:
                    continue
                made, matrix = scaled.output[0], (*matrix, *scale, *node.input[3:4])
            elif node.op_type == "Gemm":
                shaped = self._makers.get(matrix[0]) if matrix else None
                if shaped is not None and shaped.op_type == "Reshape":
                    matrix = tuple(shaped.input[:1])
            elif node.op_type != "MatMul":
                continue
            if not matrix or not set(matrix) <= set(self._tensors):
                continue
            bias = None
            for adding in self._next(made, "Add"):
                for name in adding.input:
                    if name in self._tensors and len(self._tensors[name].dims) == 1:
                        bias, made = name, adding.output[0]
            turned = any(each.name == "transB" and each.i for each in node.attribute)
            yield Product(of, matrix, bias, made, turned)

    def _next(self, name: str, *kinds: str) -> list[onnx.NodeProto]:
        """The nodes of the last kind that a tensor goes to through nodes of the kinds before it."""
        nodes = [node for node in self._takers.get(name, ()) if node.op_type == kinds[0]]
        return nodes if len(kinds) == 1 else [each for node in nodes for each in self._next(node.output[0], *kinds[1:])]

    def _before(self, name: str, *, past_softmax: bool) -> set[str]:
        """The products and norms that a tensor is made of, and nothing that they are made of."""
        found, seen, left = set(), {name}, [name]
        while left:
            each = left.pop()
            if each in self._marks:
                found.add(each)
                continue
            node = self._makers.get(each)
            if node is None or node.op_type == "Shape" or (node.op_type == "Softmax" and not past_softmax):
                continue
            left += (new := set(node.input) - seen)
            seen |= new
        return found

    def _after(self, made: str | None) -> list[Product]:
        return self._following.get(made or "", [])

    def _only(self, found: list[Product], name: str) -> Product:
        if len(found) != 1:
            raise self._lacks(name)
        return found[0]

    def _linears(self, found: Mapping[str, Product]) -> dict[str, Array]:
        state: dict[str, Array] = {}
        for name, product in found.items():
            state[f"{name}.weight"] = self._matrix(product, name)
            if product.bias is not None:
                state[f"{name}.bias"] = self._array(product.bias, name)
        return state

    def _matrix(self, product: Product, name: str) -> Array:
        """(outputs, inputs), as torch has it."""
        values, *levels = (array_of(self._tensors[each]) for each in product.matrix)
        if values.ndim > 2:
            sizes = values.shape[next((at for at, size in enumerate(values.shape) if size > 1), 0) :]
            values = values.reshape((sizes[0], -1) if product.turned else (-1, sizes[-1]))
        if values.ndim != 2 or any(each.size not in (1, values.shape[1]) for each in levels):
            raise self._lacks(name)
        if levels:
            scale, *zero = levels
            values = (values.astype(np.float32) - sum(each.astype(np.float32) for each in zero)) * scale
        return np.ascontiguousarray(values if product.turned else values.T, np.float32)

    def _array(self, theirs: str | None, name: str) -> Array:
        if theirs is None or theirs not in self._tensors:
            raise self._lacks(name)
        return np.asarray(array_of(self._tensors[theirs]), np.float32)

    def _lacks(self, name: str) -> ExportError:
        return ExportError(f"{self.path} has no {name} where {self.models} have it. Read are {self.written_by}.")
