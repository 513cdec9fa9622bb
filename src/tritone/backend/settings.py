"""The settings of a served model: parameters of its `config.pbtxt`, written by `repository/`, read by `backend/`.

    Settings  <->  {"max_audio_s": "120.0", "search": "greedy", ...}

How to search and how to embed are named where requests have them, and have their defaults there: `SearchParameters` and
`EmbedFields`. The rest is named here alone.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, get_args, get_type_hints

from tritone.container import usable_cpus
from tritone.errors import InputError
from tritone.kinds import Stage
from tritone.pipelines.embed_options import EmbedFields, EmbedOptions
from tritone.pipelines.wire import WAV, WAV_LENS
from tritone.search.options import MODEL_PARAMETERS, SearchFields, SearchParameters

STAGES: tuple[Stage, ...] = get_args(Stage)
# Of a process that has no budget of its own. With Triton, its audio and a model for streams this fits into 2 GB.
MEMORY_MB = 1200
MEMORY_MB_A_THREAD = 600
MACHINE_SHARE = 0.25  # several models share a machine
MB = 10**6
DRAINING = "TRITONE_DRAINING"  # environment variable: while the file that it names exists no stream may begin
GENERIC: Final = "generic"  # the kind of models without audio
LISTED = ("searches", "languages", "abilities", "windows", "speakers")  # with commas, in repositories of before
ENSEMBLE = "ensemble"  # the model that clients ask, whose stages are models of their own


@dataclass(frozen=True, kw_only=True)
class EmbedParameters(EmbedFields):
    """How a speaker model embeds unless a request says otherwise."""

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

    `kind`: of the bundle, or `generic` of any model without audio; empty in repositories of before. `sample_rate`: Hz,
    of the bundle, for clients that read the model's configuration. `bundle`: its folder, relative to the model's
    version folder, as are `lm` and `hotwords`. `threads`: of one instance, 0 shares the machine's cores among the
    instances. `runtime`, `precision`: which of the bundle's graphs to run; empty takes the first that can. `compile`:
    sizes of calls to compile the network for when the model is loaded, see `Placement.compile`; empty: what was
    compiled before is used. `max_audio_s`: the longest waveform of one request; a stream may be longer, its chunks may
    not. `max_streams`: open streams of one instance. `idle_timeout_s`: a stream without a chunk for this long is
    closed. `memory_mb`: what one process of the model may take, in megabytes; 0: see `memory_of`. `max_queued_s`:
    seconds of audio that may wait or be in work at once, for whoever admits requests; 0 is no limit. `stage`: which
    part of an ensemble the model is, or `ENSEMBLE`; empty is none. `min_padded_s`: what features are padded to at
    least. `served`: what clients may know, JSON of `Kind.answers` and `Kind.served`, and as `decoding` how a Whisper
    model transcribes where a request does not say; empty reports nothing. `tensors`: what clients of an ensemble call
    WAV and WAV_LENS, with a comma between; empty: that. `draft`: the folder of a bundle that guesses texts ahead,
    relative to the version folder, and `draft_precision`, in which it runs; empty: none, and its first.
    """

    kind: str = ""
    sample_rate: int = 0
    stage: str = ""
    min_padded_s: float = 0.0
    tensors: str = ""
    served: str = ""
    bundle: str = "bundle"
    threads: int = 0
    runtime: str = ""
    precision: str = ""
    draft: str = ""
    draft_precision: str = ""
    compile: str = ""
    max_audio_s: float = 120.0
    max_streams: int = 256
    idle_timeout_s: float = 15.0
    memory_mb: int = 0
    max_queued_s: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in (
            *(() if self.kind == GENERIC else ("sample_rate",)),
            "max_audio_s",
            "max_streams",
            "idle_timeout_s",
        ):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be a number above 0, got {getattr(self, name)}")
        if self.stage not in ("", ENSEMBLE, *STAGES):
            raise ValueError(f"stage must be one of {', '.join((ENSEMBLE, *STAGES))}, got {self.stage!r}")
        if not 0 <= self.min_padded_s < math.inf:
            raise ValueError(f"min_padded_s must be 0 or more, got {self.min_padded_s}")
        if self.memory_mb < 0 or not 0 <= self.max_queued_s < math.inf:
            raise ValueError(
                f"memory_mb and max_queued_s must be 0 or more, got {self.memory_mb} and {self.max_queued_s}"
            )
        if self.threads < 0:
            raise ValueError(f"threads must be 0 (automatic) or more, got {self.threads}")

    def to_parameters(self) -> dict[str, str]:
        """The settings as Triton keeps them: text by name.

        What is empty or None is left out, and what only transducers, stages or speaker models look at where it is as
        usual.
        """
        usual = {each.name for each in fields(SearchFields) if MODEL_PARAMETERS[each.name].kinds}
        usual |= {"min_padded_s", "tensors", "compile", "memory_mb", "max_queued_s"}
        usual |= {each.name for each in fields(EmbedFields)}
        if self.kind == GENERIC:
            usual = {each.name for each in fields(self)}
        given = [each for each in fields(self) if not (each.name in usual and getattr(self, each.name) == each.default)]
        return {each.name: text for each in given if (text := to_text(getattr(self, each.name)))}

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, str]) -> "Settings":
        """Read settings back. Upper-case names are Triton's own and are left alone.

        Raises:
            ValueError: a parameter is unknown, missing, or not a number where one is needed.
        """
        known = get_type_hints(cls)
        parameters, values = _without_old(parameters), dict[str, Any]()
        for name, text in parameters.items():
            if name.isupper():
                continue
            if name not in known:
                raise ValueError(f"unknown model parameter {name!r}; known are {', '.join(known)}")
            try:
                values[name] = from_text(known[name], text)
            except ValueError as error:
                raise ValueError(f"model parameter {name} must be {error}, got {text!r}") from error
        if "sample_rate" not in values and values.get("kind") != GENERIC:
            raise ValueError("model parameter sample_rate is missing; build the repository again")
        return cls(**values)

    @classmethod
    def from_model_config(cls, config: Mapping[str, Any]) -> "Settings":
        """Read settings from Triton's model configuration in its JSON form."""
        return cls.from_parameters({k: v["string_value"] for k, v in config.get("parameters", {}).items()})

    @property
    def decoding(self) -> str:
        """How a Whisper model transcribes where a request does not say, as JSON."""
        return json.dumps(json.loads(self.served or "{}").get("decoding", {}))

    @property
    def tensor_names(self) -> tuple[str, str]:
        """What clients call the audio and its length."""
        wav, _, lens = self.tensors.partition(",")
        return wav or WAV, lens or WAV_LENS

    def threads_of(self, instances: int) -> int:
        """Threads of each of `instances` instances on this machine, at least 1."""
        return self.threads or max(1, usable_cpus() // max(1, instances))

    def memory_of(self, threads: int, machine: int | None) -> float:
        """Megabytes that one process with so many threads may take on a machine with so many bytes.

        More threads make more calls at once. Without a number of its own, a model gets at least what its longest
        audio was derived from when it was built.
        """
        share = math.inf if machine is None else machine / MB * MACHINE_SHARE
        return self.memory_mb or max(MEMORY_MB, min(MEMORY_MB_A_THREAD * threads, share))


def _without_old(parameters: Mapping[str, str]) -> dict[str, str]:
    """Parameters with `served` in place of the texts that repositories had before there was one."""
    found = dict(parameters)
    listed = {name: found.pop(name).split(",") for name in LISTED if name in found}
    served: dict[str, Any] = {name: values for name, values in listed.items() if any(values)}
    if "decoding" in found:
        served["decoding"] = json.loads(found.pop("decoding"))
    return {**found, "served": json.dumps(served)} if served else found


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
