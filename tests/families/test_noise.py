"""The gate of exports tells noise from damage: graphs that were sabotaged are refused, and rounding is not."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx import numpy_helper

from families.whisper_models import random_model, write_folder
from tritone.bundle.manifest import Precision, Role
from tritone.errors import ExportError
from tritone.families.export.exportable import ExportableGraph
from tritone.families.export.networks import Networks
from tritone.families.export.noise import InFloat64, Reference
from tritone.families.onnx.large import WeightFile, beside
from tritone.families.whisper.export import WhisperModel
from tritone.families.whisper.onnx_graphs import HIDDEN
from tritone.families.whisper.options import WhisperOptions
from tritone.runtime import Graph, open_graph

Sabotage = Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> WhisperModel:
    folder = tmp_path_factory.mktemp("noise")
    checkpoint = write_folder(folder / "model", random_model())
    return WhisperModel(WhisperOptions(checkpoint=checkpoint, output=folder / "bundle"))


@pytest.fixture(scope="module")
def networks(model: WhisperModel) -> Networks:
    assert model.networks is not None
    return model.networks


def written(model: WhisperModel, role: Role, precision: Precision, path: Path, sabotage: Sabotage | None) -> Graph:
    """The graph of a role, opened; a sabotage changes some of its constants."""
    with WeightFile(path / "weights") as weights:
        graph = beside(model.onnx_graph(role, precision, weights))
    if sabotage is not None:
        tensors = {each.name: each for each in graph.graph.initializer}
        changed = sabotage({name: numpy_helper.to_array(each, str(path)) for name, each in tensors.items()})
        assert changed, "nothing was found to be changed"
        for name, value in changed.items():
            assert value.shape == tuple(tensors[name].dims)
            tensors[name].CopyFrom(numpy_helper.from_array(value, name))
    (path / f"{role}.onnx").write_bytes(graph.SerializeToString())
    return open_graph(path / f"{role}.onnx")


def swapped(one: str, other: str) -> Sabotage:
    return lambda given: {one: given[other], other: given[one]}


def scaled(name: str, factor: float) -> Sabotage:
    return lambda given: {name: (given[name] * factor).astype(given[name].dtype)}


def unmasked(given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: np.zeros_like(value) for name, value in given.items() if value.shape == () and value == HIDDEN}


def unscaled(given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Attention without the root of its heads' width, which its queries are made with."""
    scale = (32 // 4) ** 0.5
    return {name: value * value.dtype.type(scale) for name, value in given.items() if ".query." in name}


def without(name: str) -> Sabotage:
    return lambda given: {name: np.zeros_like(given[name])}


DAMAGE: dict[str, tuple[Role, Sabotage]] = {
    "a weight of another layer": (
        "encoder",
        swapped("encoder.blocks.0.mlp.0.weight", "encoder.blocks.1.mlp.0.weight"),
    ),
    "keys for values": (
        "encoder",
        swapped("decoder.blocks.1.cross_attn.key.weight", "decoder.blocks.1.cross_attn.value.weight"),
    ),
    "a weight off by a hundredth": ("encoder", scaled("encoder.blocks.1.attn.out.weight", 1.01)),
    "a norm's scale": ("decoder", scaled("decoder.blocks.0.mlp_ln.weight", 0.98)),
    "no scale of attention": ("decoder", unscaled),
    "no mask": ("decoder", unmasked),
    "no bias of one layer": ("decoder", without("decoder.blocks.1.mlp.2.bias")),
    "no bias of a convolution": ("encoder", without("encoder.conv1.bias")),
}


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("role", ["features", "encoder", "decoder"])
def test_rounding_passes(
    model: WhisperModel, networks: Networks, role: Role, precision: Precision, tmp_path: Path
) -> None:
    opened = written(model, role, precision, tmp_path, None)
    networks.require(role, role, networks.distance(role, role, opened), precision)


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_refused(model: WhisperModel, networks: Networks, damage: str, tmp_path: Path) -> None:
    role, sabotage = DAMAGE[damage]
    found = networks.distance(role, role, written(model, role, "fp32", tmp_path, sabotage))
    with pytest.raises(
        ExportError, match=r"does not reproduce the torch network: \w+ is off by .* on speech, and round"
    ):
        networks.require(role, role, found, "fp32")


@pytest.mark.parametrize("damage", ["a weight of another layer", "keys for values", "no mask", "no scale of attention"])
def test_coarse_damage_is_refused_in_halves_too(
    model: WhisperModel, networks: Networks, damage: str, tmp_path: Path
) -> None:
    role, sabotage = DAMAGE[damage]
    found = networks.distance(role, role, written(model, role, "fp16", tmp_path, sabotage))
    with pytest.raises(ExportError, match="rounding to fp16 explains"):
        networks.require(role, role, found, "fp16")


def test_a_graph_that_says_something_that_is_no_number_is_refused(
    model: WhisperModel, networks: Networks, tmp_path: Path
) -> None:
    spoiled = written(model, "encoder", "fp32", tmp_path, scaled("encoder.conv1.weight", float("nan")))
    with pytest.raises(ExportError, match="is off by nan"):
        networks.require("encoder", "encoder", networks.distance("encoder", "encoder", spoiled), "fp32")


class Sum(torch.nn.Module):
    """A weighted sum of thousands of numbers, which float32 loses something of."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(-1, 1, 20_001))
        self.state = torch.nn.LSTM(1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        half = (x * self.weight).to(torch.float16).float()  # what asks for less is given all the same
        held = torch.zeros(1, dtype=torch.float32)
        held += half.sum()
        return held + self.state(x.reshape(-1, 1, 1)[:3])[0].sum()


def test_within_the_mode_everything_is_float64() -> None:
    network, x = Sum(), torch.rand(20_001, generator=torch.Generator().manual_seed(1))
    with torch.no_grad(), InFloat64():
        found = network(x)
        assert found.dtype == torch.float64
        assert network.weight.dtype == torch.float64, "as modules see it that ask"
    assert network.weight.dtype == torch.float32
    wide = Sum().double()
    wide.load_state_dict(network.state_dict())
    with torch.no_grad():
        numbers = x.double() * wide.weight
        expected = numbers.sum() + wide.state(x.double().reshape(-1, 1, 1)[:3])[0].sum()
    assert float(found) == pytest.approx(float(expected), rel=1e-6), "the sum that is held in place is float32"


def test_the_exact_numbers_are_those_of_the_network_in_float64(networks: Networks, model: WhisperModel) -> None:
    graph: ExportableGraph = model.graphs["encoder"]
    reference: Any = Reference(graph)
    [run] = graph.trials()
    window = run.steps[0]["features"]
    wide = copy.deepcopy(graph).double()
    with torch.no_grad():
        encoder: Any = wide.encoder
        x = window.double().transpose(1, 2)
        x = torch.nn.functional.gelu(encoder.conv2(torch.nn.functional.gelu(encoder.conv1(x))))
        x = x.transpose(1, 2) + encoder.positional_embedding
        for block in encoder.blocks:
            y = block.attn_ln(x)
            x = x + block.attn.attend(y, block.attn.keys(y).transpose(2, 3), block.attn.values(y))[0]
            x = x + block.mlp(block.mlp_ln(x))
        expected = encoder.ln_post(x).numpy()
    np.testing.assert_allclose(reference._exact[0][0]["encoder_out"], expected, rtol=1e-11, atol=1e-12)
