"""From a path to what it is: facts, tables and notes.

    bundle folder or name, repository, one model of it, ONNX, TorchScript, .pt2  ->  Inspection

Files may come from strangers: they are read as data with limits, and no code of theirs runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tritone.bundle import Bundle, resolve, shipped_bundles
from tritone.bundle.bundle import MANIFEST
from tritone.bundle.manifest import Artifact
from tritone.errors import BundleError, InputError, TritoneError
from tritone.inspection.repository import CONFIG, Model, read_models
from tritone.kinds import kind_of
from tritone.kinds.generic.part import GenericPart
from tritone.paths import local
from tritone.runtime import GraphDescription, TensorDescription, describe_graph
from tritone.runtime.known import programs_of
from tritone.storage import fetch, parse

Cells = tuple[str, ...]


@dataclass(frozen=True)
class Listing:
    """A table: what it lists, its columns, its rows."""

    title: str
    columns: Cells
    rows: tuple[Cells, ...]


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """`what`: a sentence. `notes`: what to be careful about. `fault`: what is wrong with it, empty if nothing.

    `commands`: what makes a service of it, one after the other; none if that is not known.
    """

    what: str
    facts: Mapping[str, str] = field(default_factory=dict)
    listings: tuple[Listing, ...] = ()
    notes: tuple[str, ...] = ()
    fault: str = ""
    commands: tuple[str, ...] = ()


def inspect_path(path: str | Path) -> Inspection:
    """Look at a bundle, a repository, a model of one, or a graph's file; folders may be in storage (s3://...).

    Raises:
        InputError: there is nothing of this name.
        BundleError: what is there is none of these, or cannot be read.
        OperatorError: a repository has a configuration that cannot be read, or storage cannot.
    """
    path = fetch(path) if parse(path) is not None else path  # of storage a local copy
    found = local(path)
    if found.is_file():
        return _of_graph(found)
    if not found.exists() and str(path) not in shipped_bundles():
        raise InputError(
            f"there is no {path}. Give a bundle's folder or the name of a shipped one ({', '.join(shipped_bundles())}),"
            " a model repository, or a file of ONNX, TorchScript or torch.export."
        )
    if not found.exists() or (found / MANIFEST).is_file():
        return _of_bundle(Bundle.open(resolve(path)))
    if not found.is_dir():
        raise BundleError(f"{path} is neither a file nor a folder")
    if (found / CONFIG).is_file():
        return _of_repository(found, read_models(found.parent, found.name))
    return _of_repository(found, read_models(found))


def _of_graph(path: Path) -> Inspection:
    graph = describe_graph(path)
    return Inspection(
        what=f"{path}: a graph, {graph.format}, {_bytes(path.stat().st_size)}",
        facts=graph.facts,
        listings=(_tensors(graph),),
        notes=graph.notes,
    )


def _tensors(graph: GraphDescription) -> Listing:
    def row(side: str, tensor: TensorDescription) -> Cells:
        return side, tensor.name, tensor.type, "" if tensor.shape is None else _shape(tensor.shape)

    rows = [row("input", each) for each in graph.inputs] + [row("output", each) for each in graph.outputs]
    return Listing("tensors", ("", "name", "type", "shape"), tuple(rows))


def _of_bundle(bundle: Bundle) -> Inspection:
    manifest = bundle.manifest
    facts = {"name": manifest.name, "kind": manifest.kind, "made by": f"tritone export {manifest.provenance.family}"}
    facts |= {"versions": ", ".join(f"{name} {version}" for name, version in manifest.provenance.versions.items())}
    facts |= {"sources": ", ".join(manifest.provenance.sources)}
    fault, notes = "", []
    if (generic := manifest.find(GenericPart)) is not None:
        facts |= _of_generic(generic)
    tensors: tuple[Listing, ...] = ()
    try:
        kind = kind_of(bundle)
        facts["kind"] = f"{manifest.kind}: {kind.noun}, {kind.does}"
        served = [("input", each) for each in kind.inputs(bundle)] + [("output", each) for each in kind.outputs(bundle)]
        rows = tuple(
            (side, each.name, each.type, _shape(each.dims), "optional" if each.optional else "")
            for side, each in served
        )
        tensors = (Listing("tensors of the served model", ("", "name", "type", "dims of a row", ""), rows),)
    except TritoneError as error:
        fault = str(error)
    graphs = tuple(_graph_row(bundle, each) for each in manifest.artifacts)
    programs = {programs_of(each.runtime): each.runtime for each in manifest.artifacts}
    notes += [
        f"{what} are programs: they run only with --runtime {runtime}, so use them if you trust who made the bundle"
        for what, runtime in programs.items()
        if what
    ]
    try:
        bundle.verify()
        facts["checksums"] = "all files are as they were exported"
    except BundleError as error:
        fault = str(error)
    return Inspection(
        what=f"{bundle.path}: a bundle, {_bytes(sum(bundle.file(name).stat().st_size for name in bundle.files))}",
        facts={name: value for name, value in facts.items() if value},
        listings=(*tensors, Listing("graphs", ("role", "runtime", "precision", "files", "size"), graphs)),
        notes=tuple(notes),
        fault=fault,
    )


def _of_generic(generic: GenericPart) -> dict[str, str]:
    facts = {"largest batch": str(generic.max_batch_size) if generic.max_batch_size else "none: no axis of rows"}
    facts["states"] = ", ".join(f"{each.output} to {each.input} {_shape(each.dims)}" for each in generic.states)
    if (python := generic.python) is not None:
        facts["function"] = f"{python.function}{', a generator: it answers many times' if python.decoupled else ''}"
        facts["needs"] = ", ".join(python.requirements)
        facts["calls"] = ", ".join(python.calls)
    return facts


def _graph_row(bundle: Bundle, artifact: Artifact) -> Cells:
    precision: str = artifact.precision
    if artifact.weight_storage != precision:
        precision = f"{precision}, stored as {artifact.weight_storage}"
    size = _bytes(bundle.num_bytes(artifact))
    return artifact.role, artifact.runtime, precision, " ".join(artifact.files), size


def _of_repository(path: Path, models: Sequence[Model]) -> Inspection:
    overview = tuple(
        (each.name, " ".join(each.versions) or "none", each.runs_in, each.batch, each.maker) for each in models
    )
    tensors = tuple(
        (each.name, side, name, type_, _shape(dims)) for each in models for side, name, type_, dims in each.tensors
    )
    steps = tuple(
        (each.name, model, _wires(inputs), _wires(outputs)) for each in models for model, inputs, outputs in each.steps
    )
    listings = [
        Listing("models", ("name", "versions", "runs in", "largest batch", "written by"), overview),
        Listing("tensors", ("model", "", "name", "type", "dims of a row"), tensors),
    ]
    if steps:
        listings.append(Listing("steps of ensembles", ("ensemble", "model", "its inputs", "its outputs"), steps))
    return Inspection(
        what=f"{path}: a model repository with {len(models)} {'model' if len(models) == 1 else 'models'}",
        listings=tuple(listings),
        notes=tuple(note for each in models for note in each.notes),
    )


def _wires(wires: Mapping[str, str]) -> str:
    return ", ".join(name if name == tensor else f"{name}={tensor}" for name, tensor in wires.items())


def _shape(shape: Sequence[int | str]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _bytes(size: int) -> str:
    return f"{size / 1e6:.2f} MB" if size >= 10**5 else f"{size / 1e3:.1f} kB"
