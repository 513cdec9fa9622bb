"""What a served model is told: the parameters of its `config.pbtxt`, written by `repository/`, read by `backend/`.

    Settings  <->  {"max_audio_s": "120.0", "search": "greedy", ...}

This file is the one place that names them; how to search has the names that requests use, too, and their defaults.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args, get_type_hints

from tritone.errors import InputError
from tritone.pipelines.embed_options import EmbedOptions
from tritone.pipelines.kinds.base import Stage
from tritone.search.endpoint import EndpointRules
from tritone.search.options import (
    PARAMETERS,
    TRANSDUCER_OPTIONS,
    LmUnit,
    SearchMode,
    SearchOptions,
    given_to_transducers,
)

STAGES: tuple[Stage, ...] = get_args(Stage)
ENSEMBLE = "ensemble"  # the model that clients ask, whose stages are models of their own

DEFAULTS = SearchOptions()


@dataclass(frozen=True, kw_only=True)
class SearchParameters:
    """How a model searches unless a request says otherwise, and what it searches with; see `SearchOptions`.

    `beam` 0 is the usual one of the search. `lm`, `hotwords`: files, as text; empty is none. `lm_unit`: what the
    language model's words are. `chunk_size`, in frames, and `left_chunks` of a streaming model; None takes the
    bundle's, -1 left chunks are all. The endpoint rules are in seconds; giving one of them switches endpoints on, and
    those not given then have the usual values.
    """

    search: SearchMode = DEFAULTS.mode
    beam: int = 0
    nbest: int = DEFAULTS.nbest
    ctc_weight: float | None = DEFAULTS.ctc_weight
    reverse_weight: float | None = DEFAULTS.reverse_weight
    lm: str = ""
    lm_weight: float | None = DEFAULTS.lm_weight
    lm_unit: LmUnit = "auto"
    word_bonus: float = DEFAULTS.word_bonus
    hotwords: str = ""
    timestamps: bool = DEFAULTS.timestamps
    blank_penalty: float = DEFAULTS.blank_penalty
    temperature: float = DEFAULTS.temperature
    max_symbols: int = DEFAULTS.max_symbols
    max_states: int = DEFAULTS.max_states
    max_contexts: int = DEFAULTS.max_contexts
    chunk_size: int | None = None
    left_chunks: int | None = None
    endpoint_silence_s: float | None = None
    endpoint_silence_after_speech_s: float | None = None
    endpoint_max_segment_s: float | None = None

    def __post_init__(self) -> None:
        self.options()
        self.endpoint_rules()
        if self.lm_unit not in get_args(LmUnit):
            raise ValueError(f"lm_unit must be one of {', '.join(get_args(LmUnit))}, got {self.lm_unit!r}")
        if self.chunk_size is not None and self.chunk_size < 1:
            raise ValueError(f"chunk_size must be at least 1 frame, got {self.chunk_size}")
        if self.left_chunks is not None and self.left_chunks < -1:
            raise ValueError(f"left_chunks must be 0 or more, or -1 for all, got {self.left_chunks}")

    def options(self, hotwords: tuple[tuple[str, float], ...] = ()) -> SearchOptions:
        """The defaults of requests.

        Args:
            hotwords: what the file holds.

        Raises:
            ValueError: a value is unfit.
        """
        values = {field: getattr(self, name) for name, (field, _) in PARAMETERS.items() if name != "hotwords"}
        try:
            return SearchOptions(**values, hotwords=hotwords)
        except InputError as error:
            raise ValueError(str(error)) from error

    def endpoint_rules(self) -> EndpointRules | None:
        """When segments of streams end; None if they do not."""
        given = {
            name: value
            for name in ("silence_s", "silence_after_speech_s", "max_segment_s")
            if (value := getattr(self, f"endpoint_{name}")) is not None
        }
        return EndpointRules(**given) if given else None

    def chunking(self) -> dict[str, int]:
        """Those of `chunk_size` and `left_chunks` that are not left to the bundle."""
        sizes = {"chunk_size": self.chunk_size, "left_chunks": self.left_chunks}
        return {name: size for name, size in sizes.items() if size is not None}


@dataclass(frozen=True, kw_only=True)
class EmbedParameters:
    """How a speaker model embeds unless a request says otherwise; see `EmbedOptions`."""

    window_s: float = 0.0
    shift_s: float = 0.0

    def __post_init__(self) -> None:
        self.embed_options()

    def embed_options(self) -> EmbedOptions:
        """The defaults of requests; raises `ValueError` if a value is unfit."""
        try:
            return EmbedOptions(window_s=self.window_s, shift_s=self.shift_s)
        except InputError as error:
            raise ValueError(str(error)) from error


@dataclass(frozen=True, kw_only=True)
class ModelParameters(SearchParameters, EmbedParameters):
    """What a model does unless a request says otherwise, whatever its kind."""

    def __post_init__(self) -> None:
        SearchParameters.__post_init__(self)
        EmbedParameters.__post_init__(self)


@dataclass(frozen=True, kw_only=True)
class Settings(ModelParameters):
    """Settings of one served model.

    `sample_rate`: Hz, of the bundle, for clients that read the model's configuration. `bundle`: its folder, relative to
    the model's version folder, as are `lm` and `hotwords`. `threads`: of one instance, 0 shares the machine's cores
    among the instances. `runtime`, `precision`: which of the bundle's graphs to run; empty takes the first that can.
    `max_audio_s`: the longest waveform of one request; a stream may be longer, its chunks may not. `max_streams`: open
    streams of one instance. `idle_timeout_s`: a stream without a chunk for this long is closed. `stage`: which part of
    an ensemble the model is, or `ENSEMBLE`; empty is none. `min_padded_s`: what features are padded to at least.
    """

    sample_rate: int
    stage: str = ""
    min_padded_s: float = 0.0
    bundle: str = "bundle"
    threads: int = 0
    runtime: str = ""
    precision: str = ""
    max_audio_s: float = 120.0
    max_streams: int = 256
    idle_timeout_s: float = 15.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("sample_rate", "max_audio_s", "max_streams", "idle_timeout_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be a number above 0, got {getattr(self, name)}")
        if self.stage not in ("", ENSEMBLE, *STAGES):
            raise ValueError(f"stage must be one of {', '.join((ENSEMBLE, *STAGES))}, got {self.stage!r}")
        if not 0 <= self.min_padded_s < math.inf:
            raise ValueError(f"min_padded_s must be 0 or more, got {self.min_padded_s}")
        if self.threads < 0:
            raise ValueError(f"threads must be 0 (automatic) or more, got {self.threads}")

    def to_parameters(self) -> dict[str, str]:
        """The settings as Triton keeps them: text by name.

        What is empty or None is left out, and what only transducers, stages or speaker models look at where it is as
        usual.
        """
        usual = set(TRANSDUCER_OPTIONS) - set(given_to_transducers(self.options()))
        usual |= {name for name in ("min_padded_s", "window_s", "shift_s") if not getattr(self, name)}
        names = [field.name for field in fields(self) if field.name not in usual]
        return {name: text for name in names if (text := to_text(getattr(self, name)))}

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, str]) -> "Settings":
        """Read settings back. Upper-case names are Triton's own and are left alone.

        Raises:
            ValueError: a parameter is unknown, missing, or not a number where one is needed.
        """
        known = get_type_hints(cls)
        values: dict[str, Any] = {}
        for name, text in parameters.items():
            if name.isupper():
                continue
            if name not in known:
                raise ValueError(f"unknown model parameter {name!r}; known are {', '.join(known)}")
            try:
                values[name] = from_text(known[name], text)
            except ValueError as error:
                raise ValueError(f"model parameter {name} must be {error}, got {text!r}") from error
        if "sample_rate" not in values:
            raise ValueError("model parameter sample_rate is missing; build the repository again")
        return cls(**values)

    @classmethod
    def from_model_config(cls, config: Mapping[str, Any]) -> "Settings":
        """Read settings from Triton's model configuration in its JSON form."""
        return cls.from_parameters({k: v["string_value"] for k, v in config.get("parameters", {}).items()})

    def threads_of(self, instances: int) -> int:
        """Threads of each of `instances` instances on this machine, at least 1."""
        return self.threads or max(1, len(os.sched_getaffinity(0)) // max(1, instances))


def to_text(value: object) -> str:
    """A field's value as text; None is empty."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def from_text(kind: Any, text: str) -> Any:
    """Read text as a field's type, `T` or `T | None`, where T is a number, a flag or text.

    Raises:
        ValueError: it is none; the message is what is needed.
    """
    kinds = getattr(kind, "__args__", (kind,)) if not _is_literal(kind) else (str,)
    if bool in kinds:
        if text.strip().lower() not in ("true", "false"):
            raise ValueError("true or false")
        return text.strip().lower() == "true"
    for number, words in ((int, "a whole number"), (float, "a number")):
        if number in kinds:
            try:
                return number(text)
            except ValueError:
                raise ValueError(words) from None
    return text


def _is_literal(kind: Any) -> bool:
    return getattr(kind, "__origin__", None) is Literal
