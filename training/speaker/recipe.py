"""The `recipe` section of a speaker model's settings file: what only this folder reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from training.augment import AugmentConfig
from training.recipe import build

SHARES = {"an4": 0.3, "librispeech_mini": 0.35, "speech_commands": 0.35}


@dataclass(frozen=True, kw_only=True)
class SpeakerRecipe:
    """How a speaker model is trained; learning rates are for AdamW, shares of the budget between 0 and 1.

    `classes` of a batch have two crops each, of a length between `crop_s`. The margin rises from 0 to `margin` between
    the two shares `margin_rise`. `directions`: of each class in the softmax. `pair_weight`: of the loss of pairs.
    `clean_share` of the crops are not distorted. `ema_decay`: of the average of the weights, which is what is kept.
    `half_precision`: the network computes in bfloat16 where that is safe. `channels_last`: how images lie in memory.
    """

    seed: int = 2026
    peak_lr: float = 2e-3
    final_lr: float = 1e-5
    warmup_steps: int = 300
    weight_decay: float = 0.05
    ema_decay: float = 0.998
    grad_clip: float = 5.0
    classes: int = 128
    crop_s: tuple[float, float] = (1.5, 3.0)
    shares: Mapping[str, float] = field(default_factory=lambda: dict(SHARES))
    speed_share: float = 0.4
    shuffle_steps: int = 200
    scale: float = 32.0
    margin: float = 0.2
    margin_rise: tuple[float, float] = (0.1, 0.4)
    directions: int = 1
    pair_weight: float = 0.0
    freq_masks: int = 1
    freq_mask_bins: int = 10
    time_masks: int = 1
    time_mask_share: float = 0.08
    clean_share: float = 0.15
    half_precision: bool = False
    channels_last: bool = False
    augment: AugmentConfig = field(default_factory=AugmentConfig)

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, str):
                raise ValueError(f"recipe.{item.name} is {value!r}, expected a number; YAML wants 0.002 or 2.0e-3")

    def margin_at(self, share: float) -> float:
        """The margin when `share` of the budget is spent."""
        begin, end = self.margin_rise
        return self.margin * min(1.0, max(0.0, (share - begin) / max(1e-9, end - begin)))


def read_speaker_recipe(values: Mapping[str, Any]) -> SpeakerRecipe:
    """Build a `SpeakerRecipe`; an unknown setting is an error."""
    augment = build(AugmentConfig, values.get("augment") or {})
    recipe: SpeakerRecipe = build(SpeakerRecipe, {**values, "augment": augment})
    return recipe
