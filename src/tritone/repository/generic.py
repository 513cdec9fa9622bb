"""Generic models in a repository: run by Tritone, or by Triton's own backend for the graph's runtime.

    bundle, options  ->  NAME/  config.pbtxt, labels, 1/model.py, 1/bundle/...     platform tritone
                         NAME/  config.pbtxt, labels, 1/model.onnx, weights        platform native

Both have the same tensors, but for TorchScript: Triton's backend calls its outputs NAME__INDEX.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from tritonclient.grpc import model_config_pb2 as pb

from tritone.backend.settings import GENERIC, Settings
from tritone.bfloat16 import to_bfloat16
from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import Artifact
from tritone.errors import BundleError
from tritone.kinds.generic.part import GenericInput, GenericOutput, GenericPart, GenericTensor, ServingPart
from tritone.pipelines.generic.tensors import initial_state
from tritone.pipelines.graphs.choice import asked_for, candidates
from tritone.repository.config import SPARE_CANDIDATES, TYPES, ModelOptions, microseconds, parameters_of
from tritone.repository.folder import ModelFolder
from tritone.repository.instances import Instances
from tritone.repository.native import NativeBackend, natives
from tritone.repository.serving import MAX_IDLE_S, ServingOptions, merged
from tritone.runtime.functions.requirements import check_requirements
from tritone.runtime.known import programs_of

Platform = Literal["tritone", "native"]
# Our clock ends an idle sequence first, since our message has more than that START is missing.
IDLE_GRACE_S = 5.0
FORMATS = {"none": 0, "nhwc": pb.ModelInput.FORMAT_NHWC, "nchw": pb.ModelInput.FORMAT_NCHW}
CONTROLS = {
    "start": pb.ModelSequenceBatching.Control.CONTROL_SEQUENCE_START,
    "end": pb.ModelSequenceBatching.Control.CONTROL_SEQUENCE_END,
    "ready": pb.ModelSequenceBatching.Control.CONTROL_SEQUENCE_READY,
    "corrid": pb.ModelSequenceBatching.Control.CONTROL_SEQUENCE_CORRID,
}
FALSE_TRUE = {"INT32": "int32_false_true", "FP32": "fp32_false_true", "BOOL": "bool_false_true"}
DECOUPLED = "decoupled"  # the module of `tritone.backend` for models that answer many times
INITIAL = "initial_state"  # the folder in which Triton looks for the first values of states


def generic(
    name: str, bundle: Bundle, options: ModelOptions, serving: ServingOptions, platform: Platform = "tritone"
) -> list[ModelFolder]:
    """The model of a generic bundle.

    Raises:
        BundleError: it has no graph for the runtime or the precision that was asked for, or none for `native`.
        ValueError: options do not fit together or the model.
    """
    if unfit := [flag for flag, is_given in _of_audio(options).items() if is_given]:
        raise BundleError(
            f"{bundle.path} is a generic model, and {', '.join(unfit)} is for models of audio; leave it out."
        )
    settings_of = merged(bundle.manifest.find(ServingPart), serving, options)
    tensors = bundle.manifest.part(GenericPart)
    rows = _max_batch_size(tensors, options)
    if settings_of.preferred_batch_sizes and max(settings_of.preferred_batch_sizes) > rows:
        raise ValueError(f"--preferred-batch-sizes must be 1 to {rows}, got {list(settings_of.preferred_batch_sizes)}")
    if tensors.is_sequence and settings_of.response_cache:
        raise ValueError(f"{bundle.path} keeps states: answers depend on earlier requests and cannot be cached")
    decoupled = tensors.python is not None and tensors.python.decoupled
    if decoupled and settings_of.response_cache:
        raise ValueError(f"{bundle.path} answers a request many times, which Triton cannot cache")
    if (tensors.is_sequence or decoupled) and settings_of.priorities:
        raise ValueError(f"{bundle.path}: --priorities is for models without sequences that answer once")
    native = _native(bundle, options) if platform == "native" else None
    if native is None:
        _check_runs(bundle, options)
    artifact, backend = native or (None, None)
    labels = {each.labels: bundle.file(each.labels) for each in tensors.outputs if each.labels is not None}
    config = pb.ModelConfig(
        name=name,
        max_batch_size=rows,
        input=[_input(each, backend) for each in tensors.inputs],
        output=[_output(each, backend, place) for place, each in enumerate(tensors.outputs)],
        instance_group=_instances(settings_of, options),
        parameters=parameters_of(
            _settings(tensors, settings_of, options) if backend is None else Settings(kind=GENERIC)
        ),
    )
    extra: dict[str, bytes] = {}
    if backend is None:
        config.backend = "python"
    else:
        config.backend, config.platform = backend.name, backend.platform
        config.default_model_filename = backend.file
    if settings_of.version_policy:
        _set_policy(config.version_policy, settings_of.version_policy)
    if settings_of.response_cache is not None:
        config.response_cache.enable = settings_of.response_cache
    if tensors.python is not None and tensors.python.decoupled:
        config.model_transaction_policy.decoupled = True
    if tensors.is_sequence:
        config.sequence_batching.CopyFrom(_sequences(settings_of, options, tensors, backend, extra))
    elif rows or _queues(settings_of):
        config.dynamic_batching.CopyFrom(_batching(settings_of))
    if not tensors.is_sequence and _warms_up(tensors, settings_of):
        config.model_warmup.append(_warmup(tensors))
    files = {}
    if artifact is not None and backend is not None:
        # The graph finds its weights by the names that they have in the bundle.
        for index, each in enumerate(artifact.files):
            files[backend.file if index == 0 else each] = bundle.file(each)
    return [
        ModelFolder(
            name=name,
            mode=GENERIC,
            config=config,
            module=_module(tensors) if backend is None else None,
            bundle=bundle if backend is None else None,
            files=files,
            version=str(settings_of.version),
            beside=labels,
            written=extra,
            stand_in=_stand_in(name, bundle, options, serving, config, extra) if artifact is not None else None,
        )
    ]


def _module(tensors: GenericPart) -> str:
    return DECOUPLED if tensors.python is not None and tensors.python.decoupled else GENERIC


def _check_runs(bundle: Bundle, options: ModelOptions) -> None:
    """What would keep the model from being loaded: graphs that are programs and nobody asked for, missing packages."""
    found = candidates(bundle, "model", options.runtime, options.precision)
    python = bundle.manifest.part(GenericPart).python
    if asked_for(found, options.runtime, bundle)[0].runtime == "python" and python is not None:
        check_requirements(python.requirements, f"{bundle.path}, function {python.function},")


def _stand_in(
    name: str, bundle: Bundle, options: ModelOptions, serving: ServingOptions, native: Any, extra: Mapping[str, bytes]
) -> ModelFolder | None:
    """The model run by us with the configuration for Triton's own backend, which Triton then reads as it is.

    It is for loading alone: a request would not find the tensors that we call otherwise. None if all that the bundle
    has are programs, which nobody asked for by name: they are not run for a check.
    """
    if not options.runtime and all(programs_of(each.runtime) for each in bundle.artifacts("model")):
        return None
    (folder,) = generic(name, bundle, options, serving, "tritone")
    config = pb.ModelConfig()
    config.CopyFrom(native)
    config.backend, config.platform, config.default_model_filename = "python", "", ""
    config.ClearField("model_warmup")
    for key, value in folder.config.parameters.items():
        config.parameters[key].CopyFrom(value)
    return replace(folder, config=config, written=extra)


def _native(bundle: Bundle, options: ModelOptions) -> tuple[Artifact, NativeBackend]:
    """The graph that Triton's own backend runs, and which backend that is."""
    found = candidates(bundle, "model", options.runtime, options.precision)
    fit = [each for each in asked_for(found, options.runtime or "native", bundle) if each.runtime in natives()]
    if not fit:
        held = ", ".join(dict.fromkeys(each.runtime for each in found))
        raise BundleError(
            f"{bundle.path} has graphs for {held}; Triton's own backends run {', '.join(natives())}. Build it with "
            "--platform tritone, or export the model for one of those."
        )
    if fit[0].runtime == "tensorrt" and options.device == "cpu":
        raise ValueError("engines of TensorRT run on GPUs alone, but the device is cpu; say --device gpu")
    return fit[0], natives()[fit[0].runtime]


def _of_audio(options: ModelOptions) -> dict[str, bool]:
    """Options that mean nothing for other models, and whether they were given."""
    return {
        "--max-audio-s": options.max_audio_s is not None,
        "--max-queued-s": bool(options.max_queued_s),
        "--memory-mb": bool(options.memory_mb),
        "--compile": bool(options.compile),
    }


def _max_batch_size(tensors: GenericPart, options: ModelOptions) -> int:
    if "max_batch_size" in options.left_open:
        return tensors.max_batch_size
    if not tensors.max_batch_size:
        raise ValueError(
            "--max-batch-size: the tensors of this model have no batch axis; leave it out, or export the model with one"
        )
    return options.max_batch_size


def _input(tensor: GenericInput, backend: NativeBackend | None) -> Any:
    found = pb.ModelInput(
        name=tensor.name,
        data_type=TYPES[tensor.type],
        dims=tensor.dims,
        format=FORMATS[tensor.format],
        optional=tensor.optional,
    )
    return _with_reshape(found, tensor, backend)


def _output(tensor: GenericOutput, backend: NativeBackend | None, place: int) -> Any:
    name = tensor.name if backend is None else backend.output(tensor.name, place)
    found = pb.ModelOutput(
        name=name, data_type=TYPES[tensor.type], dims=tensor.dims, label_filename=tensor.labels or ""
    )
    return _with_reshape(found, tensor, backend)


def _with_reshape(found: Any, tensor: GenericTensor, backend: NativeBackend | None) -> Any:
    if tensor.reshape is not None and backend is not None:  # ours reshapes itself
        found.reshape.CopyFrom(pb.ModelTensorReshape(shape=tensor.reshape))
    return found


def _instances(serving: ServingPart, options: ModelOptions) -> list[Any]:
    usual = Instances(1, options.device, options.gpus)
    if "instances" not in options.left_open:
        usual = options.usual_instances
    groups = (Instances.parse(serving.instances, usual) if serving.instances else usual).groups()
    for group in groups if serving.resources or serving.resource_priority else ():
        for each in serving.resources or ():
            resource = {"name": each.name, "count": each.count, "global": each.everywhere}
            group.rate_limiter.resources.append(pb.ModelRateLimiter.Resource(**resource))
        group.rate_limiter.priority = serving.resource_priority or 0
    return groups


def _settings(tensors: GenericPart, serving: ServingPart, options: ModelOptions) -> Settings:
    of_sequences: dict[str, Any] = {}
    if tensors.is_sequence:
        idle_s = serving.max_idle_s or MAX_IDLE_S
        of_sequences = {"max_streams": options.streams_per_instance, "idle_timeout_s": idle_s}
    return Settings(
        **of_sequences,
        kind=GENERIC,
        threads=options.threads,
        runtime=options.runtime,
        precision=options.precision,
    )


def _set_policy(policy: Any, text: str) -> None:
    kind, _, rest = text.partition(":")
    if kind == "all":
        policy.all.SetInParent()
    elif kind == "latest":
        policy.latest.num_versions = int(rest)
    else:
        policy.specific.versions.extend(int(each) for each in rest.split(","))


def _batching(serving: ServingPart) -> Any:
    batching = pb.ModelDynamicBatching(
        preferred_batch_size=serving.preferred_batch_sizes or (),
        max_queue_delay_microseconds=microseconds(serving.queue_delay_ms or 0.0),
        preserve_ordering=bool(serving.preserve_order),
    )
    policy = _queue_policy(serving, serving.timeout_ms)
    if policy is not None:
        batching.default_queue_policy.CopyFrom(policy)
    if serving.priorities:
        batching.priority_levels = serving.priorities
        batching.default_priority_level = serving.default_priority or serving.priorities
        for level, timeout_ms in enumerate(serving.priority_timeouts_ms or (), start=1):
            batching.priority_queue_policy[level].CopyFrom(_queue_policy(serving, timeout_ms, forced=True))
    return batching


def _queues(serving: ServingPart) -> bool:
    """Whether anything is given about the queue of a model that joins no requests."""
    return bool(serving.queue_limit or serving.timeout_ms or serving.priorities or serving.preserve_order)


def _queue_policy(serving: ServingPart, timeout_ms: float | None, *, forced: bool = False) -> Any:
    if not (forced or timeout_ms or serving.queue_limit or serving.timeout_override or serving.timeout_action):
        return None
    actions = {"reject": pb.ModelQueuePolicy.REJECT, "delay": pb.ModelQueuePolicy.DELAY}
    return pb.ModelQueuePolicy(
        timeout_action=actions[serving.timeout_action or "reject"],
        default_timeout_microseconds=microseconds(timeout_ms or 0.0),
        allow_timeout_override=bool(serving.timeout_override),
        max_queue_size=serving.queue_limit or 0,
    )


def _sequences(
    serving: ServingPart,
    options: ModelOptions,
    tensors: GenericPart,
    backend: NativeBackend | None,
    extra: dict[str, bytes],
) -> Any:
    idle_s = serving.max_idle_s or MAX_IDLE_S
    batching = pb.ModelSequenceBatching(
        max_sequence_idle_microseconds=microseconds((idle_s + (IDLE_GRACE_S if backend is None else 0)) * 1000)
    )
    if serving.strategy == "direct":
        batching.direct.max_queue_delay_microseconds = microseconds(serving.queue_delay_ms or 0.0)
    else:
        spare = SPARE_CANDIDATES if backend is None else 0
        batching.oldest.max_candidate_sequences = options.streams_per_instance + spare
        batching.oldest.preferred_batch_size.extend(serving.preferred_batch_sizes or ())
        batching.oldest.max_queue_delay_microseconds = microseconds(serving.queue_delay_ms or 0.0)
    if backend is None:
        return batching  # whose flags and ids come with the requests; the states are the pipeline's
    for each in tensors.controls:
        control = pb.ModelSequenceBatching.Control(kind=CONTROLS[each.kind])
        if each.kind == "corrid":
            control.data_type = TYPES[each.type]
        else:
            getattr(control, FALSE_TRUE[each.type]).extend([0, 1])
        batching.control_input.append(pb.ModelSequenceBatching.ControlInput(name=each.input, control=[control]))
    for index, state in enumerate(tensors.states):
        first = pb.ModelSequenceBatching.InitialState(
            name=f"state-{index}", data_type=TYPES[state.type], dims=state.dims
        )
        if state.initial:
            first.data_file = f"state-{index}"
            value = initial_state(state, tensors.model_copy(update={"max_batch_size": 0}))
            extra[f"{INITIAL}/state-{index}"] = (to_bfloat16(value) if state.type == "BF16" else value).tobytes()
        else:
            first.zero_data = True
        batching.state.append(
            pb.ModelSequenceBatching.State(
                input_name=state.input,
                output_name=backend.output(state.output, len(tensors.outputs) + index),
                data_type=TYPES[state.type],
                dims=state.dims,
                initial_state=[first],
            )
        )
    return batching


def _warms_up(tensors: GenericPart, serving: ServingPart) -> bool:
    tried = all(each.sample is not None or each.optional for each in tensors.inputs)
    if serving.warmup and not tried:
        open_axes = [each.name for each in tensors.inputs if each.sample is None and not each.optional]
        raise ValueError(
            f"--warmup: no sizes are known that the model runs with (input {', '.join(open_axes)}); export it again "
            "with --sample NAME=SIZE,SIZE"
        )
    return tried if serving.warmup is None else serving.warmup


def _warmup(tensors: GenericPart) -> Any:
    inputs = {
        each.name: pb.ModelWarmup.Input(data_type=TYPES[each.type], dims=each.sample or (), zero_data=True)
        for each in tensors.inputs
        if not each.optional
    }
    return pb.ModelWarmup(name="zeros", batch_size=1, count=1, inputs=inputs)
