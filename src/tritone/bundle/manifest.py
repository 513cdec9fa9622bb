"""The manifest of a bundle: everything serving must know about an exported model, and nothing about its upstream.

    manifest.json  <->  Manifest

A bundle of speech has the parts `sample_rate`, `features` and `encoder`, a voice that speaks `sample_rate` and
`synthesis`; one of any other model has `generic` instead.

Units: samples are counts at `sample_rate`; an *encoder frame* is one output step of the network, i.e.
`features.frame_shift * encoder.subsampling_rate` samples.
"""

import math
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)
from pydantic_core import InitErrorDetails

from tritone.errors import BundleError

SCHEMA_VERSION = 1
"""Raised whenever an older Tritone could misread a newer bundle."""

# A bundle may come from a stranger, and memory is taken by these numbers. They are far beyond any real model.
MAX_COUNT = 2**20  # of anything: samples of a window, frames, tokens, dimensions
MAX_STATE_BYTES = 2**28  # that one stream keeps from step to step
GRAPH_INPUTS = ("waveform", "num_samples", "language", "use_itn")  # names that a state cannot have
ITEM_BYTES = {"float32": 4, "float16": 2, "int64": 8}
MAX_ELEMENTS = 2**31  # of one row of a tensor; a request of gRPC has at most 2 GB
LEFT_FRAMES: Literal["left_frames"] = "left_frames"  # stands in a state's shape for the past frames that a step sees
ALL_LEFT = -1  # as `left_chunks`: all of the past

Positive = Annotated[int, Field(gt=0, le=MAX_COUNT)]
NonNegative = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Bytes = Annotated[float, Field(ge=0, le=2**50)]
Character = Annotated[str, Field(min_length=1, max_length=1)]
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

# fmt: off
TensorType = Literal[
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64",
    "FP16", "BF16", "FP32", "FP64", "STRING",
]
# fmt: on
"""Triton's names of the types of tensors."""
TensorName = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]{1,256}$")]
Size = Annotated[int, Field(gt=0, le=2**31 - 1)] | Literal[-1]
MAX_AXES = 32
MAX_TENSORS = 1024
SPEECH_FIELDS = ("audio_rate", "audio_features", "audio_encoder")
SPEECH_PARTS = (
    *("vocabulary", "streaming", "decoder", "transducer", "embedding", "whisper", "encoder_decoder"),
    *("segmentation", "diarization", "synthesis", "hotwords"),
)
PAD, BEGIN, END = "_", "^", "$"  # of a voice: between phonemes, before them, behind them
NUM_FRAMES = "num_frames"
"""The tensor that says how many encoder frames are an input's own."""
Activation = Literal["gelu", "relu", "gated-silu"]
Found = TypeVar("Found")


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Features(_Part):
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


class Encoder(_Part):
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


class Vocabulary(_Part):
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


class Hotwords(_Part):
    """Phrases that the network itself takes.

    `no_bias`: the id that it writes where there is none of them (SeACo); None if all of its tokens stand. `words`: a
    file of words and the tokens that they are written with, one word a line, as FunASR's `seg_dict`. `max_phrases`:
    that it can be told at once; None for as many as requests may have.
    """

    no_bias: NonNegative | None
    words: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    max_phrases: Positive | None = None


class State(_Part):
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


class Streaming(_Part):
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


class Decoder(_Part):
    """The attention decoder that scores finished hypotheses.

    `bidirectional`: there is a right-to-left one too. `ctc_weight`, `reverse_weight`: the weights that the model was
    trained for, of the CTC score and of the right-to-left decoder; requests may ask for others.
    """

    bidirectional: bool
    ctc_weight: Annotated[float, Field(ge=0)] = 0.5
    reverse_weight: Annotated[float, Field(ge=0, le=1)] = 0.0


class Transducer(_Part):
    """The predictor and the joiner, which say what follows a frame and the tokens before it.

    `context_size`: tokens that the predictor sees. `start`: what they are before the first token; -1 is none at all,
    and has no vector. `max_symbols`: the most tokens of one frame, unless a request says otherwise.

    `states`: of a predictor that remembers all tokens (an LSTM): tensors that it hands from token to token, zeros
    before the first. `durations`: of a token-and-duration transducer (TDT): frames that a token or a blank may take, in
    the order of the joiner's last logits.
    """

    context_size: Annotated[int, Field(gt=0, le=16)]
    start: tuple[Annotated[int, Field(ge=-1, le=MAX_COUNT)], ...]
    max_symbols: Annotated[int, Field(ge=1, le=10)] = 1
    states: Annotated[tuple[State, ...], Field(max_length=16)] = ()
    durations: Annotated[tuple[Annotated[int, Field(ge=0, le=1024)], ...], Field(max_length=256)] = ()

    @model_validator(mode="after")
    def _fit(self) -> "Transducer":
        if len(self.start) != self.context_size:
            raise ValueError(f"start has {len(self.start)} tokens, context_size is {self.context_size}")
        if self.states and self.context_size != 1:
            raise ValueError(f"a predictor with states sees one token at a time, context_size is {self.context_size}")
        if self.durations and not (self.states and any(self.durations)):
            raise ValueError("durations need a predictor with states, and one of them above 0")
        names = [state.name for state in self.states]
        if len(set(names)) < len(names) or "context" in names or any(state.is_history for state in self.states):
            raise ValueError(f"states of a predictor need names of their own and fixed shapes, got {names}")
        if (size := sum(state.num_bytes() for state in self.states)) > MAX_STATE_BYTES:
            raise ValueError(f"the states of one predictor take {size} bytes, at most {MAX_STATE_BYTES} are allowed")
        return self


class Embedding(_Part):
    """One vector for each utterance.

    `mean_subtracted`: the graph has subtracted the mean of many speakers' embeddings already, and code that compares
    embeddings must not do it again. `threshold`: the cosine at the equal error rate on the data that the model card
    names; above it two recordings are taken for one speaker's. None where nobody measured it.
    """

    mean_subtracted: bool = False
    threshold: Annotated[float, Field(ge=-1, le=1)] | None = None


class Segmentation(_Part):
    """Who talks in each frame of a window, by the most probable set of its speakers.

    `window_samples`: of a window, which is what a call takes. `field_samples`: what a frame sees; the first one begins
    with the window. `speakers`: who are told apart within a window, of whom up to `at_once` talk at once. The sets are
    in the order of their sizes, and those of one size in that of their speakers.
    """

    window_samples: Positive
    field_samples: Positive
    speakers: Annotated[int, Field(ge=1, le=64)]
    at_once: Annotated[int, Field(ge=1, le=64)]


class Synthesis(_Part):
    """A voice, whose network takes the numbers of phonemes.

    `espeak_voice`: the voice of espeak-ng that writes texts in the International Phonetic Alphabet. `phonemes`: the
    numbers of each of its characters; those of `_`, `^` and `$` stand between phonemes, before them and behind them.
    `replaced`: what stands for characters that espeak-ng writes and the network does not know. `language`: as BCP 47
    has it. `noise`, `duration_noise`: of sounds and of their lengths, as parts of the deviation that was learnt.
    `length`: of sounds, times the learnt one. `speakers`: their numbers by name; empty where there is one.
    """

    espeak_voice: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9+_-]{0,63}$")]
    phonemes: Annotated[
        dict[Character, Annotated[tuple[NonNegative, ...], Field(max_length=8)]], Field(max_length=4096)
    ]
    replaced: Annotated[dict[Character, Annotated[str, Field(max_length=16)]], Field(max_length=4096)] = {}
    language: Annotated[str, Field(pattern=r"^([A-Za-z]{2,8}(-[A-Za-z0-9]{1,8}){0,3})?$")] = ""
    noise: Annotated[float, Field(ge=0, le=10)] = 0.667
    duration_noise: Annotated[float, Field(ge=0, le=10)] = 0.8
    length: Annotated[float, Field(gt=0, le=10)] = 1.0
    speakers: Annotated[
        dict[Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f,]{1,128}$")], NonNegative], Field(max_length=65536)
    ] = {}

    @model_validator(mode="after")
    def _has_marks(self) -> "Synthesis":
        if missing := [mark for mark in (PAD, BEGIN, END) if not self.phonemes.get(mark)]:
            raise ValueError(f"synthesis.phonemes has no number of {' '.join(missing)}")
        return self


class Attending(_Part):
    """A decoder that attends to audio: its sizes, and tokens that it never writes.

    `text_context`: tokens of prompt and text together. `layers`, `heads`, `head_dim`: for the tensors of its cache.
    `eot`: the id of the token that ends a text. `suppress`: ids that are never written.
    """

    text_context: Annotated[int, Field(ge=8, le=2**16)]
    layers: Annotated[int, Field(gt=0, le=256)]
    heads: Annotated[int, Field(gt=0, le=1024)]
    head_dim: Annotated[int, Field(gt=0, le=4096)]
    eot: NonNegative
    suppress: tuple[NonNegative, ...] = ()

    @property
    def cross_names(self) -> tuple[str, ...]:
        """Tensors of the keys and values of the audio, of each layer."""
        return layer_names("cross", self.layers)

    @property
    def encoder_names(self) -> tuple[str, ...]:
        """What the decoder takes of the encoder."""
        return self.cross_names

    @property
    def self_names(self) -> tuple[str, ...]:
        """Tensors of the keys and values of the text, of each layer; `next_` before them where they come out."""
        return layer_names("self", self.layers)


class Whisper(Attending):
    """A Whisper model: sizes of its decoder, its special tokens, and what it never writes; see also `Attending`.

    `window_frames`: feature frames of a window, which is all that the encoder takes. `encoder_heads`: of the encoder;
    None in bundles of before.

    `sot`, `sot_prev`, `no_timestamps`, `timestamp_begin`: ids of tokens; the ids from `timestamp_begin` on are
    times, `time_precision` seconds apart. `no_speech`: the token whose probability after `sot` is that of silence.
    `languages`: ids by code, `tasks`: ids by name; both empty for models of English alone.

    `suppress_first`: ids that no text begins with. `max_initial_timestamp`: the latest first time, as a count of steps;
    None has no limit. `alignment_heads`: (layer, head) of the cross-attention that follows the audio, which times of
    words are made of.
    """

    window_frames: Positive
    encoder_heads: Annotated[int, Field(gt=0, le=1024)] | None = None
    sot: NonNegative
    sot_prev: NonNegative | None = None
    no_timestamps: NonNegative
    timestamp_begin: NonNegative
    time_precision: Annotated[float, Field(gt=0, le=10)] = 0.02
    no_speech: NonNegative | None = None
    languages: dict[Annotated[str, Field(pattern=r"^[a-z]{2,8}$")], NonNegative] = {}
    tasks: dict[Literal["transcribe", "translate"], NonNegative] = {}
    suppress_first: tuple[NonNegative, ...] = ()
    max_initial_timestamp: NonNegative | None = None
    alignment_heads: tuple[tuple[NonNegative, NonNegative], ...] = ()

    @model_validator(mode="after")
    def _ids_in_order(self) -> "Whisper":
        if not self.eot < self.timestamp_begin or not self.no_timestamps < self.timestamp_begin:
            raise ValueError(
                f"times must have the largest ids: timestamp_begin is {self.timestamp_begin}, eot {self.eot}, "
                f"no_timestamps {self.no_timestamps}"
            )
        return self

    @model_validator(mode="after")
    def _heads_exist(self) -> "Whisper":
        if any(layer >= self.layers or head >= self.heads for layer, head in self.alignment_heads):
            raise ValueError(f"alignment_heads must be of {self.layers} layers with {self.heads} heads")
        return self

    def missing(self, frames: int) -> int:
        """Feature frames that a window with so many is filled up with."""
        return self.window_frames - frames

    @property
    def special_ids(self) -> tuple[int, ...]:
        """All ids that the vocabulary must have."""
        single = (self.sot, self.eot, self.sot_prev, self.no_timestamps, self.timestamp_begin, self.no_speech)
        found = [*(id for id in single if id is not None), *self.languages.values(), *self.tasks.values()]
        return (*found, *self.suppress, *self.suppress_first)


Slot = Literal["language", "target_language", "task", "punctuation", "word_times"]
Switch = tuple[NonNegative, NonNegative]


class EncoderDecoder(Attending):
    """A decoder that attends to audio of any length up to `max_samples`, as Moonshine's and Canary's; see `Attending`.

    `max_positions`: encoder frames of so much audio. `form`: what its layers compute between two products, see
    `families.layers.text_decoder`; `silent`: ids that are no text.

    `prompt`: the tokens before a text, and what stands in their places: a token of `languages`, for the audio's and for
    the text's; or the first of two tokens for no, the second for yes, of `task` to whether these differ. `language`:
    the one that is taken where nobody names one, empty if the model has no choice. `times`: the first and the last id
    of the tokens that are times, before and after each word, `time_precision` seconds apart. `tokens_per_second`: the
    most of a text; None: no limit.
    """

    max_samples: Positive
    max_positions: Positive
    form: Activation
    prompt: Annotated[tuple[NonNegative | Slot, ...], Field(min_length=1, max_length=64)]
    silent: tuple[NonNegative, ...] = ()
    languages: dict[Annotated[str, Field(pattern=r"^[a-z]{2,8}$")], NonNegative] = {}
    language: str = ""
    task: Switch | None = None
    punctuation: Switch | None = None
    word_times: Switch | None = None
    times: Switch | None = None
    time_precision: Annotated[float, Field(gt=0, le=10)] = 0.08
    tokens_per_second: Annotated[float, Field(gt=0, le=1000)] | None = None

    # What Whisper has and these models have not; no token is a time by Whisper's rules.
    no_speech: ClassVar[None] = None
    suppress_first: ClassVar[tuple[int, ...]] = ()
    alignment_heads: ClassVar[tuple[tuple[int, int], ...]] = ()
    timestamp_begin: ClassVar[int] = MAX_COUNT

    @model_validator(mode="after")
    def _has_what_its_prompt_needs(self) -> "EncoderDecoder":
        needed = {"language": self.languages, "target_language": self.languages}
        needed |= {name: getattr(self, name) for name in ("task", "punctuation", "word_times")}
        if lacking := [each for each in self.prompt if isinstance(each, str) and not needed[each]]:
            raise ValueError(f"the prompt has a place for {lacking[0]}, of which there are no tokens")
        if (self.language in self.languages) != bool(self.languages):
            raise ValueError(f"language is {self.language!r}, which is not one of languages")
        if (self.word_times is None) != (self.times is None) or (self.times and self.times[0] > self.times[1]):
            raise ValueError(f"times are {self.times} with word_times {self.word_times}; expected both, in order")
        if len(self.prompt) >= self.text_context:
            raise ValueError(f"the prompt has {len(self.prompt)} tokens, text_context is {self.text_context}")
        return self

    @property
    def sot(self) -> int:
        """The token that is read first."""
        [first, *_] = (each for each in self.prompt if isinstance(each, int))
        return first

    @property
    def no_timestamps(self) -> int:
        return self.eot

    @property
    def encoder_names(self) -> tuple[str, ...]:
        return (NUM_FRAMES, *self.cross_names)

    def missing(self, frames: int) -> int:
        """Samples that a window with so many is filled up with: none."""
        return 0

    @property
    def special_ids(self) -> tuple[int, ...]:
        """All ids that the vocabulary must have."""
        given = (self.task, self.punctuation, self.word_times, self.times)
        switches = (id for each in given for id in each or ())
        prompt = (each for each in self.prompt if isinstance(each, int))
        return (self.eot, *prompt, *self.languages.values(), *switches, *self.silent, *self.suppress)


def layer_names(name: str, layers: int) -> tuple[str, ...]:
    """Names of keys and values of all layers: self_key_0, self_value_0, self_key_1, ..."""
    return tuple(f"{name}_{part}_{layer}" for layer in range(layers) for part in ("key", "value"))


class Engine(_Part):
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


def _elements(dims: tuple[int, ...]) -> tuple[int, int]:
    return math.prod(size for size in dims if size > 0), dims.count(-1)


class GenericTensor(_Part):
    """A tensor of a generic model: `type` is Triton's name of it, `dims` are without the batch axis, -1 for any size.

    `reshape`: the shape that the graph has where clients see `dims`, in the same order of elements; () is a scalar.
    """

    name: TensorName
    type: TensorType
    dims: Annotated[tuple[Size, ...], Field(min_length=1, max_length=MAX_AXES)]
    reshape: Annotated[tuple[Size, ...], Field(max_length=MAX_AXES)] | None = None

    @model_validator(mode="after")
    def _fit(self) -> "GenericTensor":
        for shape in (self.dims, self.reshape or ()):
            if (elements := math.prod(size for size in shape if size > 0)) > MAX_ELEMENTS:
                raise ValueError(
                    f"{self.name} has {elements} elements ({list(shape)}), at most {MAX_ELEMENTS} are allowed"
                )
        if self.reshape is not None and _elements(self.dims) != _elements(self.reshape):
            raise ValueError(
                f"{self.name}: reshape {list(self.reshape)} must have as many elements and as many sizes -1 as dims "
                f"{list(self.dims)}"
            )
        return self

    @property
    def shape(self) -> tuple[int, ...]:
        """What the graph has, without the batch axis."""
        return self.dims if self.reshape is None else self.reshape


class GenericInput(GenericTensor):
    """An input. `format`: of images, the order of their three axes. `optional`: the graph has a value of its own.

    `sample`: dims that the graph was tried with, for warm-ups and examples.
    """

    format: Literal["none", "nhwc", "nchw"] = "none"
    optional: bool = False
    sample: Annotated[tuple[Positive, ...], Field(max_length=MAX_AXES)] | None = None

    @model_validator(mode="after")
    def _is_image(self) -> "GenericInput":
        if self.sample is not None and (
            len(self.sample) != len(self.dims)
            or any(size not in (-1, tried) for size, tried in zip(self.dims, self.sample, strict=True))
        ):
            raise ValueError(f"{self.name}: sample {list(self.sample)} does not fit dims {list(self.dims)}")
        if self.format != "none" and len(self.dims) != 3:
            raise ValueError(f"{self.name}: format {self.format} is of images with 3 axes, dims are {list(self.dims)}")
        return self


class GenericOutput(GenericTensor):
    """An output. `labels`: a file of the bundle with a name for each of its elements, one on each line."""

    labels: Annotated[str, Field(min_length=1, max_length=255)] | None = None

    @model_validator(mode="after")
    def _is_counted(self) -> "GenericOutput":
        if self.labels is not None and (min(self.dims) < 0 or self.type == "STRING"):
            raise ValueError(
                f"{self.name}: labels name the elements of numbers with fixed dims, got {self.type} {list(self.dims)}"
            )
        return self

    @property
    def num_classes(self) -> int:
        """How many elements a row has, which is how many labels there must be."""
        return math.prod(self.dims)


class SequenceState(_Part):
    """A tensor that a generic model passes from one request of a sequence to the next: graph `output` to `input`.

    `dims` are without the batch axis and fixed. `initial`: the value of all elements when a sequence starts.
    """

    input: TensorName
    output: TensorName
    type: TensorType
    dims: Annotated[tuple[Positive, ...], Field(min_length=1, max_length=MAX_AXES)]
    initial: float = 0.0

    @model_validator(mode="after")
    def _fit(self) -> "SequenceState":
        if self.type == "STRING":
            raise ValueError(f"state {self.input} is of type STRING; states are numbers")
        if (size := math.prod(self.dims) * 8) > MAX_STATE_BYTES:
            raise ValueError(
                f"state {self.input} of a sequence takes {size} bytes, at most {MAX_STATE_BYTES} are allowed"
            )
        return self


class SequenceControl(_Part):
    """An input of the graph that says where in its sequence a request is: 1 or 0, of shape (batch, 1); or its id."""

    input: TensorName
    kind: Literal["start", "end", "ready", "corrid"]
    type: Literal["BOOL", "INT32", "FP32", "UINT32", "INT64", "UINT64"]

    @model_validator(mode="after")
    def _fit(self) -> "SequenceControl":
        known = ("INT32", "UINT32", "INT64", "UINT64") if self.kind == "corrid" else ("BOOL", "INT32", "FP32")
        if self.type not in known:
            raise ValueError(f"control {self.input}: {self.kind} is of type {', '.join(known)}, got {self.type}")
        return self


class PythonFunction(_Part):
    """A model that is a Python function: `function` of the file that the artifact of runtime `python` names first.

    `requirements`: what pip has to install for it. `decoupled`: it may answer a request any number of times. `calls`:
    names of other models that it asks.
    """

    function: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}(\.[A-Za-z_][A-Za-z0-9_]{0,127})?$")]
    requirements: tuple[Annotated[str, Field(max_length=512)], ...] = ()
    decoupled: bool = False
    calls: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=200)], ...], Field(max_length=MAX_TENSORS)
    ] = ()


class RateLimit(_Part):
    """A resource that an instance takes while it runs: `count` of `name`, on each device or of the whole server."""

    name: Annotated[str, Field(min_length=1, max_length=128)]
    count: Positive
    everywhere: bool = False


class Serving(_Part):
    """How a generic model is served unless its repository is built otherwise; None leaves it to `tritone build`.

    `version`: the version folder. `version_policy`: `latest:N`, `all` or `specific:1,3`. `instances`: `COUNT[@PLACE]`.
    `timeout_ms`: how long a request may wait; `timeout_action`: what happens then. `priority_timeouts_ms`: the same of
    each priority, the highest first, as many as `priorities`; 0 is never.
    `max_idle_s`: a sequence without a request for so long is closed. `strategy`: how sequences share batches.
    """

    version: Annotated[int, Field(gt=0, le=2**31)] = 1
    version_policy: Annotated[str, Field(pattern=r"^(all|latest:\d{1,9}|specific:\d{1,9}(,\d{1,9})*)$")] | None = None
    instances: Annotated[str, Field(max_length=64)] | None = None
    queue_delay_ms: Annotated[float, Field(ge=0, le=MAX_COUNT)] | None = None
    preferred_batch_sizes: tuple[Positive, ...] | None = None
    queue_limit: NonNegative | None = None
    timeout_ms: Annotated[float, Field(ge=0, le=2**40)] | None = None
    timeout_action: Literal["reject", "delay"] | None = None
    timeout_override: bool | None = None
    priorities: Annotated[int, Field(ge=0, le=1000)] | None = None
    default_priority: Annotated[int, Field(ge=0, le=1000)] | None = None
    priority_timeouts_ms: tuple[Annotated[float, Field(ge=0, le=2**40)], ...] | None = None
    preserve_order: bool | None = None
    response_cache: bool | None = None
    resources: tuple[RateLimit, ...] | None = None
    resource_priority: Annotated[int, Field(ge=0, le=1000)] | None = None
    max_idle_s: Annotated[float, Field(gt=0, le=2**31)] | None = None
    strategy: Literal["direct", "oldest"] | None = None
    warmup: bool | None = None


class Generic(_Part):
    """A model of any use: its tensors as clients see them, and the graph's that Tritone feeds itself.

    `max_batch_size` 0: tensors have no batch axis; otherwise it is the first axis of all of them, clients may send up
    to so many rows, and rows do not depend on each other.
    """

    inputs: Annotated[tuple[GenericInput, ...], Field(max_length=MAX_TENSORS)]
    outputs: Annotated[tuple[GenericOutput, ...], Field(min_length=1, max_length=MAX_TENSORS)]
    max_batch_size: Annotated[int, Field(ge=0, le=65536)] = 0
    states: Annotated[tuple[SequenceState, ...], Field(max_length=MAX_TENSORS)] = ()
    controls: Annotated[tuple[SequenceControl, ...], Field(max_length=8)] = ()
    python: PythonFunction | None = None

    @model_validator(mode="after")
    def _names_differ(self) -> "Generic":
        fed = [*(each.name for each in self.inputs), *(each.input for each in self.states)]
        fed += [each.input for each in self.controls]
        for what, names in (
            ("inputs, states and controls", fed),
            ("outputs", [each.name for each in self.outputs]),
            ("states' outputs", [each.output for each in self.states]),
        ):
            if twice := sorted({name for name in names if names.count(name) > 1}):
                raise ValueError(f"{what} need names of their own; {', '.join(twice)} occurs twice")
        if not fed:
            raise ValueError("a model needs at least one input")
        return self

    @property
    def is_sequence(self) -> bool:
        """Whether requests belong to sequences."""
        return bool(self.states or self.controls)


class Punctuation(_Part):
    """Marks that a model writes behind words.

    `marks`: what each of the network's labels stands for, "" for none; `full_stop`: the label of a sentence's end.
    `words`: the file of the words that it knows, in the order of their ids, of which `unknown` stands for all others.
    `dictionary`: a file of jieba's with words of its own, of a network that knows words of several characters.
    """

    marks: Annotated[tuple[Annotated[str, Field(max_length=4)], ...], Field(min_length=2, max_length=64)]
    full_stop: NonNegative
    words: Annotated[str, Field(min_length=1, max_length=255)] = "tokens.txt"
    unknown: NonNegative
    dictionary: Annotated[str, Field(min_length=1, max_length=255)] | None = None

    @model_validator(mode="after")
    def _has_a_full_stop(self) -> "Punctuation":
        if self.full_stop >= len(self.marks) or not self.marks[self.full_stop]:
            raise ValueError(f"full_stop is {self.full_stop}, which is none of the marks {list(self.marks)}")
        return self

    @property
    def tensors(self) -> Generic:
        """Those of its graph, the same in FunASR's and sherpa-onnx's files: ids (rows, words), lengths of rows, and
        scores (rows, words, marks).
        """
        return Generic(
            inputs=(
                GenericInput(name="inputs", type="INT32", dims=(-1,), sample=(8,)),
                GenericInput(name="text_lengths", type="INT32", dims=(1,), reshape=(), sample=(1,)),
            ),
            outputs=(GenericOutput(name="logits", type="FP32", dims=(-1, len(self.marks))),),
            max_batch_size=64,
        )


class CallSize(_Part):
    """A call of one row of `seconds`, and the `bytes` that the network took for it, its runtime's waste included."""

    seconds: Annotated[float, Field(gt=0, le=MAX_COUNT)]
    bytes: Bytes


class Memory(_Part):
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


class Artifact(_Part):
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


class Provenance(_Part):
    """Where the bundle came from: sha256 of each source file, versions of the tools, the options of the export."""

    family: str
    sources: dict[str, str] = {}
    versions: dict[str, str] = {}
    options: dict[str, str | int | float | bool | None] = {}


class DiarizationStep(_Part):
    """How audio is cut into steps, in encoder frames.

    A step judges `chunk_size` of them, for which it hears `lookahead` more; where the audio ends before its window
    does, at most `last_frames`. `fifo_length` of the newest are kept as they came; when there are more, `update_period`
    of them at least move to the speaker cache.
    """

    chunk_size: Positive
    lookahead: NonNegative
    last_frames: Positive
    fifo_length: Positive
    update_period: Positive


class Diarization(_Part):
    """`speakers`: how many a model can distinguish. `recordings`: the steps of whole ones; `streams`: those that
    streams may have, one for each chunk size.
    """

    speakers: Annotated[int, Field(ge=1, le=1024)]
    recordings: DiarizationStep
    streams: Annotated[tuple[DiarizationStep, ...], Field(min_length=1, max_length=64)]

    @model_validator(mode="after")
    def _has_one_for_each_size(self) -> "Diarization":
        sizes = [each.chunk_size for each in (self.recordings, *self.streams)]
        if len(set(sizes)) < len(sizes):
            raise ValueError(f"diarization: chunk sizes should differ, got {sizes}")
        return self

    def step(self, chunk_size: int) -> DiarizationStep:
        """The steps of a chunk size; raises `ValueError` if there are none."""
        for each in (self.recordings, *self.streams):
            if each.chunk_size == chunk_size:
                return each
        raise ValueError(
            f"the model has no steps of {chunk_size} encoder frames; take one of "
            f"{', '.join(str(each.chunk_size) for each in self.streams)}"
        )


class Manifest(_Part):
    """The whole description; see the classes above for its parts.

    A part that one of speech and generic bundles has is a property that raises for the other, since asking for it is a
    mistake of the program: `sample_rate`, `features`, `encoder` and `generic`.
    """

    schema_version: Literal[1] = 1
    name: Annotated[str, Field(min_length=1, max_length=128)]
    kind: Kind
    audio_rate: Annotated[int, Field(ge=1000, le=768_000)] | None = Field(default=None, alias="sample_rate")
    audio_features: Features | None = Field(default=None, alias="features")
    audio_encoder: Encoder | None = Field(default=None, alias="encoder")
    tensors: Generic | None = Field(default=None, alias="generic")
    serving: Serving | None = None
    punctuation: Punctuation | None = None
    vocabulary: Vocabulary | None = None
    streaming: Streaming | None = None
    decoder: Decoder | None = None
    transducer: Transducer | None = None
    embedding: Embedding | None = None
    whisper: Whisper | None = None
    encoder_decoder: EncoderDecoder | None = None
    diarization: Diarization | None = None
    hotwords: Hotwords | None = None
    segmentation: Segmentation | None = None
    synthesis: Synthesis | None = None
    artifacts: tuple[Artifact, ...]
    provenance: Provenance

    @model_validator(mode="after")
    def _is_of_speech_or_generic(self) -> "Manifest":
        speech = {"sample_rate": self.audio_rate, "features": self.audio_features, "encoder": self.audio_encoder}
        if self.tensors is None:
            if self.serving is not None or self.punctuation is not None:
                raise ValueError("`serving` and `punctuation` are of bundles with the part `generic`")
            if self.synthesis is not None:  # which makes waveforms, and takes none
                if self.audio_features is not None or self.audio_encoder is not None:
                    raise ValueError("a bundle with the part `synthesis` has no `features` and no `encoder`")
                del speech["features"], speech["encoder"]
            missing = [
                InitErrorDetails(type="missing", loc=(name,), input={}) for name, part in speech.items() if not part
            ]
            if missing:
                raise ValidationError.from_exception_data("Manifest", missing)
            return self
        speech |= {name: getattr(self, name) for name in SPEECH_PARTS}
        if found := [name for name, part in speech.items() if part is not None]:
            raise ValueError(f"a bundle with the part `generic` has none of speech, got {', '.join(found)}")
        return self

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """The fields by the names that files have, without parts of the other of speech and generic bundles."""
        found: dict[str, Any] = write(self)
        names = {name: each.alias or name for name, each in type(self).model_fields.items()}
        other = {"tensors", "serving", "punctuation"} if self.tensors is None else {*SPEECH_FIELDS, *SPEECH_PARTS}
        if self.punctuation is None:
            other = {*other, "punctuation"}
        other |= {"audio_features", "audio_encoder"} if self.synthesis is not None else {"synthesis"}
        return {names.get(name, name): value for name, value in found.items() if name not in other}

    @property
    def parts(self) -> tuple[str, ...]:
        """The names, as files have them, of what it has and a kind may have or not: `vocabulary`, `encoder.tags`."""
        optional = {name: each.alias or name for name, each in type(self).model_fields.items() if each.default is None}
        asked = ("languages", "text_forms", "tags") if self.audio_encoder is not None else ()
        return (
            *(written for name, written in optional.items() if getattr(self, name) is not None),
            *(f"encoder.{name}" for name in asked if getattr(self.audio_encoder, name)),
        )

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

    @property
    def generic(self) -> Generic:
        """The tensors of a generic model."""
        return self._part(self.tensors, "part `generic`")

    def _part(self, part: "Found | None", name: str) -> "Found":
        if part is None:
            raise RuntimeError(f"a model of kind {self.kind} has no {name}")
        return part

    @model_validator(mode="after")
    def _window_gives_a_frame(self) -> "Manifest":
        if self.streaming and self.streaming.window_samples < self.encoder.min_samples:
            raise ValueError(
                f"streaming.window_samples ({self.streaming.window_samples}) is below encoder.min_samples "
                f"({self.encoder.min_samples}): a step would give no frame"
            )
        if self.streaming and self.streaming.flexible:
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
        ahead = self.diarization.step(chunk_size).lookahead if self.diarization else 0
        return first + (chunk_size + ahead - 1) * frame, chunk_size * frame

    @property
    def tokens(self) -> Vocabulary:
        """The vocabulary of a model that writes text; asking any other kind for it is a mistake of the program."""
        return self._part(self.vocabulary, "vocabulary")

    @property
    def attending(self) -> Whisper | EncoderDecoder | None:
        """The part of a model whose decoder attends to audio."""
        return self.whisper or self.encoder_decoder

    @property
    def frame_s(self) -> float:
        """Duration of one encoder frame, in seconds."""
        return self.features.frame_shift * self.encoder.subsampling_rate / self.sample_rate
