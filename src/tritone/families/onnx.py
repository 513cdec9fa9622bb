"""From torch modules to ONNX files that share one weights file.

    torch.nn.Module  ->  onnx.ModelProto  ->  graph files + weights.bin

Graphs of one model (offline, streaming) hold the same tensors: each is written once and both point at it through ONNX
external data. Weights may be stored as fp16 or int8 and widened by nodes that a runtime folds away when it opens the
graph: that saves disk, not arithmetic.
"""

import contextlib
import hashlib
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from tritone.errors import ExportError

OPSET = 18
SHARE_FROM_BYTES = 1024  # smaller tensors stay inside the graph
COMPRESS_FROM_ELEMENTS = 2048
ALIGNMENT = 64  # bytes, so that a memory-mapped tensor starts on a cache line


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The exporter reports its own progress and the absence of packages nobody asked for."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def export_graph(
    module: nn.Module,
    inputs: Mapping[str, Tensor],
    outputs: Sequence[str],
    dynamic: Mapping[str, Mapping[int, str]],
    metadata: Mapping[str, str],
) -> onnx.ModelProto:
    """Trace `module` and translate it to ONNX.

    Args:
        module: in eval mode; takes the `inputs` in order.
        inputs: example tensors by name; sizes of dynamic axes should be different from one another and from 0 and 1.
        outputs: names of what the module returns.
        dynamic: axes that vary, by input, as {axis: name}; equal names mean equal sizes.
        metadata: strings stored in the file's metadata.
    """
    shapes = tuple({axis: torch.export.Dim.DYNAMIC for axis in dynamic.get(name, {})} for name in inputs)
    with torch.no_grad(), _quiet():
        program = torch.export.export(module, tuple(inputs.values()), dynamic_shapes=shapes)
        exported = torch.onnx.export(
            program,
            dynamo=True,
            input_names=list(inputs),
            output_names=list(outputs),
            opset_version=OPSET,
            optimize=True,
            verbose=False,
        )
    if exported is None:
        raise ExportError("torch.onnx.export returned nothing")
    model = exported.model_proto
    _name_axes(model, dynamic)
    helper.set_model_props(model, dict(metadata))
    # Source positions and module paths of the exporting machine: nobody reads them, and they outweigh a small model.
    for node in model.graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
    del model.graph.value_info[:]
    del model.graph.metadata_props[:]
    for value in [*model.graph.input, *model.graph.output]:
        del value.metadata_props[:]
    for tensor in model.graph.initializer:
        del tensor.metadata_props[:]
        tensor.doc_string = ""
    onnx.checker.check_model(model, full_check=True)
    return model


def _name_axes(model: onnx.ModelProto, dynamic: Mapping[str, Mapping[int, str]]) -> None:
    """Give the exporter's anonymous symbols (s13, …) the names of `dynamic`, in outputs too."""
    renamed: dict[str, str] = {}
    for value in model.graph.input:
        for axis, name in dynamic.get(value.name, {}).items():
            renamed[value.type.tensor_type.shape.dim[axis].dim_param] = name
    for value in [*model.graph.input, *model.graph.output]:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in renamed:
                dim.dim_param = renamed[dim.dim_param]


def save_graphs(
    graphs: Mapping[str, onnx.ModelProto],
    folder: Path,
    weights_file: str,
    weight_storage: str,
    keep_exact: Sequence[np.ndarray],
) -> None:
    """Write graphs to `folder` under the given file names, and the tensors they hold to one file beside them.

    Args:
        weights_file: its name.
        weight_storage: "fp32", "fp16" or "int8" (symmetric, one scale per output channel).
        keep_exact: constants that stay float32 whatever the storage, such as the matrices of the feature front end.
    """
    exact = {_digest(array) for array in keep_exact}
    offsets: dict[str, tuple[int, int]] = {}
    with (folder / weights_file).open("wb") as weights:
        for name, model in graphs.items():
            _compress(model, weight_storage, exact)
            for tensor in model.graph.initializer:
                data = numpy_helper.to_array(tensor).tobytes()
                if len(data) < SHARE_FROM_BYTES:
                    continue
                digest = hashlib.sha256(data).hexdigest()
                if digest not in offsets:
                    weights.write(b"\0" * (-weights.tell() % ALIGNMENT))
                    offsets[digest] = (weights.tell(), len(data))
                    weights.write(data)
                _point_outside(tensor, weights_file, *offsets[digest])
            (folder / name).write_bytes(model.SerializeToString())


def named(model: onnx.ModelProto, arrays: Sequence[np.ndarray]) -> set[str]:
    """The names that these constants have in a graph."""
    wanted = {_digest(array) for array in arrays}
    return {tensor.name for tensor in model.graph.initializer if _digest(numpy_helper.to_array(tensor)) in wanted}


def _digest(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def _point_outside(tensor: TensorProto, location: str, offset: int, length: int) -> None:
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    del tensor.external_data[:]
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)


def _compress(model: onnx.ModelProto, weight_storage: str, exact: set[str]) -> None:
    """Replace large float32 weights by a smaller form and the nodes that widen it, in place."""
    if weight_storage == "fp32":
        return
    graph = model.graph
    widened: list[onnx.NodeProto] = []
    kept: list[TensorProto] = []
    for tensor in graph.initializer:
        array = numpy_helper.to_array(tensor)
        if (
            array.dtype != np.float32
            or array.ndim < 2
            or array.size < COMPRESS_FROM_ELEMENTS
            or _digest(array) in exact
        ):
            kept.append(tensor)
        elif weight_storage == "fp16":
            kept.append(numpy_helper.from_array(array.astype(np.float16), f"{tensor.name}.fp16"))
            widened.append(helper.make_node("Cast", [f"{tensor.name}.fp16"], [tensor.name], to=TensorProto.FLOAT))
        elif weight_storage == "int8":
            levels, scale = quantise(array)
            kept += [
                numpy_helper.from_array(levels, f"{tensor.name}.int8"),
                numpy_helper.from_array(scale, f"{tensor.name}.scale"),
            ]
            widened += [
                helper.make_node("Cast", [f"{tensor.name}.int8"], [f"{tensor.name}.float"], to=TensorProto.FLOAT),
                helper.make_node("Mul", [f"{tensor.name}.float", f"{tensor.name}.scale"], [tensor.name]),
            ]
        else:
            raise ValueError(f"weight storage {weight_storage!r} is not fp32, fp16 or int8")
    nodes = [*widened, *graph.node]
    del graph.initializer[:], graph.node[:]
    graph.initializer.extend(kept)
    graph.node.extend(nodes)


def quantise(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Symmetric int8 levels and float32 scales that broadcast over them: array ≈ levels * scale.

    One scale per row or per column of a matrix, whichever loses less; per output channel (axis 0) of a convolution.
    """
    best: tuple[float, np.ndarray, np.ndarray] | None = None
    axes = [tuple(range(1, array.ndim))] if array.ndim > 2 else [(0,), (1,)]
    for reduced in axes:
        scale = np.maximum(
            np.abs(array).max(axis=reduced, keepdims=True), np.finfo(np.float32).tiny * 127
        ) / np.float32(127)
        levels = np.rint(array / scale).astype(np.int8)
        loss = float(np.square(levels * scale - array).sum())
        if best is None or loss < best[0]:
            best = loss, levels, scale.astype(np.float32)
    assert best is not None
    return best[1], best[2]
