"""ONNX graphs of any use: what one declares, and a bundle of it.

    model.onnx, its weights beside it  ->  GraphFacts  ->  manifest.json, model.onnx, weights, labels

The graph stays as it is, but for tensors that are renamed, another opset, and shapes of outputs that it did not
declare. It comes from anywhere: what it names is checked, and nothing of it is run but by onnxruntime.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import onnx

from tritone.errors import BundleError, ExportError
from tritone.families.convert.opset import to_opset
from tritone.families.export.report import ONNX_PACKAGES
from tritone.families.graphs.onnx_file import GRAPH, OnnxSource, precision_of, read_onnx, renamed
from tritone.families.graphs.proposal import Proposal, TensorOptions, propose
from tritone.families.graphs.writer import GraphReport, write_graph
from tritone.kinds.generic.part import ServingPart
from tritone.runtime import Graph, open_graph
from tritone.runtime.graph import Array


def export_onnx(
    *,
    model: str | Path,
    output: str | Path | None,
    name: str | None = None,
    options: TensorOptions | None = None,
    rename: Mapping[str, str] | None = None,
    opset: int | None = None,
    serving: ServingPart | None = None,
    propose_only: Callable[[Proposal], None] = lambda proposal: None,
) -> GraphReport | Proposal:
    """Make a bundle of an ONNX graph.

    Args:
        model: the file.
        output: the bundle's folder, a bundle there is replaced; None returns the proposal and writes nothing.
        name: of the model; None takes the output folder's.
        options: what is other than the graph declares.
        rename: new names of inputs and outputs.
        opset: to convert the graph to.
        serving: how the model is served unless its repository is built otherwise.
        propose_only: called with the proposal before anything is written.

    Raises:
        ExportError: the graph or an option cannot be used; nothing is written then.
        BundleError: the output is in the way.
    """
    source = read_onnx(model)
    _ = source.facts  # what cannot be served is reported before anything is converted
    with tempfile.TemporaryDirectory(prefix="tritone-onnx-") as folder:
        source = _changed(source, Path(folder), rename or {}, opset)
        graph = _opened(source.path)
        proposal = propose(source.facts, options or TensorOptions(), _runner(graph), name=name, output=output)
        propose_only(proposal)
        if output is None:
            return proposal
        is_changed = any(each.shape is None for each in source.facts.outputs)
        return write_graph(
            lambda target: _save(source, proposal, target),
            GRAPH,
            runtime="onnxruntime",
            family="onnx",
            original=Path(model),
            proposal=proposal,
            output=Path(output),
            serving=serving or ServingPart(),
            options={"opset": opset},
            packages=ONNX_PACKAGES,
            beside=source.weights,
            opened=_opened if is_changed else lambda target: graph,
            precision=precision_of(source.model),
        )


def _save(source: OnnxSource, proposal: Proposal, path: Path) -> None:
    """Write the graph: the same bytes, unless an output's shape was found out that it does not declare."""
    unknown = {each.name for each in source.facts.outputs if each.shape is None}
    if not unknown:
        shutil.copyfile(source.path, path)
        return
    model = onnx.ModelProto()
    model.CopyFrom(source.model)
    shapes = {each.name: each.shape for each in proposal.generic.outputs}
    shapes |= {each.output: each.dims for each in proposal.generic.states}
    for value in model.graph.output:
        if value.name in unknown:
            value.type.tensor_type.shape.SetInParent()
            axes = [-1, *shapes[value.name]] if proposal.generic.max_batch_size else list(shapes[value.name])
            for size in axes:
                axis = value.type.tensor_type.shape.dim.add()
                if size > 0:
                    axis.dim_value = size
    onnx.save(model, path)


def _changed(source: OnnxSource, folder: Path, names: Mapping[str, str], opset: int | None) -> OnnxSource:
    """The source with other names or another opset, written to `folder`; itself where neither is asked for."""
    if not names and opset in (None, source.opset):
        return source
    model = renamed(source, names)
    if opset not in (None, source.opset):
        if source.weights:
            onnx.load_external_data_for_model(model, str(source.path.parent))
        try:
            model = to_opset(model, opset)
        except (ExportError, ValueError) as error:
            raise ExportError(f"--opset {opset}: {error}") from error
        onnx.save(model, folder / GRAPH)
        return read_onnx(folder / GRAPH)
    onnx.save(model, folder / source.path.name)
    for each in source.weights:
        try:
            os.link(each, folder / each.name)
        except OSError:  # another file system
            shutil.copyfile(each, folder / each.name)
    return OnnxSource(folder / source.path.name, model, source.weights)


def _opened(path: Path) -> Graph:
    try:
        return open_graph(path, quiet=True)  # it is tried with sizes that may not be its own
    except BundleError as error:
        raise ExportError(str(error).replace(" Export the bundle again.", "")) from error


def _runner(graph: Graph) -> Callable[[Mapping[str, Array]], Mapping[str, Array]]:
    names = list(graph.outputs)
    return lambda inputs: dict(zip(names, graph(inputs, names), strict=True))
