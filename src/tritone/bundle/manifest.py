"""The manifest of a bundle: everything serving must know about an exported model, and nothing about its upstream.

    manifest.json  <->  Manifest

Units: samples are counts at `sample_rate`; an *encoder frame* is one output step of the network, i.e.
`features.frame_shift * encoder.subsampling_rate` samples.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

SCHEMA_VERSION = 1
"""Raised whenever an older Tritone could misread a newer bundle."""

Positive = Annotated[int, Field(gt=0)]
NonNegative = Annotated[int, Field(ge=0)]
Role = Literal["encoder", "streaming_encoder"]
Runtime = Literal["onnxruntime"]
Precision = Literal["fp32"]
WeightStorage = Literal["fp32", "fp16", "int8"]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Features(_Part):
    """Acoustic features computed inside the graph; kept here for timing and for people.

    `frame_length`, `frame_shift` are in samples; `low_freq`, `high_freq` in Hz, `high_freq` 0 means Nyquist.
    """

    kind: Literal["kaldi-fbank"] = "kaldi-fbank"
    frame_length: Positive = 400
    frame_shift: Positive = 160
    num_mel_bins: Positive = 80
    window: Literal["povey", "hamming", "hanning", "rectangular", "blackman"] = "povey"
    preemphasis: Annotated[float, Field(ge=0, le=1)] = 0.97
    low_freq: float = 20.0
    high_freq: float = 0.0


class Encoder(_Part):
    """`min_samples`: the shortest waveform that gives one encoder frame, and the shortest the graph accepts.

    `tail_samples`: silence that pipelines append to every utterance. The last frames of audio fill no whole window, and
    a network may emit a token some frames after its sound: without a tail, a word cut off right at its end is lost.
    """

    subsampling_rate: Positive
    output_dim: Positive
    min_samples: Positive
    tail_samples: NonNegative = 0


class Vocabulary(_Part):
    """`units`: how tokens join into text: characters (`connect_symbol` between them) or sentencepiece pieces."""

    file: str = "tokens.txt"
    size: Positive
    units: Literal["char", "bpe"]
    connect_symbol: str = ""
    blank_id: NonNegative
    unk_id: NonNegative | None = None
    sos_id: NonNegative | None = None
    eos_id: NonNegative | None = None


class State(_Part):
    """A tensor a streaming graph hands from step to step: input `name`, output `next_<name>`, zeros at the start.

    `shape` is per stream, without the batch axis.
    """

    name: str
    shape: tuple[NonNegative, ...]
    dtype: Literal["float32", "float16", "int64"]


class Streaming(_Part):
    """How the streaming graph consumes audio.

    A step reads `window_samples` and the stream then moves on by `shift_samples`; the overlap gives the convolutions
    their context. `chunk_size` is in encoder frames, `left_chunks` counts the past chunks a step may attend to.
    """

    chunk_size: Positive
    left_chunks: NonNegative
    window_samples: Positive
    shift_samples: Positive
    states: tuple[State, ...]


class Artifact(_Part):
    """One exported graph. `files` are relative to the bundle, the first is the one to open; `sha256` in that order."""

    role: Role
    runtime: Runtime
    precision: Precision = "fp32"
    weight_storage: WeightStorage = "fp32"
    files: Annotated[tuple[str, ...], Field(min_length=1)]
    sha256: tuple[str, ...]

    @model_validator(mode="after")
    def _same_length(self) -> "Artifact":
        if len(self.files) != len(self.sha256):
            raise ValueError(f"{len(self.files)} files but {len(self.sha256)} sha256 sums")
        return self


class Provenance(_Part):
    """Where the bundle came from: sha256 of each source file, versions of the tools, the options of the export."""

    family: str
    sources: dict[str, str] = {}
    versions: dict[str, str] = {}
    options: dict[str, str | int | float | bool | None] = {}


class Manifest(_Part):
    """The whole description; see the classes above for its parts."""

    schema_version: Literal[1] = 1
    name: str
    kind: Literal["ctc"]
    sample_rate: Positive
    features: Features
    encoder: Encoder
    vocabulary: Vocabulary
    streaming: Streaming | None = None
    artifacts: tuple[Artifact, ...]
    provenance: Provenance

    @property
    def frame_s(self) -> float:
        """Duration of one encoder frame, in seconds."""
        return self.features.frame_shift * self.encoder.subsampling_rate / self.sample_rate
