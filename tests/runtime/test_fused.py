"""Operators of this project's own in onnxruntime, in place of chains of its operators."""

import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from effort import examples
from tritone.errors import BundleError
from tritone.runtime.files.external_data import inspect
from tritone.runtime.onnx import fusing
from tritone.runtime.onnx.graph import OnnxGraph

pytestmark = pytest.mark.skipif(fusing.library() is None, reason=f"not fused here: {fusing.obstacle()}")
RNG = np.random.default_rng(5)


def number(name, value, dtype=np.float32):
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.array(value, dtype)))


def swoosh_nodes(x="x", out="y", *, slope=0.08, limit=20.0, one=1.0, clip="Clip", swapped=False, extra=""):
    def pair(a, b):
        return [b, a] if swapped else [a, b]

    clipped = helper.make_node("Clip", [x, "", f"{out}.limit"], [f"{out}.c"])
    if clip == "Min":
        clipped = helper.make_node("Min", pair(x, f"{out}.limit"), [f"{out}.c"])
    return [
        number(f"{out}.limit", limit),
        number(f"{out}.one", one),
        number(f"{out}.slope", slope),
        clipped,
        helper.make_node("Exp", [f"{out}.c"], [f"{out}.e"]),
        helper.make_node("Add", pair(f"{out}.e", f"{out}.one"), [f"{out}.a"]),
        helper.make_node("Log", [f"{out}.a"], [f"{out}.l"]),
        helper.make_node("Max", pair(x, f"{out}.l"), [f"{out}.m"]),
        helper.make_node("Mul", pair(x, f"{out}.slope"), [f"{out}.s"]),
        helper.make_node("Sub", [f"{out}.m", f"{out}.s"], [out]),
    ]


def saved(folder, nodes, *, weights=(), inputs=(("x", (None, None)),), outputs=("y",), beside=False):
    def values(names, shape):
        return [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in names]

    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in weights],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    path = folder / "graph.onnx"
    if beside:
        onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    else:
        onnx.save(model, path)
    return path


def fused_inputs(path):
    """The inputs of each fused operator of a graph, or nothing."""
    data = fusing.fused(inspect(path).model, path.parent, onnxruntime.SessionOptions())
    if data is None:
        return []
    graph = onnx.load_model_from_string(data).graph
    assert not {node.op_type for node in graph.node} & {"Log", "Exp"}
    return [list(node.input) for node in graph.node if node.domain == "tritone"]


def expected(x, slope=0.08):
    x = x.astype(np.float64)
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))) - slope * x


def test_swoosh_is_exact_over_the_whole_range(tmp_path):
    path = saved(tmp_path, swoosh_nodes())
    graph = OnnxGraph(path, threads=2)
    x = np.concatenate([np.linspace(-110, 110, 40_000), RNG.normal(0, 1, 24_001), [0, -0.0, 1e-38, -1e-38, 3e4, -3e4]])
    x = x.astype(np.float32)[None]
    (y,) = graph({"x": x}, ["y"])
    np.testing.assert_allclose(y, expected(x), rtol=2e-6, atol=2e-6)
    assert fused_inputs(path) == [["x"]]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_numbers_that_are_none_stay_so_and_leave_their_neighbours_alone(tmp_path, value):
    x = RNG.normal(size=(3, 70)).astype(np.float32)
    clean = x.copy()
    x[1, 33] = value
    graph = OnnxGraph(saved(tmp_path, swoosh_nodes()))
    (y,), (kept,) = graph({"x": x}, ["y"]), graph({"x": clean}, ["y"])
    assert np.isnan(y[1, 33])
    y[1, 33] = kept[1, 33]
    np.testing.assert_array_equal(y, kept)


@settings(max_examples=examples(40), deadline=None)
@given(
    rows=st.integers(0, 9),
    width=st.integers(1, 4100),
    frames=st.integers(0, 9),
    swapped=st.booleans(),
    clip=st.sampled_from(["Clip", "Min"]),
    beside=st.booleans(),
)
def test_a_bias_is_added_in_any_shape(tmp_path_factory, rows, width, frames, swapped, clip, beside):
    folder = tmp_path_factory.mktemp("fused")
    weight, bias = RNG.normal(size=(2, width)).astype(np.float32), RNG.normal(size=width).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Add", ["b", "p"] if swapped else ["p", "b"], ["biased"]),
        *swoosh_nodes("biased", swapped=swapped, clip=clip, slope=0.25),
    ]
    path = saved(folder, nodes, weights=[("w", weight), ("b", bias)], inputs=[("x", [None, None, 2])], beside=beside)
    assert fused_inputs(path) == [["p", "b"]]
    x = RNG.normal(size=(rows, frames, 2)).astype(np.float32)
    (y,) = OnnxGraph(path)({"x": x}, ["y"])
    assert y.shape == (rows, frames, width)
    np.testing.assert_allclose(y, expected(x @ weight + bias, 0.25), rtol=1e-5, atol=1e-5)


def test_a_weight_of_one_axis_leaves_the_bias_where_it_is(tmp_path):
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Add", ["p", "b"], ["biased"]),
        *swoosh_nodes("biased"),
    ]
    weight, bias = RNG.normal(size=3).astype(np.float32), RNG.normal(size=3).astype(np.float32)
    path = saved(tmp_path, nodes, weights=[("w", weight), ("b", bias)])
    assert fused_inputs(path) == [["biased"]]
    x = RNG.normal(size=(3, 3)).astype(np.float32)
    (y,) = OnnxGraph(path)({"x": x}, ["y"])
    np.testing.assert_allclose(y, expected(x @ weight + bias), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize(
    ("beta", "length", "inputs"),
    [(1.0, 5, ["p", "b"]), (None, 5, ["p", "b"]), (0.5, 5, ["p"]), (1.0, 1, ["p"])],
    ids=["beta 1", "no beta", "another beta", "one number for all"],
)
def test_the_bias_of_a_gemm_is_added(tmp_path, transposed, beta, length, inputs):
    weight, bias = RNG.normal(size=(5, 5)).astype(np.float32), RNG.normal(size=length).astype(np.float32)
    more = {} if beta is None else {"beta": beta}
    nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["p"], transB=transposed, **more), *swoosh_nodes("p")]
    path = saved(tmp_path, nodes, weights=[("w", weight), ("b", bias)])
    assert fused_inputs(path) == [inputs]
    x = RNG.normal(size=(7, 5)).astype(np.float32)
    (y,) = OnnxGraph(path)({"x": x}, ["y"])
    product = x @ (weight.T if transposed else weight) + (1.0 if beta is None else beta) * bias
    np.testing.assert_allclose(y, expected(product), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("gemm", [False, True])
def test_what_others_use_is_still_made(tmp_path, gemm):
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Add", ["p", "b"], ["biased"]),
        *swoosh_nodes("biased"),
        helper.make_node("Neg", ["biased"], ["z"]),
    ]
    if gemm:
        nodes[:2] = [helper.make_node("Gemm", ["x", "w", "b"], ["biased"])]
    weights = [("w", np.eye(3, dtype=np.float32)), ("b", np.ones(3, np.float32))]
    path = saved(tmp_path, nodes, weights=weights, outputs=["y", "z"])
    assert fused_inputs(path) == [["biased"]]
    x = RNG.normal(size=(2, 3)).astype(np.float32)
    y, z = OnnxGraph(path)({"x": x}, ["y", "z"])
    np.testing.assert_allclose(z, -(x + 1), rtol=1e-6)
    np.testing.assert_allclose(y, expected(x + 1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "nodes",
    [
        swoosh_nodes(limit=3.0),
        swoosh_nodes(one=2.0),
        [*swoosh_nodes(), helper.make_node("Neg", ["y.l"], ["z"])],
        [*swoosh_nodes(), helper.make_node("Neg", ["y.m"], ["z"])],
        [*swoosh_nodes()[:-1], helper.make_node("Sub", ["y.s", "y.m"], ["y"])],
        [*swoosh_nodes()[:-2], helper.make_node("Mul", ["x", "x"], ["y.s"]), swoosh_nodes()[-1]],
    ],
    ids=["clipped low", "another constant", "logarithm used", "soft plus used", "other way round", "no slope"],
)
def test_what_is_no_swoosh_stays_as_it_is(tmp_path, nodes):
    path = saved(tmp_path, nodes)
    assert fused_inputs(path) == []
    x = RNG.normal(0, 5, size=(2, 40)).astype(np.float32)
    (y,) = OnnxGraph(path)({"x": x}, ["y"])
    (plain,) = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(["y"], {"x": x})
    np.testing.assert_array_equal(y, plain)


def test_a_node_without_an_operator_is_an_error_of_the_bundle(tmp_path):
    nodes = swoosh_nodes()
    next(node for node in nodes if node.op_type == "Clip").ClearField("op_type")
    with pytest.raises(BundleError, match="cannot open"):
        OnnxGraph(saved(tmp_path, nodes))


def test_a_graph_inside_of_a_node_keeps_what_it_takes(tmp_path):
    branch = helper.make_graph(
        [helper.make_node("Neg", ["y.l"], ["inner"])], "b", [], [helper.make_tensor_value_info("inner", 1, None)]
    )
    condition = helper.make_node("Constant", [], ["yes"], value=numpy_helper.from_array(np.array(True)))
    choice = helper.make_node("If", ["yes"], ["z"], then_branch=branch, else_branch=branch)
    path = saved(tmp_path, [*swoosh_nodes(), condition, choice], outputs=["y", "z"])
    assert fused_inputs(path) == []
    OnnxGraph(path)({"x": np.zeros((1, 2), np.float32)}, ["y", "z"])


def test_calls_at_once_and_threads_change_nothing(tmp_path):
    path = saved(tmp_path, swoosh_nodes())
    x = RNG.normal(size=(40, 3001)).astype(np.float32)
    alone = OnnxGraph(path, threads=1)({"x": x}, ["y"])[0]
    graph = OnnxGraph(path, threads=3)
    with ThreadPoolExecutor(4) as pool:
        for (found,) in pool.map(lambda _: graph({"x": x}, ["y"]), range(8)):
            np.testing.assert_array_equal(found, alone)


def test_the_file_is_not_changed_and_runs_without_ours(tmp_path, monkeypatch):
    path = saved(tmp_path, swoosh_nodes())
    before = path.read_bytes()
    x = RNG.normal(size=(2, 5)).astype(np.float32)
    ours = OnnxGraph(path)({"x": x}, ["y"])[0]
    monkeypatch.setattr(fusing, "library", lambda: None)
    plain = OnnxGraph(Path(path))({"x": x}, ["y"])[0]
    np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-6)
    assert path.read_bytes() == before
