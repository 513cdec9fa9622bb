"""What a served model is told: the parameters of its `config.pbtxt`, written by `repository/`, read by `backend/`.

    Settings  <->  {"max_audio_s": "120.0", ...}

This file is the one place that names them and holds their defaults.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

Mode = Literal["offline", "streaming"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of one served model.

    `sample_rate`: Hz, of the bundle, for clients that read the model's configuration. `bundle`: its folder, relative to
    the model's version folder. `threads`: of one instance, 0 shares the machine's cores among the instances.
    `runtime`, `precision`: which of the bundle's graphs to run; empty takes the first that can. `max_audio_s`: the
    longest waveform of one request; a stream may be longer, its chunks may not. `max_streams`: open streams of one
    instance. `idle_timeout_s`: a stream without a chunk for this long is closed.
    """

    sample_rate: int
    bundle: str = "bundle"
    threads: int = 0
    runtime: str = ""
    precision: str = ""
    max_audio_s: float = 120.0
    max_streams: int = 256
    idle_timeout_s: float = 15.0

    def __post_init__(self) -> None:
        for name in ("sample_rate", "max_audio_s", "max_streams", "idle_timeout_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be a number above 0, got {getattr(self, name)}")
        if self.threads < 0:
            raise ValueError(f"threads must be 0 (automatic) or more, got {self.threads}")

    def to_parameters(self) -> dict[str, str]:
        """The settings as Triton keeps them: text by name. What is empty is left out."""
        return {field.name: text for field in fields(self) if (text := str(getattr(self, field.name)))}

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, str]) -> "Settings":
        """Read settings back. Upper-case names are Triton's own and are left alone.

        Raises:
            ValueError: a parameter is unknown, missing, or not a number where one is needed.
        """
        known = {field.name: field.type for field in fields(cls)}
        values: dict[str, Any] = {}
        for name, text in parameters.items():
            if name.isupper():
                continue
            if name not in known:
                raise ValueError(f"unknown model parameter {name!r}; known are {', '.join(known)}")
            try:
                values[name] = {int: int, float: float, str: str}[known[name]](text)  # type: ignore[index]
            except ValueError as error:
                raise ValueError(f"model parameter {name} must be a number, got {text!r}") from error
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
