"""pyannote.audio's segmentation network: its log-probabilities and sets are upstream's, with small random weights."""

import sys
import types
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import tritone
from families.pyannote.upstream import AT_ONCE, PATH, SPEAKERS, WINDOW_S, shapes, tensors, waveforms
from tritone.bundle.bundle import Bundle
from tritone.cli.main import app
from tritone.errors import AudioError, ExportError, InputError
from tritone.families.known import recognise
from tritone.families.pyannote.export import export_pyannote, load_segmentation
from tritone.kinds import kind_of
from tritone.kinds.segmentation.model import Segmenter
from tritone.kinds.segmentation.part import SegmentationPart
from tritone.kinds.segmentation.pipeline import OUTPUTS, SegmentationPipeline
from tritone.runtime import open_graph

Change = Callable[[dict[str, Any]], None]
# What the order of a sum may change of a log-probability: this network makes 0.005 of a part in 10^6 of its signal. By
# SSE 4.1 in place of AVX-512 it was 0.029, by AVX2 0.011.
NOISE = 0.05


@dataclass
class Specifications:
    """Stands for upstream's class of this name, whose objects are in checkpoints."""

    duration: float = WINDOW_S
    classes: Any = tuple(f"speaker#{number}" for number in range(SPEAKERS))
    powerset_max_classes: int | None = AT_ONCE
    problem: object = None


def saved(folder: Path, monkeypatch: pytest.MonkeyPatch, change: Change | None = None) -> Path:
    """A checkpoint as Lightning writes it, with objects of upstream's classes in it."""
    name = "pyannote.audio.core.task"
    module = types.ModuleType(name)
    module.Specifications = Specifications  # type: ignore[attr-defined]
    for parent in ("pyannote", "pyannote.audio", "pyannote.audio.core"):
        monkeypatch.setitem(sys.modules, parent, types.ModuleType(parent))
    monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(Specifications, "__module__", name)
    state = {name: torch.from_numpy(value) for name, value in tensors(shapes()).items()}
    filters = {
        "sincnet.conv1d.0.filterbank.n_": torch.zeros(1, 125),
        "sincnet.conv1d.0.filterbank.window_": torch.ones(125),
    }
    specifications = Specifications(problem=Specifications())
    content = {
        "state_dict": {**state, **filters},
        "hyper_parameters": {"sincnet": {"stride": 10, "sample_rate": 16000}, "lstm": {"num_layers": 4}},
        "pyannote.audio": {"versions": {"torch": "2.13"}, "specifications": specifications},
    }
    if change is not None:
        change(content)
    torch.save(content, folder / "pytorch_model.bin")
    return folder / "pytorch_model.bin"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("pyannote")
    with pytest.MonkeyPatch.context() as patch:
        path = saved(folder, patch)
    return export_pyannote(checkpoint=path, output=folder / "b").bundle


def test_log_probabilities_are_upstreams_whatever_follows_in_a_row(bundle: Bundle) -> None:
    graph, windows = open_graph(bundle.artifact("encoder")), waveforms()
    with np.load(PATH) as found:
        expected = found["log_probs"]
    inputs = {"waveform": windows, "num_samples": np.full(len(windows), windows.shape[1])}
    log_probs, counts = graph(inputs, ["log_probs", "num_frames"])
    np.testing.assert_allclose(log_probs, expected, atol=NOISE)
    assert counts.tolist() == [expected.shape[1]] * len(windows)
    noisy = np.full_like(windows, 0.5)
    noisy[:, :20000] = windows[:, :20000]
    silenced = np.where(np.arange(windows.shape[1]) < 20000, windows, 0)
    heard, silent = [
        graph({"waveform": each, "num_samples": np.full(len(windows), size)}, ["log_probs"])[0]
        for each, size in ((noisy, 20000), (silenced, windows.shape[1]))
    ]
    np.testing.assert_allclose(heard, silent, atol=NOISE)


def clear() -> np.ndarray:
    """(windows, frames): where upstream's likeliest set is likelier than any other by more than noise."""
    with np.load(PATH) as found:
        second, first = np.moveaxis(np.sort(found["log_probs"], axis=2)[..., -2:], 2, 0)
    sure: np.ndarray = first - second > 2 * NOISE
    assert sure.mean() > 0.97
    return sure


def test_sets_of_speakers_are_upstreams_for_each_window_in_any_company(bundle: Bundle) -> None:
    segmenter, windows, sure = tritone.load(bundle.path), waveforms(), clear()
    assert isinstance(segmenter, Segmenter)
    assert (segmenter.window_samples, segmenter.frame_samples, segmenter.field_samples) == (32000, 270, 991)
    with np.load(PATH) as found:
        expected = found["local"]
    np.testing.assert_array_equal(np.stack(segmenter.segment(list(windows)))[sure], expected[sure])
    np.testing.assert_array_equal(segmenter.segment([windows[1]])[0][sure[1]], expected[1][sure[1]])
    short = segmenter.segment([windows[0], windows[0][:9000]])[1]
    padded = segmenter.segment([np.pad(windows[0][:9000], (0, 23000))])[0]
    assert (short == padded).all(axis=1).mean() > 0.97


def test_a_window_that_cannot_be_used_fails_alone(bundle: Bundle) -> None:
    good = waveforms()[0]
    found = SegmentationPipeline(bundle).run([good, np.zeros(32001, np.float32), np.full(32000, np.nan, np.float32)])
    assert [type(each) for each in found] == [np.ndarray, InputError, AudioError]
    assert "windows of up to 2 s" in str(found[1])


def test_a_checkpoint_is_recognised_and_exported_by_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path, monkeypatch)
    assert recognise(path).family == recognise(tmp_path).family == "pyannote"
    done = CliRunner().invoke(app, ["export", "pyannote", "--checkpoint", str(path), "--output", str(tmp_path / "b")])
    assert done.exit_code == 0, done.output
    manifest = Bundle.open(tmp_path / "b").manifest
    assert (
        manifest.kind,
        manifest.part(SegmentationPart).window_samples,
        manifest.part(SegmentationPart).speakers,
    ) == (*("segmentation", 32000, 3),)


def test_layers_that_are_kept_apart_are_the_same_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def apart(content: dict[str, Any]) -> None:
        state = content["state_dict"]
        for name in [each for each in state if each.startswith("lstm.")]:
            kind, _, layer = name.removeprefix("lstm.").partition("_l")
            content["state_dict"][f"lstm.{layer[0]}.{kind}_l0{layer[1:]}"] = state.pop(name)

    network, _ = load_segmentation(saved(tmp_path, monkeypatch, apart))
    with torch.no_grad(), np.load(PATH) as found:
        np.testing.assert_allclose(network(torch.from_numpy(waveforms())), found["log_probs"], atol=NOISE)


FORMS = {  # names of the input and the output of the ONNX files that are around, and the metadata
    "sherpa": ("x", "y", {"model_type": "pyannote-segmentation-3.0", "sample_rate": "16000", "window_size": "32000"}),
    "hub": ("input_values", "logits", {}),
}
SHERPA = {"receptive_field_size": "991", "receptive_field_shift": "270", "num_speakers": "3", "num_classes": "7"}


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same network as ONNX files of both forms."""
    import onnx

    folder = tmp_path_factory.mktemp("graphs")
    with pytest.MonkeyPatch.context() as patch:
        network, _ = load_segmentation(saved(folder, patch))

    class OfChannels(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.network(x[:, 0])
            return found

    found = {}
    for form, (given, made, metadata) in FORMS.items():
        path = found[form] = folder / f"{form}-pyannote-segmentation-3-0" / "model.onnx"
        path.parent.mkdir()
        axes = {given: {0: "N", 2: "T"}, made: {0: "N", 1: "F"}}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the exporter that these files were made with
            torch.onnx.export(
                *(OfChannels().eval(), (torch.zeros(2, 1, 32000),), str(path)),
                input_names=[given],
                output_names=[made],
                dynamic_axes=axes,
                opset_version=13,
                dynamo=False,
            )
        model = onnx.load(path)
        onnx.helper.set_model_props(model, metadata and {**metadata, **SHERPA, "powerset_max_classes": "2"})
        onnx.save(model, path)
    return found


def test_ready_made_graphs_of_both_forms_are_the_same_network(graphs: dict[str, Path], tmp_path: Path) -> None:
    windows = waveforms()
    with np.load(PATH) as upstream:
        log_probs, local = upstream["log_probs"], upstream["local"]
    sherpa, hub = tmp_path / "sherpa-onnx-pyannote-segmentation-3-0", tmp_path / "pyannote-segmentation-3.0"
    for path in (sherpa / "model.onnx", sherpa / "model.int8.onnx", hub / "onnx" / "model.onnx", hub / "config.json"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('{"model_type": "pyannote"}', encoding="utf-8")
    found = [recognise(each) for each in (sherpa, hub, hub / "onnx" / "model.onnx")]
    assert [each.family for each in found] == ["pyannote"] * 3
    assert [each.arguments["checkpoint"].parent for each in found] == [sherpa, hub / "onnx", hub / "onnx"]
    for form, path in graphs.items():
        bundle = export_pyannote(checkpoint=path, output=tmp_path / form).bundle
        part = bundle.manifest.part(SegmentationPart)
        assert part is not None
        # Without metadata a file has the windows of segmentation-3.0.
        assert (part.window_samples, part.field_samples, part.speakers, part.at_once) == (
            *(32000 if form == "sherpa" else 160000, 991, 3, 2),
        )
        graph = open_graph(bundle.artifact("encoder"))
        counts = np.array([32000, 20000, 32000, 32000])
        inside = np.arange(32000) < counts[:, None]
        heard, frames = graph({"waveform": np.where(inside, windows, 9.0), "num_samples": counts}, OUTPUTS)
        rows = [0, 2, 3]
        np.testing.assert_allclose(heard[rows], log_probs[rows], atol=NOISE)
        assert frames.tolist() == [log_probs.shape[1]] * 4
        silenced = graph({"waveform": np.where(inside, windows, 0), "num_samples": np.full(4, 32000)}, OUTPUTS)[0]
        np.testing.assert_allclose(heard[1], silenced[1], atol=NOISE)
    segmenter = tritone.load(tmp_path / "sherpa")
    assert isinstance(segmenter, Segmenter)
    np.testing.assert_array_equal(np.stack(segmenter.segment(list(windows)))[clear()], local[clear()])


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"num_speakers": "2"}, "has 7 classes, which are not the sets of 2 speakers of whom 2 talk at once"),
        ({"sample_rate": "8000"}, "sample_rate = 8000"),
        ({"window_size": "1000000"}, "expected windows of up to 60 s"),
        ({"receptive_field_shift": "160"}, "frames of 991 samples, one every 160, are"),
        ({"window_size": "many"}, "expected decimal numbers"),
    ],
)
def test_graphs_whose_sizes_contradict_each_other_are_refused(
    graphs: dict[str, Path], tmp_path: Path, change: dict[str, str], complaint: str
) -> None:
    import onnx

    model = onnx.load(graphs["sherpa"])
    onnx.helper.set_model_props(model, {each.key: each.value for each in model.metadata_props} | change)
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(ExportError, match=complaint):
        export_pyannote(checkpoint=tmp_path / "model.onnx", output=tmp_path / "b")


def test_other_graphs_and_options_of_checkpoints_are_refused(graphs: dict[str, Path], tmp_path: Path) -> None:
    import onnx

    with pytest.raises(ValueError, match="taken as it is, for onnxruntime"):
        export_pyannote(checkpoint=graphs["hub"], output=tmp_path / "b", runtimes=("torch",))
    model = onnx.load(graphs["hub"])
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(model, tmp_path / "one.onnx")
    with pytest.raises(ExportError, match="fixed to 1 windows in a call"):
        export_pyannote(checkpoint=tmp_path / "one.onnx", output=tmp_path / "b")
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 2
    onnx.save(model, tmp_path / "two.onnx")
    with pytest.raises(ExportError, match=r"takes input_values: float \(1, 2, any\)"):
        export_pyannote(checkpoint=tmp_path / "two.onnx", output=tmp_path / "b")


def _none(content: dict[str, Any]) -> None:
    content.pop("pyannote.audio")


def _changed(**fields: Any) -> Change:
    return lambda content: content["pyannote.audio"].update(specifications=Specifications(**fields))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content["state_dict"].pop("lstm.weight_hh_l0"), "no segmentation network"),
        (lambda content: content["state_dict"].pop("lstm.weight_hh_l1"), "lstm.weight_hh_l1|unknown|missing"),
        (lambda content: content["state_dict"].update({"lstm.weight_hh_l0": torch.full((24, 6), torch.nan)}), "NaN"),
        (lambda content: content["hyper_parameters"]["sincnet"].update(sample_rate=8000), "its filters are for 16000"),
        (lambda content: content["hyper_parameters"]["sincnet"].update(stride="x"), "stride"),
        (_changed(powerset_max_classes=None), "judges each of 3 classes alone"),
        (_changed(powerset_max_classes=3), "3 speakers of whom 3 talk at once have 8 sets"),
        (_changed(classes="abc"), "0 classes"),
        (_changed(duration=1e9), "expected windows of up to 60 s"),
        (_changed(duration=0.01), "expected windows of up to 60 s"),
    ],
)
def test_what_is_no_such_network_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Change, message: str
) -> None:
    with pytest.raises(ExportError, match=message):
        load_segmentation(saved(tmp_path, monkeypatch, change))


def test_a_checkpoint_that_says_nothing_has_the_windows_of_the_published_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, part = load_segmentation(saved(tmp_path, monkeypatch, _none))
    assert (part.window_samples, part.speakers, part.at_once) == (160000, 3, 2)


def test_a_manifest_that_contradicts_itself_is_refused(bundle: Bundle) -> None:
    manifest = bundle.manifest
    for changed, message in (
        (manifest.part(SegmentationPart).model_copy(update={"speakers": 4}), "the sets of speakers are 11"),
        (
            manifest.part(SegmentationPart).model_copy(update={"window_samples": 900}),
            "windows are shorter than a frame",
        ),
    ):
        fault = kind_of(bundle).fault(manifest.with_part(changed))
        assert fault is not None
        assert message in fault
