"""Graphs in other precisions: what is computed in what, how far they drift, and when they are refused."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import soundfile
import torch
from onnx import TensorProto, helper, numpy_helper

from families.conftest import babble, write_model
from tritone.bundle.bundle import Bundle
from tritone.errors import ExportError, InputError
from tritone.families.export.drift import read_recordings
from tritone.families.export.exportable import utterances
from tritone.families.export.frame_drift import frame_drift
from tritone.families.export.options import ExportOptions, plan
from tritone.families.export.report import ExportReport
from tritone.families.onnx.int8 import quantise_columns, quantise_products
from tritone.families.wenet.drift import decoder_drift
from tritone.families.wenet.export import export_wenet
from tritone.pipelines import open_offline
from tritone.pipelines.graphs.placement import Placement
from tritone.runtime import open_graph

PRECISIONS = ("fp32", "fp16", "int8")


@pytest.fixture
def report(complete_report: ExportReport) -> ExportReport:
    return complete_report


def export_files(files: Path, output: Path, **options: Any) -> ExportReport:
    return export_wenet(
        checkpoint=files / "final.pt",
        config=files / "train.yaml",
        tokens=files / "units.txt",
        output=output,
        **options,
    )


def feed(lengths: Sequence[int]) -> dict[str, np.ndarray]:
    waveform = np.zeros((len(lengths), max(lengths)), np.float32)
    for row, length in zip(waveform, lengths, strict=True):
        row[:length] = babble(length, seed=length)
    return {"waveform": waveform, "num_samples": np.array(lengths)}


def test_each_runtime_gets_the_precisions_that_it_can_have() -> None:
    assert plan(("onnxruntime", "torch"), ("fp32", "int8", "bf16", "fp16")) == {
        "onnxruntime": ("fp32", "int8", "fp16"),
        "torch": ("fp32", "bf16", "fp16"),
    }


@pytest.mark.parametrize(
    ("runtimes", "precisions", "said"),
    [
        (("torch",), ("int8",), r"no graph for torch can be in int8: torch has fp32, fp16, bf16"),
        (("torch",), ("fp32", "int8"), r"no graph for torch can be in int8: torch has fp32, fp16, bf16"),
        (("onnxruntime",), ("bf16",), r"no graph for onnxruntime can be in bf16: onnxruntime has fp32, fp16, int8"),
        (("onnxruntime", "torch"), ("int8",), r"no graph for torch can be in int8: .*; torch has fp32, fp16, bf16"),
    ],
)
def test_precisions_that_nothing_could_be_written_in_are_refused(runtimes: Any, precisions: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        plan(runtimes, precisions)


def test_the_bundle_lists_graphs_and_weights_of_each_precision(report: ExportReport) -> None:
    bundle = report.bundle
    assert [(a.role, a.precision, a.weight_storage, a.files) for a in bundle.manifest.artifacts] == [
        (role, precision, precision, (f"{role}{infix}.onnx", f"weights{infix}.bin"))
        for precision, infix in (("fp32", ""), ("fp16", ".fp16"), ("int8", ".int8"))
        for role in ("encoder", "decoder")
    ]
    sizes = [bundle.file(f"weights{infix}.bin").stat().st_size for infix in ("", ".fp16", ".int8")]
    # The matrices of the features, 0.9 MB, are float32 in each.
    fixed = 4 * (400 * 512 + 256 * 80)
    full, half, quarter = (size - fixed for size in sizes)
    assert half < 0.55 * full
    assert quarter < 0.6 * full, "convolutions and embeddings stay float32, and much of a small model is of them"


@pytest.mark.parametrize("role", ["encoder", "decoder"])
def test_an_fp16_graph_is_clean_in_its_types_and_wide_where_it_matters(report: ExportReport, role: Any) -> None:
    model = onnx.load(report.bundle.artifact(role, "onnxruntime", "fp16"))
    onnx.checker.check_model(model, full_check=True)
    model = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    types = {value.name: value.type.tensor_type.elem_type for value in (*model.graph.value_info, *model.graph.output)}
    types |= {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    wide, narrow = {TensorProto.FLOAT, TensorProto.INT64}, TensorProto.FLOAT16
    assert {value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)} <= wide
    sensitive = ("LayerNormalization", "Softmax", "LogSoftmax", "Log", "Exp", "ReduceSum", "Sin", "Cos")
    found = {node.op_type for node in model.graph.node if node.op_type in sensitive}
    assert found >= {"LayerNormalization", "Softmax"}
    for node in model.graph.node:
        if node.op_type in sensitive:
            assert types[node.output[0]] == TensorProto.FLOAT, f"{node.op_type} {node.name}"
    products = [types[node.output[0]] for node in model.graph.node if node.op_type == "MatMul"]
    assert products.count(narrow) == len(products) - (2 if role == "encoder" else 0), "all but those of the features"


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_a_narrow_encoder_runs_on_the_cpu_and_stays_close(report: ExportReport, precision: Any) -> None:
    inputs = feed([16000, 9000, 1360, 500])
    names = ["log_probs", "num_frames"]
    exact, frames = open_graph(report.bundle.artifact("encoder"), threads=1)(inputs, names)
    found, count = open_graph(report.bundle.artifact("encoder", "onnxruntime", precision), threads=1)(inputs, names)
    np.testing.assert_array_equal(count, frames)
    change = np.concatenate([np.abs(a[:n] - b[:n]) for a, b, n in zip(found, exact, frames, strict=True)]).mean()
    # An fp16 number has 11 bits, an int8 weight 6 and its input 8.
    assert 0 < change < {"fp16": 0.01, "int8": 0.2}[precision]


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_an_utterance_gives_the_same_alone_and_in_any_batch(report: ExportReport, precision: Any) -> None:
    """Quantised with one scale for the whole batch, it would not."""
    graph = open_graph(report.bundle.artifact("encoder", "onnxruntime", precision), threads=1)
    lengths = [16000, 9000, 1360, 12345]
    together, frames = graph(feed(lengths), ["log_probs", "num_frames"])
    for row, length in enumerate(lengths):
        [alone] = graph(feed([length]), ["log_probs"])
        change = np.abs(alone[0] - together[row, : frames[row]])
        # Sums in another order can end on the other side of a rounding, seldom and by one step.
        assert np.median(change) < 1e-4
        assert change.mean() < 1e-2


def test_pipelines_take_the_precision_they_are_asked_for(report: ExportReport) -> None:
    texts = []
    for precision in PRECISIONS:
        pipeline = open_offline(report.bundle, placement=Placement(precision=precision, threads=1))
        assert pipeline.runner.artifact.precision == precision
        texts.append(pipeline.recognize([babble(32000, seed=2)])[0].text)
    assert all(texts)


def test_products_of_int8_err_by_no_more_than_their_steps_and_rows_stand_alone() -> None:
    rng = np.random.default_rng(0)
    weight = (rng.normal(0, 1, (48, 40)) * np.geomspace(0.01, 3, 40)).astype(np.float32)
    x = (rng.normal(0, 1, (3, 5, 48)) * np.geomspace(1e-3, 10, 5)[:, None]).astype(np.float32)
    x[1, 2] = 0
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "frames", 48])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "frames", 40])],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    narrow = quantise_products(model)
    run = session(narrow)
    found = run(x)
    levels, scale = quantise_columns(weight)
    assert np.abs(levels).max() <= 63
    # Each factor is off by at most half a step; the bound holds for every row by its own largest value.
    step = np.abs(x).max(axis=2, keepdims=True) / 127
    bound = step / 2 * np.abs(levels * scale).sum(axis=0) + np.abs(x).sum(axis=2, keepdims=True) * scale / 2
    assert np.all(np.abs(found - x @ weight) <= bound * 1.001 + 1e-6)
    np.testing.assert_array_equal(found[1, 2], np.zeros(40))
    np.testing.assert_array_equal(run(x[1:2, 3:4])[0, 0], found[1, 3])
    with pytest.raises(ValueError, match="no product"):
        quantise_products(model, keep=["w"])
    assert model.graph.node[0].op_type == "MatMul", "the given graph stays as it is"


def session(model: onnx.ModelProto) -> Any:
    import onnxruntime

    opened = onnxruntime.InferenceSession(model.SerializeToString())
    return lambda x: opened.run(None, {"x": x})[0]


class Swapped:
    """An opened graph that gives what a network says, changed."""

    def __init__(self, module: torch.nn.Module, change: Any) -> None:
        self.module, self.change = module, change

    @torch.no_grad()
    def __call__(self, inputs: Mapping[str, np.ndarray], outputs: Sequence[str]) -> list[np.ndarray]:
        results = [each.numpy().copy() for each in self.module(*map(torch.from_numpy, inputs.values()))]
        return self.change(results)


class Network(torch.nn.Module):
    """Stands for an offline graph of two tokens whose probabilities are known: 0.9 and 0.1 in every frame."""

    min_samples, sample_rate = 400, 16000
    compared, counted, outputs = ("log_probs",), "num_frames", ("log_probs", "num_frames", "encoder_out")

    def hearing(self, waveform: np.ndarray) -> Any:
        return utterances([waveform]) if len(waveform) >= self.min_samples else None

    def forward(self, waveform: torch.Tensor, num_samples: torch.Tensor) -> tuple[torch.Tensor, ...]:
        log_probs = torch.log(torch.tensor([0.9, 0.1])).expand(len(waveform), 10, 2)
        return log_probs, torch.full((len(waveform),), 8), torch.zeros(len(waveform), 10, 4)


def swap(results: list[np.ndarray]) -> list[np.ndarray]:
    results[0][:, ::2] = results[0][:, ::2, ::-1]
    return results[:2]


@pytest.fixture
def network() -> Network:
    return Network()


def test_drift_of_an_encoder_is_measured_over_valid_frames(network: Any) -> None:
    drift = frame_drift(network, Swapped(network, swap), [np.zeros(1000, np.float32)] * 3)  # type: ignore[arg-type]
    assert drift.count == 24, "8 of 10 frames are valid"
    assert drift.changed == pytest.approx(0.5)
    assert drift.moved == pytest.approx(0.5 * 0.8), "0.8 of the probability changes sides in half of the frames"
    assert drift.mean == pytest.approx(0.5 * math.log(9))
    assert drift.largest == pytest.approx(math.log(9))
    assert "50.00%" in str(drift)


def test_drift_of_numbers_that_are_not_finite_is_nan(network: Any) -> None:
    def spoil(results: list[np.ndarray]) -> list[np.ndarray]:
        results[0][0, 3, 1] = np.nan
        return results[:2]

    drift = frame_drift(network, Swapped(network, spoil), [np.zeros(1000, np.float32)])  # type: ignore[arg-type]
    assert math.isnan(drift.moved)


def test_audio_too_short_for_a_frame_cannot_be_checked_with(network: Any) -> None:
    with pytest.raises(ExportError, match="too short for a single frame"):
        frame_drift(network, Swapped(network, swap), [np.zeros(300, np.float32)])  # type: ignore[arg-type]


def test_drift_of_a_decoder_is_the_change_of_scores_per_token(network: Any) -> None:
    class Decoder(torch.nn.Module):
        inputs, outputs = ["encoder_out", "num_frames", "hypotheses", "num_tokens"], ["left_scores"]

        def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return (-inputs[3].float(),)

    decoder = Decoder()
    # Greedy text of [0.9, 0.1] in all frames is one token with blank 1, and no token with blank 0.
    worse = Swapped(decoder, lambda results: [results[0] - 0.5])
    for blank_id, tokens in ((1, 1), (0, 0)):
        drift = decoder_drift(decoder, worse, network, blank_id, [np.zeros(1000, np.float32)] * 2)  # type: ignore[arg-type]
        assert (drift.count, drift.mean, drift.largest) == (2, 0.5, 0.5)
        assert drift.moved == pytest.approx(0.5 / (tokens + 1))
        assert "0.5" in str(drift)


def test_every_narrow_graph_is_checked_on_real_audio(report: ExportReport) -> None:
    assert set(report.drifts) == {f"{role}.{each}.onnx" for role in ("encoder", "decoder") for each in ("fp16", "int8")}
    assert report.drifts["encoder.fp16.onnx"].count == 654, "frames of the demo's ten clips"  # type: ignore[attr-defined]
    assert report.drifts["decoder.int8.onnx"].count == 20, "scores of a hypothesis for each, in both directions"  # type: ignore[attr-defined]
    assert report.drifts["encoder.fp16.onnx"].moved < 0.01
    for role in ("encoder", "decoder"):
        half, eighth = (report.drifts[f"{role}.{each}.onnx"] for each in ("fp16", "int8"))
        assert 0 < half.moved < eighth.moved


def test_a_graph_that_drifts_too_far_is_refused_unless_forced(
    complete_files: Path, report: ExportReport, tmp_path: Path
) -> None:
    soundfile.write(tmp_path / "a.wav", babble(8000), 8000)
    options: dict[str, Any] = {
        "precisions": ("fp16",),
        "decoder": False,
        "check_audio": tmp_path,
        "max_drift": 1e-9,
    }
    with pytest.raises(ExportError, match=r"encoder\.fp16\.onnx drifts too far .* the limit is 1e-09"):
        export_files(complete_files, tmp_path / "b", **options)
    assert Bundle.open(tmp_path / "b").manifest.artifacts[0].precision == "fp32", "which is good"
    assert report.drifts["encoder.fp16.onnx"].moved > 1e-9, "this one was forced"


@pytest.mark.slow
def test_a_network_without_a_product_for_int8_is_written_in_float32(tmp_path: Path) -> None:
    options: dict[str, Any] = {"precisions": ("fp32", "int8"), "check": False}
    write_model(tmp_path)
    report = export_files(tmp_path, tmp_path / "b", lenient=True, **options)
    assert {each.precision for each in report.bundle.manifest.artifacts} == {"fp32"}
    assert any("decoder.onnx cannot be int8: the graph has no product" in note for note in report.notes)
    with pytest.raises(ExportError, match=r"cannot be int8: .* was written without it, in fp32"):
        export_files(tmp_path, tmp_path / "b", **options)


def test_audio_to_check_with_comes_from_a_folder_or_a_list(tmp_path: Path) -> None:
    folder = tmp_path / "audio"
    folder.mkdir()
    soundfile.write(folder / "a.wav", babble(8000), 8000)
    soundfile.write(folder / "b.flac", babble(40 * 8000), 8000)
    (folder / "c.txt").write_text("not audio", encoding="utf-8")
    assert [len(waveform) for waveform in read_recordings(folder, 16000)] == [16000, 30 * 16000]
    (tmp_path / "wav.scp").write_text("x audio/a.wav\n", encoding="utf-8")
    assert [len(waveform) for waveform in read_recordings(tmp_path / "wav.scp", 8000)] == [8000]
    assert len(read_recordings(None, 16000)) == 10
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"no audio in the folder"):
        read_recordings(tmp_path / "empty", 16000)
    with pytest.raises(InputError):
        read_recordings(tmp_path / "missing.scp", 16000)


@pytest.mark.parametrize("limit", [-0.1, math.nan])
def test_a_limit_that_makes_no_sense_is_refused(complete_files: Path, tmp_path: Path, limit: float) -> None:
    with pytest.raises(ValueError, match="must be 0 or more"):
        export_files(complete_files, tmp_path / "b", max_drift=limit)
    assert 0 < ExportOptions.usual_drift < 1
