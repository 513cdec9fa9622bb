"""WeNet models on the runtime `torch`: in float32 what ONNX says, in half precisions close to it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from families.conftest import UNITS, babble, export, write_model
from tritone.bundle.bundle import Bundle
from tritone.cli.main import app
from tritone.errors import ExportError
from tritone.families.wenet.checkpoint import load_model, read_config
from tritone.families.wenet.export import export_wenet
from tritone.families.wenet.graphs import OfflineGraph, make_fbank
from tritone.pipelines import open_offline, open_streaming
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.streaming import Step
from tritone.runtime import Graph, open_graph
from tritone.runtime.files.program import read_program

HALVES = ("fp16", "bf16")


def ragged() -> dict[str, np.ndarray]:
    lengths = np.array([16000, 9000, 1360, 500, 0])
    waveform = np.zeros((len(lengths), 16000), np.float32)
    for row, length in zip(waveform, lengths, strict=True):
        row[:length] = babble(int(length) + 1, seed=int(length))[:length]
    return {"waveform": waveform, "num_samples": lengths}


def valid(log_probs: np.ndarray, num_frames: np.ndarray) -> np.ndarray:
    return np.concatenate([row[:count] for row, count in zip(log_probs, num_frames, strict=True)])


@pytest.mark.slow
def test_the_bundle_lists_its_graphs_in_the_order_of_preference(torch_bundle: Bundle) -> None:
    encoders = [(a.runtime, a.precision, a.weight_storage) for a in torch_bundle.artifacts("encoder")]
    assert encoders == [
        ("torch", "fp32", "fp32"),
        ("torch", "fp16", "fp16"),
        ("torch", "bf16", "bf16"),
    ]
    assert torch_bundle.artifact("encoder", "torch", "fp16").name == "encoder.fp16.pt2"
    assert torch_bundle.artifact("streaming_encoder", "torch").name == "streaming_encoder.pt2"
    sizes = [torch_bundle.artifact("encoder", "torch", each).stat().st_size for each in ("fp32", *HALVES)]
    assert sizes[1] < sizes[0]


@pytest.mark.slow
def test_module_program_and_onnx_agree_on_a_ragged_batch(
    torch_bundle: Bundle, causal_bundle: Path, causal_files: Path
) -> None:
    settings = read_config(causal_files / "train.yaml")
    module = OfflineGraph(load_model(settings, causal_files / "final.pt"), make_fbank(settings)).eval()
    inputs = ragged()
    with torch.no_grad():
        expected, count, _ = (each.numpy() for each in module(*map(torch.from_numpy, inputs.values())))
    for bundle in (torch_bundle, Bundle.open(causal_bundle)):
        graph = open_graph(bundle.artifact("encoder"), threads=1)
        log_probs, num_frames = graph(inputs, ["log_probs", "num_frames"])
        np.testing.assert_array_equal(num_frames, count)
        np.testing.assert_allclose(
            valid(log_probs, count), valid(expected, count), atol=5e-5, err_msg=bundle.runtimes[0]
        )


def steps(graph: Graph, bundle: Bundle) -> list[list[np.ndarray]]:
    """Log-probs, frames and states of three streams over some steps, the last one with half a window."""
    streaming = bundle.manifest.streaming
    assert streaming is not None
    audio = np.stack([babble(40000, seed=seed) for seed in range(3)])
    states: dict[str, np.ndarray] = {s.name: np.zeros((3, *s.sizes(12)), s.dtype) for s in streaming.states}
    names = ["log_probs", "num_frames", *(f"next_{name}" for name in states)]
    results = []
    for step in range(6):
        start = step * streaming.shift_samples
        used = streaming.window_samples // (2 if step == 5 else 1)
        inputs = {
            "waveform": np.ascontiguousarray(audio[:, start : start + streaming.window_samples]),
            "num_samples": np.full(3, used),
        }
        results.append(graph({**inputs, **states}, names))
        states = dict(zip(states, results[-1][2:], strict=True))
    return results


@pytest.mark.slow
def test_streaming_steps_and_their_states_agree_between_the_runtimes(torch_bundle: Bundle, causal_bundle: Path) -> None:
    onnx, program = (
        steps(open_graph(bundle.artifact("streaming_encoder"), threads=1), bundle)
        for bundle in (Bundle.open(causal_bundle), torch_bundle)
    )
    for found, expected in zip(program[:-1], onnx[:-1], strict=True):
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, atol=5e-5)
    count = int(onnx[-1][1][0])
    assert 0 < count < 4
    np.testing.assert_allclose(program[-1][0][:, :count], onnx[-1][0][:, :count], atol=5e-5)


@pytest.mark.slow
@pytest.mark.parametrize("precision", HALVES)
def test_half_precisions_compute_narrow_and_speak_float32(torch_bundle: Bundle, precision: Any) -> None:
    """An fp16 number has 11 bits and a bf16 number 8; the network multiplies their rounding."""
    inputs = ragged()
    exact, frames = open_graph(torch_bundle.artifact("encoder", "torch"))(inputs, ["log_probs", "num_frames"])
    for role in ("encoder", "streaming_encoder"):
        path = torch_bundle.artifact(role, "torch", precision)  # type: ignore[arg-type]
        graph = open_graph(path)
        assert {spec.dtype.name for spec in [*graph.inputs.values(), *graph.outputs.values()]} == {"float32", "int64"}
        narrow = {"fp16": torch.float16, "bf16": torch.bfloat16}[precision]
        constants = read_program(path, torch.device("cpu")).constants.values()
        wide = [constant for constant in constants if constant.dtype == torch.float32]
        # The window and matrix of the features and the statistics of their normalisation stay float32.
        assert {(400,), (256, 80), (80,)} <= {tuple(constant.shape) for constant in wide}
        assert sum(constant.dtype == narrow for constant in constants) > 20
    log_probs, num_frames = open_graph(torch_bundle.artifact("encoder", "torch", precision))(
        inputs, ["log_probs", "num_frames"]
    )
    np.testing.assert_array_equal(num_frames, frames)
    difference = np.abs(valid(log_probs, frames) - valid(exact, frames)).mean()
    assert 0 < difference < (0.05 if precision == "fp16" else 0.4)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", *HALVES])
def test_utterances_say_the_same_alone_and_in_any_batch(torch_bundle: Bundle, precision: str) -> None:
    pipeline = open_offline(torch_bundle, placement=Placement(runtime="torch", precision=precision, threads=2))
    assert pipeline.runner.artifact.precision == precision
    rng = np.random.default_rng(5)
    waveforms = [babble(int(samples), seed=int(samples)) for samples in rng.integers(0, 32000, 40)]
    alone = [pipeline.recognize([waveform])[0].text for waveform in waveforms]
    assert len(set(alone)) > 25
    together = [transcript.text for transcript in pipeline.recognize(waveforms)]
    if precision == "fp32":
        assert together == alone
    # Rows of a batch are summed up in another order, which half precisions can show where two tokens are as likely.
    apart = [pipeline.log_probs(waveform) for waveform in waveforms]
    beside: dict[int, np.ndarray] = {}

    def take(indices: Sequence[int], outputs: Any) -> None:
        for row, index in enumerate(indices):
            beside[index] = outputs["log_probs"][row, : outputs["num_frames"][row]]

    pipeline.runner.run_waveforms(waveforms, lambda _: ("log_probs", "num_frames"), take)
    assert sorted(beside) == list(range(len(waveforms)))
    largest = max(np.abs(scores).max() for scores in apart if scores.size)
    assert largest > 40, "what the frames of other recordings differ by"
    steps = torch.finfo({"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[precision]).eps * largest
    for index, scores in enumerate(apart):
        np.testing.assert_allclose(beside[index], scores, rtol=0, atol=8 * steps)


@pytest.mark.slow
def test_streams_on_torch_say_what_streams_on_onnxruntime_say(torch_bundle: Bundle, causal_bundle: Path) -> None:
    waveforms = [babble(samples, seed=samples) for samples in (9000, 20000, 1000, 15321, 0, 12800)]
    texts = []
    for bundle in (torch_bundle, Bundle.open(causal_bundle)):
        pipeline = open_streaming(bundle, placement=Placement(threads=2))
        slots = [pipeline.open() for _ in waveforms]
        for start in range(0, 20000, 3000):
            pipeline.advance([Step(s, w[start : start + 3000]) for s, w in zip(slots, waveforms, strict=True)])
        last = pipeline.advance([Step(slot, np.zeros(0, np.float32), True) for slot in slots])
        texts.append([transcript.text for transcript in last])
    assert texts[0] == texts[1]
    assert len(set(texts[0])) >= 4


@pytest.mark.slow
def test_torch_alone_can_be_exported_with_narrow_weights(causal_files: Path, tmp_path: Path) -> None:
    report = export_wenet(
        checkpoint=causal_files / "final.pt",
        config=causal_files / "train.yaml",
        tokens=causal_files / "units.txt",
        output=tmp_path / "b",
        runtimes=("torch",),
        weight_storage="int8",
        decoder=False,
    )
    (artifact,) = report.bundle.manifest.artifacts
    assert (artifact.runtime, artifact.precision, artifact.weight_storage) == ("torch", "fp32", "fp16")
    assert set(report.bundle.files) == {"manifest.json", "tokens.txt", "encoder.pt2"}
    assert 0 < report.differences["encoder.pt2"] < 0.2, "rounding to fp16 shows in the report"
    assert len(open_offline(report.bundle).recognize([babble(16000, seed=2)])[0].text) > 0
    assert report.bundle.manifest.vocabulary.size == len(UNITS)


@pytest.mark.slow
def test_numbers_that_fp16_cannot_hold_are_told_at_export(tmp_path: Path) -> None:
    def small(config: dict[str, Any]) -> None:
        config["encoder_conf"] |= {"num_blocks": 1}

    files = write_model(tmp_path / "files", small)
    state = torch.load(files / "final.pt", weights_only=True)
    state["encoder.encoders.0.feed_forward.w_2.weight"] *= 1e6
    torch.save(state, files / "final.pt")
    with pytest.raises(ExportError, match=r"encoder\.fp16\.pt2: .* do not fit into fp16; export another one"):
        export(files, tmp_path / "b", runtimes=("torch",), precisions=("fp16",))
    assert {each.precision for each in Bundle.open(tmp_path / "b").manifest.artifacts} == {"fp32"}, "which can be had"


@pytest.mark.parametrize(
    "options", [{"runtimes": ()}, {"runtimes": ("torch", "torch")}, {"runtimes": ("abacus",)}, {"precisions": ("fp8",)}]
)
def test_runtimes_and_precisions_that_cannot_be_are_refused(
    causal_files: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=r"expected each (runtime|precision) once, of "):
        export(causal_files, tmp_path / "b", **options)


@pytest.mark.parametrize("option", [["--runtimes", "abacus"], ["--runtimes", "torch,torch"], ["--precision", "fp8"]])
def test_the_command_refuses_what_cannot_be_before_it_reads_anything(option: list[str], tmp_path: Path) -> None:
    sources = ["--checkpoint", "final.pt", "--config", "train.yaml", "--tokens", "units.txt"]
    done = CliRunner().invoke(app, ["export", "wenet", *sources, "--output", str(tmp_path / "b"), *option])
    assert done.exit_code == 2
    assert "expected each" in done.output
