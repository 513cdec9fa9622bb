"""Attention as one operator of onnxruntime, in place of the operators of the standard that it is written with."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from effort import examples
from tritone.families.onnx.builder import Builder
from tritone.runtime.files.external_data import inspect
from tritone.runtime.onnx import fusing
from tritone.runtime.onnx.graph import OnnxGraph

RNG = np.random.default_rng(3)


def written(path: Path, heads: int, width: int, *, scale: float | None = 0.3, axis: int = -1, shown: str = "") -> Path:
    """Attention of x's own projections; `shown` is also an output, and without a scale queries come scaled."""
    b = Builder(18)
    apart = [0, 0, heads, width]

    def split(name: str, perm: list[int]) -> str:
        return b.op("Transpose", b.op("Reshape", name, b.constant(apart)), perm=perm)

    keys = split("k", [0, 2, 3, 1])
    queries = split("q", [0, 2, 1, 3])
    scaled = queries if scale is None else b.op("Mul", queries, b.real(scale))
    scores = b.op("MatMul", scaled, keys, output="scores")
    weights = b.op("Softmax", scores, axis=axis, output="weights")
    mixed = b.op("Transpose", b.op("MatMul", weights, split("v", [0, 2, 1, 3])), perm=[0, 2, 1, 3])
    b.op("Reshape", mixed, b.constant([0, 0, heads * width]), output="y")
    outputs = {"y": (TensorProto.FLOAT, ["batch", "length", heads * width])}
    if shown:
        outputs[shown] = (TensorProto.FLOAT, ["batch", heads, "length", "positions"])
    inputs = {name: (TensorProto.FLOAT, ["batch", size, heads * width]) for name, size in
              (("q", "length"), ("k", "positions"), ("v", "positions"))}  # fmt: skip
    path.write_bytes(b.model(inputs, outputs, {}).SerializeToString())
    return path


def operators(path: Path) -> set[str]:
    data = fusing.fused(inspect(path).model, path.parent, onnxruntime.SessionOptions())
    return set() if data is None else {node.op_type for node in onnx.load_model_from_string(data).graph.node}


@settings(max_examples=examples(25), deadline=None)
@given(
    heads=st.integers(1, 5),
    width=st.integers(1, 9).map(lambda each: 8 * each),
    batch=st.integers(1, 3),
    length=st.integers(1, 40),
    positions=st.integers(1, 90),
    scale=st.sampled_from([None, 0.3]),
)
def test_it_is_what_the_operators_of_the_file_give(
    tmp_path_factory: pytest.TempPathFactory,
    heads: int,
    width: int,
    batch: int,
    length: int,
    positions: int,
    scale: float | None,
) -> None:
    path = written(tmp_path_factory.mktemp("attention") / "graph.onnx", heads, width, scale=scale)
    sizes = {"q": length, "k": positions, "v": positions}
    inputs = {name: RNG.normal(size=(batch, size, heads * width)).astype(np.float32) for name, size in sizes.items()}
    [found] = OnnxGraph(path, threads=2)(inputs, ["y"])
    plain = onnxruntime.InferenceSession(path.as_posix(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(found, plain.run(["y"], inputs)[0], atol=2e-5)
    assert operators(path) == {"MultiHeadAttention"}


@pytest.mark.parametrize("kept", [{"axis": 2}, {"shown": "scores"}, {"shown": "weights"}])
def test_what_is_no_such_chain_or_is_read_elsewhere_stays(tmp_path: Path, kept: dict[str, object]) -> None:
    path = written(tmp_path / "graph.onnx", 2, 8, **kept)  # type: ignore[arg-type]
    assert operators(path) == set()
    x = RNG.normal(size=(1, 5, 16)).astype(np.float32)
    assert np.isfinite(OnnxGraph(path)({"q": x, "k": x, "v": x}, ["y"])[0]).all()
