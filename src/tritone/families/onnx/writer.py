"""From torch modules to ONNX files that share one weights file.

    torch.nn.Module  ->  onnx.ModelProto  ->  graph files + weights.bin

Graphs of one model (offline, streaming) hold the same tensors: each is written once and both point at it through ONNX
external data. Weights may be stored as fp16 or int8 and widened by nodes that a runtime folds away when it opens the
graph: that saves disk, not arithmetic.
"""

import contextlib
import hashlib
import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tritone.errors import ExportError
from tritone.families.onnx.storage import compress, digest_of, inner_graphs

if TYPE_CHECKING:
    from torch import Tensor, nn

OPSET = 18
SHARE_FROM_BYTES = 1024  # smaller tensors stay inside the graph
MOST_BYTES = 2**31 - 2**24  # of a protobuf message is 2**31, and operators take some of it
ALIGNMENT = 64  # bytes, so that a memory-mapped tensor starts on a cache line


def export_graph(
    module: "nn.Module",
    inputs: Mapping[str, "Tensor"],
    outputs: Sequence[str],
    dynamic: Mapping[str, Mapping[int, str]],
    metadata: Mapping[str, str],
    *,
    opset: int = OPSET,
) -> onnx.ModelProto:
    """Trace `module` and translate it to ONNX.

    torch's older exporter does it: a network of some thousand operators takes it seconds, and the newer one minutes. A
    trace would hold for constant whatever Python computed from sizes, so who exports runs the graph on other sizes.

    Args:
        module: in eval mode; takes the `inputs` in order.
        inputs: example tensors by name; sizes of dynamic axes should be different from one another and from 0 and 1.
        outputs: names of what the module returns.
        dynamic: axes that vary, by input, as {axis: name}; equal names mean equal sizes.
        metadata: strings stored in the file's metadata.
        opset: version of the operators; old ones are for old runtimes.

    Raises:
        ExportError: the weights are larger than what an ONNX graph can hold while it is made.
    """
    import torch

    size = sum(each.numel() * each.element_size() for each in module.parameters())
    if size > MOST_BYTES:
        raise ExportError(
            f"the weights of this graph have {size / 1e9:.1f} GB, and torch writes ONNX graphs of at most "
            f"{MOST_BYTES / 1e9:.1f} GB. Export it for torch (--runtimes torch), or in halves alone (--precision fp16)."
        )
    file = io.BytesIO()
    with torch.no_grad(), warnings.catch_warnings(), plain_operators():
        warnings.simplefilter("ignore")  # that it is the older one, and of sizes that are meant to be constant
        torch.onnx.export(
            module,
            tuple(inputs.values()),
            file,  # type: ignore[arg-type]  # it takes files, too
            dynamo=False,
            input_names=list(inputs),
            output_names=list(outputs),
            opset_version=opset,
            dynamic_axes={name: dict(axes) for name, axes in dynamic.items()},
        )
    model = onnx.load_from_string(file.getvalue())
    helper.set_model_props(model, dict(metadata))
    del model.graph.value_info[:]
    _drop_copies(model.graph)
    _lift_constants(model.graph)
    _shorten_names(model.graph, {value.name: value.name for value in [*model.graph.input, *model.graph.output]})
    onnx.checker.check_model(model, full_check=True)
    return model


def _drop_copies(graph: onnx.GraphProto) -> None:
    """Use a weight itself where the exporter copies it, as it does with weights that are equal.

    onnxruntime's optimiser loses some of these copies, and then refuses the graph.
    """
    weights, kept = {tensor.name for tensor in graph.initializer}, {value.name for value in graph.output}
    copies = {
        node.output[0]: node.input[0]
        for node in graph.node
        if node.op_type == "Identity" and node.input[0] in weights and node.output[0] not in kept
    }
    for node in [node for node in graph.node if node.output[0] in copies]:
        graph.node.remove(node)
    for inner in inner_graphs(graph):
        for node in inner.node:
            node.input[:] = [copies.get(name, name) for name in node.input]


def _lift_constants(graph: onnx.GraphProto) -> None:
    """Make initialisers of large constants, which several graphs can then share."""
    for node in list(graph.node):
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            tensor = node.attribute[0].t
            if len(tensor.raw_data) >= SHARE_FROM_BYTES:
                tensor.name = node.output[0]
                graph.initializer.append(tensor)
                graph.node.remove(node)


def _shorten_names(graph: onnx.GraphProto, names: dict[str, str]) -> None:
    """Number what has the names of modules, which outweigh a small model, and drop positions in source files.

    Args:
        names: new ones by old ones, those to be kept among them; is added to. Graphs inside of others see all.
    """

    def short(name: str) -> str:
        return names.setdefault(name, f"_{len(names)}") if name else ""

    for tensor in graph.initializer:
        tensor.name = short(tensor.name)
    for node in graph.node:
        node.name = node.doc_string = ""
        node.input[:] = [short(name) for name in node.input]
        for attribute in node.attribute:
            for inner in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                _shorten_names(inner, names)
                for value in inner.output:
                    value.name = short(value.name)
        node.output[:] = [short(name) for name in node.output]


@contextlib.contextmanager
def plain_operators() -> Iterator[None]:
    """Have the older exporter see operators that it translates well."""
    import torch
    from torch import Tensor
    from torch.nn import functional as F

    def unflatten(x: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
        # It takes all axes behind the real operator for constants.
        dim %= x.dim()
        return x.reshape(*x.shape[:dim], *sizes, *x.shape[dim + 1 :])

    def softplus(x: Tensor) -> Tensor:
        # onnxruntime's Softplus takes 19 ns an element, ten times what its Exp and Log take together.
        return torch.maximum(x, torch.log(torch.exp(x.clamp(max=20.0)) + 1.0))

    with mock.patch.object(Tensor, "unflatten", unflatten), mock.patch.object(F, "softplus", softplus):
        yield


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
    exact = {digest_of(array) for array in keep_exact}
    offsets: dict[str, tuple[int, int]] = {}
    with (folder / weights_file).open("wb") as weights:
        for name, model in graphs.items():
            for graph in list(inner_graphs(model.graph)):
                compress(graph, weight_storage, exact)
            for tensor in chain.from_iterable(graph.initializer for graph in inner_graphs(model.graph)):
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
    wanted = {digest_of(array) for array in arrays}
    return {tensor.name for tensor in model.graph.initializer if digest_of(numpy_helper.to_array(tensor)) in wanted}


def _point_outside(tensor: TensorProto, location: str, offset: int, length: int) -> None:
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    del tensor.external_data[:]
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)
