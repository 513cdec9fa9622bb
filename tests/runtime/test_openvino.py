"""Graphs of onnxruntime on OpenVINO: the same results, and errors where it cannot run them."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import toy
from tritone import load
from tritone.bundle import Bundle
from tritone.corpus.clips import read_clips
from tritone.errors import BundleError, OperatorError
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.offline import OfflinePipeline
from tritone.pipelines.streaming import Step, StreamingPipeline
from tritone.runtime import open_graph
from tritone.runtime.known import graphs_of, runtimes

pytest.importorskip("openvino")

OUTPUTS = ["num_frames", "log_probs", "encoder_out"]
PLACE = Placement(threads=2, runtime="openvino")


def feed(rows: int, samples: int) -> dict[str, np.ndarray]:
    waveform = np.random.default_rng(rows).uniform(-0.5, 0.5, (rows, samples)).astype(np.float32)
    return {"waveform": waveform, "num_samples": np.arange(samples, samples - rows, -1)}


def test_a_graph_gives_what_it_gives_on_onnxruntime(toy_bundle: Path) -> None:
    path = toy_bundle / "encoder.onnx"
    graph, other = open_graph(path, threads=2, runtime="openvino"), open_graph(path, threads=2)
    assert (graph.inputs, graph.outputs) == (other.inputs, other.outputs)
    assert type(graph) is not type(other)
    inputs = [feed(rows, samples) for rows, samples in ((1, 9000), (3, 20000), (2, 9000), (5, 12345))]
    with ThreadPoolExecutor(4) as pool:  # many at once, whose results do not mix
        found = list(pool.map(lambda each: graph(each, OUTPUTS), inputs * 5))
    graph.give_back(inputs[0])
    found.append(graph(inputs[0], OUTPUTS))
    for outputs, each in zip(found, [*inputs * 5, inputs[0]], strict=True):
        for array, expected in zip(outputs, other(each, OUTPUTS), strict=True):
            assert array.dtype == expected.dtype
            np.testing.assert_allclose(array, expected, atol=1e-4)


@pytest.mark.slow
def test_texts_of_a_trained_model_are_the_same() -> None:
    paths = [clip.path for clip in read_clips()]
    expected, found = (load("demo-asr", runtime=runtime).transcribe(paths) for runtime in ("onnxruntime", "openvino"))
    assert [each.text for each in found] == [each.text for each in expected]
    assert all(each.text for each in found)


def test_streams_have_their_states(toy_bundle_of_both: Path) -> None:
    pipeline = StreamingPipeline(Bundle.open(toy_bundle_of_both), placement=PLACE)
    slots = [pipeline.open() for _ in range(3)]
    texts = ["hello", "again and again", "x"]
    waves = [toy.toy_waveform(text) for text in texts]
    said = [""] * 3
    for begin in range(0, max(map(len, waves)), 4000):
        steps = [
            Step(slot, wave[begin : begin + 4000], begin + 4000 >= max(map(len, waves)))
            for slot, wave in zip(slots, waves, strict=True)
        ]
        said = [each.text for each in pipeline.advance(steps)]
    assert said == texts


def test_runtimes_that_must_be_named_run_the_graphs_of_another() -> None:
    named = {name: each for name, each in runtimes().items() if each.named}
    assert {name: graphs_of(name) for name in named} == {"openvino": "onnxruntime"}
    assert all(runtimes()[graphs_of(name) or ""].suffix == each.suffix for name, each in named.items())


def test_it_runs_where_it_is_named_and_on_the_cpu_alone(toy_bundle: Path) -> None:
    bundle = Bundle.open(toy_bundle)
    assert OfflinePipeline(bundle, placement=PLACE).recognize([toy.toy_waveform("hello")])[0].text == "hello"
    assert type(OfflinePipeline(bundle).runner.graph).__name__ == "OnnxGraph"
    with pytest.raises(OperatorError, match="OpenVINO runs graphs on the CPU alone"):
        OfflinePipeline(bundle, placement=Placement(device="cuda", runtime="openvino"))


def model(path: Path, *nodes: onnx.NodeProto, kind: int = TensorProto.FLOAT) -> Path:
    ends = [helper.make_tensor_value_info(name, kind, ["n"]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


def test_what_it_cannot_run_is_refused_with_what_can(tmp_path: Path) -> None:
    foreign = model(tmp_path / "foreign.onnx", helper.make_node("NoSuchThing", ["x"], ["y"], domain="com.microsoft"))
    with pytest.raises(BundleError, match=r"OpenVINO .* cannot run .*foreign.onnx.* Run it with runtime onnxruntime"):
        open_graph(foreign, runtime="openvino")
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["d"]), helper.make_node("Identity", ["v"], ["w"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", TensorProto.FLOAT, ["n"]),
        ],
        [
            helper.make_tensor_value_info("d", TensorProto.BOOL, []),
            helper.make_tensor_value_info("w", TensorProto.FLOAT, ["n"]),
        ],
    )
    loop = model(
        tmp_path / "loop.onnx",
        helper.make_node("Constant", [], ["true"], value=helper.make_tensor("t", TensorProto.BOOL, [], [True])),
        helper.make_node("Loop", ["", "true", "x"], ["y"], body=body),
    )
    with pytest.raises(BundleError, match="has loops"):
        open_graph(loop, runtime="openvino")
