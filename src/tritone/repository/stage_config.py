"""The `config.pbtxt` of an ensemble and of its stages, made from what the graphs say of themselves."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tritonclient.grpc import model_config_pb2 as pb

from tritone.backend.settings import ENSEMBLE, SearchParameters, Settings
from tritone.bundle.bundle import Bundle
from tritone.kinds import Stage, kind_of
from tritone.pipelines.wire import CLASS_IDS, WAV, WAV_LENS, Tensor, audio_inputs
from tritone.repository.config import (
    ModelOptions,
    as_input,
    as_output,
    dynamic_batching,
    parameters_of,
    settings_of,
    warmup,
)
from tritone.repository.instances import Instances
from tritone.repository.native import NativeBackend
from tritone.repository.search_files import places
from tritone.runtime import TensorSpec

TYPES = {np.dtype(np.float32): pb.TYPE_FP32, np.dtype(np.int64): pb.TYPE_INT64}
LATEST = -1  # of the versions of a model
FEATURES, NUM_SAMPLES = "features", "num_samples"
# Tensors of NVIDIA's Jasper deployment: audio, its samples, and the best token of each frame.
JASPER = ("AUDIO_SIGNAL", "NUM_SAMPLES", "TRANSCRIPT")


@dataclass(frozen=True)
class Signature:
    """The inputs and outputs of the network, by name, in the graph's order."""

    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]


def features_config(
    name: str,
    options: ModelOptions,
    instances: Instances,
    bundle: Bundle,
    *,
    min_padded_s: float = 0.0,
    tensors: str = "triton",
) -> Any:
    """Waveforms to features; `min_padded_s` as of `Settings`, `tensors` as of `ensemble_config`."""
    named = ",".join(JASPER[:2]) if tensors == "jasper" else ""
    settings = replace(_settings("features", options, bundle), min_padded_s=min_padded_s, tensors=named)
    return pb.ModelConfig(
        name=name,
        backend="python",
        max_batch_size=options.max_batch_size,
        input=[as_input(each) for each in kind_of(bundle).inputs(bundle)],
        output=[
            pb.ModelOutput(name=FEATURES, data_type=pb.TYPE_FP32, dims=[-1, bundle.manifest.features.num_mel_bins]),
            pb.ModelOutput(name=NUM_SAMPLES, data_type=pb.TYPE_INT64, dims=[1]),
        ],
        instance_group=instances.groups(),
        dynamic_batching=dynamic_batching(options),
        model_warmup=[warmup(options, bundle.manifest.sample_rate)],
        parameters=parameters_of(settings),
    )


def acoustic_config(
    name: str,
    options: ModelOptions,
    instances: Instances,
    bundle: Bundle,
    signature: Signature,
    handed: Sequence[str],
    *,
    backend: NativeBackend | None = None,
) -> Any:
    """The network. Ours gives what is handed on; a native one declares all that the graph gives."""
    settings = _settings("acoustic", options, bundle)
    outputs = [*signature.outputs] if backend else [*handed]
    called, given = _called(signature.inputs, backend), _called(signature.outputs, backend)
    config = pb.ModelConfig(
        name=name,
        max_batch_size=options.max_batch_size,
        # Not ragged: native backends batch what has one shape, and only features' maker knows what to pad them with.
        input=[pb.ModelInput(name=called[key], **_declared(spec)) for key, spec in signature.inputs.items()],
        output=[pb.ModelOutput(name=given[key], **_declared(signature.outputs[key])) for key in outputs],
        instance_group=instances.groups(),
        dynamic_batching=dynamic_batching(options),
        version_policy=pb.ModelVersionPolicy(latest=pb.ModelVersionPolicy.Latest(num_versions=1)),
    )
    if backend is None:
        config.backend = "python"
        parameters = parameters_of(settings)
    else:
        config.platform, config.backend, config.default_model_filename = backend.platform, backend.name, backend.file
        # Its backend reads parameters too: it gets those alone by which the model is known to be ours.
        few = {"stage": settings.stage, "sample_rate": str(settings.sample_rate)}
        parameters = {key: pb.ModelParameter(string_value=value) for key, value in few.items()}
    for key, value in parameters.items():
        config.parameters[key].CopyFrom(value)
    return config


def decoder_config(
    name: str,
    options: ModelOptions,
    instances: Instances,
    bundle: Bundle,
    signature: Signature,
    handed: Sequence[str],
    *,
    class_ids: bool = False,
) -> Any:
    """Outputs of the network to transcripts, and with `class_ids` to the best token of each frame."""
    kind, sample_rate = kind_of(bundle), bundle.manifest.sample_rate
    settings = settings_of("offline", options, kind, sample_rate=sample_rate, files=places(options))
    outputs = [as_output(each) for each in kind.outputs(bundle)]
    if class_ids:
        outputs.append(pb.ModelOutput(name=CLASS_IDS, data_type=pb.TYPE_INT32, dims=[-1]))
    return pb.ModelConfig(
        name=name,
        backend="python",
        max_batch_size=options.max_batch_size,
        input=[*(_taken(key, signature.outputs[key]) for key in handed), as_input(audio_inputs()[1])],
        output=outputs,
        instance_group=instances.groups(),
        # What one batch of the network gave comes at once: there is nothing to wait for.
        dynamic_batching=dynamic_batching(replace(options, queue_delay_ms=0.0)),
        parameters=parameters_of(replace(settings, stage="decoder")),
    )


def ensemble_config(
    name: str,
    options: ModelOptions,
    names: Mapping[Stage, str],
    bundle: Bundle,
    signature: Signature,
    handed: Sequence[str],
    *,
    backend: NativeBackend | None = None,
    tensors: str = "triton",
) -> Any:
    """The stages, whose models have these `names`, as one model; `tensors` "jasper" calls its own as NVIDIA does.

    Without a decoder the outputs of the network are those of the model, in their order.
    """
    kind = kind_of(bundle)
    inputs, outputs = kind.inputs(bundle), [as_output(each) for each in kind.outputs(bundle)]
    written = {each.name: each.name for each in outputs}
    if tensors == "jasper":
        *audio, text = JASPER
        inputs = audio_inputs(*audio, pcm=False)
        outputs = [pb.ModelOutput(name=text, data_type=pb.TYPE_INT32, dims=[-1])]
        written = {CLASS_IDS: text}
    wav, lens, *pcm = (each.name for each in inputs)
    called, given = _called(signature.inputs, backend), _called(signature.outputs, backend)
    results: Mapping[str, str] = _same(handed) if "decoder" in kind.stages else dict(zip(handed, written, strict=True))
    steps = [
        _step(names["features"], {WAV: wav, WAV_LENS: lens, **_same(pcm)}, _same([FEATURES, NUM_SAMPLES])),
        _step(
            names["acoustic"],
            {called[key]: key for key in (FEATURES, NUM_SAMPLES)},
            {given[key]: result for key, result in results.items()},
        ),
    ]
    if "decoder" in kind.stages:
        steps.append(_step(names["decoder"], {**_same(handed), WAV_LENS: lens}, written))
    settings = settings_of("offline", options, kind, sample_rate=bundle.manifest.sample_rate)
    # Clients of ours have no verb for another's tensors.
    served = json.dumps({"answers": "other" if tensors == "jasper" else kind.answers})
    return pb.ModelConfig(
        name=name,
        platform="ensemble",
        max_batch_size=options.max_batch_size,
        input=_unragged(inputs),
        output=outputs,
        ensemble_scheduling=pb.ModelEnsembling(step=steps),
        parameters=parameters_of(replace(settings, lm="", hotwords="", stage=ENSEMBLE, served=served), kind),
    )


def _unragged(inputs: Iterable[Tensor]) -> list[Any]:
    """Inputs as an ensemble has them: it does not batch, its stages do."""
    return [as_input(replace(each, ragged=False)) for each in inputs]


def _settings(stage: Stage, options: ModelOptions, bundle: Bundle) -> Settings:
    """Settings of a stage that does not search, with the usual search options."""
    usual = SearchParameters()
    searching = {name: getattr(usual, name) for name in SearchParameters.__dataclass_fields__}
    settings = settings_of("offline", options, kind_of(bundle), sample_rate=bundle.manifest.sample_rate)
    return replace(settings, **searching, stage=stage)


def _declared(spec: TensorSpec) -> dict[str, Any]:
    """A tensor's type and sizes without those of the batch; a number for each row is an axis of one to Triton."""
    sizes = [-1 if size is None else size for size in spec.shape[1:]]
    if sizes:
        return {"data_type": TYPES[spec.dtype], "dims": sizes}
    return {"data_type": TYPES[spec.dtype], "dims": [1], "reshape": pb.ModelTensorReshape()}


def _taken(name: str, spec: TensorSpec) -> Any:
    """An input of ours that takes an output of the network, of any number of frames."""
    declared = _declared(spec)
    declared.pop("reshape", None)
    return pb.ModelInput(name=name, allow_ragged_batch=-1 in declared["dims"], **declared)


def _called(specs: Mapping[str, TensorSpec], backend: NativeBackend | None) -> dict[str, str]:
    """What a backend calls the tensors of a graph."""
    return {name: backend.tensor(name, place) if backend else name for place, name in enumerate(specs)}


def _same(names: Iterable[str]) -> dict[str, str]:
    return {name: name for name in names}


def _step(model: str, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> Any:
    return pb.ModelEnsembling.Step(
        model_name=model, model_version=LATEST, input_map=dict(inputs), output_map=dict(outputs)
    )
