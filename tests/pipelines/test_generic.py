"""Generic models in process: arrays by name, batches, states, and what is refused."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tritone
from generic_models import onnx_model, running_sum, write_generic, write_running_sum, write_scaled
from tritone.bundle import Bundle
from tritone.bundle.manifest import Manifest
from tritone.errors import BundleError, InputError, StreamError
from tritone.families.generic.onnx import export_onnx
from tritone.kinds.generic.part import GenericInput, GenericOutput, GenericPart
from tritone.pipelines.compile import compile_bundle
from tritone.pipelines.generic.pipeline import Ask, GenericPipeline
from tritone.systems.spec import open_system

ROW = np.float32([[1, 2, 3]])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tritone.GenericModel:
    return tritone.load(write_scaled(tmp_path_factory.mktemp("scaled") / "bundle"), threads=1)


def test_a_model_takes_and_returns_arrays_by_name(model: tritone.GenericModel) -> None:
    assert model.infer({"x": [[1, 2, 3], [4, 5, 6]]})["y"].tolist() == [[3, 5, 7], [9, 11, 13]]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "input x is missing; the model takes x"),
        ({"x": ROW, "z": ROW}, "there is no input z; the model takes x"),
        ({"x": ROW[0]}, r"x has shape \[3\], FP32 \[rows, 3\] is needed"),
        ({"x": ROW[:, :2]}, r"x has shape \[1, 2\], FP32 \[rows, 3\] is needed"),
        ({"x": np.zeros((5, 3), np.float32)}, "a request has 1 to 4 rows, got 5"),
        ({"x": np.zeros((0, 3), np.float32)}, "a request has 1 to 4 rows, got 0"),
        ({"x": ROW.astype(complex)}, "x is of type complex128"),
        ({"x": np.array([["a", "b", "c"]])}, "x is of type <U1"),
    ],
)
def test_inputs_that_do_not_fit_are_refused_with_what_would(
    model: tritone.GenericModel, inputs: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        model.infer(inputs)


def test_an_unknown_output_is_refused(model: tritone.GenericModel) -> None:
    with pytest.raises(InputError, match="there is no output z; the model has y"):
        model.infer({"x": ROW}, ["z"])


@pytest.mark.parametrize("asked", [None, ["next", "sum"], ["sum", "next"], {"sum", "next"}, ["next", "next", "sum"]])
def test_outputs_come_in_the_order_of_the_models(tmp_path: Path, asked: list[str] | None) -> None:
    """Whatever order a request has them in: Triton asks for them in that of a hash table."""
    tensors = {name: GenericOutput(name=name, type="FP32", dims=(2,)) for name in ("sum", "next")}
    inputs = tuple(GenericInput(name=name, type="FP32", dims=(2,)) for name in ("x", "before"))
    for names in (("sum", "next"), ("next", "sum")):
        generic = GenericPart(inputs=inputs, outputs=tuple(tensors[name] for name in names), max_batch_size=4)
        model = tritone.load(write_generic(tmp_path / names[0], running_sum(), generic), threads=1)
        assert tuple(model.infer({"x": ROW[:, :2], "before": ROW[:, :2]}, asked)) == names


def test_requests_of_one_shape_share_a_call_and_a_bad_one_has_its_own_error(tmp_path: Path) -> None:
    pipeline = GenericPipeline(Bundle.open(write_scaled(tmp_path / "bundle")))
    results = pipeline.run([{"x": ROW}, {"x": ROW[:, :1]}, {"x": np.repeat(ROW, 2, 0)}, {"x": np.repeat(ROW, 2, 0)}])
    assert [len(each["y"]) if isinstance(each, dict) else type(each) for each in results] == [1, InputError, 2, 2]
    assert pipeline.work.take().calls == 2  # three rows, and two that would have been the fifth


def test_states_go_from_one_request_of_a_sequence_to_the_next(tmp_path: Path) -> None:
    bundle = write_running_sum(tmp_path / "bundle")
    found = tritone.load(bundle, threads=1).sequence([{"x": [[1, 10]]}, {"x": [[2, 20]]}, {"x": [[3, 30]]}])
    assert [each["sum"].tolist() for each in found] == [[[1, 10]], [[3, 30]], [[6, 60]]]
    pipeline = GenericPipeline(Bundle.open(bundle), max_sequences=2)
    x = {"x": np.float32([[1, 1]])}
    mixed = [Ask(None, 1, True), Ask(None, 2, True)]
    pipeline.run([x, x], mixed)
    (one, two, three) = pipeline.run([x, x, x], [Ask(None, 1), Ask(None, 2, end=True), Ask(None, 3)])
    assert one["sum"].tolist() == two["sum"].tolist() == [[2, 2]]
    assert isinstance(three, StreamError)
    (again,) = pipeline.run([x], [Ask(None, 2)])
    assert "sequence 2 is not open" in str(again)


def test_a_sequence_whose_first_request_failed_is_not_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = GenericPipeline(Bundle.open(write_running_sum(tmp_path / "bundle")))
    graph, x = pipeline._graph, {"x": np.float32([[1, 1]])}

    def fails(*_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(pipeline, "_graph", fails)
    (failed,) = pipeline.run([x], [Ask(None, 1, True)])
    assert "out of memory" in str(failed)
    monkeypatch.setattr(pipeline, "_graph", graph)
    (late,) = pipeline.run([x], [Ask(None, 1)])
    assert "sequence 1 is not open" in str(late)


def test_a_manifest_has_the_parts_of_speech_or_those_of_a_generic_model(tmp_path: Path) -> None:
    path = write_scaled(tmp_path / "bundle")
    content = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    assert {"generic", "serving"} < set(content)
    assert not {"sample_rate", "features", "encoder", "vocabulary"} & set(content)
    manifest = Bundle.open(path).manifest
    assert Manifest.model_validate_json(manifest.model_dump_json()) == manifest
    with pytest.raises(RuntimeError, match="a model of kind generic has no sample rate"):
        _ = manifest.sample_rate
    (path / "manifest.json").write_text(json.dumps(content | {"sample_rate": 16000}), encoding="utf-8")
    with pytest.raises(BundleError, match="kind is 'generic', which has no part `sample_rate`"):
        Bundle.open(path)


def test_a_generic_model_is_not_compiled_for_lengths_of_audio(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="is a generic model; only networks that take audio are compiled"):
        compile_bundle(Bundle.open(write_scaled(tmp_path / "bundle")))


def test_a_generic_model_writes_no_text(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"a generic model: .* writes no text\. Use it with tritone\.load"):
        open_system(str(write_scaled(tmp_path / "bundle")))


def test_a_bundle_of_speech_is_no_model_of_arrays(toy_bundle: Path) -> None:
    with pytest.raises(BundleError, match=r"it writes text and takes no arrays by name\. Load it with tritone\.load"):
        tritone.load_as(tritone.GenericModel, toy_bundle)


def test_a_shape_that_the_graph_cannot_take_is_the_clients_fault(tmp_path: Path) -> None:
    """Rows of any length, which the graph takes in pairs: of five numbers it cannot make any."""
    model = onnx_model(
        [helper.make_node("Reshape", ["x", "pairs"], ["y"], allowzero=0)],
        {"x": (TensorProto.FLOAT, ["batch", "length"])},
        {"y": (TensorProto.FLOAT, ["batch", "n", 2])},
        {"pairs": np.array([0, -1, 2])},
    )
    onnx.save(model, tmp_path / "pairs.onnx")
    export_onnx(model=tmp_path / "pairs.onnx", output=tmp_path / "bundle")
    opened = tritone.load(tmp_path / "bundle")
    assert opened.infer({"x": np.ones((1, 6))})["y"].shape == (1, 3, 2)
    with pytest.raises(InputError, match=r"does not take these shapes: x \[1, 5\]; it takes x \[1, 16\], for example"):
        opened.infer({"x": np.ones((1, 5))})
