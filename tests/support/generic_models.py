"""Small ONNX models of arithmetic and their bundles of kind generic, whose answers can be told from their inputs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tritone.bundle import BundleWriter
from tritone.bundle.manifest import Manifest, Provenance
from tritone.kinds.generic.part import GenericInput, GenericOutput, GenericPart, SequenceState

Shapes = Mapping[str, tuple[int, Sequence[int | str]]]  # ONNX type and shape of tensors by name


def onnx_model(
    nodes: Sequence[Any], inputs: Shapes, outputs: Shapes, constants: Mapping[str, Any] | None = None, opset: int = 17
) -> onnx.ModelProto:
    """An ONNX model of some nodes."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        list(nodes),
        "small",
        [value(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [value(name, kind, shape) for name, (kind, shape) in outputs.items()],
        [numpy_helper.from_array(np.asarray(each), name) for name, each in (constants or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def scaled() -> onnx.ModelProto:
    """y = 2 x + 1, of (batch, 3)."""
    return onnx_model(
        [helper.make_node("Mul", ["x", "two"], ["doubled"]), helper.make_node("Add", ["doubled", "one"], ["y"])],
        {"x": (TensorProto.FLOAT, ["batch", 3])},
        {"y": (TensorProto.FLOAT, ["batch", 3])},
        {"two": np.float32(2), "one": np.float32(1)},
    )


def running_sum() -> onnx.ModelProto:
    """sum = x + before, of (batch, 2); `sum` comes back as `before`."""
    return onnx_model(
        [helper.make_node("Add", ["x", "before"], ["sum"]), helper.make_node("Identity", ["sum"], ["next"])],
        {"x": (TensorProto.FLOAT, ["batch", 2]), "before": (TensorProto.FLOAT, ["batch", 2])},
        {"sum": (TensorProto.FLOAT, ["batch", 2]), "next": (TensorProto.FLOAT, ["batch", 2])},
    )


def write_generic(path: Path, model: onnx.ModelProto, generic: GenericPart, name: str = "small") -> Path:
    """A bundle of an ONNX model, by hand."""
    with BundleWriter(path) as writer:
        onnx.save(model, writer.folder / "model.onnx")
        artifact = writer.artifact("model", "model.onnx")
        manifest = Manifest(
            name=name, kind="generic", parts=(generic,), artifacts=(artifact,), provenance=Provenance(family="toy")
        )
        writer.commit(manifest)
    return path


def write_scaled(path: Path) -> Path:
    x, y = GenericInput(name="x", type="FP32", dims=(3,)), GenericOutput(name="y", type="FP32", dims=(3,))
    return write_generic(path, scaled(), GenericPart(inputs=(x,), outputs=(y,), max_batch_size=4))


def write_running_sum(path: Path) -> Path:
    generic = GenericPart(
        inputs=(GenericInput(name="x", type="FP32", dims=(2,)),),
        outputs=(GenericOutput(name="sum", type="FP32", dims=(2,)),),
        states=(SequenceState(input="before", output="next", type="FP32", dims=(2,)),),
        max_batch_size=4,
    )
    return write_generic(path, running_sum(), generic)
