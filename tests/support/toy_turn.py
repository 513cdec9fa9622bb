"""Toy classifiers of ends of turns.

write_toy_turn(path)      ->  a bundle: the probability is how many seconds of sound are in the last 8 s
write_turn_network(path)  ->  an ONNX file of the form of Smart Turn v3, small and random
"""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tritone.families.generic.onnx import export_onnx

SAMPLES = 8 * 16000
LEAST = 0.001  # of a sample that is sound


def write_toy_turn(path: Path) -> Path:
    """Write the bundle, and return where it is."""
    file = path.with_suffix(".onnx")
    constants = [
        numpy_helper.from_array(np.array(LEAST, np.float32), "least"),
        numpy_helper.from_array(np.array([1]), "axes"),
    ]
    constants.append(numpy_helper.from_array(np.array(16000, np.float32), "second"))
    nodes = [
        helper.make_node("Abs", ["waveform"], ["size"]),
        helper.make_node("Greater", ["size", "least"], ["sounds"]),
        helper.make_node("Cast", ["sounds"], ["ones"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["ones", "axes"], ["count"], keepdims=1),
        helper.make_node("Div", ["count", "second"], ["seconds"]),
        helper.make_node("Clip", ["seconds", "", "one"], ["probability"]),
    ]
    constants.append(numpy_helper.from_array(np.array(1, np.float32), "one"))
    _save(file, nodes, constants, ("waveform", ["batch", SAMPLES]), "probability")
    export_onnx(model=file, output=path)
    return path


def write_turn_network(path: Path, *, sigmoid: bool = True, frames: int = 800) -> Path:
    """Write the file, and return where it is; without `sigmoid` what it gives is no probability."""
    random = np.random.default_rng(7)
    weight = random.normal(0, 0.05, (1, 80, 9)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["input_features", "weight"], ["scores"], strides=[5]),
        helper.make_node("ReduceMean", ["scores", "axes"], ["mean"], keepdims=0),
        helper.make_node("Mul", ["mean", "scale"], ["score"]),
        helper.make_node("Sigmoid" if sigmoid else "Exp", ["score"], ["logits"]),
    ]
    constants = [
        numpy_helper.from_array(weight, "weight"),
        numpy_helper.from_array(np.array([2]), "axes"),
        numpy_helper.from_array(np.array(1, np.float32), "scale"),
    ]
    _save(path, nodes, constants, ("input_features", ["batch", 80, frames]), "logits")
    return path


def _save(path: Path, nodes: list, constants: list, given: tuple[str, list], made: str) -> None:
    graph = helper.make_graph(
        nodes,
        "turns",
        [helper.make_tensor_value_info(given[0], TensorProto.FLOAT, given[1])],
        [helper.make_tensor_value_info(made, TensorProto.FLOAT, ["batch", 1])],
        constants,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), path)
