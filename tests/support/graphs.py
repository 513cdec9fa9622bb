"""Small ONNX graphs whose outputs are known, written with onnx alone."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

IDS, CLASSES, WIDTH = 50, 3, 32


def save(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    weights: dict[str, np.ndarray],
    opset: int = 17,
) -> Path:
    """Write a graph that the checker takes."""
    initializers = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(list(nodes), path.stem, list(inputs), list(outputs), initializers)
    imports = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=helper.find_min_ir_version_for(imports))
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
    return path


def classifier(path: Path, opset: int = 17) -> Path:
    """Token ids with a mask (batch, length) to logits (batch, 3): embeddings, a norm, two products, a masked mean."""
    random = np.random.default_rng(1)
    weights = {
        "table": random.normal(size=(IDS, WIDTH)).astype(np.float32),
        "gain": np.ones(WIDTH, np.float32),
        "wide": random.normal(size=(WIDTH, 2 * WIDTH)).astype(np.float32) / 6,
        "out": random.normal(size=(2 * WIDTH, CLASSES)).astype(np.float32),
        "bias": np.array([0.5, 0.0, -0.5], np.float32),
        "one": np.array([1], np.int64),
        "last": np.array([-1], np.int64),
    }
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["embedded"]),
        helper.make_node("LayerNormalization", ["embedded", "gain"], ["normed"], name="norm"),
        helper.make_node("MatMul", ["normed", "wide"], ["hidden"], name="first"),
        helper.make_node("Relu", ["hidden"], ["rectified"]),
        helper.make_node("Cast", ["attention_mask"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["floats", "last"], ["mask"]),
        helper.make_node("Mul", ["rectified", "mask"], ["masked"]),
        helper.make_node("ReduceSum", ["masked", "one"], ["sum"], keepdims=0),
        helper.make_node("ReduceSum", ["mask", "one"], ["count"], keepdims=0),
        helper.make_node("Div", ["sum", "count"], ["mean"]),
        helper.make_node("Gemm", ["mean", "out", "bias"], ["logits"], name="second"),
    ]
    axes = ["batch", "length"]
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, axes) for name in ("input_ids", "attention_mask")]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", CLASSES])]
    return save(path, nodes, inputs, outputs, weights, opset)


def images(path: Path, opset: int = 17) -> Path:
    """Images (batch, 3, 16, 16) to scores (batch, 4): a convolution, Relu, mean over pixels, a product."""
    random = np.random.default_rng(2)
    weights = {
        "kernel": random.normal(size=(16, 3, 3, 3)).astype(np.float32) / 5,
        "out": random.normal(size=(16, 4)).astype(np.float32),
        "bias": np.zeros(4, np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["image", "kernel"], ["convolved"], name="conv"),
        helper.make_node("Relu", ["convolved"], ["rectified"]),
        helper.make_node("GlobalAveragePool", ["rectified"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("Gemm", ["flat", "out", "bias"], ["scores"], name="gemm"),
    ]
    inputs = [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, 16, 16])]
    outputs = [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 4])]
    return save(path, nodes, inputs, outputs, weights, opset)


def scaled(path: Path, factor: float, bias: float = 0.0) -> Path:
    """x (batch, n) to y = factor * x + bias."""
    nodes = [
        helper.make_node("Mul", ["x", "factor"], ["scaled"], name="mul"),
        helper.make_node("Add", ["scaled", "bias"], ["y"], name="add"),
    ]
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", "n"]) for name in ("x", "y")]
    weights = {"factor": np.array(factor, np.float32), "bias": np.array(bias, np.float32)}
    return save(path, nodes, tensors[:1], tensors[1:], weights)
