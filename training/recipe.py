"""The `recipe` section of a settings file: what only this folder reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from training.augment import AugmentConfig
from training.dataset import MixtureConfig


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The `recipe` section of a settings file of this folder. Learning rates are for AdamW.

    Chunks are in the encoder's frames. `left_served` is in chunks for WeNet's model, in frames for icefall's. WeNet's
    has `chunk_max`, `shifted_positions` and `max_position` for itself, icefall's `chunk_choices`, pairs of chunk and
    history, and `fixed_shapes`: batches in a few shapes, whose steps run as CUDA graphs on a GPU. `best_on` names a
    development set: the weights with the fewest errors there are kept, without it the last ones. `bfloat16` is
    QuartzNet's: on a GPU its convolutions compute in it.
    """

    seed: int = 2026
    peak_lr: float = 2e-3
    final_lr: float = 2e-6
    warmup_steps: int = 800
    weight_decay: float = 0.02
    ema_decay: float = 0.9985
    batch_seconds: float = 350.0
    fixed_shapes: bool = False
    bfloat16: bool = False
    best_on: str = ""
    full_share: float = 0.5
    served_share: float = 0.2
    chunk_max: int = 25
    chunk_choices: tuple[tuple[int, int], ...] = ((16, 64), (64, 256))
    chunk_served: int = 16
    left_served: int = 5
    shifted_positions: float = 0.3
    max_position: int = 8000
    freq_masks: int = 2
    freq_mask_bins: int = 12
    time_masks: int = 3
    time_mask_share: float = 0.05
    mixture: MixtureConfig = field(default_factory=MixtureConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)


def read_recipe(values: dict[str, Any]) -> Recipe:
    """Build a `Recipe`; an unknown setting is an error."""
    mixture = build(MixtureConfig, values.get("mixture") or {})
    augment = build(AugmentConfig, values.get("augment") or {})
    return build(Recipe, {**values, "mixture": mixture, "augment": augment})


def build(cls: Any, values: Mapping[str, Any]) -> Any:
    """Make a dataclass of settings read from YAML; one that it does not have is an error."""
    known = {item.name for item in fields(cls)}
    unknown = sorted(set(values) - known)
    if unknown:
        raise ValueError(f"{cls.__name__} has no setting {', '.join(unknown)}; it knows {', '.join(sorted(known))}")
    return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})
