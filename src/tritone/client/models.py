"""The models a server offers, as a client needs to know them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tritone.client.transport import DETAILS, TEXT, WAVEFORM
from tritone.errors import InputError, OperatorError

Kind = Literal["offline", "streaming", "other"]

DEFAULT_SAMPLE_RATE = 16000
"""What the wire contract means when a model's configuration has no parameter `sample_rate`, in Hz."""


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """A ready model. `kind` is "other" when it is not one of ours; its waveforms must have `sample_rate` Hz.

    `has_search`: whether requests may say how to search.
    """

    name: str
    kind: Kind
    sample_rate: int = DEFAULT_SAMPLE_RATE
    batched: bool = True
    has_details: bool = False
    has_search: bool = False

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

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "ModelInfo":
        """Read Triton's model configuration (its JSON form).

        Raises:
            OperatorError: parameter `sample_rate` is not a positive number of Hz.
        """
        inputs = {tensor["name"] for tensor in config.get("input", ())}
        outputs = {tensor["name"] for tensor in config.get("output", ())}
        kind: Kind = "other"
        if WAVEFORM in inputs and TEXT in outputs:
            kind = "streaming" if "sequence_batching" in config else "offline"
        return cls(
            name=config["name"],
            kind=kind,
            sample_rate=DEFAULT_SAMPLE_RATE if kind == "other" else _sample_rate(config),
            batched=int(config.get("max_batch_size", 0)) > 0,
            has_details=DETAILS in outputs,
            has_search="search" in config.get("parameters", {}),
        )


def choose(models: Sequence[ModelInfo], name: str | None, kind: Kind, endpoint: object) -> ModelInfo:
    """Pick the model of that name, or the only one of that kind when no name is given.

    Raises:
        InputError: there is no such model, it is of another kind, or several would do.
    """
    offered = ", ".join(f"{model.name} ({model.kind})" for model in models) or "none"
    if name is not None:
        for model in models:
            if model.name == name and model.kind == kind:
                return model
            if model.name == name:
                raise InputError(
                    f"{endpoint}: model '{name}' is not {kind} but {model.kind}. "
                    f"Ready {kind} models: {_names(models, kind)}"
                )
        raise InputError(f"{endpoint}: there is no ready model '{name}'. Ready models: {offered}")
    fitting = [model for model in models if model.kind == kind]
    if len(fitting) == 1:
        return fitting[0]
    if not fitting:
        raise InputError(f"{endpoint}: no {kind} speech model is ready there. Ready models: {offered}")
    raise InputError(f"{endpoint}: {len(fitting)} {kind} models are ready, name one of them: {_names(models, kind)}")


def _names(models: Sequence[ModelInfo], kind: Kind) -> str:
    return ", ".join(model.name for model in models if model.kind == kind) or "none"


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
