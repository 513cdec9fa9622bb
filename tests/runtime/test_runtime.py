"""Opening and running graphs."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import toy
from tritone.errors import BundleError, OperatorError
from tritone.runtime import TensorSpec, open_graph
from tritone.runtime.files.external_data import locations, parsed


def test_a_graph_knows_its_tensors_and_runs(toy_bundle: Path) -> None:
    graph = open_graph(toy_bundle / "encoder.onnx", threads=1)
    assert graph.inputs == {
        "waveform": TensorSpec(np.dtype(np.float32), (None, None)),
        "num_samples": TensorSpec(np.dtype(np.int64), (None,)),
    }
    assert graph.outputs["log_probs"] == TensorSpec(np.dtype(np.float32), (None, None, len(toy.TOKENS)))
    waveform = toy.frames_waveform([3, 4])[None]
    inputs = {"waveform": waveform, "num_samples": np.array([waveform.size])}
    num_frames, log_probs = graph(inputs, ["num_frames", "log_probs"])
    assert num_frames.tolist() == [2]
    assert log_probs.argmax(axis=2).tolist() == [[3, 4]]


def test_cuda_without_support_is_an_error_and_never_the_cpu(toy_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    for device in ("cuda", "cuda:1"):
        with pytest.raises(OperatorError, match=rf"device {device} was asked for.*pip install onnxruntime-gpu"):
            open_graph(toy_bundle / "encoder.onnx", device)


@pytest.mark.skipif(
    "CUDAExecutionProvider" in onnxruntime.get_available_providers(), reason="this onnxruntime really has CUDA"
)
def test_cuda_that_does_not_start_is_an_error_too(
    toy_bundle: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    providers = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: providers)
    with pytest.raises(OperatorError, match="could not start it on cuda"):
        open_graph(toy_bundle / "encoder.onnx", "cuda")
    recwarn.clear()  # onnxruntime warns about the unknown provider; ours is the error


def test_float32_is_not_rounded_to_tf32_on_a_gpu(toy_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    def session(*_: Any, providers: list[Any], **__: Any) -> None:
        given.extend(providers)
        raise RuntimeError("no GPU here")

    providers = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: providers)
    monkeypatch.setattr(onnxruntime, "InferenceSession", session)
    with pytest.raises(BundleError, match="no GPU here"):
        open_graph(toy_bundle / "encoder.onnx", "cuda:1")
    (name, options), other = given
    assert (name, other) == ("CUDAExecutionProvider", "CPUExecutionProvider")
    assert options["use_tf32"] == "0"
    assert options["device_id"] == "1"


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "CPU", ""])
def test_an_unknown_device_is_refused(toy_bundle: Path, device: str) -> None:
    with pytest.raises(ValueError, match="device must be cpu, cuda or cuda:<index>"):
        open_graph(toy_bundle / "encoder.onnx", device)


def test_no_threads_are_refused(toy_bundle: Path) -> None:
    with pytest.raises(ValueError, match="threads must be at least 1, got 0"):
        open_graph(toy_bundle / "encoder.onnx", threads=0)


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "encoder.onnx").write_bytes(b"this is not a graph")
    with pytest.raises(BundleError, match=r"cannot open .*encoder\.onnx"):
        open_graph(tmp_path / "encoder.onnx")
    with pytest.raises(
        ValueError, match=r"graphs are files \.onnx, \.pt2, \.ts, \.plan, \.py, of the runtimes that are here; got"
    ):
        open_graph(tmp_path / "encoder.pt")


@pytest.mark.parametrize("absolute", [False, True])
def test_weights_outside_of_the_folder_are_not_read(tmp_path: Path, absolute: bool) -> None:
    (tmp_path / "secret.bin").write_bytes(bytes(4))
    (tmp_path / "bundle").mkdir()
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1], data_location=TensorProto.EXTERNAL)
    location = str(tmp_path / "secret.bin") if absolute else "../secret.bin"
    for key, value in (("location", location), ("offset", "0"), ("length", "4")):
        weight.external_data.add(key=key, value=value)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [x], [y], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (tmp_path / "bundle" / "g.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(BundleError, match=r"cannot open .*takes weights from .*secret\.bin"):
        open_graph(tmp_path / "bundle" / "g.onnx")


def test_weights_of_constants_in_branches_are_looked_at_too(tmp_path: Path) -> None:
    hidden = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1], data_location=TensorProto.EXTERNAL)
    hidden.external_data.add(key="location", value="/etc/hostname")
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    constant = helper.make_node("Constant", [], ["y"], value=hidden)
    branch = helper.make_graph([constant], "branch", [], [y])
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    choice = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    graph = helper.make_graph([choice], "g", [condition], [y])
    (tmp_path / "g.onnx").write_bytes(helper.make_model(graph).SerializeToString())
    assert locations(parsed(tmp_path / "g.onnx")) == {"/etc/hostname"}
    with pytest.raises(BundleError, match="takes weights from '/etc/hostname'"):
        open_graph(tmp_path / "g.onnx")


def looping(path: Path) -> None:
    """A graph that adds 1 to `x` as often as `n` says."""
    kinds = {"n": TensorProto.INT64, "i": TensorProto.INT64, "c": TensorProto.BOOL, "c2": TensorProto.BOOL}

    def info(name: str) -> Any:
        return helper.make_tensor_value_info(name, kinds.get(name, TensorProto.FLOAT), [])

    one = helper.make_tensor("one", TensorProto.FLOAT, [], [1.0])
    always = helper.make_tensor("always", TensorProto.BOOL, [], [True])
    steps = [helper.make_node("Identity", ["c"], ["c2"]), helper.make_node("Add", ["v", "one"], ["v2"])]
    body = helper.make_graph(steps, "body", [info("i"), info("c"), info("v")], [info("c2"), info("v2")], [one])
    loop = helper.make_node("Loop", ["n", "always", "x"], ["y"], body=body)
    graph = helper.make_graph([loop], "g", [info("x"), info("n")], [info("y")], [always])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())


def test_a_loop_without_end_is_stopped_and_others_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looping(tmp_path / "g.onnx")
    graph = open_graph(tmp_path / "g.onnx")
    x = np.array(2, np.float32)
    assert graph({"x": x, "n": np.array(3)}, ["y"]) == [5.0]
    monkeypatch.setattr("tritone.runtime.onnx.graph.LOOP_LIMIT_S", 0.2)
    with pytest.raises(BundleError, match="has a loop that did not end within 0 s"):
        graph({"x": x, "n": np.array(2**62)}, ["y"])
    assert graph({"x": x, "n": np.array(4)}, ["y"]) == [6.0]


@pytest.mark.parametrize("storage", [np.int8, np.float16])
def test_narrow_weights_are_widened_once_when_the_graph_is_opened(
    tmp_path: Path, storage: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The optimised graph, as onnxruntime writes it, holds the product and no Cast or Mul of the weight."""
    narrow = np.array([[1, -2], [3, 4]]).astype(storage)
    nodes = [
        helper.make_node("Cast", ["narrow"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["wide", "scale"], ["weight"]),
        helper.make_node("MatMul", ["x", "weight"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 2])
    constants = [
        onnx.numpy_helper.from_array(narrow, "narrow"),
        onnx.numpy_helper.from_array(np.array([0.5, 2], np.float32), "scale"),
    ]
    graph = helper.make_graph(nodes, "g", [x], [y], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "g.onnx")
    written = tmp_path / "optimised.onnx"
    original = onnxruntime.SessionOptions

    def writing_options() -> onnxruntime.SessionOptions:
        options = original()
        options.optimized_model_filepath = str(written)
        return options

    monkeypatch.setattr(onnxruntime, "SessionOptions", writing_options)
    (result,) = open_graph(tmp_path / "g.onnx", threads=1)({"x": np.array([[1, 1]], np.float32)}, ["y"])
    np.testing.assert_array_equal(result, [[2, 4]])
    assert not {"Cast", "Mul"} & {node.op_type for node in onnx.load(written).graph.node}
