"""The manifest of a bundle: everything serving must know about an exported model, and nothing about its upstream.

    manifest.json  <->  Manifest

What several kinds of models have is here, what one kind has alone in the kind's folder: `part.py` says how it is found.

Units: samples are counts at `sample_rate`; an *encoder frame* is one output step of the network, i.e.
`features.frame_shift * encoder.subsampling_rate` samples.
"""

import math
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    Field,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from tritone.bundle.part import (
    MAX_COUNT,
    MAX_STATE_BYTES,
    KindPart,
    NonNegative,
    Part,
    Positive,
    parts_of,
    read_parts,
)
from tritone.errors import BundleError

SCHEMA_VERSION = 1
"""Raised whenever an older Tritone could misread a newer bundle."""

GRAPH_INPUTS = ("waveform", "num_samples", "language", "use_itn")  # names that a state cannot have
ITEM_BYTES = {"float32": 4, "float16": 2, "int64": 8}
LEFT_FRAMES: Literal["left_frames"] = "left_frames"  # stands in a state's shape for the past frames that a step sees
ALL_LEFT = -1  # as `left_chunks`: all of the past

Bytes = Annotated[float, Field(ge=0, le=2**50)]
Kind = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,63}$")]
"""A name; what a kind needs of a manifest is checked where kinds are known, in `tritone.kinds`."""

Role = Literal[
    "encoder",
    "streaming_encoder",
    "decoder",
    "hotword_encoder",
    "hotword_decoder",
    "predictor",
    "joiner",
    "features",
    "acoustic",
    "model",
]
Runtime = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,63}$")]
"""The name of a runtime. A bundle may have graphs of some that are not here, which are not opened then."""
Precision = Literal["fp32", "fp16", "bf16", "int8"]
WeightStorage = Literal["fp32", "fp16", "bf16", "int8"]

SHARED = ("sample_rate", "features", "encoder", "vocabulary", "streaming")
BLANK = ("decoder", "transducer", "embedding", "whisper", "encoder_decoder", "diarization", "hotwords", "segmentation")
"""Parts of kinds that the files of all models with audio name, as null where there is none, as they did from the first.
A new part is not added."""
AnyPart = TypeVar("AnyPart", bound=KindPart)
Found = TypeVar("Found")


class Features(Part):
    """Acoustic features computed inside the graph; kept here for timing and for people.

    `frame_length`, `frame_shift` are in samples; `low_freq`, `high_freq` in Hz, a `high_freq` of 0 or below counts from
    Nyquist. `snip_edges`: only whole windows make a frame; without it frames are centred, and the signal is mirrored
    at its ends. `sample_scale`: what samples in [-1, 1] are multiplied with first. `normalize`: by mean and deviation
    of the utterance, of each band or of all together; `mean` subtracts each band's mean alone.

    `kind`: `kaldi-fbank`, `log-mel` of librosa's bands, `mel`, their power without a logarithm, `mel-decibels` of
    the HTK's bands, `spectrum`, magnitudes of `num_mel_bins` linear bands, or the `samples` themselves, each a frame of
    one bin.
    """

    kind: Literal["kaldi-fbank", "log-mel", "mel", "mel-decibels", "spectrum", "samples"] = "kaldi-fbank"
    frame_length: Positive = 400
    frame_shift: Positive = 160
    num_mel_bins: Positive = 80
    window: Literal["povey", "hamming", "hanning", "rectangular", "blackman", "bartlett"] = "povey"
    preemphasis: Annotated[float, Field(ge=0, le=1)] = 0.97
    low_freq: float = 20.0
    high_freq: float = 0.0
    snip_edges: bool = True
    sample_scale: Annotated[float, Field(gt=0)] = 32768.0
    normalize: Literal["none", "mean", "per-feature", "all-features"] = "none"

    @classmethod
    def of_samples(cls, normalize: Literal["none", "all-features"] = "none") -> "Features":
        """Of a network that takes samples as they are."""
        return cls(
            kind="samples",
            frame_length=1,
            frame_shift=1,
            num_mel_bins=1,
            window="rectangular",
            preemphasis=0.0,
            sample_scale=1.0,
            normalize=normalize,
        )


class Encoder(Part):
    """`min_samples`: the shortest waveform that gives one encoder frame, and the shortest the graph accepts.

    `tail_samples`: silence that pipelines append to every utterance. The last frames of audio fill no whole window, and
    a network may emit a token some frames after its sound: without a tail, a word cut off right at its end is lost.
    `equal_lengths`: what the graph says of an utterance depends on the padding after it, so that all rows of a call
    must be of one length. `output_dim`: of what it gives for each frame, or for the utterance if it is an embedding.
    `languages`: of a graph that takes the language of each utterance, the numbers that it takes, by language;
    `language`: the one that it gets where nobody names one. `text_forms`: of a graph that takes how to write, the
    numbers that it takes for numbers in words without punctuation, and for figures with punctuation. `tags`: what its
    output `tags` says of an utterance, a token for each.
    """

    subsampling_rate: Positive
    output_dim: Positive
    min_samples: Positive
    tail_samples: NonNegative = 0
    equal_lengths: bool = False
    languages: dict[Annotated[str, Field(pattern=r"^[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8}){0,3}$")], NonNegative] = {}
    language: str = ""
    text_forms: tuple[NonNegative, NonNegative] | None = None
    tags: Annotated[tuple[Annotated[str, Field(pattern=r"^[a-z][a-z_]{0,31}$")], ...], Field(max_length=16)] = ()

    def asked(self, language: str = "", use_itn: bool = False) -> dict[str, int]:
        """What the graph takes of each row beside audio: numbers by the names of inputs, of what a request asks for."""
        found = {"language": self.languages[language or self.language]} if self.languages else {}
        return found if self.text_forms is None else found | {"use_itn": self.text_forms[use_itn]}

    @model_validator(mode="after")
    def _knows_its_language(self) -> "Encoder":
        if (self.language in self.languages) != bool(self.languages):
            raise ValueError(f"encoder.language is {self.language!r}, which is not one of encoder.languages")
        return self


class Vocabulary(Part):
    """`units`: how tokens join into text: characters (`connect_symbol` between them), sentencepiece pieces, or pieces
    of byte-level BPE, each character of which stands for a byte of UTF-8: `byte-bpe` with icefall's characters,
    `byte-level` with GPT-2's; or `continued`, pieces of words that end with `@@` where the word goes on. `has_marks`:
    tokens like `<|laughter|>` and `<de-DE>` are marks, which no text has.
    """

    file: str = "tokens.txt"
    size: Positive
    units: Literal["char", "bpe", "byte-bpe", "byte-level", "continued"]
    connect_symbol: Annotated[str, Field(max_length=16)] = ""
    blank_id: NonNegative
    unk_id: NonNegative | None = None
    sos_id: NonNegative | None = None
    eos_id: NonNegative | None = None
    has_marks: bool = False


class State(Part):
    """A tensor a streaming graph hands from step to step: input `name`, output `next_<name>`, zeros at the start.

    `shape` is per stream, without the batch axis. At most one axis may be "left_frames": the newest past frames, the
    last of them at its end, as many as the caller keeps.
    """

    name: Annotated[str, Field(min_length=1)]
    shape: Annotated[tuple[NonNegative | Literal["left_frames"], ...], Field(max_length=8)]
    dtype: Literal["float32", "float16", "int64"]

    @model_validator(mode="after")
    def _one_axis(self) -> "State":
        if self.shape.count(LEFT_FRAMES) > 1:
            raise ValueError(f"state {self.name} has more than one axis {LEFT_FRAMES}: {list(self.shape)}")
        return self

    @property
    def is_history(self) -> bool:
        """Whether it holds the past frames that a step sees."""
        return LEFT_FRAMES in self.shape

    def sizes(self, left_frames: int) -> tuple[int, ...]:
        """The shape for a number of past frames."""
        return tuple(left_frames if axis == LEFT_FRAMES else axis for axis in self.shape)

    def num_bytes(self, left_frames: int = 0) -> int:
        """Memory of one stream's tensor with that many past frames."""
        return math.prod(self.sizes(left_frames)) * ITEM_BYTES[self.dtype]


class Streaming(Part):
    """How the streaming graph consumes audio.

    A step reads `window_samples` and the stream then moves on by `shift_samples`; the overlap gives the convolutions
    their context. `chunk_size` is in encoder frames, `left_chunks` counts the past chunks a step may attend to.

    A `flexible` graph takes windows for any chunk size and histories of any length: the numbers here are what it is run
    with unless somebody chooses others, and `left_chunks` may be -1, all of the past. Of any other graph they are part.
    `frame_samples`: what its window for a single frame reads, None for `Encoder.min_samples`. `trained`: the chunk
    sizes that it may be run with, and the left chunks of each, which may be fewer; empty if it takes any.

    `lead_samples`: zeros before a stream's first sample; the graph makes of them what its features want there.
    `flush_samples`: at the end of a stream, steps go on while their window begins less than this after the end of the
    audio; `num_samples` may be 0 then. None means one step for what is left.
    """

    chunk_size: Positive
    left_chunks: Annotated[int, Field(ge=ALL_LEFT, le=MAX_COUNT)]
    window_samples: Positive
    shift_samples: Positive
    states: tuple[State, ...]
    flexible: bool = False
    frame_samples: Positive | None = None
    trained: Annotated[dict[Positive, NonNegative], Field(max_length=64)] = {}
    lead_samples: NonNegative = 0
    flush_samples: NonNegative | None = None

    @model_validator(mode="after")
    def _fit(self) -> "Streaming":
        if self.shift_samples > self.window_samples:
            raise ValueError(
                f"shift_samples ({self.shift_samples}) is more than window_samples ({self.window_samples}): samples "
                "between two windows would be skipped"
            )
        names = [state.name for state in self.states]
        if len(set(names)) < len(names) or set(names) & set(GRAPH_INPUTS):
            raise ValueError(f"states need names of their own, other than {', '.join(GRAPH_INPUTS)}; got {names}")
        histories = [state.name for state in self.states if state.is_history]
        if not self.flexible and (histories or self.left_chunks < 0):
            raise ValueError(
                f"left_chunks {self.left_chunks} and states with an axis {LEFT_FRAMES} ({histories}): only a flexible "
                "graph may leave open how much of the past it is given"
            )
        if not self.flexible and (self.trained or self.frame_samples):
            raise ValueError("trained and frame_samples are of a flexible graph, which takes more than one chunk size")
        if self.trained and not 0 <= self.left_chunks <= self.trained.get(self.chunk_size, -1):
            raise ValueError(
                f"chunk_size {self.chunk_size} with left_chunks {self.left_chunks} is not among what the model was "
                f"trained for: {self.trained}"
            )
        if (size := self.state_bytes(self.chunk_size * max(0, self.left_chunks))) > MAX_STATE_BYTES:
            raise ValueError(f"the states of one stream take {size} bytes, at most {MAX_STATE_BYTES} are allowed")
        return self

    def chosen(self, chunk_size: int | None = None, left_chunks: int | None = None) -> tuple[int, int]:
        """Chunk size and left chunks to run with, where None leaves one to the bundle.

        Raises:
            BundleError: the graph is for others alone.
            ValueError: they are no sizes.
        """
        chunk = self.chunk_size if chunk_size is None else chunk_size
        usual = self.left_chunks if chunk == self.chunk_size else self.trained.get(chunk, self.left_chunks)
        left = usual if left_chunks is None else left_chunks
        if chunk < 1 or left < ALL_LEFT:
            raise ValueError(
                f"chunk_size must be at least 1 encoder frame and left_chunks at least 0, or {ALL_LEFT} for all of the "
                f"past; got chunk_size {chunk} and left_chunks {left}"
            )
        if not self.flexible and (chunk, left) != (self.chunk_size, self.left_chunks):
            raise BundleError(
                f"it was exported for chunk_size {self.chunk_size} and left_chunks {self.left_chunks} alone, "
                f"but {chunk} and {left} were asked for. Leave them out, or export the model again: then it is made "
                "for the sizes that the export is given, or leaves them open."
            )
        if self.trained and not 0 <= left <= self.trained.get(chunk, -1):
            known = ", ".join(f"{size} with up to {most}" for size, most in sorted(self.trained.items()))
            raise BundleError(
                f"it is for the chunk sizes that the model was trained for, {known} left chunks, but chunk_size "
                f"{chunk} with left_chunks {left} was asked for; take one of them"
            )
        return chunk, left

    def state_bytes(self, left_frames: int) -> int:
        """Memory of all states of one stream that sees that many past frames."""
        return sum(state.num_bytes(left_frames) for state in self.states)


class Engine(Part):
    """What a TensorRT engine was built with. It runs nowhere else.

    `library`: TensorRT, or TensorRT for RTX, which are not the same. `version`: of it, whole. `gpu`: the name of the
    GPU, `compute_capability` its, like "9.0"; None where the engine was built without one. `profiles`: the sizes it
    takes, as they were asked for, like "1x2s 16x7s 64x16.7s", or "x:1x8 x:4x8 x:8x8" of a generic model.
    """

    library: Literal["tensorrt", "tensorrt-rtx"]
    version: Annotated[str, Field(min_length=1, max_length=64)]
    gpu: Annotated[str, Field(max_length=256)] | None = None
    compute_capability: Annotated[str, Field(max_length=16)] | None = None
    profiles: tuple[Annotated[str, Field(max_length=4096)], ...] = ()


class CallSize(Part):
    """A call of one row of `seconds`, and the `bytes` that the network took for it, its runtime's waste included."""

    seconds: Annotated[float, Field(gt=0, le=MAX_COUNT)]
    bytes: Bytes


class Memory(Part):
    """What a process with this graph takes of a machine's memory, as it was measured on a CPU.

    `process`: bytes before any call, the search's graphs and tables included. `network`: of single rows, from short to
    long. `search_per_second`: bytes that the search takes on top, for each second of a row.
    """

    process: Bytes
    network: Annotated[tuple[CallSize, ...], Field(min_length=2, max_length=64)]
    search_per_second: Bytes

    @model_validator(mode="after")
    def _in_order(self) -> "Memory":
        seconds = [each.seconds for each in self.network]
        taken = [each.bytes for each in self.network]
        if seconds != sorted(set(seconds)) or taken != sorted(taken) or not taken[0]:
            raise ValueError(f"sizes in network must grow in seconds and bytes, got {seconds} and {taken}")
        return self

    def call_bytes(self, rows: int, seconds: float) -> float:
        """Memory of one call, beyond that of the process: a line between what was measured, a square beyond it."""
        first, last = self.network[0], self.network[-1]
        if seconds <= first.seconds:
            network = first.bytes * seconds / first.seconds
        elif seconds >= last.seconds:
            network = last.bytes * (seconds / last.seconds) ** 2
        else:
            right = next(index for index, size in enumerate(self.network) if size.seconds > seconds)
            low, high = self.network[right - 1 : right + 1]
            part = (seconds - low.seconds) / (high.seconds - low.seconds)
            network = low.bytes + part * (high.bytes - low.bytes)
        return rows * (network + self.search_per_second * seconds)

    def longest(self, room: float) -> float:
        """The longest row in seconds that can be computed alone in `room` bytes beyond those of the process."""
        low, high = 0.0, float(MAX_COUNT)
        if self.call_bytes(1, high) <= room:
            return math.inf
        for _ in range(64):  # to a fraction of a sample
            middle = (low + high) / 2
            low, high = (middle, high) if self.call_bytes(1, middle) <= room else (low, middle)
        return low


class Artifact(Part):
    """One exported graph. `files` are relative to the bundle, the first is the one to open; `sha256` in that order.

    `precision`: of the network's arithmetic; what goes in and comes out is the same for all. The first artifact of a
    role is its default. `engine`: of runtime tensorrt, and no other. `memory`: of whole utterances on a CPU, where it
    was measured.
    """

    role: Role
    runtime: Runtime
    precision: Precision = "fp32"
    weight_storage: WeightStorage = "fp32"
    files: Annotated[tuple[str, ...], Field(min_length=1)]
    sha256: tuple[str, ...]
    engine: Engine | None = None
    memory: Memory | None = None

    @model_validator(mode="after")
    def _engine_is_described(self) -> "Artifact":
        if (self.runtime == "tensorrt") != (self.engine is not None):
            raise ValueError("graphs for tensorrt, and no others, say in `engine` what they were built with")
        return self

    @model_validator(mode="after")
    def _same_length(self) -> "Artifact":
        if len(self.files) != len(self.sha256):
            raise ValueError(f"{len(self.files)} files but {len(self.sha256)} sha256 sums")
        return self


class Provenance(Part):
    """Where the bundle came from: sha256 of each source file, versions of the tools, the options of the export."""

    family: str
    sources: dict[str, str] = {}
    versions: dict[str, str] = {}
    options: dict[str, str | int | float | bool | None] = {}


class Manifest(Part):
    """The whole description; see the classes above for what several kinds have, and `parts` for the kind's own.

    In files, and for who makes one, the parts of a kind stand beside the rest by their names. What not all kinds have
    is a property that raises where there is none, since asking for it is a mistake of the program: `sample_rate`,
    `features`, `encoder` and `tokens`.
    """

    schema_version: Literal[1] = 1
    name: Annotated[str, Field(min_length=1, max_length=128)]
    kind: Kind
    audio_rate: Annotated[int, Field(ge=1000, le=768_000)] | None = Field(default=None, alias="sample_rate")
    audio_features: Features | None = Field(default=None, alias="features")
    audio_encoder: Encoder | None = Field(default=None, alias="encoder")
    vocabulary: Vocabulary | None = None
    streaming: Streaming | None = None
    parts: Annotated[tuple[KindPart, ...], Field(exclude=True)] = ()
    artifacts: tuple[Artifact, ...]
    provenance: Provenance

    @model_validator(mode="before")
    @classmethod
    def _gathered(cls, given: Any) -> Any:
        """What is given, with the parts of the kind in one place."""
        if not isinstance(given, dict):
            return given
        names = {each.alias or name for name, each in cls.model_fields.items()} - {"parts"}
        parts = {name: content for name, content in given.items() if name not in names and content is not None}
        if isinstance(own := parts.get("parts"), tuple):  # of a program; a file has no tuples
            parts = {**parts, **{each.named: each for each in own}}
            del parts["parts"]
        return {name: content for name, content in given.items() if name in names} | {"parts": parts}

    @field_validator("parts", mode="plain")
    @classmethod
    def _of_the_kind(cls, given: Any, info: ValidationInfo) -> tuple[KindPart, ...]:
        return read_parts(info.data["kind"], given) if "kind" in info.data else ()

    @model_validator(mode="after")
    def _has_what_its_kind_needs(self) -> "Manifest":
        if (parts := parts_of(self.kind)) is not None and (faults := [*parts.faults(self.kind, self.shared)]):
            raise ValidationError.from_exception_data("Manifest", faults)
        return self

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
        """The fields by the names that files have, the parts of the kind among them."""
        values: dict[str, Any] = write(self)
        aliases = {name: each.alias or name for name, each in type(self).model_fields.items()}
        named = {alias: values.get(name, values.get(alias)) for name, alias in aliases.items()}
        shared = {name: named[name] for name in SHARED if named[name] is not None}
        own = {each.named: each.written(mode=info.mode, exclude_none=bool(info.exclude_none)) for each in self.parts}
        blank = [*(name for name in SHARED[:3] if name in shared), *SHARED[3:], *BLANK]
        if self.audio_rate is None:
            blank = [each.key for each in getattr(parts_of(self.kind), "own", ())]
        head = {name: named[name] for name in ("schema_version", "name", "kind")}
        tail = {name: named[name] for name in ("artifacts", "provenance")}
        found = head | dict.fromkeys(blank) | shared | own | tail
        return {name: value for name, value in found.items() if not (info.exclude_none and value is None)}

    @property
    def shared(self) -> tuple[str, ...]:
        """The names, as files have them, of what it has and several kinds have: `vocabulary`, `encoder.tags`."""
        values = (self.audio_rate, self.audio_features, self.audio_encoder, self.vocabulary, self.streaming)
        asked = ("languages", "text_forms", "tags") if self.audio_encoder is not None else ()
        return (
            *(name for name, value in zip(SHARED, values, strict=True) if value is not None),
            *(f"encoder.{name}" for name in asked if getattr(self.audio_encoder, name)),
        )

    def find(self, of: type[AnyPart]) -> AnyPart | None:
        """The kind's part of a class; None if it has none."""
        return next((each for each in self.parts if isinstance(each, of)), None)

    def part(self, of: type[AnyPart]) -> AnyPart:
        """The kind's part of a class; asking a kind for one that it does not have is a mistake of the program."""
        return self._part(self.find(of), f"part {of.__name__}")

    def with_part(self, part: KindPart) -> "Manifest":
        """The same with another part in place of the one of its name; nothing is compared with it."""
        parts = tuple(part if each.named == part.named else each for each in self.parts)
        return self.model_copy(update={"parts": parts})

    @property
    def is_of_audio(self) -> bool:
        """Whether the model takes or makes audio, and not arrays of any use."""
        return self.audio_rate is not None

    @property
    def sample_rate(self) -> int:
        """Hz, of a model of speech."""
        return self._part(self.audio_rate, "sample rate")

    @property
    def features(self) -> Features:
        """What the graph makes of waveforms first, of a model of speech."""
        return self._part(self.audio_features, "features")

    @property
    def encoder(self) -> Encoder:
        """The network's sizes, of a model of speech."""
        return self._part(self.audio_encoder, "encoder")

    def _part(self, part: Found | None, name: str) -> Found:
        if part is None:
            raise RuntimeError(f"a model of kind {self.kind} has no {name}")
        return part

    @model_validator(mode="after")
    def _window_gives_a_frame(self) -> "Manifest":
        if self.streaming is None or self.audio_encoder is None or self.audio_features is None:
            return self
        if self.streaming.window_samples < self.encoder.min_samples:
            raise ValueError(
                f"streaming.window_samples ({self.streaming.window_samples}) is below encoder.min_samples "
                f"({self.encoder.min_samples}): a step would give no frame"
            )
        if self.streaming.flexible:
            sizes = self.streaming.window_samples, self.streaming.shift_samples
            if sizes != (wanted := self.step_samples(self.streaming.chunk_size)):
                raise ValueError(
                    f"streaming.window_samples and shift_samples are {sizes}, but a flexible graph's follow from the "
                    f"chunk size: {wanted}"
                )
        return self

    def step_samples(self, chunk_size: int) -> tuple[int, int]:
        """The samples that a flexible graph reads for `chunk_size` encoder frames, and those it then moves on by."""
        frame = self.features.frame_shift * self.encoder.subsampling_rate
        first = (self.streaming and self.streaming.frame_samples) or self.encoder.min_samples
        ahead = sum(each.ahead(chunk_size) for each in self.parts)
        return first + (chunk_size + ahead - 1) * frame, chunk_size * frame

    @property
    def tokens(self) -> Vocabulary:
        """The vocabulary of a model that writes text; asking any other kind for it is a mistake of the program."""
        return self._part(self.vocabulary, "vocabulary")

    @property
    def frame_s(self) -> float:
        """Duration of one encoder frame, in seconds."""
        return self.features.frame_shift * self.encoder.subsampling_rate / self.sample_rate
