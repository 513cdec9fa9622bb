"""`convert_onnx`: what comes out computes what went in, in another form."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import graphs
from tritone.errors import ExportError, InputError
from tritone.families.convert.calls import InputFiles
from tritone.families.convert.convert import convert_onnx
from tritone.runtime.shapes import Shapes


def run(path: Path, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return np.asarray(onnxruntime.InferenceSession(path, options).run(None, dict(inputs))[0])


def tokens(rows: int = 2, length: int = 7) -> dict[str, np.ndarray]:
    ids = np.random.default_rng(3).integers(0, graphs.IDS, (rows, length))
    mask = np.ones_like(ids)
    mask[0, length // 2 :] = 0
    return {"input_ids": ids, "attention_mask": mask}


def operators(path: Path) -> set[str]:
    return {node.op_type for node in onnx.load(path).graph.node}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return graphs.classifier(tmp_path / "classifier.onnx")


def pictures(path: Path) -> Path:
    """A calibration set of 8 images."""
    np.savez(path, image=np.random.default_rng(4).uniform(-1, 1, (8, 1, 3, 16, 16)).astype(np.float32))
    return path


def test_fp16_computes_in_half_and_keeps_float32_at_its_ends(source: Path, tmp_path: Path) -> None:
    done = convert_onnx(source, tmp_path / "half.onnx", target="fp16")
    graph = onnx.load(done.path).graph
    assert {tensor.data_type for tensor in graph.initializer if tensor.name in ("wide", "out")} == {TensorProto.FLOAT16}
    assert graph.output[0].type.tensor_type.elem_type == TensorProto.FLOAT
    change = np.abs(run(done.path, tokens()) - run(source, tokens())).max()
    assert 0 < change < 0.01
    assert done.num_bytes < 0.75 * done.num_bytes_before
    assert done.drift[0].largest < 0.01


def test_fp16_takes_half_inputs_if_asked_and_leaves_what_is_kept(tmp_path: Path) -> None:
    source = graphs.scaled(tmp_path / "scaled.onnx", 2.0)
    done = convert_onnx(source, tmp_path / "half.onnx", target="fp16", narrow_io=True)
    x = np.ones((1, 2), np.float16)
    assert run(done.path, {"x": x}).dtype == np.float16


def test_numbers_that_do_not_fit_into_fp16_are_found_on_real_inputs_and_kept_in_float32(tmp_path: Path) -> None:
    source = graphs.scaled(tmp_path / "scaled.onnx", 1e-5, 1.0)
    np.savez(tmp_path / "x.npz", x=np.full((1, 3), 1e5, np.float32))  # float16 ends at 65504
    files = InputFiles(paths=[tmp_path / "x.npz"])
    with pytest.raises(ExportError, match=r"output y .* not finite after the conversion.*--keep-fp32"):
        convert_onnx(source, tmp_path / "half.onnx", target="fp16", inputs=files)
    assert not (tmp_path / "half.onnx").exists()
    done = convert_onnx(source, tmp_path / "half.onnx", target="fp16", inputs=files, keep=["mul"])
    np.testing.assert_allclose(run(done.path, {"x": np.full((1, 3), 1e5, np.float32)}), 2, atol=1e-2)


def test_int8_weights_are_a_quarter_and_compute_in_float32(source: Path, tmp_path: Path) -> None:
    done = convert_onnx(source, tmp_path / "small.onnx", target="int8-weights")
    assert TensorProto.INT8 in {tensor.data_type for tensor in onnx.load(done.path).graph.initializer}
    assert np.abs(run(done.path, tokens()) - run(source, tokens())).max() < 0.05


def test_dynamic_int8_multiplies_in_int8_and_keeps_rows_apart(source: Path, tmp_path: Path) -> None:
    done = convert_onnx(source, tmp_path / "dynamic.onnx", target="int8-dynamic", keep=["second"])
    assert "MatMulIntegerToFloat" in operators(done.path)
    assert "Gemm" in operators(done.path)
    assert (done.opset_before, done.opset) == (17, 18)
    together, alone = run(done.path, tokens()), run(done.path, {k: v[1:] for k, v in tokens().items()})
    # The float32 product at the end may round otherwise for another number of rows (onnxruntime up to 1.26, some CPUs);
    # a scale that rows share would change the third digit.
    np.testing.assert_allclose(together[1:], alone, rtol=1e-5, atol=1e-6)
    assert np.abs(together - run(source, tokens())).max() < 0.1


@pytest.mark.parametrize("symmetric", [False, True])
def test_static_int8_has_ranges_of_the_calibration_set(symmetric: bool, tmp_path: Path) -> None:
    source = graphs.images(tmp_path / "images.onnx")
    files = InputFiles(paths=[pictures(tmp_path / "set.npz")])
    done = convert_onnx(source, tmp_path / "static.onnx", target="int8-static", calibration=files, symmetric=symmetric)
    assert {"QuantizeLinear", "DequantizeLinear"} <= operators(done.path)
    levels = {tensor.data_type for tensor in onnx.load(done.path).graph.initializer}
    assert (TensorProto.UINT8 in levels) is not symmetric
    assert done.calls == 8
    assert done.drift[0].cosine > 0.99, "judged by the calibration set"


@pytest.mark.parametrize("opset", [13, 15, 21])
def test_opsets_up_and_down_change_nothing(opset: int, source: Path, tmp_path: Path) -> None:
    """LayerNormalization came with 17, and onnx has no step for Relu from 14 to 13."""
    done = convert_onnx(source, tmp_path / "other.onnx", opset=opset)
    assert onnx.load(done.path).opset_import[0].version == opset
    assert ("LayerNormalization" in operators(done.path)) is (opset >= 17)
    np.testing.assert_allclose(run(done.path, tokens()), run(source, tokens()), atol=1e-5)


def test_an_opset_that_an_operator_cannot_be_written_in_is_refused(tmp_path: Path) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    source = graphs.save(tmp_path / "gelu.onnx", [helper.make_node("Mish", ["x"], ["y"])], [x], [y], {}, 18)
    assert convert_onnx(source, tmp_path / "ok.onnx", opset=17).opset == 17  # defined by Softplus and Tanh
    norms = [helper.make_node("LpPool", ["x"], ["y"], kernel_shape=[2], dilations=[2])]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 1, None]) for name in "xy")
    source = graphs.save(tmp_path / "pool.onnx", norms, [x], [y], {}, 18)
    with pytest.raises(ExportError, match=r"in opset 18 and cannot be written in 17.*LpPool.*opset_version=17"):
        convert_onnx(source, tmp_path / "no.onnx", opset=17)


def test_shapes_are_fixed_from_the_inputs_to_the_outputs(source: Path, tmp_path: Path) -> None:
    done = convert_onnx(source, tmp_path / "fixed.onnx", shapes=Shapes.parse("4x16"))
    graph = onnx.load(done.path).graph
    shapes = [[axis.dim_value for axis in value.type.tensor_type.shape.dim] for value in (*graph.input, *graph.output)]
    assert shapes == [[4, 16], [4, 16], [4, graphs.CLASSES]]
    np.testing.assert_allclose(run(done.path, tokens(4, 16)), run(source, tokens(4, 16)), atol=1e-6)
    with pytest.raises(ValueError, match="axis length is 16 and 8"):
        convert_onnx(source, tmp_path / "no.onnx", shapes=Shapes.parse("input_ids:4x16,attention_mask:4x8"))


def test_all_at_once(source: Path, tmp_path: Path) -> None:
    done = convert_onnx(source, tmp_path / "x.onnx", target="fp16", opset=15, shapes=Shapes.parse("2x7"))
    assert done.opset == 15
    assert np.abs(run(done.path, tokens()) - run(source, tokens())).max() < 0.01


def test_a_graph_that_lists_its_weights_as_inputs_gets_no_new_inputs(tmp_path: Path) -> None:
    source = graphs.classifier(tmp_path / "old.onnx")
    model = onnx.load(source)
    model.graph.input.append(helper.make_tensor_value_info("wide", TensorProto.FLOAT, [32, 64]))
    onnx.save(model, source)
    done = convert_onnx(source, tmp_path / "new.onnx", target="int8-weights")
    assert [value.name for value in onnx.load(done.path).graph.input] == ["input_ids", "attention_mask"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "nothing to convert"),
        ({"target": "fp8"}, "'fp8' is not fp16"),
        ({"target": "int8-static"}, "needs a calibration set"),
        ({"target": "fp16", "calibration": InputFiles(paths=[])}, "a calibration set is for int8-static"),
        ({"target": "fp16", "symmetric": True}, "symmetric is for int8-static"),
        ({"target": "int8-weights", "keep": ["MatMul"]}, "keep is for fp16"),
        ({"target": "fp16", "keep": ["Conv"]}, "no operators or nodes called Conv; its operators are Add, Mul"),
        ({"opset": 4}, "opset is 7 to"),
        ({"target": "int8-weights"}, "no float32 weights"),
        ({"target": "int8-dynamic"}, "no product"),
    ],
)
def test_what_makes_no_sense_is_refused_and_writes_nothing(
    options: dict[str, object], why: str, tmp_path: Path
) -> None:
    source = graphs.scaled(tmp_path / "scaled.onnx", 2.0)
    with pytest.raises(ValueError, match=why):
        convert_onnx(source, tmp_path / "out.onnx", **options)  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == ["scaled.onnx"]


def test_what_is_no_graph_or_takes_other_files_is_refused(source: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"no graph")
    with pytest.raises(ExportError, match="not an ONNX graph"):
        convert_onnx(tmp_path / "bad.onnx", tmp_path / "out.onnx", target="fp16")
    np.savez(tmp_path / "x.npz", other=np.zeros(1))
    files = InputFiles(paths=[tmp_path / "x.npz"])
    with pytest.raises(InputError, match=r"x\.npz lacks attention_mask, input_ids; it has other"):
        convert_onnx(source, tmp_path / "out.onnx", target="fp16", inputs=files)
    assert not list(tmp_path.glob("*out*"))


def test_a_graph_that_takes_no_made_inputs_is_told_in_one_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    weights = onnx.numpy_helper.from_array(np.ones((7, 3), np.float32), "weights")  # of 7 and no other size
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [None, None]) for name in "xy")
    node = onnx.helper.make_node("MatMul", ["x", "weights"], ["y"])
    graph = onnx.helper.make_graph([node], "seven", [x], [y], [weights])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "seven.onnx")
    with pytest.raises(ExportError, match="give real ones with --inputs"):
        convert_onnx(tmp_path / "seven.onnx", tmp_path / "out.onnx", target="fp16")
    assert capfd.readouterr().err == ""


def test_weights_in_constant_nodes_are_weights(source: Path, tmp_path: Path) -> None:
    """As paddle2onnx writes them: int8 and fp16 of them are those of initializers."""
    model = onnx.load(source)
    for tensor in model.graph.initializer:
        model.graph.node.insert(0, helper.make_node("Constant", [], [tensor.name], value=tensor))
    del model.graph.initializer[:]
    onnx.save(model, tmp_path / "constants.onnx")
    for target in ("fp16", "int8-weights", "int8-dynamic"):
        done = convert_onnx(tmp_path / "constants.onnx", tmp_path / "constants.small.onnx", target=target)
        usual = convert_onnx(source, tmp_path / "usual.onnx", target=target)
        assert np.array_equal(run(done.path, tokens()), run(usual.path, tokens())), target
        assert done.num_bytes == pytest.approx(usual.num_bytes, rel=0.02)


@pytest.mark.parametrize(("factor", "value"), [(1e5, 1e-3), (1e-9, 1e4)])
def test_a_weight_that_fp16_cannot_hold_stays_in_float32(tmp_path: Path, factor: float, value: float) -> None:
    source = graphs.scaled(tmp_path / "scaled.onnx", factor)
    call = {"x": np.full((2, 4), value, np.float32)}
    np.savez(tmp_path / "x.npz", **call)
    files = InputFiles(paths=[tmp_path / "x.npz"])
    done = convert_onnx(source, tmp_path / "half.onnx", target="fp16", inputs=files)
    np.testing.assert_allclose(run(done.path, call), run(source, call), rtol=2e-3)  # the product is rounded


def test_a_number_that_stands_for_infinity_becomes_the_largest_of_fp16(tmp_path: Path) -> None:
    source = graphs.scaled(tmp_path / "scaled.onnx", 1.0, -1e9)
    done = convert_onnx(source, tmp_path / "half.onnx", target="fp16")
    assert np.array_equal(run(done.path, {"x": np.zeros((2, 4), np.float32)}), np.full((2, 4), -65504, np.float32))


@pytest.mark.parametrize("target", ["fp16", "opset"])
def test_operators_of_scikit_learn_are_left_alone(tmp_path: Path, target: str) -> None:
    nodes = [
        helper.make_node("Scaler", ["x"], ["y"], domain="ai.onnx.ml", offset=[1.0] * 4, scale=[2.0] * 4),
        helper.make_node("Relu", ["y"], ["z"]),
    ]
    value = helper.make_tensor_value_info
    ends = [value("x", TensorProto.FLOAT, ["n", 4])], [value("z", TensorProto.FLOAT, ["n", 4])]
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(helper.make_graph(nodes, "scaler", *ends), opset_imports=imports, ir_version=8)
    onnx.save(model, tmp_path / "scaler.onnx")
    how = {"target": "fp16"} if target == "fp16" else {"opset": 15}
    done = convert_onnx(tmp_path / "scaler.onnx", tmp_path / "out.onnx", **how)
    found = run(done.path, {"x": np.array([[0, 1, 2, 3]], np.float32)})
    assert np.array_equal(found, np.array([[0, 0, 2, 4]], np.float32))
    assert "Scaler" in operators(done.path)
