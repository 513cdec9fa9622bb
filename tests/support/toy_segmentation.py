"""A tiny segmentation network: the first speaker of a window talks where samples are above `LEVEL` on average, and
with the second where they are above `BOTH`.

write_toy_segmentation(path)   ->  a bundle of kind segmentation, with windows of a second
"""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tritone.bundle import BundleWriter
from tritone.bundle.manifest import Encoder, Features, Manifest, Provenance
from tritone.kinds.segmentation.part import SegmentationPart

SAMPLE_RATE = 16000
FRAME, FIELD = 200, 400  # samples
LEVEL, BOTH = 0.02, 0.9


def write_toy_segmentation(path: Path, name: str = "segmentation") -> Path:
    """Write the bundle to `path` and return `path`."""
    with BundleWriter(path) as writer:
        onnx.save(_graph(), writer.folder / "encoder.onnx")
        writer.commit(
            Manifest(
                name=name,
                kind="segmentation",
                sample_rate=SAMPLE_RATE,
                features=Features(kind="samples", frame_length=1, frame_shift=1, num_mel_bins=1),
                encoder=Encoder(subsampling_rate=FRAME, output_dim=7, min_samples=FIELD),
                parts=(SegmentationPart(window_samples=SAMPLE_RATE, field_samples=FIELD, speakers=3, at_once=2),),
                artifacts=(writer.artifact("encoder", "encoder.onnx"),),
                provenance=Provenance(family="toy"),
            )
        )
    return path


def _graph() -> onnx.ModelProto:
    node = helper.make_node
    # Of nobody, the first speaker, and the first two.
    weights = np.array([[-1, 1, -9, -9, 2, -9, -9]], np.float32)
    bias = np.array([LEVEL, -LEVEL, -9, -9, -LEVEL - BOTH, -9, -9], np.float32)
    nodes = [
        node("Unsqueeze", ["waveform", "axis1"], ["channel"]),
        node("AveragePool", ["channel"], ["mean"], kernel_shape=[FIELD], strides=[FRAME]),
        node("Transpose", ["mean"], ["levels"], perm=[0, 2, 1]),
        node("MatMul", ["levels", "weights"], ["scored"]),
        node("Add", ["scored", "bias"], ["scores"]),
        node("LogSoftmax", ["scores"], ["log_probs"], axis=-1),
        node("Shape", ["levels"], ["frames"], start=1, end=2),
        node("Mul", ["num_samples", "zero"], ["nothing"]),
        node("Add", ["nothing", "frames"], ["num_frames"]),
    ]
    constants = [
        numpy_helper.from_array(np.array([1]), "axis1"),
        numpy_helper.from_array(np.array(0), "zero"),
        numpy_helper.from_array(weights, "weights"),
        numpy_helper.from_array(bias, "bias"),
    ]
    inputs = [
        helper.make_tensor_value_info("waveform", TensorProto.FLOAT, ["batch", "samples"]),
        helper.make_tensor_value_info("num_samples", TensorProto.INT64, ["batch"]),
    ]
    outputs = [
        helper.make_tensor_value_info("log_probs", TensorProto.FLOAT, ["batch", "frames", 7]),
        helper.make_tensor_value_info("num_frames", TensorProto.INT64, ["batch"]),
    ]
    graph = helper.make_graph(nodes, "toy_segmentation", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
