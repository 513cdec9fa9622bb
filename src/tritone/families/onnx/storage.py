"""How the weights of an ONNX graph are stored: as they are, or as fp16 or int8 with nodes that widen them.

    onnx.GraphProto with float32 weights  ->  the same with int8 levels, scales, and Cast and Mul nodes

A runtime folds these nodes when it opens the graph: narrow weights save disk, not arithmetic.
"""

import hashlib
from collections.abc import Collection

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tritone.families.onnx.large import array_of

COMPRESS_FROM_ELEMENTS = 2048


def compress(graph: onnx.GraphProto, weight_storage: str, exact: Collection[str] = ()) -> None:
    """Replace large float32 weights by a smaller form and the nodes that widen it, in place.

    Args:
        weight_storage: "fp32", "fp16" or "int8" (symmetric, one scale per output channel).
        exact: digests of weights that stay float32 whatever the storage.
    """
    if weight_storage == "fp32":
        return
    widened: list[onnx.NodeProto] = []
    kept: list[TensorProto] = []
    for tensor in graph.initializer:
        array = array_of(tensor)
        if (
            array.dtype != np.float32
            or array.ndim < 2
            or array.size < COMPRESS_FROM_ELEMENTS
            or digest_of(array) in exact
        ):
            kept.append(tensor)
        elif weight_storage == "fp16":
            kept.append(numpy_helper.from_array(array.astype(np.float16), f"{tensor.name}.fp16"))
            widened.append(helper.make_node("Cast", [f"{tensor.name}.fp16"], [tensor.name], to=TensorProto.FLOAT))
        elif weight_storage == "int8":
            levels, scale = quantise(array)
            kept += [
                numpy_helper.from_array(levels, f"{tensor.name}.int8"),
                numpy_helper.from_array(scale, f"{tensor.name}.scale"),
            ]
            widened += [
                helper.make_node("Cast", [f"{tensor.name}.int8"], [f"{tensor.name}.float"], to=TensorProto.FLOAT),
                helper.make_node("Mul", [f"{tensor.name}.float", f"{tensor.name}.scale"], [tensor.name]),
            ]
        else:
            raise ValueError(f"weight storage {weight_storage!r} is not fp32, fp16 or int8")
    nodes = [*widened, *graph.node]
    del graph.initializer[:], graph.node[:]
    graph.initializer.extend(kept)
    graph.node.extend(nodes)


def digest_of(array: np.ndarray) -> str:
    """The sha256 of an array's numbers."""
    return hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).hexdigest()


def quantise(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Symmetric int8 levels and float32 scales that broadcast over them: array ≈ levels * scale.

    One scale per row or per column of a matrix, whichever loses less; per output channel (axis 0) of a convolution.
    """
    best: tuple[float, np.ndarray, np.ndarray] | None = None
    axes = [tuple(range(1, array.ndim))] if array.ndim > 2 else [(0,), (1,)]
    for reduced in axes:
        scale = np.maximum(
            np.abs(array).max(axis=reduced, keepdims=True), np.finfo(np.float32).tiny * 127
        ) / np.float32(127)
        levels = np.rint(array / scale).astype(np.int8)
        loss = float(np.square(levels * scale - array).sum())
        if best is None or loss < best[0]:
            best = loss, levels, scale.astype(np.float32)
    assert best is not None
    return best[1], best[2]
