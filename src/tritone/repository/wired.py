"""Ensembles of any models in a repository.

EnsembleSpec, bundles  ->  NAME            the ensemble, which clients ask
                           NAME-STEP       a model for each step
                           MODEL           a model for each that a function calls, under the name that it has for it
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tritonclient.grpc import model_config_pb2 as pb

from tritone.backend.settings import ENSEMBLE, GENERIC, Settings
from tritone.bundle.bundle import Bundle
from tritone.errors import BundleError
from tritone.kinds import kind_of
from tritone.paths import local
from tritone.pipelines.wiring.spec import EnsembleSpec, Part, split
from tritone.pipelines.wiring.wires import MODES, Wiring, wire
from tritone.repository.build import write_models
from tritone.repository.config import ModelOptions, as_input, as_output, parameters_of
from tritone.repository.folder import BuiltModel, ModelFolder
from tritone.repository.fused import fused
from tritone.repository.generic import generic
from tritone.repository.instances import Instances
from tritone.repository.serving import ServingOptions

LATEST = -1  # of the versions of a model


def build_ensemble(
    spec: EnsembleSpec,
    bundles: Mapping[str, Bundle],
    output: str | Path,
    *,
    options: ModelOptions | None = None,
    force: bool = False,
    overcommit: bool = False,
    check: Callable[[Path, Sequence[ModelFolder]], None] | None = None,
) -> tuple[list[BuiltModel], Wiring]:
    """Write an ensemble and its models into a repository; other models in it stay as they are.

    Args:
        bundles: by the names of the steps, and of the models that functions call.
        options: how its models are served, where the ensemble's file says nothing else.
        force, overcommit, check: as of `build_repository`.

    Returns:
        The models written, the ensemble last; and the wires.

    Raises:
        InputError: the wires do not fit; nothing is written.
        BundleError, OperatorError, ValueError: as of `build_repository`.
    """
    local(output)
    options = options or ModelOptions()
    wiring = wire(spec, bundles, options.max_batch_size)
    folders: list[ModelFolder] = []
    for name, part in spec.models.items():
        folders += _models(name, part, bundles[name], options)
    for name in wiring.order:
        folders += _models(step_name(spec, name), spec.steps[name], bundles[name], options)
    config = ensemble_config(spec, wiring)
    folders.append(ModelFolder(name=spec.name, mode=GENERIC, config=config))
    return write_models(folders, Path(output), force=force, overcommit=overcommit, check=check), wiring


def step_name(spec: EnsembleSpec, step: str) -> str:
    """The model of a step."""
    return f"{spec.name}-{step}"


def ensemble_config(spec: EnsembleSpec, wiring: Wiring) -> Any:
    """Describe an ensemble to Triton."""
    settings = parameters_of(Settings(kind=GENERIC, stage=ENSEMBLE))
    return pb.ModelConfig(
        name=spec.name,
        platform="ensemble",
        max_batch_size=wiring.max_batch_size,
        input=[as_input(each) for each in wiring.inputs],
        output=[as_output(each) for each in wiring.outputs],
        ensemble_scheduling=pb.ModelEnsembling(step=[_step(spec, name) for name in wiring.order]),
        parameters={name: settings[name] for name in ("kind", "stage")},
    )


def _step(spec: EnsembleSpec, name: str) -> Any:
    """A step: Triton gives each tensor between models one name, that of the ensemble where it is one of its outputs."""
    called = {reference: output for output, reference in spec.outputs.items()}
    references = [*called, *(each for step in spec.steps.values() for each in step.inputs.values())]
    given = {
        parts[1]: called.get(reference, reference)
        for reference in references
        if (parts := split(reference)) and parts[0] == name
    }
    return pb.ModelEnsembling.Step(
        model_name=step_name(spec, name),
        model_version=LATEST,
        input_map={key: called.get(reference, reference) for key, reference in spec.steps[name].inputs.items()},
        output_map=given,
    )


def _models(name: str, part: Part, bundle: Bundle, options: ModelOptions) -> list[ModelFolder]:
    runtime = "python" if part.python is not None else part.runtime or ""
    options = replace(options, runtime=runtime, precision=part.precision or "")
    if part.instances is not None:
        place = Instances.parse(str(part.instances), options.usual_instances)
        left_open = tuple(name for name in options.left_open if name != "instances")
        options = replace(options, instances=str(place), device=place.device, gpus=place.all_gpus, left_open=left_open)
    kind = kind_of(bundle)
    mode = next((mode for mode in kind.encoders if mode in MODES), None)
    if mode is None:
        raise BundleError(f"{bundle.path} is {kind.noun}, which no function can call")
    if mode != GENERIC:
        return fused(name, mode, bundle, options)
    folders = generic(name, bundle, options, ServingOptions(), part.platform)
    declared = [each.name for each in kind.outputs(bundle)]
    if others := [each.name for each in folders[0].config.output if each.name not in declared]:
        raise ValueError(
            f"{bundle.path}: Triton's own backend calls its outputs {', '.join(others)}. Export it again with these "
            f"names (--rename {declared[0]}={others[0]}), or leave `platform` out."
        )
    return folders
