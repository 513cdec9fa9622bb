"""The models a server offers, as a client needs to know them."""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from tritonclient.utils import triton_to_np_dtype

from tritone.audio.waveform import Samples, widened
from tritone.bfloat16 import BITS, to_bfloat16
from tritone.client.device_array import DeviceArray
from tritone.client.transport import (
    DETAILS,
    EMBEDDING,
    NUM_SAMPLES,
    PCM,
    PROBABILITIES,
    SEGMENTS,
    SPOKEN,
    TEXT,
    TO_SPEAK,
    WAVEFORM,
)
from tritone.errors import InputError, OperatorError

Kind = Literal[
    "offline",
    "streaming",
    "embedding",
    "activity",
    "activity-streaming",
    "diarization",
    "diarization-streaming",
    "segmentation",
    "synthesis",
    "other",
]

FOR: Mapping[str, str] = {
    "embedding": "for embeddings",
    "activity": "for voice activity",
    "activity-streaming": "for voice activity in streams",
    "diarization": "for diarization",
    "diarization-streaming": "for diarization of streams",
    "segmentation": "for segmentation",
    "synthesis": "for speech synthesis",
}
"""How models that write no text are called."""

ANSWERS: Mapping[str, Kind] = {
    "transcripts": "offline",
    "embeddings": "embedding",
    "activity": "activity",
    "diarization": "diarization",
    "segmentation": "segmentation",
    "synthesis": "synthesis",
}
"""What models answer, as repositories say it."""
STREAMING: Mapping[Kind, Kind] = {
    "offline": "streaming",
    "activity": "activity-streaming",
    "diarization": "diarization-streaming",
}
"""How models for whole recordings are called where they are for streams."""

GREEDY = "greedy"  # the mode of search without a beam

DEFAULT_SAMPLE_RATE = 16000
"""What the wire contract means when a model's configuration has no parameter `sample_rate`, in Hz."""


@dataclass(frozen=True)
class Tensor:
    """An input or output of a model."""

    dtype: str  # as the protocol names it, such as "FP32"
    dims: tuple[int, ...]  # without the axis of rows; -1 is any size


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """A ready model, as its configuration on the server describes it."""

    name: str
    kind: Kind  # "other" when it is not one of ours
    sample_rate: int = DEFAULT_SAMPLE_RATE  # of its waveforms, in Hz
    batched: bool = True  # whether tensors have an axis of rows
    max_audio_s: float | None = None  # longest audio of a request, in seconds; None where the server does not report it
    has_details: bool = False  # whether it returns tokens, words and times
    has_search: bool = False  # whether requests may choose how to search
    searches: tuple[str, ...] = ()  # the modes of search among which requests may choose, if the server knows
    decodes: bool = False  # whether its options are Whisper's, and not those of a search
    has_prompt: bool = False  # whether requests may give a prompt and temperatures, as to Whisper models
    finds_language: bool = False  # whether it detects which language is spoken, among those allowed
    translates: bool = False  # whether it writes English of other languages
    has_word_times: bool = False  # whether it writes times of words where it is asked for them, and only there
    languages: tuple[str, ...] = ()  # which requests may name, if the server knows; of a voice, which it speaks
    speakers: tuple[str, ...] = ()  # of a voice, which requests may name
    has_beam: bool = False  # whether it keeps several hypotheses unless a request says otherwise
    has_windows: bool = False  # whether requests may choose in which windows audio is embedded
    has_lengths: bool = True  # whether it takes `WAV_LENS`, as all of ours do
    has_pcm: bool = False  # whether it takes `PCM` in place of `WAV`
    dim: int | None = None  # values of an embedding, if the server knows
    windows: tuple[int, ...] = ()  # of a segmentation network: samples of a window, between frames, that a frame sees
    stages: tuple[str, ...] = ()  # the models that an ensemble is made of
    is_sequence: bool = field(default=False, compare=False)  # whether requests belong to streams
    inputs: Mapping[str, Tensor] = field(default_factory=dict, compare=False, repr=False)
    outputs: Mapping[str, Tensor] = field(default_factory=dict, compare=False, repr=False)

    @property
    def has_words(self) -> bool:
        """Whether its texts have words with times, always or where they are asked for."""
        return self.has_word_times or (self.has_details and not self.decodes)

    def word_parameters(self, wanted: bool | Literal["auto"]) -> dict[str, bool | str]:
        """The request parameters by which it writes times of words, as is usual of it ("auto") or always, or does not.

        Models that take longer for them do it where they are asked; others as a rule, which is what "auto" leaves them.
        """
        if self.has_word_times and self.kind == "offline":
            return {"word_times": wanted}
        return {"timestamps": True} if wanted is True and self.has_search and not self.decodes else {}

    def audio_tensors(self, samples: "Samples | DeviceArray") -> dict[str, Any]:
        """The inputs of audio as they travel: `PCM` of int16 where the model takes it, else `WAV`; and `WAV_LENS`.

        No audio (an empty file, or END after all audio has been sent) becomes one padding sample with a length of 0,
        because an engine need not accept a tensor without elements.

        Raises:
            InputError: the model takes no audio.
        """
        if self.inputs and WAVEFORM not in self.inputs:
            raise InputError(f"model '{self.name}' takes no audio; give its inputs by name: {', '.join(self.inputs)}")
        is_pcm = samples.dtype == np.int16
        if isinstance(samples, DeviceArray):
            if is_pcm and not self.has_pcm:
                raise InputError(f"model '{self.name}' takes no 16-bit audio: give float32 in [-1, 1] on the GPU")
            tensors: dict[str, Any] = {PCM if is_pcm else WAVEFORM: samples}
        else:
            is_pcm = is_pcm and self.has_pcm
            sent: Samples = samples if is_pcm else widened(samples)
            padded = sent if sent.size else np.zeros(1, sent.dtype)
            name, dtype = (PCM, np.int16) if is_pcm else (WAVEFORM, np.float32)
            tensors = {name: np.ascontiguousarray(padded, dtype=dtype)}
        if self.has_lengths:
            tensors[NUM_SAMPLES] = np.array([samples.size], dtype=np.int32)
        return {name: each[None] for name, each in tensors.items()} if self.batched else tensors

    def tensors(self, given: Mapping[str, npt.ArrayLike]) -> dict[str, npt.NDArray[Any]]:
        """One row of inputs as they travel: arrays of the types that the model declares, with an axis of rows.

        Raises:
            InputError: the model has no such input, or takes another type or other axes.
        """
        tensors = {}
        for name, value in given.items():
            if name not in self.inputs:
                raise InputError(
                    f"model '{self.name}' has no input {name}; it takes {', '.join(self.inputs) or 'none'}"
                )
            declared = self.inputs[name]
            array = np.asarray(value)
            wanted = np.dtype(triton_to_np_dtype(declared.dtype) or object)
            if wanted.kind != "O" and not np.can_cast(array.dtype, wanted, "same_kind"):
                raise InputError(f"model '{self.name}': {name} is of type {array.dtype}, {declared.dtype} is needed")
            fits = len(array.shape) == len(declared.dims) and all(
                size in (-1, found) for size, found in zip(declared.dims, array.shape, strict=True)
            )
            if not fits:
                raise InputError(
                    f"model '{self.name}': {name} has shape {array.shape}, {list(declared.dims)} is needed (-1 is any)"
                )
            array = np.ascontiguousarray(array, dtype=wanted)
            if declared.dtype == "BF16":
                array = to_bfloat16(array).view(BITS)
            tensors[name] = array[None] if self.batched else array
        return tensors

    def check_search(self, parameters: Collection[str], endpoint: object) -> None:
        """Check that requests may say how to search; an older model would not look at what they say.

        Raises:
            InputError: there are parameters, and the model does not take any.
        """
        if parameters and not self.has_search:
            raise InputError(
                f"{endpoint}: model '{self.name}' takes no search parameters, such as {', '.join(sorted(parameters))}. "
                "Build its repository again with this version of Tritone."
            )

    def check_windows(self, parameters: Collection[str], endpoint: object) -> None:
        """Check that requests may say how long audio is embedded; raises `InputError` as `check_search` does."""
        if parameters and not self.has_windows:
            raise InputError(
                f"{endpoint}: model '{self.name}' takes no {' and no '.join(sorted(parameters))} from requests: it is "
                "an ensemble, or not a model that `tritone build` wrote. Leave them out."
            )

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "ModelInfo":
        """Read Triton's model configuration (its JSON form).

        Raises:
            OperatorError: parameter `sample_rate` is not a positive number of Hz.
        """
        inputs, outputs = (
            {
                each["name"]: Tensor(
                    str(each.get("data_type", "")).removeprefix("TYPE_").replace("STRING", "BYTES"),
                    tuple(int(size) for size in each.get("dims", ())),  # gRPC's JSON has numbers as text
                )
                for each in config.get(part, ())
            }
            for part in ("input", "output")
        )
        parameters = config.get("parameters", {})
        served = _served(config)
        if "answers" not in served:
            served = _guessed(parameters, inputs, outputs) | served
        decodes, abilities, windows = "decoding" in served, served.get("abilities", ()), served.get("windows", ())
        kind: Kind = ANSWERS.get(served.get("answers", ""), "other")
        if "sequence_batching" in config:
            kind = STREAMING.get(kind, kind)
        return cls(
            name=config["name"],
            kind=kind,
            sample_rate=_sample_rate(config, strict=kind != "other"),
            batched=int(config.get("max_batch_size", 0)) > 0,
            max_audio_s=_max_audio_s(config),
            has_details=DETAILS in outputs,
            has_search="search" in parameters or decodes,
            searches=tuple(served.get("searches", ())),
            languages=tuple(served.get("languages", ())),
            speakers=tuple(served.get("speakers", ())),
            decodes=decodes,
            has_prompt="prompt" in abilities,
            finds_language="detect" in abilities,
            translates="translate" in abilities,
            has_word_times="word_times" in abilities,
            has_beam=parameters.get("search", {}).get("string_value", GREEDY) != GREEDY,
            # Ours report their rate; the stages of an ensemble embed all of the audio at once.
            has_windows=kind == "embedding" and "sample_rate" in parameters and "ensemble_scheduling" not in config,
            has_pcm=WAVEFORM in inputs and PCM in inputs and inputs[PCM].dtype == "INT16",
            has_lengths=NUM_SAMPLES in inputs,  # of WeSpeaker's own deployment, WAV is all
            dim=_dim(outputs[EMBEDDING]) if kind == "embedding" else None,
            windows=tuple(windows) if kind == "segmentation" else (),
            is_sequence="sequence_batching" in config,
            inputs=inputs,
            outputs=outputs,
            stages=tuple(each["model_name"] for each in config.get("ensemble_scheduling", {}).get("step", ())),
        )


def _served(config: Mapping[str, Any]) -> dict[str, Any]:
    """What the repository says of a model; empty of one that was built before repositories did, or is not ours."""
    try:
        found = json.loads(config.get("parameters", {}).get("served", {}).get("string_value", "{}"))
    except ValueError as error:
        raise OperatorError(
            f"model '{config['name']}': parameter served is no JSON ({error}). Build the repository again."
        ) from error
    return found if isinstance(found, dict) else {}


def _guessed(
    parameters: Mapping[str, Any], inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]
) -> dict[str, Any]:
    """What a repository would say of a model that does not, by its tensors and the texts that those of before have."""

    def listed(name: str) -> list[str]:
        return [each for each in parameters.get(name, {}).get("string_value", "").split(",") if each]

    served: dict[str, Any] = {name: listed(name) for name in ("searches", "languages", "abilities", "speakers")}
    if "decoding" in parameters:
        # Of repositories that do not say it, all such models are Whisper's.
        usual = {} if "abilities" in parameters else {"abilities": ["prompt", "word_times", "detect", "translate"]}
        served |= {"decoding": {}, **usual}
    windows = listed("windows")
    if len(windows) == 3 and all(each.isdecimal() for each in windows):
        served["windows"] = [int(each) for each in windows]
    if WAVEFORM in inputs and TEXT in outputs:
        served["answers"] = "transcripts"
    elif WAVEFORM in inputs and EMBEDDING in outputs:
        served["answers"] = "embeddings"
    elif WAVEFORM in inputs and SEGMENTS in outputs:
        # One that tells speakers apart has a probability for each of them.
        by_speaker = PROBABILITIES in outputs and len(outputs[PROBABILITIES].dims) > 1
        served["answers"] = "diarization" if by_speaker else "activity"
    elif TO_SPEAK in inputs and SPOKEN in outputs:
        served["answers"] = "synthesis"
    elif WAVEFORM in inputs and PROBABILITIES in outputs and "windows" in served:
        served["answers"] = "segmentation"
    return served


def choose(
    models: Sequence[ModelInfo], name: str | None, kind: Kind | None, endpoint: object, reason: str = ""
) -> ModelInfo:
    """Pick the model of that name, or the only one of that kind when no name is given; any kind will do for None.

    Args:
        reason: why the model of that name is not among them, if that is known.

    Raises:
        InputError: there is no such model, it is of another kind, or several would do.
    """
    offered = ", ".join(f"{model.name} ({model.kind})" for model in models) or "none"
    wanted = "models" if kind is None else f"models {FOR[kind]}" if kind in FOR else f"{kind} models"
    if name is not None:
        for model in models:
            if model.name == name and kind in (None, model.kind):
                return model
            if model.name == name and kind is not None:
                raise InputError(
                    f"{endpoint}: model '{name}' is not {_called(kind)} but {_seen(model)}. "
                    f"Ready {wanted}: {_names(models, kind)}"
                )
        why = f" ({reason})" if reason else ""
        raise InputError(f"{endpoint}: there is no ready model '{name}'{why}. Ready models: {offered}")
    fitting = [model for model in models if kind in (None, model.kind)]
    if len(fitting) == 1:
        return fitting[0]
    if not fitting:
        missing = "model" if kind is None else f"model {FOR[kind]}" if kind in FOR else f"{kind} speech model"
        raise InputError(f"{endpoint}: no {missing} is ready there. Ready models: {offered}")
    raise InputError(f"{endpoint}: {len(fitting)} {wanted} are ready, name one of them: {_names(models, kind)}")


def _called(kind: Kind) -> str:
    return FOR.get(kind, kind)


def _seen(model: ModelInfo) -> str:
    if model.kind != "other":
        return _called(model.kind)
    taken, made = (", ".join(each) or "nothing" for each in (model.inputs, model.outputs))
    return f"for other tensors: it takes {taken} and returns {made}, by Client.infer"


def _names(models: Sequence[ModelInfo], kind: Kind | None) -> str:
    return ", ".join(model.name for model in models if kind in (None, model.kind)) or "none"


def _dim(tensor: Tensor) -> int | None:
    """The last axis of a tensor, if it is fixed."""
    return tensor.dims[-1] if tensor.dims and tensor.dims[-1] > 0 else None


def _sample_rate(config: Mapping[str, Any], strict: bool) -> int:
    parameter = config.get("parameters", {}).get("sample_rate")
    if parameter is None:
        return DEFAULT_SAMPLE_RATE
    value = parameter.get("string_value", "")
    if not value.isdigit() or int(value) == 0:
        if not strict:  # of a model that is not ours, it may mean something else
            return DEFAULT_SAMPLE_RATE
        raise OperatorError(
            f"model '{config['name']}': parameter sample_rate is {value!r}, a positive number of Hz is needed. "
            "Build the repository again."
        )
    return int(value)


def _max_audio_s(config: Mapping[str, Any]) -> float | None:
    """The longest audio of a request; None of models that are not ours, whose parameter may mean something else."""
    text = config.get("parameters", {}).get("max_audio_s", {}).get("string_value", "")
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value < math.inf else None
