"""Files of `torch.export.save` of any use, as bundles.

    model.pt2  ->  GraphFacts  ->  manifest.json, model.pt2, labels

The program stays as it is, but for a record with the names of its tensors. It is read as data, and only operators on
Tritone's list run (see docs/models/bundle.md); a program that needs others is refused by their names.
"""

import json
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

from tritone.errors import BundleError, ExportError
from tritone.families.graphs.proposal import GraphFacts, Proposal, TensorFacts, TensorOptions, propose
from tritone.families.graphs.writer import GraphReport, new_names, write_graph
from tritone.kinds.generic.part import ServingPart
from tritone.runtime import open_graph
from tritone.runtime.description import ANY, TensorDescription
from tritone.runtime.files.records import NAMES
from tritone.runtime.files.torch_description import describe

GRAPH = "model.pt2"
ADVICE = (
    "Export the module as ONNX (torch.onnx.export, then `tritone export onnx`) or as TorchScript (torch.jit.save, then "
    "`tritone export torchscript`)."
)


def export_torch_export(
    *,
    model: str | Path,
    output: str | Path | None,
    name: str | None = None,
    options: TensorOptions | None = None,
    rename: Mapping[str, str] | None = None,
    serving: ServingPart | None = None,
    propose_only: Callable[[Proposal], None] = lambda proposal: None,
) -> GraphReport | Proposal:
    """Make a bundle of a program of torch.export; arguments as of `export_onnx`.

    Raises:
        ExportError: the program or an option cannot be used; nothing is written then.
        BundleError: the output is in the way.
    """
    path = Path(model)
    if not path.is_file():
        raise ExportError(f"there is no file {path}; give the path of a .pt2 file of torch.export.save")
    try:
        described = describe(path)
        if described.format != "torch.export":
            raise ExportError(f"{path} is {described.format}; `tritone export torchscript` makes a bundle of it")
        known = [each.name for each in (*described.inputs, *described.outputs)]
        changes = dict(rename or {})
        names = {
            "inputs": new_names([each.name for each in described.inputs], changes, known),
            "outputs": new_names([each.name for each in described.outputs], changes, known),
        }
        with tempfile.TemporaryDirectory(prefix="tritone-program-") as folder:
            copy = Path(folder) / GRAPH
            _copy(path, copy, names)
            graph = open_graph(copy)
            facts = GraphFacts(
                name=path.stem,
                inputs=tuple(_facts(*each) for each in zip(described.inputs, names["inputs"], strict=True)),
                outputs=tuple(_facts(*each) for each in zip(described.outputs, names["outputs"], strict=True)),
                about=(path.name, described.facts["written by"], f"{path.stat().st_size / 1e6:.2f} MB"),
            )
            called = list(graph.outputs)
            proposal = propose(
                facts,
                options or TensorOptions(),
                lambda inputs: dict(zip(called, graph(inputs, called), strict=True)),
                name=name,
                output=output,
            )
            propose_only(proposal)
            if output is None:
                return proposal
            return write_graph(
                lambda target: shutil.copyfile(copy, target),  # type: ignore[arg-type]
                GRAPH,
                runtime="torch",
                family="torch-export",
                original=path,
                proposal=proposal,
                output=Path(output),
                serving=serving or ServingPart(),
                options={},
            )
    except BundleError as error:
        reason = str(error).partition(" Export the bundle again")[0]
        raise ExportError(f"{reason} {ADVICE}" if reason != str(error) else reason) from error


def _facts(described: TensorDescription, name: str) -> TensorFacts:
    if described.shape is None:
        raise ExportError(f"{described.name} is {described.type}, and Triton knows tensors alone; wrap the module")
    axes = tuple(None if axis == ANY else axis for axis in described.shape)
    return TensorFacts(name, described.type, axes)  # type: ignore[arg-type]  # one of Triton's, as it has a shape


def _copy(path: Path, target: Path, names: Mapping[str, list[str]]) -> None:
    """The archive with our record of names, and without example inputs, which are a pickle that nobody reads."""
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as made:
        root = source.infolist()[0].filename.partition("/")[0]
        for each in source.infolist():
            inner = each.filename.partition("/")[2]
            if inner != f"extra/{NAMES}" and not inner.startswith("data/sample_inputs/"):
                with source.open(each) as content, made.open(each.filename, "w", force_zip64=True) as copy:
                    shutil.copyfileobj(content, copy)
        made.writestr(f"{root}/extra/{NAMES}", json.dumps(names))
