"""The layout with a model for each stage, which can be placed and scaled, or left to Triton's own backends, apart.

    NAME             ensemble of the others: what clients ask, as they would ask the one model of the usual layout
    NAME-features    WAV, WAV_LENS -> features, num_samples
    NAME-acoustic    features, num_samples -> outputs of the network
    NAME-decoder     outputs of the network, WAV_LENS -> TRANSCRIPTS, DETAILS

A speaker model has no decoder: the output of its network is EMBEDDINGS.

A stage passes on what the model's own search mode needs, and nothing else: of a large vocabulary the log-probabilities
are many times the features.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from tritone.backend.settings import STAGES
from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import Artifact, Role
from tritone.errors import BundleError
from tritone.kinds import Stage, kind_of
from tritone.pipelines.graphs.choice import asked_for, candidates
from tritone.pipelines.graphs.contract import check_graph
from tritone.repository.config import ModelOptions
from tritone.repository.folder import ModelFolder
from tritone.repository.instances import Instances
from tritone.repository.native import NativeBackend, limits_of, natives
from tritone.repository.stage_config import (
    Signature,
    acoustic_config,
    decoder_config,
    ensemble_config,
    features_config,
)
from tritone.runtime import obstacle, open_graph

TensorNames = Literal["triton", "jasper"]


class NoBackendError(BundleError):
    """Triton has no backend of its own for what the bundle holds."""


@dataclass(frozen=True, kw_only=True)
class EnsembleOptions:
    """How an ensemble is made of its stages.

    `stages`: instances of those that are not to be where models are by default. `native`: have the network run by
    Triton's own backend. `tensors`: names on the wire, ours or those of NVIDIA's Jasper deployment, whose output is the
    best token of each frame.
    """

    stages: Mapping[Stage, Instances] = field(default_factory=dict)
    native: bool = False
    tensors: TensorNames = "triton"

    def instances(self, stage: Stage, options: ModelOptions) -> Instances:
        """Where a stage runs. The decoder is for the CPU unless something else is given."""
        usual = options.usual_instances
        if stage == "decoder" and usual.device == "gpu":
            usual = Instances(usual.processes)
        return self.stages.get(stage, usual)


def parse_stages(texts: list[str], usual: Instances) -> dict[Stage, Instances]:
    """Read STAGE=COUNT[@PLACE], see `Instances.parse`.

    Raises:
        ValueError: it is not that, or a stage is given twice.
    """
    found: dict[Stage, Instances] = {}
    for text in texts:
        name, equals, instances = text.partition("=")
        stage = next((each for each in STAGES if each == name.strip()), None)
        if not equals or stage is None:
            raise ValueError(f"{text!r} should be STAGE=COUNT[@PLACE], such as acoustic=2@0,1, of {', '.join(STAGES)}")
        if stage in found:
            raise ValueError(f"stage {stage} is given twice; once is enough")
        found[stage] = Instances.parse(instances, usual)
    return found


def native_backends(bundles: Sequence[str | Path], options: ModelOptions) -> set[str]:
    """The backends of Triton's own that would run the networks of some bundles; empty if there are none for one.

    Raises:
        BundleError: a bundle cannot be read, or has no graph for the stage.
    """
    found = set()
    for each in bundles:
        bundle = Bundle.open(each)
        _require_stages(bundle)
        try:
            _, backend = _acoustic(bundle, options, native=True)
        except NoBackendError:
            return set()
        assert backend is not None
        found.add(backend.name)
    return found


def ensemble(name: str, bundle: Bundle, options: ModelOptions, layout: EnsembleOptions) -> list[ModelFolder]:
    """The models of a bundle: the stages, and last the ensemble.

    Raises:
        BundleError: the bundle has no graphs for stages, or not for the runtime or the precision that was asked for, or
            not for Triton's own backend (`NoBackendError`); or its kind has not what the names on the wire promise.
        ValueError: audio may be longer than the engine can take, or the engine would be on the CPU.
    """
    _require_stages(bundle)
    kind = kind_of(bundle)
    if layout.tensors == "jasper" and not kind.has_class_ids:
        raise BundleError(
            f"{bundle.path} is a model of kind {kind.name}; the tensors of NVIDIA's Jasper deployment are "
            "for CTC models, whose best token of each frame they are. Leave --tensors out."
        )
    if foreign := [stage for stage in layout.stages if stage not in kind.stages]:
        raise BundleError(f"{bundle.path} is {kind.noun}, which has no {foreign[0]}; leave --stage {foreign[0]} out.")
    if options.window_s:
        raise BundleError(
            f"{bundle.path}: the stages of an ensemble embed all of the audio at once. Leave --window-s out, or build "
            "the usual layout (--layout fused)."
        )
    artifacts, backend = _acoustic(bundle, options, native=layout.native)
    artifact, signature = artifacts[0], _common(bundle, artifacts)
    handed = kind.graph_outputs(options.search, signature.outputs)
    limits = limits_of(artifact)
    limits.check_audio(options.longest_s, bundle)
    most = min(options.max_batch_size, limits.most_rows)
    preferred = tuple(size for size in options.preferred_batch_sizes if size <= most)
    options = replace(options, max_batch_size=most, preferred_batch_sizes=preferred)
    places = {stage: layout.instances(stage, options) for stage in STAGES}
    if artifact.runtime == "tensorrt" and places["acoustic"].device == "cpu":
        raise ValueError(
            f"{bundle.path}: engines of TensorRT run on GPUs alone, but the network is to be on the CPU; say --device "
            "gpu or --stage acoustic=1@gpu, or choose another --runtime"
        )
    features, decoder = (_options_for(places[stage], options) for stage in ("features", "decoder"))
    names: dict[Stage, str] = {stage: f"{name}-{stage}" for stage in STAGES}
    folders = [
        ModelFolder(
            name=names["features"],
            mode="features",
            config=features_config(
                names["features"],
                features,
                places["features"],
                bundle,
                min_padded_s=limits.least_s,
                tensors=layout.tensors,
            ),
            module="features",
            bundle=bundle,
            artifacts=_narrowed(bundle, features, "features"),
        ),
        ModelFolder(
            name=names["acoustic"],
            mode="acoustic",
            config=acoustic_config(
                names["acoustic"], options, places["acoustic"], bundle, signature, handed, backend=backend
            ),
            module=None if backend else "acoustic",
            bundle=None if backend else bundle,
            artifacts=artifacts,
            files=_native_files(bundle, artifact, backend),
        ),
    ]
    if "decoder" in kind.stages:
        folders.append(
            ModelFolder(
                name=names["decoder"],
                mode="decoder",
                config=decoder_config(
                    names["decoder"],
                    decoder,
                    places["decoder"],
                    bundle,
                    signature,
                    handed,
                    class_ids=layout.tensors == "jasper",
                ),
                module="decoder",
                bundle=bundle,
                artifacts=_narrowed(bundle, decoder, *kind.roles(options.search)),
                search=options,
            )
        )
    (mode,) = (mode for mode in kind.encoders if mode != "streaming")
    config = ensemble_config(name, options, names, bundle, signature, handed, backend=backend, tensors=layout.tensors)
    return [*folders, ModelFolder(name=name, mode=mode, config=config)]


def _require_stages(bundle: Bundle) -> None:
    kind = kind_of(bundle)
    if not kind.stages:
        raise BundleError(
            f"{bundle.path} is {kind.noun}, of which there are no ensembles; build the usual layout (--layout fused)."
        )
    if not (bundle.has("features") and bundle.has("acoustic")):
        raise BundleError(
            f"{bundle.path} has no graphs for stages, which an ensemble is made of. Export the checkpoint with "
            "--stages, or build the usual layout (--layout fused)."
        )


def _acoustic(
    bundle: Bundle, options: ModelOptions, *, native: bool
) -> tuple[tuple[Artifact, ...], NativeBackend | None]:
    """The graph of the network and the backend of Triton's own that runs it, or all graphs that we may choose from."""
    found = candidates(bundle, "acoustic", options.runtime, options.precision)
    if not native:
        return asked_for(found, options.runtime, bundle), None
    for artifact in found:
        backend = natives().get(artifact.runtime)
        if backend and (artifact.runtime != "torchscript" or options.runtime):  # a program, see docs/models/bundle.md
            return (artifact,), backend
    held = ", ".join(dict.fromkeys(artifact.runtime for artifact in found))
    raise NoBackendError(
        f"{bundle.path}: Triton has no backend of its own for graphs of {held}. Export the checkpoint with --runtimes "
        f"{' or '.join(natives())}, or build with --acoustic python."
    )


def _common(bundle: Bundle, artifacts: Sequence[Artifact]) -> Signature:
    """What goes in and out of each of some graphs. Those of one runtime are alike."""
    of_runtimes = {each.runtime: each for each in reversed(artifacts)}
    first, *others = (_signature(bundle, of_runtimes[each]) for each in dict.fromkeys(a.runtime for a in artifacts))
    outputs = {name: spec for name, spec in first.outputs.items() if all(name in each.outputs for each in others)}
    return Signature(first.inputs, outputs)


def _signature(bundle: Bundle, artifact: Artifact) -> Signature:
    """What goes in and out of the network: as the graph says, or one like it that can be opened here, or the contract.

    An engine, which is for a GPU, was built from the bundle's graph for onnxruntime.
    """
    for each in (artifact, *(other for other in bundle.artifacts("acoustic") if other.runtime == "onnxruntime")):
        if obstacle(each.runtime, "cpu") is None:
            path = bundle.file(each.files[0])
            graph = open_graph(path, runtime=each.runtime)
            check_graph(graph, bundle, "acoustic", path)
            return Signature(dict(graph.inputs), dict(graph.outputs))
    return Signature(*kind_of(bundle).tensors(bundle.manifest, "acoustic"))


def _options_for(place: Instances, options: ModelOptions) -> ModelOptions:
    """Engines run on GPUs alone: a stage on the CPU takes any of the bundle's graphs that can."""
    if place.device == "cpu" and options.runtime == "tensorrt":
        return replace(options, runtime="", precision="")
    return options


def _narrowed(bundle: Bundle, options: ModelOptions, *roles: Role) -> tuple[Artifact, ...]:
    """What of a bundle a stage needs."""
    return tuple(
        artifact for role in roles for artifact in candidates(bundle, role, options.runtime, options.precision)
    )


def _native_files(bundle: Bundle, artifact: Artifact, backend: NativeBackend | None) -> dict[str, Path]:
    if backend is None:
        return {}
    first, *others = artifact.files
    return {backend.file: bundle.file(first), **{name: bundle.file(name) for name in others}}
