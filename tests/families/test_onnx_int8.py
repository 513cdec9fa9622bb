"""Which products of a graph get int8 weights, and that they stay what they were but for rounding."""

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tritone.families.onnx.int8 import quantise_columns, quantise_products

RNG = np.random.default_rng(0)
X = RNG.normal(0, 1, (5, 48)).astype(np.float32)
WEIGHT = RNG.normal(0, 1, (48, 40)).astype(np.float32)
BIAS = RNG.normal(0, 1, 40).astype(np.float32)


def model(weight: np.ndarray, **attributes: float) -> onnx.ModelProto:
    """A layer of two axes, as exporters write it."""
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w", "b"], ["y"], **attributes)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 48])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 40])],
        [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(BIAS, "b")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


NARROW = onnxruntime.InferenceSession(quantise_products(model(WEIGHT)).SerializeToString())


@pytest.mark.parametrize(("weight", "turned"), [(WEIGHT, 0), (np.ascontiguousarray(WEIGHT.T), 1)])
def test_layers_of_two_axes_are_products_and_keep_their_bias(weight: np.ndarray, turned: int) -> None:
    narrow = quantise_products(model(weight, transB=turned))
    assert "MatMulIntegerToFloat" in {node.op_type for node in narrow.graph.node}
    [found] = onnxruntime.InferenceSession(narrow.SerializeToString()).run(None, {"x": X})
    levels, scale = quantise_columns(WEIGHT)
    step = np.abs(X).max(axis=1, keepdims=True) / 127
    bound = step / 2 * np.abs(levels * scale).sum(axis=0) + np.abs(X).sum(axis=1, keepdims=True) * scale / 2
    assert np.all(np.abs(found - (X @ WEIGHT + BIAS)) <= bound * 1.001 + 1e-5)


def test_products_that_are_scaled_are_left_alone() -> None:
    with pytest.raises(ValueError, match="no product"):
        quantise_products(model(WEIGHT, alpha=0.5))


@given(rows=st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(-30, 30)), min_size=2, max_size=9))
def test_a_row_has_the_same_result_to_the_last_bit_whatever_the_others_are(rows: list[tuple[int, int]]) -> None:
    x = np.stack([np.random.default_rng(seed).normal(0, 1, 48) * 2.0**power for seed, power in rows])
    x = x.astype(np.float32)
    together = NARROW.run(None, {"x": x})[0]
    for row, expected in zip(x, together, strict=True):
        np.testing.assert_array_equal(NARROW.run(None, {"x": row[None]})[0][0], expected)


def test_a_row_of_zeros_has_the_bias_alone() -> None:
    np.testing.assert_array_equal(NARROW.run(None, {"x": np.zeros((2, 48), np.float32)})[0], np.stack([BIAS, BIAS]))
