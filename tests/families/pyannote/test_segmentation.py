"""pyannote.audio's segmentation network: its log-probabilities and sets are upstream's, with small random weights."""

import sys
import types
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
from tritone.families.pyannote.export import export_pyannote, load_segmentation
from tritone.inspection.checkpoint import recognise
from tritone.kinds import kind_of
from tritone.pipelines.segmentation import SegmentationPipeline
from tritone.pipelines.segmenter import Segmenter
from tritone.runtime import open_graph

Change = Callable[[dict[str, Any]], None]


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
    np.testing.assert_allclose(log_probs, expected, atol=1.5e-2)  # a part in 10^6 of the signal changes them by 0.005
    assert counts.tolist() == [expected.shape[1]] * len(windows)
    noisy = np.full_like(windows, 0.5)
    noisy[:, :20000] = windows[:, :20000]
    silenced = np.where(np.arange(windows.shape[1]) < 20000, windows, 0)
    heard, silent = [
        graph({"waveform": each, "num_samples": np.full(len(windows), size)}, ["log_probs"])[0]
        for each, size in ((noisy, 20000), (silenced, windows.shape[1]))
    ]
    np.testing.assert_allclose(heard, silent, atol=1e-3)


def test_sets_of_speakers_are_upstreams_for_each_window_in_any_company(bundle: Bundle) -> None:
    segmenter, windows = tritone.load(bundle.path), waveforms()
    assert isinstance(segmenter, Segmenter)
    assert (segmenter.window_samples, segmenter.frame_samples, segmenter.field_samples) == (32000, 270, 991)
    with np.load(PATH) as found:
        expected = found["local"]
    np.testing.assert_array_equal(np.stack(segmenter.segment(list(windows))), expected)
    np.testing.assert_array_equal(segmenter.segment([windows[1]])[0], expected[1])
    short = segmenter.segment([windows[0], windows[0][:9000]])[1]
    np.testing.assert_array_equal(short, segmenter.segment([np.pad(windows[0][:9000], (0, 23000))])[0])


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
    assert manifest.segmentation is not None
    assert (manifest.kind, manifest.segmentation.window_samples, manifest.segmentation.speakers) == (
        *("segmentation", 32000, 3),
    )


def test_layers_that_are_kept_apart_are_the_same_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def apart(content: dict[str, Any]) -> None:
        state = content["state_dict"]
        for name in [each for each in state if each.startswith("lstm.")]:
            kind, _, layer = name.removeprefix("lstm.").partition("_l")
            content["state_dict"][f"lstm.{layer[0]}.{kind}_l0{layer[1:]}"] = state.pop(name)

    network, _ = load_segmentation(saved(tmp_path, monkeypatch, apart))
    with torch.no_grad(), np.load(PATH) as found:
        np.testing.assert_allclose(network(torch.from_numpy(waveforms())), found["log_probs"], atol=1e-4)


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
    assert manifest.segmentation is not None
    for changed, message in (
        (manifest.segmentation.model_copy(update={"speakers": 4}), "the sets of speakers are 11"),
        (manifest.segmentation.model_copy(update={"window_samples": 900}), "windows are shorter than a frame"),
        (None, "has the part `segmentation`"),
    ):
        fault = kind_of(bundle).fault(manifest.model_copy(update={"segmentation": changed}))
        assert fault is not None
        assert message in fault
