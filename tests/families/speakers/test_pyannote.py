"""Checkpoints of pyannote.audio, of WeSpeaker's ResNets: read without its code, and right by its code."""

import enum
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from families.speakers.upstream import PATH, signals, tensors
from tritone.bundle.bundle import Bundle
from tritone.cli.main import app
from tritone.errors import BundleError, ExportError
from tritone.families.known import recognise
from tritone.families.wespeaker.checkpoint import read_model
from tritone.families.wespeaker.config import FeatureConfig, ModelConfig, ResNetConfig
from tritone.families.wespeaker.names import tensor_shapes
from tritone.runtime import open_graph

SETTINGS = {
    "sample_rate": 16000,
    "num_channels": 1,
    "num_mel_bins": 80,
    "frame_length": 25,
    "frame_shift": 10,
    "dither": 0.0,
    "window_type": "hamming",
    "use_energy": False,
}
CONFIG = ModelConfig(
    name="ResNet18",
    network=ResNetConfig(bottleneck=False, blocks=(2, 2, 2, 2), feat_dim=80, embed_dim=16, width=2, variance_guard=0.0),
    features=FeatureConfig(),
)


def content() -> dict[str, Any]:
    """What pyannote.audio saves, as Lightning does, of the network that the file of embeddings is of."""
    state = {f"resnet.{name}": torch.from_numpy(value) for name, value in tensors(tensor_shapes(CONFIG)).items()}
    return {
        "state_dict": {**state, "resnet.bn1.num_batches_tracked": torch.tensor(7)},
        "hyper_parameters": dict(SETTINGS),
        "pytorch-lightning_version": "2.1.0",
        "pyannote.audio": {
            "versions": {"torch": torch.__version__, "pyannote.audio": "3.1.0"},  # an object, of a class of torch's
            "architecture": {"module": "pyannote.audio.models.embedding.wespeaker", "class": "WeSpeakerResNet34"},
        },
    }


def saved(folder: Path, change: Callable[[dict[str, Any]], None] | None = None) -> Path:
    whole = content()
    if change is not None:
        change(whole)
    torch.save(whole, folder / "pytorch_model.bin")
    return folder / "pytorch_model.bin"


def test_a_checkpoint_alone_becomes_a_bundle_that_embeds_as_pyannote_does(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path)
    for named in (tmp_path, checkpoint):
        found = recognise(named)
        assert (found.family, found.arguments) == ("wespeaker", {"checkpoint": checkpoint})
    done = CliRunner().invoke(app, found.command(str(tmp_path / "b")).split()[1:])
    assert done.exit_code == 0, done.output
    bundle = Bundle.open(tmp_path / "b")
    assert bundle.manifest.features.window == "hamming"
    graph, waves, expected = open_graph(bundle.artifact("encoder")), signals(), np.load(PATH)["pyannote"]
    block = np.full((len(waves), max(map(len, waves))), 0.4, np.float32)  # what is behind the ends is not heard
    for row, wave in zip(block, waves, strict=True):
        row[: len(wave)] = wave
    [embeddings] = graph({"waveform": block, "num_samples": np.array([len(each) for each in waves])}, ["embeddings"])
    size = np.abs(expected).max()
    np.testing.assert_allclose(embeddings, expected, atol=2e-4 * size)
    for wave, row in zip(waves, embeddings, strict=True):
        [alone] = graph({"waveform": wave[None], "num_samples": np.array([len(wave)])}, ["embeddings"])
        np.testing.assert_allclose(row, alone[0], atol=2e-5 * size)


def test_objects_of_pyannotes_classes_are_left_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("pyannote.audio.core.task")
    loaded = []

    class Problem(enum.Enum):
        REPRESENTATION = 3

    class Specifications:
        def __init__(self) -> None:
            self.problem, self.duration = Problem.REPRESENTATION, 10.0

        def __setstate__(self, state: object) -> None:
            loaded.append(state)

    for each in (Problem, Specifications):
        each.__module__, each.__qualname__ = module.__name__, each.__name__
        setattr(module, each.__name__, each)
    with monkeypatch.context() as patched:
        for name in ("pyannote", "pyannote.audio", "pyannote.audio.core"):
            patched.setitem(sys.modules, name, types.ModuleType(name))
        patched.setitem(sys.modules, module.__name__, module)
        checkpoint = saved(tmp_path, lambda whole: whole["pyannote.audio"].update(specifications=Specifications()))
        config, weights, _ = read_model(checkpoint, None)
    assert config == CONFIG
    assert {name: tuple(value.shape) for name, value in weights.state.items()} == tensor_shapes(CONFIG)
    assert loaded == []


class Program:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("was run",)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda whole: whole.update(hidden=Program()), "cannot be read safely"),
        (lambda whole: whole["hyper_parameters"].update(window_type="povey"), "window_type is 'povey'"),
        (lambda whole: whole["hyper_parameters"].update(fbank_centering_span=2.0), "fbank_centering_span is 2.0"),
        (lambda whole: whole["hyper_parameters"].update(lstm={}), "unknown lstm"),
        (lambda whole: whole["state_dict"].pop("resnet.layer2.1.conv1.weight"), "none of WeSpeaker's ResNet18"),
        (lambda whole: whole.pop("pyannote.audio"), r"give the config.yaml"),
    ],
)
def test_what_is_no_model_that_can_be_had_is_refused(
    change: Callable[[dict[str, Any]], None], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ExportError, match=message):
        read_model(saved(tmp_path, change), None)


def test_other_models_of_pyannote_are_named_as_such(tmp_path: Path) -> None:
    def segmentation(whole: dict[str, Any]) -> None:
        whole["state_dict"] = {"sincnet.conv1d.0.weight": torch.zeros(2)}

    with pytest.raises(BundleError, match=r"nor one of WeSpeaker's ResNets"):
        recognise(saved(tmp_path, segmentation))
