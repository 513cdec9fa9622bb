"""Engines for a bundle: of each of its ONNX graphs, written beside it.

    bundle with encoder.onnx, encoder.fp16.onnx  ->  the same bundle with encoder.plan, encoder.fp16.plan

The bundle is replaced as a whole when all engines are there, so one that fails, or Ctrl-C, leaves it as it was.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import get_args

from tritone.bundle.bundle import EVALUATION, MANIFEST, MODEL_CARD, Bundle, BundleWriter, shipped_bundles
from tritone.bundle.manifest import Artifact, Precision, Role
from tritone.errors import BundleError, MissingDependencyError
from tritone.installing import pip_install
from tritone.kinds.generic.part import GenericPart
from tritone.tensorrt.library import Tools, find_tools
from tritone.tensorrt.profile import DEFAULT, Profile, check_together
from tritone.tensorrt.shaped import ShapeProfile, default_profile

SUFFIX = ".plan"  # by which their runtime knows them
PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16")
"""What engines can compute in: that of the ONNX graphs, but for int8, whose activations have a type of their own."""


def build_engines(
    bundle: Bundle,
    *,
    profiles: Sequence[Profile] | Sequence[ShapeProfile] | None = None,
    precisions: Sequence[Precision] = ("fp32",),
    roles: Sequence[Role] | None = None,
    output: Path | None = None,
    tools: Tools | None = None,
    workspace_mib: int | None = None,
    timing_cache: Path | None = None,
    level: int | None = None,
    progress: Callable[[str], None] = lambda step: None,
) -> Bundle:
    """Build engines of a bundle's ONNX graphs and add them to it; older ones of these roles and precisions go.

    Args:
        bundle: whose engines.
        profiles: the sizes they take, of speech `Profile`s, of generic models `ShapeProfile`s; a call runs with the
            first that it fits. None takes the usual ones; there are none for other open axes than that of rows.
        precisions: "fp32", "fp16", as far as the bundle has ONNX graphs in them.
        roles: whose graphs; None takes all.
        output: the folder of the new bundle; None changes this one.
        tools: what builds; None looks for it.
        workspace_mib, timing_cache, level: see `EngineBuilder`.
        progress: called with what is done next.

    Raises:
        BundleError: the bundle has no such ONNX graphs, or cannot be written.
        ExportError: TensorRT takes a graph or its sizes not; the message has TensorRT's own.
        MissingDependencyError, OperatorError: see `find_tools`; or `onnx` is not installed.
        ValueError: a precision or a role is unknown or given twice, or sizes do not fit a role.
    """
    _check_choices("precision", precisions, PRECISIONS)
    if roles is not None:
        _check_choices("role", roles, get_args(Role))
    try:
        from tritone.tensorrt import onnx_graph
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"building engines needs {error.name}, which is not installed: {pip_install('import')}"
        ) from error
    target = _target(bundle, output)
    sources = _sources(bundle, precisions, roles)
    chosen = _profiles(bundle, profiles, sources)
    tools = tools or find_tools()
    builder = tools.builder(workspace_mib=workspace_mib, timing_cache=timing_cache, level=level, progress=progress)
    stamp = tools.stamp(tuple(map(str, chosen)))
    old = {(source.role, source.precision) for source in sources}
    kept = [
        artifact
        for artifact in bundle.manifest.artifacts
        if artifact.runtime != "tensorrt" or (artifact.role, artifact.precision) not in old
    ]
    plans = []  # what does not fit is reported before anything is built
    for source in sources:
        axes = onnx_graph.input_axes(bundle.file(source.files[0]))
        if bundle.manifest.is_of_audio:
            axes = {name: each for name, each in axes.items() if None in each}
        plans.append((source, [profile.ranges(bundle.manifest, source.role, axes) for profile in chosen]))
    with BundleWriter(target) as writer:
        artifacts = []
        for source, ranges in plans:
            infix = "" if source.precision == "fp32" else f".{source.precision}"
            name = f"{source.role}{infix}{SUFFIX}"
            progress(f"building {name}")
            with tempfile.TemporaryDirectory(prefix="tritone-engine-") as folder:
                graph = onnx_graph.with_wide_weights(bundle.file(source.files[0]), Path(folder))
                (writer.folder / name).write_bytes(builder.build(graph, ranges))
            artifacts.append(
                writer.artifact(
                    source.role,
                    name,
                    runtime="tensorrt",
                    precision=source.precision,
                    weight_storage=source.precision,
                    engine=stamp,
                )
            )
        _copy(bundle, kept, writer.folder, link=output is None)
        return writer.commit(bundle.manifest.model_copy(update={"artifacts": (*kept, *artifacts)}))


def _profiles(
    bundle: Bundle, given: Sequence[Profile] | Sequence[ShapeProfile] | None, sources: Sequence[Artifact]
) -> Sequence[Profile | ShapeProfile]:
    """The profiles to build for; generic models have those of shapes.

    Raises:
        ValueError: they are of the other sort, leave a gap, or there are none.
    """
    from tritone.tensorrt import onnx_graph

    wanted = Profile if bundle.manifest.is_of_audio else ShapeProfile
    if given is not None and not all(isinstance(each, wanted) for each in given):
        form = "rows x seconds, like 16x7s" if wanted is Profile else "shapes of inputs, like input_ids:8x64,mask:8x64"
        raise ValueError(f"sizes of {bundle.manifest.name}, of kind {bundle.manifest.kind}, are {form}")
    if wanted is Profile:
        sizes = [each for each in ((DEFAULT,) if given is None else given) if isinstance(each, Profile)]
        check_together(sizes)
        return sizes
    if given:
        return given
    inputs = onnx_graph.input_axes(bundle.file(sources[0].files[0]))
    usual = default_profile(inputs, bundle.manifest.part(GenericPart).max_batch_size)
    return [] if usual is None else [usual]


def _check_choices(what: str, given: Sequence[str], known: Sequence[str]) -> None:
    if not given or len(set(given)) < len(given) or not set(given) <= set(known):
        hint = ""
        if "int8" in given:
            hint = ". ONNX graphs in int8 make uint8 of what goes through them, a type that TensorRT does not have"
        raise ValueError(f"expected each {what} once, of {', '.join(known)}; got {', '.join(given) or 'none'}{hint}")


def _target(bundle: Bundle, output: Path | None) -> Path:
    if output is not None:
        return output
    path = bundle.path.resolve()  # a link to a bundle stays one
    if path in {each.resolve() for each in shipped_bundles().values()}:
        raise BundleError(
            f"{path} came with Tritone and is not changed. Name a folder for the new bundle: --output DIR"
        )
    return path


def _sources(bundle: Bundle, precisions: Sequence[Precision], roles: Sequence[Role] | None) -> list[Artifact]:
    """The ONNX graphs to build engines of."""
    graphs = [each for each in bundle.manifest.artifacts if each.runtime == "onnxruntime"]
    held = ", ".join(f"{each.role} ({each.precision})" for each in graphs) or "none"
    wanted = roles or tuple(dict.fromkeys(each.role for each in graphs))
    found = []
    for precision in precisions:
        for role in wanted:
            fitting = [each for each in graphs if (each.role, each.precision) == (role, precision)]
            if not fitting:
                raise BundleError(
                    f"{bundle.path} has no ONNX graph for {role} in {precision}, which an engine is built of; it has "
                    f"{held}. Export the checkpoint with --runtimes onnxruntime --precision {','.join(precisions)}."
                )
            found.append(fitting[0])
    if not found:
        raise BundleError(
            f"{bundle.path} has no ONNX graphs, which engines are built of. Export it with --runtimes onnxruntime."
        )
    return found


def _copy(bundle: Bundle, kept: Sequence[Artifact], folder: Path, *, link: bool) -> None:
    """Put the bundle's other files beside the new engines; `link`: without copying them, where that is possible."""
    replaced = {name for each in bundle.manifest.artifacts if each not in kept for name in each.files}
    shared = {name for each in kept for name in each.files}
    names = [name for name in bundle.files if name != MANIFEST and (name in shared or name not in replaced)]
    paths = {name: bundle.file(name) for name in names}
    for name in (MODEL_CARD, EVALUATION):
        if (described := bundle.path / name).is_file():
            paths[name] = described
    for name, path in paths.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if not (link and _linked(path.resolve(), place)):
            shutil.copyfile(path, place)


def _linked(path: Path, place: Path) -> bool:
    try:
        os.link(path, place)
    except OSError:
        return False
    return True
