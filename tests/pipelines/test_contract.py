"""Graphs that are not what their manifest says: told when the pipeline is opened, in one message."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

import toy
from tritone.bundle import Bundle
from tritone.errors import BundleError
from tritone.pipelines import open_offline, open_streaming
from tritone.pipelines.graphs.placement import Placement


@pytest.fixture
def copy(toy_bundle: Path, tmp_path: Path) -> Path:
    """A copy of the toy bundle to damage."""
    return Path(shutil.copytree(toy_bundle, tmp_path / "copy"))


def edit(bundle: Path, change: Callable[[dict[str, Any]], object]) -> None:
    manifest = json.loads((bundle / "manifest.json").read_text(encoding="utf-8"))
    change(manifest)
    (bundle / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")


def write_identity(path: Path, name: str, element: int, shape: list[Any]) -> None:
    """A graph with one input, given back as `log_probs`."""
    x = helper.make_tensor_value_info(name, element, shape)
    y = helper.make_tensor_value_info("log_probs", element, shape)
    graph = helper.make_graph([helper.make_node("Identity", [name], ["log_probs"])], "g", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def test_the_toy_fits_its_manifest(toy_bundle: Path) -> None:
    open_offline(Bundle.open(toy_bundle), placement=Placement(threads=1))
    open_streaming(Bundle.open(toy_bundle), placement=Placement(threads=1))


def test_another_graph_is_refused_with_everything_that_is_wrong(copy: Path) -> None:
    write_identity(copy / "encoder.onnx", "image", TensorProto.INT64, ["batch", 3, 224])
    with pytest.raises(BundleError, match=r"encoder\.onnx does not fit its manifest") as caught:
        open_offline(Bundle.open(copy), placement=Placement(threads=1))
    told = str(caught.value)
    assert "input waveform is missing; input num_samples is missing" in told
    assert "output log_probs is int64 (any, 3, 224), it should be float32 (any, any, 40)" in told
    assert "output num_frames is missing; input image is unknown to the manifest" in told


def test_an_input_of_another_type_or_rank_is_refused(copy: Path) -> None:
    for element, shape, told in (
        (TensorProto.DOUBLE, ["batch", "samples"], r"waveform is float64 \(any, any\)"),
        (TensorProto.FLOAT, ["samples"], r"waveform is float32 \(any\), it should be float32 \(any, any\)"),
    ):
        write_identity(copy / "encoder.onnx", "waveform", element, shape)
        with pytest.raises(BundleError, match=told):
            open_offline(Bundle.open(copy), placement=Placement(threads=1))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda m: m["streaming"].update(window_samples=toy.WINDOW + 160),
            r"waveform is float32 \(any, 2720\), it should be float32 \(any, 2880\)",
        ),
        (lambda m: m["streaming"]["states"].pop(), "input level is unknown to the manifest"),
        (
            lambda m: m["streaming"].update(flexible=True),
            r"input waveform is float32 \(any, 2720\), it should be float32 \(any, any\)",
        ),
        (
            lambda m: m["streaming"]["states"][1].update(shape=[1000, 1000]),
            r"output next_level is float32 \(any, 1\), it should be float32 \(any, 1000, 1000\)",
        ),
        (lambda m: m["streaming"]["states"][1].update(dtype="float16"), "next_level .* it should be float16"),
        (
            lambda m: m["streaming"]["states"][1].update(name="volume"),
            "input volume is missing; output next_volume is missing; input level is unknown",
        ),
    ],
)
def test_streaming_settings_that_do_not_fit_the_graph_are_refused(
    copy: Path, change: Callable[[dict[str, Any]], object], told: str
) -> None:
    edit(copy, change)
    with pytest.raises(BundleError, match=told):
        open_streaming(Bundle.open(copy), placement=Placement(threads=1))
    open_offline(Bundle.open(copy), placement=Placement(threads=1))


def test_a_vocabulary_of_another_size_than_the_graphs_is_refused(copy: Path) -> None:
    with (copy / "tokens.txt").open("a", encoding="utf-8") as file:
        file.write(f"more {len(toy.TOKENS)}\n")
    edit(copy, lambda manifest: manifest["vocabulary"].update(size=len(toy.TOKENS) + 1))
    for start in (open_offline, open_streaming):
        with pytest.raises(BundleError, match=r"log_probs is float32 \(any, \w+, 40\), it should be .* 41\)"):
            start(Bundle.open(copy), placement=Placement(threads=1))
