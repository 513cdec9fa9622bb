"""From torch modules to ONNX files that share one weights file.

    torch.nn.Module  ->  onnx.ModelProto  ->  graph files + weights.bin

Graphs of one model (offline, streaming) hold the same tensors: each is written once and both point at it through ONNX
external data. Weights may be stored as fp16 or int8 and widened by nodes that a runtime folds away when it opens the
graph: that saves disk, not arithmetic.
"""

import contextlib
import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tritone.errors import ExportError
from tritone.families.onnx.large import LEAST_BYTES, WeightFile, array_of, check, check_file, inner_graphs
from tritone.families.onnx.storage import compress, digest_of

if TYPE_CHECKING:
    from torch import Tensor, nn

OPSET = 18
SHARE_FROM_BYTES = LEAST_BYTES
MOST_BYTES = 2**31 - 2**24  # of a protobuf message is 2**31, and operators take some of it


def export_graph(
    module: "nn.Module",
    inputs: Mapping[str, "Tensor"],
    outputs: Sequence[str],
    dynamic: Mapping[str, Mapping[int, str]],
    metadata: Mapping[str, str],
    *,
    opset: int = OPSET,
    weights: WeightFile | None = None,
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
        weights: the file that takes the weights; None leaves them inside of the graph.

    Raises:
        ExportError: the weights are larger than what an ONNX graph can hold, and there is no file for them.
    """
    import torch

    size = sum(each.numel() * each.element_size() for each in module.parameters())
    if size > MOST_BYTES and weights is None:
        raise ExportError(
            f"the weights of this graph have {size / 1e9:.1f} GB, and one file of ONNX holds at most "
            f"{MOST_BYTES / 1e9:.1f} GB. Export it as a bundle, whose weights are in a file beside its graphs."
        )
    constants: dict[str, Tensor] = {}
    file = io.BytesIO()
    with torch.no_grad(), warnings.catch_warnings(), plain_operators(), _apart(constants):
        warnings.simplefilter("ignore")  # that it is the older one, and of sizes that are meant to be constant
        torch.onnx.export(
            module,
            tuple(inputs.values()),
            file,  # type: ignore[arg-type]  # it takes files, too
            dynamo=False,
            export_params=False,
            input_names=list(inputs),
            output_names=list(outputs),
            opset_version=opset,
            dynamic_axes={name: dict(axes) for name, axes in dynamic.items()},
        )
    model = onnx.load_from_string(file.getvalue())
    _add_weights(model.graph, set(inputs), constants, weights)
    helper.set_model_props(model, dict(metadata))
    del model.graph.value_info[:]
    _drop_copies(model.graph)
    _lift_constants(model.graph)
    _shorten_names(model.graph, {value.name: value.name for value in [*model.graph.input, *model.graph.output]})
    if weights is not None:
        for tensor in model.graph.initializer:
            if tensor.data_location != TensorProto.EXTERNAL:
                weights.keep(tensor, numpy_helper.to_array(tensor))
    check(model)
    return model


@contextlib.contextmanager
def _apart(constants: "dict[str, Tensor]") -> Iterator[None]:
    """Have the exporter leave weights out of its message, which holds 2 GB, and collect them as it folded them."""
    import torch

    exporter: Any = torch._C
    deduplicate = exporter._jit_pass_onnx_deduplicate_initializers

    def collected(graph: Any, found: Any, training: bool) -> Any:
        result = deduplicate(graph, found, training)
        constants.update(result)
        return result

    with mock.patch.object(exporter, "_jit_pass_onnx_deduplicate_initializers", collected):
        yield


def _add_weights(
    graph: onnx.GraphProto, inputs: set[str], constants: "dict[str, Tensor]", weights: WeightFile | None
) -> None:
    """Make initialisers of the inputs that stand for weights; `constants` is emptied on the way, to free memory."""
    for value in [value for value in graph.input if value.name not in inputs]:
        array = constants.pop(value.name).detach().cpu().numpy()
        tensor = TensorProto(name=value.name, data_type=value.type.tensor_type.elem_type, dims=array.shape)
        if weights is None or array.nbytes < SHARE_FROM_BYTES:
            tensor.CopyFrom(numpy_helper.from_array(array, value.name))
        else:
            weights.keep(tensor, array)
        graph.initializer.append(tensor)
        graph.input.remove(value)


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
    with WeightFile(folder / weights_file) as weights:
        for name, model in graphs.items():
            for graph in list(inner_graphs(model.graph)):
                compress(graph, weight_storage, exact)
            for tensor in chain.from_iterable(graph.initializer for graph in inner_graphs(model.graph)):
                weights.keep(tensor, array_of(tensor), weights_file)
            (folder / name).write_bytes(model.SerializeToString())
    for name in graphs:
        check_file(folder / name)


def named(model: onnx.ModelProto, arrays: Sequence[np.ndarray]) -> set[str]:
    """The names that these constants have in a graph."""
    wanted = {digest_of(array): array.nbytes for array in arrays}
    found = {tensor.name: array_of(tensor) for tensor in model.graph.initializer}
    return {name for name, array in found.items() if array.nbytes in wanted.values() and digest_of(array) in wanted}
