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


def test_for_single_rows_all_of_an_utterance_has_one_scale_and_products_take_their_bias_themselves() -> None:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Add", ["b", "p"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "frames", 48])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "frames", 40])],
        [numpy_helper.from_array(WEIGHT, "w"), numpy_helper.from_array(BIAS, "b")],
    )
    plain = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    narrow = quantise_products(plain, single_rows=True)
    assert [node.op_type for node in narrow.graph.node] == ["DynamicQuantizeLinear", "MatMulIntegerToFloat"]
    session = onnxruntime.InferenceSession(narrow.SerializeToString())
    assert [value.shape for value in session.get_inputs()] == [[1, "frames", 48]]
    x = X[None] * np.float32([1, 30, 1, 0.1, 1])[None, :, None]
    [found] = session.run(None, {"x": x})
    levels, scale = quantise_columns(WEIGHT)
    step = (max(x.max(), 0) - min(x.min(), 0)) / 255
    bound = step / 2 * np.abs(levels * scale).sum(axis=0) + np.abs(x[0]).sum(axis=1, keepdims=True) * scale / 2
    assert np.all(np.abs(found[0] - (x[0] @ WEIGHT + BIAS)) <= bound * 1.001 + 1e-4)
    with pytest.raises(Exception, match="Expected: 1"):
        session.run(None, {"x": np.concatenate([x, x])})


def test_weights_that_are_turned_round_or_also_part_of_a_bias_are_int8_alone() -> None:
    graph = helper.make_graph(
        [
            helper.make_node("Transpose", ["w"], ["turned"], perm=[1, 0]),
            helper.make_node("ReduceSum", ["w", "axis"], ["sum"], keepdims=0),
            helper.make_node("Sub", ["b", "sum"], ["bias"]),
            helper.make_node("MatMul", ["x", "turned"], ["p"]),
            helper.make_node("Add", ["p", "bias"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 48])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 40])],
        [
            numpy_helper.from_array(np.ascontiguousarray(WEIGHT.T), "w"),
            numpy_helper.from_array(BIAS, "b"),
            numpy_helper.from_array(np.array([1], np.int64), "axis"),
        ],
    )
    narrow = quantise_products(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9))
    assert not [each for each in narrow.graph.initializer if each.data_type == TensorProto.FLOAT and len(each.dims) > 1]
    [found] = onnxruntime.InferenceSession(narrow.SerializeToString()).run(None, {"x": X})
    np.testing.assert_allclose(found, X @ WEIGHT + BIAS - WEIGHT.sum(axis=0), atol=0.5)
