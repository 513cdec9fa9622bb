"""The models a server offers, as a client needs to know them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tritone.client.transport import DETAILS, EMBEDDING, NUM_SAMPLES, TEXT, WAVEFORM
from tritone.errors import InputError, OperatorError

Kind = Literal["offline", "streaming", "embedding", "other"]


DEFAULT_SAMPLE_RATE = 16000
"""What the wire contract means when a model's configuration has no parameter `sample_rate`, in Hz."""


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """A ready model. `kind` is "other" when it is not one of ours; its waveforms must have `sample_rate` Hz.

    `has_search`: whether requests may say how to search; `has_windows`: whether they may say in which windows audio is
    embedded. `has_lengths`: whether it takes `WAV_LENS`, as all of ours do. `dim`: values of an embedding, if it tells.
    `stages`: the models that an ensemble is made of.
    """

    name: str
    kind: Kind
    sample_rate: int = DEFAULT_SAMPLE_RATE
    batched: bool = True
    has_details: bool = False
    has_search: bool = False
    has_windows: bool = False
    has_lengths: bool = True
    dim: int | None = None
    stages: tuple[str, ...] = ()

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
        inputs = {tensor["name"] for tensor in config.get("input", ())}
        outputs = {tensor["name"]: tensor for tensor in config.get("output", ())}
        kind: Kind = "other"
        if WAVEFORM in inputs and TEXT in outputs:
            kind = "streaming" if "sequence_batching" in config else "offline"
        elif WAVEFORM in inputs and EMBEDDING in outputs:
            kind = "embedding"
        parameters = config.get("parameters", {})
        return cls(
            name=config["name"],
            kind=kind,
            sample_rate=DEFAULT_SAMPLE_RATE if kind == "other" else _sample_rate(config),
            batched=int(config.get("max_batch_size", 0)) > 0,
            has_details=DETAILS in outputs,
            has_search="search" in parameters,
            # Ours tell their rate; the stages of an ensemble embed all of the audio at once.
            has_windows=kind == "embedding" and "sample_rate" in parameters and "ensemble_scheduling" not in config,
            has_lengths=kind != "embedding" or NUM_SAMPLES in inputs,  # of WeSpeaker's own deployment, WAV is all
            dim=_dim(outputs[EMBEDDING]) if kind == "embedding" else None,
            stages=tuple(each["model_name"] for each in config.get("ensemble_scheduling", {}).get("step", ())),
        )


def choose(models: Sequence[ModelInfo], name: str | None, kind: Kind, endpoint: object) -> ModelInfo:
    """Pick the model of that name, or the only one of that kind when no name is given.

    Raises:
        InputError: there is no such model, it is of another kind, or several would do.
    """
    offered = ", ".join(f"{model.name} ({model.kind})" for model in models) or "none"
    wanted = "models for embeddings" if kind == "embedding" else f"{kind} models"
    if name is not None:
        for model in models:
            if model.name == name and model.kind == kind:
                return model
            if model.name == name:
                raise InputError(
                    f"{endpoint}: model '{name}' is not {_called(kind)} but {_called(model.kind)}. "
                    f"Ready {wanted}: {_names(models, kind)}"
                )
        raise InputError(f"{endpoint}: there is no ready model '{name}'. Ready models: {offered}")
    fitting = [model for model in models if model.kind == kind]
    if len(fitting) == 1:
        return fitting[0]
    if not fitting:
        missing = "model for embeddings" if kind == "embedding" else f"{kind} speech model"
        raise InputError(f"{endpoint}: no {missing} is ready there. Ready models: {offered}")
    raise InputError(f"{endpoint}: {len(fitting)} {wanted} are ready, name one of them: {_names(models, kind)}")


def _called(kind: Kind) -> str:
    return "for embeddings" if kind == "embedding" else kind


def _names(models: Sequence[ModelInfo], kind: Kind) -> str:
    return ", ".join(model.name for model in models if model.kind == kind) or "none"


def _dim(tensor: Mapping[str, Any]) -> int | None:
    """The last axis of a tensor, if it is fixed; gRPC's JSON has numbers as text."""
    dims = [int(size) for size in tensor.get("dims", ())]
    return dims[-1] if dims and dims[-1] > 0 else None


def _sample_rate(config: Mapping[str, Any]) -> int:
    parameter = config.get("parameters", {}).get("sample_rate")
    if parameter is None:
        return DEFAULT_SAMPLE_RATE
    value = parameter.get("string_value", "")
    if not value.isdigit() or int(value) == 0:
        raise OperatorError(
            f"model '{config['name']}': parameter sample_rate is {value!r}, a positive number of Hz is needed. "
            "Build the repository again."
        )
    return int(value)
