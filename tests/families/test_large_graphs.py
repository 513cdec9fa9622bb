"""Graphs whose weights are more than one message of protobuf holds, which are 2 GB."""

import resource
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

from tritone.errors import ExportError
from tritone.families.export.exportable import Run, UtteranceGraph, utterances
from tritone.families.export.noise import Reference
from tritone.families.onnx import source
from tritone.families.onnx.builder import Builder
from tritone.families.onnx.int8 import quantise_products
from tritone.families.onnx.large import WeightFile, array_of, beside, is_large, write
from tritone.families.onnx.writer import export_graph, save_graphs
from tritone.runtime import open_graph


class Wide(UtteranceGraph):
    """Few wide layers: samples to numbers, one frame a sample."""

    compared = ("log_probs",)
    counted = None
    sample_rate = 16000

    def __init__(self, width: int, inner: int, layers: int) -> None:
        super().__init__()
        self.first = nn.Linear(1, width)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(width, inner), nn.ReLU(), nn.Linear(inner, width)) for _ in range(layers)
        )

    @property
    def min_samples(self) -> int:
        return 1

    @property
    def outputs(self) -> list[str]:
        return ["log_probs"]

    def example(self) -> dict[str, Tensor]:
        return {"waveform": torch.zeros(3, 5), "num_samples": torch.tensor([5, 4, 3])}

    def trials(self) -> Iterator[Run]:
        yield utterances([np.linspace(-1, 1, 7, dtype=np.float32), np.ones(4, np.float32)])

    def front_end(self, waveform: Tensor, num_samples: Tensor) -> tuple[Tensor, Tensor]:
        return waveform.unsqueeze(2), num_samples

    def acoustic(self, features: Tensor, num_samples: Tensor) -> tuple[Tensor]:
        x = self.first(features) + 0.0 * num_samples[:, None, None]
        for layer in self.layers:
            x = x + layer(x)
        return (x,)


def wide(width: int, inner: int, layers: int) -> Wide:
    torch.manual_seed(0)
    return Wide(width, inner, layers).eval().requires_grad_(False)


def written(graph: Wide, folder: Path) -> tuple[onnx.ModelProto, float, float]:
    """A graph in float32 and int8, and how far both are from the network."""
    described = graph.example(), graph.outputs, graph.dynamic, graph.metadata
    with WeightFile(folder / ".weights") as weights:
        model = export_graph(graph, *described, weights=weights)
        levels = quantise_products(model)
        save_graphs({"wide.onnx": beside_nothing(model)}, folder, "weights.bin", "fp32", [])
        save_graphs({"wide.int8.onnx": levels}, folder, "weights.int8.bin", "fp32", [])
    (folder / ".weights").unlink()
    reference = Reference(graph)
    exact, narrow = (
        reference.distance(open_graph(folder / name), name).largest for name in ("wide.onnx", "wide.int8.onnx")
    )
    return model, exact, narrow


def beside_nothing(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def test_weights_in_a_file_are_those_of_the_network_and_each_is_there_once(tmp_path: Path) -> None:
    graph = wide(64, 256, 3)
    graph.layers[2] = graph.layers[0]  # the same weights twice
    model, exact, narrow = written(graph, tmp_path)
    assert exact < 1e-5
    assert exact < narrow < 0.3
    once = sum(each.numel() * 4 for each in graph.parameters())
    assert once * 0.98 <= (tmp_path / "weights.bin").stat().st_size < once * 1.02
    assert (tmp_path / "weights.int8.bin").stat().st_size < once * 0.3
    assert is_large(model)
    assert (tmp_path / "wide.onnx").stat().st_size < 20_000
    with WeightFile(tmp_path / "again") as weights:
        again = export_graph(graph, graph.example(), graph.outputs, graph.dynamic, graph.metadata, weights=weights)
    inline = export_graph(graph, graph.example(), graph.outputs, graph.dynamic, graph.metadata)
    for one, other in zip(again.graph.initializer, inline.graph.initializer, strict=True):
        np.testing.assert_array_equal(array_of(one), array_of(other))
    assert [entry.value for entry in beside(again).graph.initializer[-1].external_data][:1] == ["again"]


def test_a_strangers_graph_with_large_weights_is_read_and_written_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = wide(64, 256, 2)
    written(graph, tmp_path)
    monkeypatch.setattr(source, "MAX_BYTES", 10_000)  # what stands for 2 GB
    found = source.read_source(tmp_path / "wide.onnx")
    assert is_large(found.model)
    builder = Builder()
    for name in ("waveform", "num_samples"):
        builder.op("Identity", name, output=f"net.{name}")
    builder.embed(found.model)
    builder.op("Identity", "net.log_probs", output="log_probs")
    whole = builder.model(
        {"waveform": (onnx.TensorProto.FLOAT, ["rows", "samples"]), "num_samples": (onnx.TensorProto.INT64, ["rows"])},
        {"log_probs": (onnx.TensorProto.FLOAT, ["rows", "samples", 64])},
        {},
    )
    assert write(whole, tmp_path / "whole.onnx") == ["whole.onnx", "whole.weights.bin"]
    assert Reference(graph).distance(open_graph(tmp_path / "whole.onnx"), "whole.onnx").largest < 1e-5
    (tmp_path / "weights.bin").write_bytes((tmp_path / "weights.bin").read_bytes()[:-1000])
    with pytest.raises(ExportError, match="not a valid ONNX graph"):
        source.read_source(tmp_path / "wide.onnx")


@pytest.mark.slow
def test_a_network_of_more_than_two_gigabytes_is_exported_in_float32_and_int8(tmp_path: Path) -> None:
    graph = wide(4096, 17_000, 4)
    size = sum(each.numel() * 4 for each in graph.parameters())
    assert size > 2.2e9
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    _, exact, narrow = written(graph, tmp_path)
    assert exact < 1e-4
    assert np.isfinite(narrow)
    assert (tmp_path / "weights.bin").stat().st_size > 2.2e9
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert peak < 2.5 * size + before - size, (peak, before, size)
