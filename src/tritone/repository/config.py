"""A served model's `config.pbtxt`, made of typed objects through Triton's own protobuf.

    ModelOptions + bundle facts  ->  ModelConfig  ->  text

A misspelt field fails where it is written, and Triton reads exactly what was meant.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, get_args

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from tritone.backend.settings import GENERIC, STAGES, EmbedParameters, ModelParameters, SearchParameters, Settings
from tritone.bundle.attending import AttendingPart
from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import Precision
from tritone.bundle.part import TensorType
from tritone.errors import InputError, OperatorError
from tritone.kinds import Kind, Mode, Stage, kind_of
from tritone.options.fields import described, option
from tritone.pipelines.embed_options import EmbedOptions
from tritone.pipelines.graphs.choice import candidates
from tritone.pipelines.whisper.options import OF_ANY_SEARCH, DecodingOptions, read_decoding, with_search
from tritone.pipelines.wire import EMBEDDINGS, PCM, SPOKEN, WAV, WAV_LENS, Tensor
from tritone.repository.instances import (
    AUTO,
    STEP_BYTES,
    STEP_COPIES,
    STREAM_BYTES,
    STREAMS_ON_GPU,
    USUAL,
    Device,
    Instances,
    read_count,
)
from tritone.runtime.known import check_runtime
from tritone.search.options import SearchOptions

# Triton queues the streams beyond its candidates without a word. It gets more of them than there are slots, so that the
# model is asked and can refuse with the limit. A refused stream holds its candidate until END or the idle time, so the
# spare ones bound how many refusals fit in that time; a candidate costs Triton about 600 bytes.
SPARE_CANDIDATES = 4096
# Our clock ends an idle stream before Triton's does: our message gives the reason, Triton's only that START is missing.
IDLE_GRACE_S = 5.0
WARMUP_S = 10.0  # of silence
MAX_AUDIO_S = 120.0
BYTES_PER_SAMPLE = 4
COPIES = 3  # of a request's audio that there are at once: of its message, of Triton's, in shared memory
# For audio on its way. What keeps one GPU busy, 512 requests of ten seconds, takes 1 GB.
QUEUE_BYTES: Mapping[Device, int] = {"cpu": 256 * 10**6, "gpu": 4 * 10**9}
# Options of models by the class of their requests' options, and whose they are.
PARTS: Mapping[type, tuple[type, str]] = {
    SearchOptions: (SearchParameters, "models that write text"),
    EmbedOptions: (EmbedParameters, "speaker models"),
}
TYPES = {name: getattr(pb, f"TYPE_{name}") for name in get_args(TensorType)}
# Search options without a meaning for whole utterances.
OF_STREAMS = (
    "chunk_size",
    "left_chunks",
    "endpoint_silence_s",
    "endpoint_silence_after_speech_s",
    "endpoint_max_segment_s",
)


@dataclass(frozen=True, kw_only=True)
class ModelOptions(ModelParameters):
    """How models are served, and how they search or embed; see the help of the fields.

    Times are in the unit that the name says. A limit of the queue has a cost (see `dynamic_batching`).
    """

    instances: int | str = option(  # text where GPUs have different numbers
        AUTO,
        "Model processes (on each GPU), and where: 2, 2@cpu, 2@gpu, 2@0,1 or 1@0,2@1,2 for GPUs by their indices; "
        "auto: what suits the device.",
        auto=True,
        read=read_count,
        metavar="COUNT[@PLACE]",
    )
    device: Device = option("cpu", "Where the models run.")
    gpus: tuple[int, ...] = option((), "With --device gpu: indices like 0,1; every GPU if not given.")
    runtime: str = option(
        "", "onnxruntime, torch, torchscript, tensorrt or python; the bundle's first that can if not given."
    )
    precision: str = option("", "fp32, fp16, bf16 or int8; the bundle's first if not given.")
    compile: str = option(
        "", "Compile the network when it is loaded, for sizes such as 64x10,1x16.7 or auto; see tritone compile."
    )
    threads: int = option(0, "CPU threads of an instance; 0 shares the cores.")
    max_batch_size: int = option(AUTO, "Most requests in one call; auto: what suits the device.", auto=True)
    preferred_batch_sizes: tuple[int, ...] = option((), "Batch sizes worth waiting for, like 8,16.")
    queue_delay_ms: float = option(
        float(AUTO), "Longest wait for a batch to fill; auto: what suits the device.", auto=True
    )
    queue_limit: int = option(
        0, "Offline requests that may wait, further ones are refused; 0: no limit. Use 2 instances."
    )
    queue_timeout_ms: float = option(0.0, "Refuse an offline request that waited this long; 0: never. Use 2 instances.")
    max_audio_s: float | None = option(
        None, "Longest audio of one request, in seconds; 120, or what the memory is enough for, if not given."
    )
    memory_mb: int = option(
        0, "Memory of a model process on the CPU, in MB; 0: 600 a thread, at least 1200 and else a quarter of all."
    )
    max_queued_s: float = option(
        0.0,
        "Seconds of audio that may wait or be in work; 0: what 256 MB (on a GPU 4 GB) hold, two requests at least.",
    )
    decoding: str = option(
        "", "Whisper: other than the usual options of `DecodingOptions` where a request asks for nothing else, as JSON."
    )
    draft: str = option(
        "",
        "Whisper: bundle of a smaller model with the same tokens that guesses greedy texts ahead; they stay the same.",
        metavar="BUNDLE",
    )
    draft_precision: str = option("", "Of the draft: fp32, fp16, bf16 or int8; its bundle's first if not given.")
    max_streams: int = option(
        AUTO, "Streams open at once in a streaming model; auto: 256, on a GPU what 8 GB hold.", auto=True
    )
    stream_idle_timeout_s: float = option(15.0, "Close a stream that sends nothing for this long, in seconds.")

    # options that were chosen here, as they suit whole utterances on the device
    left_open: tuple[str, ...] = field(default=(), repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._place()
        usual = asdict(USUAL.get(self.device, USUAL["cpu"]))
        chosen = [name for name in usual if getattr(self, name) == AUTO]
        for name in chosen:
            object.__setattr__(self, name, usual[name])
        object.__setattr__(self, "left_open", (*self.left_open, *chosen))
        for name in ("max_batch_size", "max_audio_s", "max_streams", "stream_idle_timeout_s"):
            if getattr(self, name) is not None and not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be a number above 0, got {getattr(self, name)}")
        for name in ("threads", "queue_delay_ms", "queue_limit", "queue_timeout_ms", "memory_mb", "max_queued_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be 0 or more, got {getattr(self, name)}")
        precisions = get_args(Precision)
        if self.runtime:
            check_runtime(self.runtime)
        for name in ("precision", "draft_precision"):
            if getattr(self, name) not in ("", *precisions):
                raise ValueError(f"{name} must be one of {', '.join(precisions)}, got {getattr(self, name)!r}")
        _ = self.usual_instances
        try:
            read_decoding(self.decoding)
        except InputError as error:
            raise ValueError(f"decoding: {error}") from error
        if wrong := [size for size in self.preferred_batch_sizes if not 1 <= size <= self.max_batch_size]:
            raise ValueError(f"preferred_batch_sizes must be 1 to max_batch_size ({self.max_batch_size}), got {wrong}")

    def _place(self) -> None:
        """Take device and GPUs from `instances`, where they say where they are."""
        if not isinstance(self.instances, str):
            return
        values = Instances.parse(self.instances, Instances(1, self.device, self.gpus))
        if (self.gpus and self.gpus != values.all_gpus) or (self.device == "gpu" and values.device == "cpu"):
            place = f"gpus {','.join(map(str, self.gpus))}" if self.gpus else f"device {self.device}"
            raise ValueError(f"instances {self.instances} and {place} are of different places; give one of them")
        found = {
            "instances": str(values) if values.others else values.count,
            "device": values.device,
            "gpus": values.all_gpus,
        }
        for name, value in found.items():
            object.__setattr__(self, name, value)

    def for_streams(self, bundle: Bundle) -> "ModelOptions":
        """The same options, those that were left open as they suit the streams of a bundle."""
        streaming = bundle.manifest.streaming
        if self.device == "cpu" or not self.left_open or streaming is None:
            return self
        suited = {name: value for name, value in asdict(STREAMS_ON_GPU).items() if name in self.left_open}
        chunk, left = streaming.chosen(self.chunk_size, self.left_chunks)
        each = max(1, streaming.state_bytes(chunk * max(0, left)))
        if "max_streams" in suited:
            suited["max_streams"] = min(suited["max_streams"], max(USUAL["gpu"].max_streams, STREAM_BYTES // each))
        if "instances" in suited:
            rows = suited.get("max_batch_size", self.max_batch_size)
            suited["instances"] = max(1, min(suited["instances"], STEP_BYTES // (STEP_COPIES * rows * each)))
        return replace(self, **suited, left_open=())

    def for_texts(self, bundle: Bundle) -> "ModelOptions":
        """The same options, those that were left open as they suit a decoder whose texts are written on the device.

        One process has the caches of all windows, and takes requests at any time.
        """
        if self.device == "cpu" or "instances" not in self.left_open or bundle.manifest.find(AttendingPart) is None:
            return self
        runtimes = {artifact.runtime for artifact in candidates(bundle, "decoder", self.runtime)}
        return replace(self, instances=1, left_open=()) if "torch" in runtimes else self

    @property
    def longest_s(self) -> float:
        """The longest audio of one request, in seconds; the usual where nothing else was given."""
        return MAX_AUDIO_S if self.max_audio_s is None else self.max_audio_s

    @property
    def whisper_decoding(self) -> str:
        """How a Whisper model transcribes: `decoding`, and what was given of a search that means the same to it."""
        usual = described(SearchParameters)
        of_search = {name: getattr(self, name) for name in OF_ANY_SEARCH if getattr(self, name) != usual[name].default}
        return json.dumps(with_search(json.loads(self.decoding or "{}"), of_search))

    def queued_s(self, sample_rate: int) -> float:
        """Seconds of audio that may wait or be in work."""
        held = QUEUE_BYTES[self.device] / (sample_rate * BYTES_PER_SAMPLE * COPIES)
        return self.max_queued_s or round(max(held, 2 * self.longest_s), 1)

    @property
    def usual_instances(self) -> Instances:
        """How many processes, and where."""
        if isinstance(self.instances, str):
            return Instances.parse(self.instances, Instances())
        return Instances(self.instances, self.device, self.gpus)

    @property
    def streams_per_instance(self) -> int:
        """Stream slots of one instance, so that all of them together have at least `max_streams`."""
        return -(-self.max_streams // self.usual_instances.processes)


def model_config(
    name: str, mode: Mode, options: ModelOptions, bundle: Bundle, *, files: Mapping[str, str] | None = None
) -> Any:
    """Describe one model to Triton.

    Args:
        name: of the model, the same as its folder.
        files: where those that `options` names are in the model's version folder, by the option's name.

    Returns:
        `tritonclient.grpc.model_config_pb2.ModelConfig`.
    """
    if mode == "streaming":
        options = options.for_streams(bundle)
    options = options.for_texts(bundle)
    kind = kind_of(bundle)
    sample_rate = bundle.manifest.sample_rate
    inputs = kind.inputs(bundle)
    audio = {each.name for each in inputs} - {PCM}
    settings = settings_of(mode, options, kind, sample_rate=sample_rate, files=files)
    config = pb.ModelConfig(
        name=name,
        backend="python",
        max_batch_size=options.max_batch_size,
        input=[as_input(each) for each in inputs],
        output=[as_output(each) for each in kind.outputs(bundle)],
        instance_group=options.usual_instances.groups(),
        model_warmup=[warmup(options, sample_rate)] if audio == {WAV, WAV_LENS} else [],
        parameters=parameters_of(replace(settings, served=_served(kind, bundle, options)), kind),
    )
    if mode == "streaming":
        config.sequence_batching.CopyFrom(_sequence_batching(options))
    elif mode == "synthesis":  # a request is answered sentence by sentence, beside others
        config.model_transaction_policy.decoupled = True
        config.max_batch_size = 1
    else:
        config.dynamic_batching.CopyFrom(dynamic_batching(options))
    return config


def _served(kind: Kind, bundle: Bundle, options: ModelOptions) -> str:
    """What clients may know of a model, and how it decodes, as one JSON."""
    own = {"decoding": json.loads(options.whisper_decoding)} if kind.options is DecodingOptions else {}
    answers = {"answers": kind.answers} if kind.answers else {}
    return json.dumps(answers | kind.served(bundle).to_dict() | own, ensure_ascii=False)


def settings_of(
    mode: Mode, options: ModelOptions, kind: Kind, *, sample_rate: int, files: Mapping[str, str] | None = None
) -> Settings:
    """The settings of a model of ours; arguments as of `model_config`."""
    values: dict[str, Any] = {}
    if kind.options is not None and kind.options in PARTS:
        values = {field.name: getattr(options, field.name) for field in fields(PARTS[kind.options][0])}
    if mode == "offline":
        values |= {name: None for name in OF_STREAMS if name in values}
    return Settings(
        **values | dict(files or {}),
        kind=kind.name,
        sample_rate=sample_rate,
        threads=options.threads,
        runtime=options.runtime,
        compile=options.compile,
        precision=options.precision,
        draft_precision=options.draft_precision,
        max_audio_s=options.longest_s,
        memory_mb=options.memory_mb,
        max_queued_s=options.queued_s(sample_rate),
        max_streams=options.streams_per_instance,
        idle_timeout_s=options.stream_idle_timeout_s,
    )


def parameters_of(settings: Settings, kind: Kind | None = None) -> dict[str, Any]:
    """Settings as the parameters of a configuration, without those of a search where a kind has none."""
    left_out = set()
    if kind is not None and kind.options is not SearchOptions:
        left_out = {field.name for field in fields(SearchParameters)}
    values = settings.to_parameters()
    return {key: pb.ModelParameter(string_value=value) for key, value in values.items() if key not in left_out}


def as_input(tensor: Tensor) -> Any:
    """An input of a model."""
    return pb.ModelInput(
        name=tensor.name,
        data_type=TYPES[tensor.type],
        dims=tensor.dims,
        allow_ragged_batch=tensor.ragged,
        optional=tensor.optional,
    )


def as_output(tensor: Tensor) -> Any:
    """An output of a model."""
    return pb.ModelOutput(name=tensor.name, data_type=TYPES[tensor.type], dims=tensor.dims)


def to_text(config: Any) -> str:
    """Write a model configuration as `config.pbtxt`."""
    return str(text_format.MessageToString(config))


def from_text(text: str) -> Any:
    """Read a `config.pbtxt`.

    Raises:
        OperatorError: it is not one; the message has line and column.
    """
    try:
        return text_format.Parse(text, pb.ModelConfig())
    except text_format.ParseError as error:
        raise OperatorError(f"not a Triton model configuration: {error}") from error


def parameter(config: Any, name: str) -> str:
    """A parameter of a configuration; empty if there is none."""
    return str(config.parameters[name].string_value) if name in config.parameters else ""


def mode_of(config: Any) -> Mode | Stage:
    """How a configuration's model is served: offline, streaming, for embeddings, generic; or which stage it is."""
    for stage in STAGES:
        if parameter(config, "stage") == stage:
            return stage
    if parameter(config, "kind") == GENERIC:
        return GENERIC
    if any(output.name == EMBEDDINGS for output in config.output):
        return "embedding"
    if any(output.name == SPOKEN for output in config.output):
        return "synthesis"
    return "streaming" if config.HasField("sequence_batching") else "offline"


def device_of(config: Any) -> Device:
    """Whether a configuration is of a model on the CPU or on GPUs."""
    kinds = {group.kind for group in config.instance_group}
    return "gpu" if pb.ModelInstanceGroup.KIND_GPU in kinds else "cpu"


def warmup_files(config: Any) -> dict[str, bytes]:
    """The files that the configuration's warm-up reads, by their name in the model's folder `warmup`."""
    if not config.model_warmup or WAV_LENS not in config.model_warmup[0].inputs:
        return {}
    (sample,) = config.model_warmup
    (num_samples,) = sample.inputs[WAV].dims
    return {sample.inputs[WAV_LENS].input_data_file: num_samples.to_bytes(4, "little")}


def warmup(options: ModelOptions, sample_rate: int) -> Any:
    """A request that Triton sends to a model before anybody else does."""
    num_samples = int(min(WARMUP_S, options.longest_s) * sample_rate)
    # Pipelines warm themselves up; this request goes through Triton's own path, whose first use costs some 20 ms.
    inputs = {
        WAV: pb.ModelWarmup.Input(data_type=pb.TYPE_FP32, dims=[num_samples], zero_data=True),
        WAV_LENS: pb.ModelWarmup.Input(data_type=pb.TYPE_INT32, dims=[1], input_data_file=WAV_LENS),
    }
    return pb.ModelWarmup(name="silence", batch_size=1, count=1, inputs=inputs)


def dynamic_batching(options: ModelOptions) -> Any:
    """How requests become batches."""
    batching = pb.ModelDynamicBatching(
        preferred_batch_size=options.preferred_batch_sizes,
        max_queue_delay_microseconds=microseconds(options.queue_delay_ms),
    )
    # Only on request: with any limit Triton 2.51 stops preparing the next batch while one runs, and a model with one
    # instance then now and then sleeps 0.5 s under load. Of bursts of 16 requests that was 10 to 26 in 60 on a busy
    # machine and 1 in 40 on a calmer one; with two instances none.
    if options.queue_limit or options.queue_timeout_ms:
        batching.default_queue_policy.timeout_action = pb.ModelQueuePolicy.REJECT
        batching.default_queue_policy.max_queue_size = options.queue_limit
        batching.default_queue_policy.default_timeout_microseconds = microseconds(options.queue_timeout_ms)
    return batching


def _sequence_batching(options: ModelOptions) -> Any:
    # No control inputs: flags and stream id come with the request itself, four tensors a chunk cheaper.
    return pb.ModelSequenceBatching(
        max_sequence_idle_microseconds=microseconds((options.stream_idle_timeout_s + IDLE_GRACE_S) * 1000),
        oldest=pb.ModelSequenceBatching.StrategyOldest(
            max_candidate_sequences=options.streams_per_instance + SPARE_CANDIDATES,
            preferred_batch_size=options.preferred_batch_sizes,
            max_queue_delay_microseconds=microseconds(options.queue_delay_ms),
        ),
    )


def microseconds(milliseconds: float) -> int:
    """A time in Triton's unit."""
    return round(milliseconds * 1000)
