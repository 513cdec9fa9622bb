"""Writing the bundle of a generic model whose graph is one file, from what was proposed of it."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritone.bundle.bundle import Bundle, BundleWriter
from tritone.bundle.manifest import Manifest, Runtime
from tritone.errors import BundleError, ExportError
from tritone.families.export.report import TORCH_PACKAGES, Choice, bundle_bytes, provenance
from tritone.families.graphs.proposal import Proposal
from tritone.kinds.generic.part import ServingPart, read_labels
from tritone.pipelines.graphs.contract import check_graph
from tritone.runtime import Graph, open_graph


@dataclass(frozen=True)
class GraphReport:
    """What was written."""

    bundle: Bundle
    bytes: int


def write_graph(
    write: Callable[[Path], None],
    file: str,
    *,
    runtime: Runtime,
    family: str,
    original: Path,
    proposal: Proposal,
    output: Path,
    serving: ServingPart,
    options: dict[str, Choice],
    packages: Sequence[str] = TORCH_PACKAGES,
    beside: Sequence[Path] = (),
    opened: Callable[[Path], Graph] | None = open_graph,
    **about: Any,
) -> GraphReport:
    """Write a bundle, open its graph and hold it against the manifest.

    Args:
        write: writes the graph to a path.
        file: the name of that file in the bundle.
        original: what it was made of.
        packages: whose versions are kept.
        beside: files of its weights, which are copied.
        opened: opens what was written to hold it against the manifest; None where it cannot be opened here.
        about: as of `BundleWriter.artifact`.

    Raises:
        ExportError: the graph does not fit what was proposed of it.
        BundleError: the output is in the way.
    """
    with BundleWriter(output) as writer:
        write(writer.folder / file)
        for each in beside:
            shutil.copyfile(each, writer.folder / each.name)
        for name, path in proposal.labels.items():
            (writer.folder / name).write_bytes("\n".join((*read_labels(path), "")).encode())
        manifest = Manifest(
            name=proposal.name,
            kind="generic",
            parts=(proposal.generic,) if serving is None else (proposal.generic, serving),
            artifacts=(writer.artifact("model", file, *(each.name for each in beside), runtime=runtime, **about),),
            provenance=provenance(family, {original.name: original}, options, packages),
        )
        try:
            if opened is not None:
                check_graph(opened(writer.folder / file), Bundle(writer.folder, manifest), "model", original)
        except BundleError as error:
            raise ExportError(str(error).replace(" Export the bundle again.", "")) from error
        bundle = writer.commit(manifest)
    return GraphReport(bundle, bundle_bytes(bundle))


def new_names(names: list[str], changes: dict[str, str], known: list[str]) -> list[str]:
    """Names of tensors with those that the user changes.

    Raises:
        ExportError: there is no such tensor, or two would have one name.
    """
    for old in changes:
        if old not in known:
            raise ExportError(f"--rename {old}={changes[old]}: there is no tensor {old}; there are {', '.join(known)}")
    found = [changes.get(name, name) for name in names]
    if twice := sorted({name for name in found if found.count(name) > 1}):
        raise ExportError(f"two tensors would be called {', '.join(twice)}; give each a name of its own with --rename")
    return found
