"""The `config.pbtxt` of an ensemble and of its stages, made from what the graphs say of themselves."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tritonclient.grpc import model_config_pb2 as pb

from tritone.backend import wire
from tritone.backend.settings import ENSEMBLE, SearchParameters, Settings, Stage
from tritone.backend.wire import CLASS_IDS, DETAILS, TRANSCRIPTS, WAV, WAV_LENS
from tritone.pipelines.embedding import EMBEDDINGS
from tritone.repository.config import (
    ModelOptions,
    audio_inputs,
    dynamic_batching,
    embedding_outputs,
    parameters_of,
    searchless,
    settings_of,
    text_outputs,
    warmup,
)
from tritone.repository.instances import Instances
from tritone.repository.native import NativeBackend
from tritone.repository.search_files import places
from tritone.runtime import TensorSpec

TYPES = {np.dtype(np.float32): pb.TYPE_FP32, np.dtype(np.int64): pb.TYPE_INT64}
LATEST = -1  # of the versions of a model
FEATURES, NUM_SAMPLES, NUM_FRAMES = "features", "num_samples", "num_frames"
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
    *,
    bins: int,
    sample_rate: int,
    min_padded_s: float = 0.0,
    lens_optional: bool = False,
) -> Any:
    """Waveforms to features of so many bins; `min_padded_s` as of `Settings`, `lens_optional` of `audio_inputs`."""
    settings = replace(_settings("features", options, sample_rate), min_padded_s=min_padded_s)
    return pb.ModelConfig(
        name=name,
        backend="python",
        max_batch_size=options.max_batch_size,
        input=audio_inputs(lens_optional=lens_optional),
        output=[
            pb.ModelOutput(name=FEATURES, data_type=pb.TYPE_FP32, dims=[-1, bins]),
            pb.ModelOutput(name=NUM_SAMPLES, data_type=pb.TYPE_INT64, dims=[1]),
        ],
        instance_group=[instances.group()],
        dynamic_batching=dynamic_batching(options),
        model_warmup=[warmup(options, sample_rate)],
        parameters=parameters_of(settings),
    )


def acoustic_config(
    name: str,
    options: ModelOptions,
    instances: Instances,
    signature: Signature,
    handed: Sequence[str],
    *,
    sample_rate: int,
    backend: NativeBackend | None = None,
) -> Any:
    """The network. Ours gives what is handed on; a native one declares all that the graph gives."""
    settings = _settings("acoustic", options, sample_rate)
    outputs = [*signature.outputs] if backend else [*handed]
    called, given = _called(signature.inputs, backend), _called(signature.outputs, backend)
    config = pb.ModelConfig(
        name=name,
        max_batch_size=options.max_batch_size,
        # Not ragged: native backends batch what has one shape, and only features' maker knows what to pad them with.
        input=[pb.ModelInput(name=called[key], **_declared(spec)) for key, spec in signature.inputs.items()],
        output=[pb.ModelOutput(name=given[key], **_declared(signature.outputs[key])) for key in outputs],
        instance_group=[instances.group()],
        dynamic_batching=dynamic_batching(options),
        version_policy=pb.ModelVersionPolicy(latest=pb.ModelVersionPolicy.Latest(num_versions=1)),
    )
    if backend is None:
        config.backend = "python"
        parameters = parameters_of(settings)
    else:
        config.platform, config.backend, config.default_model_filename = backend.platform, backend.name, backend.file
        # Its backend reads parameters too: it gets those alone by which the model is known to be ours.
        few = {"stage": settings.stage, "sample_rate": str(sample_rate)}
        parameters = {key: pb.ModelParameter(string_value=value) for key, value in few.items()}
    for key, value in parameters.items():
        config.parameters[key].CopyFrom(value)
    return config


def decoder_config(
    name: str,
    options: ModelOptions,
    instances: Instances,
    signature: Signature,
    handed: Sequence[str],
    *,
    sample_rate: int,
    class_ids: bool = False,
) -> Any:
    """What the network says to transcripts, and with `class_ids` to the best token of each frame."""
    settings = replace(settings_of("offline", options, sample_rate=sample_rate, files=places(options)), stage="decoder")
    outputs = text_outputs()
    if class_ids:
        outputs.append(pb.ModelOutput(name=CLASS_IDS, data_type=pb.TYPE_INT32, dims=[-1]))
    return pb.ModelConfig(
        name=name,
        backend="python",
        max_batch_size=options.max_batch_size,
        input=[*(_taken(key, signature.outputs[key]) for key in handed), audio_inputs()[1]],
        output=outputs,
        instance_group=[instances.group()],
        # What one batch of the network gave comes at once: there is nothing to wait for.
        dynamic_batching=dynamic_batching(replace(options, queue_delay_ms=0.0)),
        parameters=parameters_of(settings),
    )


def ensemble_config(
    name: str,
    options: ModelOptions,
    names: Mapping[Stage, str],
    signature: Signature,
    handed: Sequence[str],
    *,
    sample_rate: int,
    backend: NativeBackend | None = None,
    tensors: str = "triton",
) -> Any:
    """The stages, whose models have these `names`, as one model; `tensors` "jasper" calls its own as NVIDIA does."""
    if tensors == "jasper":
        wav, lens, text = JASPER
        outputs = [pb.ModelOutput(name=text, data_type=pb.TYPE_INT32, dims=[-1])]
        written = {CLASS_IDS: text}
    else:
        wav, lens, outputs = WAV, WAV_LENS, text_outputs()
        written = {TRANSCRIPTS: TRANSCRIPTS, DETAILS: DETAILS}
    called, given = _called(signature.inputs, backend), _called(signature.outputs, backend)
    steps = [
        _step(names["features"], {WAV: wav, WAV_LENS: lens}, _same([FEATURES, NUM_SAMPLES])),
        _step(
            names["acoustic"],
            {called[key]: key for key in (FEATURES, NUM_SAMPLES)},
            {given[key]: key for key in handed},
        ),
        _step(names["decoder"], {**_same(handed), WAV_LENS: lens}, written),
    ]
    settings = replace(settings_of("offline", options, sample_rate=sample_rate), lm="", hotwords="", stage=ENSEMBLE)
    return pb.ModelConfig(
        name=name,
        platform="ensemble",
        max_batch_size=options.max_batch_size,
        input=_unragged(audio_inputs((wav, lens))),
        output=outputs,
        ensemble_scheduling=pb.ModelEnsembling(step=steps),
        parameters=parameters_of(settings),
    )


def embedding_ensemble_config(
    name: str,
    options: ModelOptions,
    names: Mapping[Stage, str],
    signature: Signature,
    *,
    dim: int,
    sample_rate: int,
    backend: NativeBackend | None = None,
) -> Any:
    """As `ensemble_config`, of a speaker model: what the network says is the answer, of so many numbers."""
    called, given = _called(signature.inputs, backend), _called(signature.outputs, backend)
    (embeddings,) = EMBEDDINGS
    steps = [
        _step(names["features"], _same([WAV, WAV_LENS]), _same([FEATURES, NUM_SAMPLES])),
        _step(
            names["acoustic"],
            {called[key]: key for key in (FEATURES, NUM_SAMPLES)},
            {given[embeddings]: wire.EMBEDDINGS},
        ),
    ]
    settings = replace(settings_of("embedding", options, sample_rate=sample_rate), stage=ENSEMBLE)
    return pb.ModelConfig(
        name=name,
        platform="ensemble",
        max_batch_size=options.max_batch_size,
        input=_unragged(audio_inputs(lens_optional=True)),
        output=embedding_outputs(dim),
        ensemble_scheduling=pb.ModelEnsembling(step=steps),
        parameters=searchless(settings),
    )


def _unragged(inputs: Iterable[Any]) -> list[Any]:
    """Inputs as an ensemble has them: it does not batch, its stages do."""
    return [
        pb.ModelInput(name=each.name, data_type=each.data_type, dims=each.dims, optional=each.optional)
        for each in inputs
    ]


def _settings(stage: Stage, options: ModelOptions, sample_rate: int) -> Settings:
    """Of a stage that does not search: whatever is said of it is left out."""
    usual = SearchParameters()
    searching = {name: getattr(usual, name) for name in SearchParameters.__dataclass_fields__}
    return replace(settings_of("offline", options, sample_rate=sample_rate), **searching, stage=stage)


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
