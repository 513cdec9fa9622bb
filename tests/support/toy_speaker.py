"""A tiny speaker model whose embeddings can be worked out by hand: how much of the time each of eight levels is heard.

    write_toy_speaker(path)      ->  a bundle of kind embedding
    toy_voice([3, 1, 0, ...])    ->  audio whose embedding is (0.75, 0.25, 0, ...)

Level k is a sample of k / 8; between two levels a sample counts for both by its distance. Audio below `MIN_SAMPLES` is
too short for it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from tritone.bundle import BundleWriter
from tritone.bundle.manifest import Encoder, Features, Manifest, Provenance
from tritone.kinds.embedding.part import EmbeddingPart

SAMPLE_RATE = 16000
DIM = 8
MIN_SAMPLES = 800


def write_toy_speaker(
    path: Path,
    name: str = "speaker",
    *,
    mean_subtracted: bool = False,
    dim: int = DIM,
    stages: bool = False,
    equal_lengths: bool = False,
) -> Path:
    """Write the bundle to `path` and return `path`.

    `stages`: with graphs for stages, too; features are the samples, one to a frame. `equal_lengths`: padding is heard.
    """
    features = Features(window="hamming", normalize="mean")
    if stages:
        features = features.model_copy(update={"num_mel_bins": 1, "frame_shift": 1})
    with BundleWriter(path) as writer:
        onnx.save(_graph(dim, equal_lengths), writer.folder / "encoder.onnx")
        artifacts = [writer.artifact("encoder", "encoder.onnx")]
        if stages:
            onnx.save(_features(), writer.folder / "features.onnx")
            onnx.save(_graph(dim, equal_lengths, acoustic=True), writer.folder / "acoustic.onnx")
            artifacts += [writer.artifact("features", "features.onnx"), writer.artifact("acoustic", "acoustic.onnx")]
        writer.commit(
            Manifest(
                name=name,
                kind="embedding",
                sample_rate=SAMPLE_RATE,
                features=features,
                encoder=Encoder(
                    subsampling_rate=1, output_dim=dim, min_samples=MIN_SAMPLES, equal_lengths=equal_lengths
                ),
                parts=(EmbeddingPart(mean_subtracted=mean_subtracted),),
                artifacts=tuple(artifacts),
                provenance=Provenance(family="toy"),
            )
        )
    return path


def toy_voice(parts: Sequence[float], samples: int = 16000, seed: int = 0) -> npt.NDArray[np.float32]:
    """Audio of so many samples with the levels in these proportions, in an order that `seed` decides."""
    shares = np.asarray(parts, dtype=np.float64) / np.sum(parts)
    ends = np.round(np.cumsum(shares) * samples).astype(int)
    levels = np.searchsorted(ends, np.arange(samples), side="right") / DIM
    return np.random.default_rng(seed).permutation(levels).astype(np.float32)


def toy_embedding(waveform: npt.NDArray[np.float32], dim: int = DIM) -> npt.NDArray[np.float32]:
    """What the toy says of a waveform."""
    near = np.maximum(0.0, 1.0 - np.abs(DIM * waveform[:, None].astype(np.float64) - np.arange(dim)))
    result: npt.NDArray[np.float32] = near.mean(axis=0).astype(np.float32)
    return result


def _features() -> onnx.ModelProto:
    node = helper.make_node("Unsqueeze", ["waveform", "axis2"], ["features"])
    features = helper.make_tensor_value_info("features", TensorProto.FLOAT, ["batch", "samples", 1])
    return _model([node], _inputs(), [features], [numpy_helper.from_array(np.array([2]), "axis2")])


def _inputs(acoustic: bool = False) -> list[onnx.ValueInfoProto]:
    samples = helper.make_tensor_value_info("num_samples", TensorProto.INT64, ["batch"])
    if acoustic:
        return [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["batch", "frames", 1]), samples]
    return [helper.make_tensor_value_info("waveform", TensorProto.FLOAT, ["batch", "samples"]), samples]


def _model(nodes: Any, inputs: Any, outputs: Any, constants: Any) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "toy_speaker", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _graph(dim: int, equal_lengths: bool = False, acoustic: bool = False) -> onnx.ModelProto:
    def constant(name: str, value: Any) -> onnx.TensorProto:
        return numpy_helper.from_array(np.asarray(value), name)

    node = helper.make_node
    nodes = [
        *([node("Squeeze", ["features", "axis2"], ["waveform"])] if acoustic else []),
        node("Shape", ["waveform"], ["size"], start=1, end=2),
        node("Squeeze", ["size", "axis0"], ["samples"]),
        node("Range", ["zero", "samples", "one"], ["places"]),
        node("Unsqueeze", ["num_samples", "axis1"], ["told"]),
        # Heard to the end of the row, whatever is said: the largest of both is that end.
        node("Max", ["told", "samples"] if equal_lengths else ["told", "told"], ["ends"]),
        node("Less", ["places", "ends"], ["valid"]),
        node("Cast", ["valid"], ["counted"], to=TensorProto.FLOAT),
        node("Mul", ["waveform", "scale"], ["scaled"]),
        node("Unsqueeze", ["scaled", "axis1"], ["column"]),
        node("Sub", ["column", "levels"], ["away"]),
        node("Abs", ["away"], ["distance"]),
        node("Sub", ["unit", "distance"], ["inside"]),
        node("Relu", ["inside"], ["near"]),
        node("Unsqueeze", ["counted", "axis1"], ["weights"]),
        node("Mul", ["near", "weights"], ["kept"]),
        node("ReduceSum", ["kept", "axis2"], ["total"], keepdims=0),
        node("Cast", ["ends"], ["count"], to=TensorProto.FLOAT),
        node("Div", ["total", "count"], ["embeddings"]),
    ]
    constants = [
        constant("axis0", np.array([0])),
        constant("axis1", np.array([1])),
        constant("axis2", np.array([2])),
        constant("zero", np.int64(0)),
        constant("one", np.int64(1)),
        constant("scale", np.float32(DIM)),
        constant("unit", np.float32(1)),
        constant("levels", np.arange(dim, dtype=np.float32)[None, :, None]),
    ]
    outputs = [helper.make_tensor_value_info("embeddings", TensorProto.FLOAT, ["batch", dim])]
    return _model(nodes, _inputs(acoustic), outputs, constants)
