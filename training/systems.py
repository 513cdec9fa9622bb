"""What can be trained: a network, its loss, its features and its files, behind one face for the trainer.

settings -> make_system() -> features, losses, transcription, checkpoint
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from training.dataset import Batch, Vocabulary
from training.recipe import Recipe
from training.scoring import Transcriber


class System(Protocol):
    """One kind of model. `model`: what is trained, averaged and shipped. `features`: waveforms to (feats, lengths)."""

    @property
    def model(self) -> nn.Module: ...

    @property
    def features(self) -> nn.Module: ...

    @property
    def units(self) -> Vocabulary: ...

    def prepare(self, features: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Look at features of some training batches before the first step."""

    def draw_chunk(self, rng: np.random.Generator) -> tuple[int, int]:
        """Chunk size and history of a step, in the model's own units; -1 for all."""

    def mask_value(self, feats: Tensor, lengths: Tensor) -> Tensor:
        """What masked features become, (bins,)."""

    def losses(
        self, feats: Tensor, lengths: Tensor, batch: Batch, chunk: int, left: int, rng: np.random.Generator
    ) -> dict[str, Tensor]:
        """Losses of masked features; the one named "loss" is minimised, the others are logged."""

    def modes(self) -> dict[str, Transcriber]:
        """Greedy transcription by the model as it is, with full context ("full") and maybe in chunks ("chunk")."""

    def save(self, folder: Path, weights: dict[str, Tensor]) -> None:
        """Write the files that an export wants, with these weights in place of the model's."""

    def load(self, folder: Path) -> None:
        """Take the weights of what `save` wrote."""

    def extra_state(self) -> str:
        """What a resumed run needs beside weights."""

    def load_extra_state(self, state: str) -> None: ...


def make_system(config: dict[str, Any], recipe: Recipe, device: torch.device) -> System:
    """The system of a settings file: by its section `transducer` or `quartznet`, otherwise WeNet's model."""
    if "transducer" in config:
        from training.transducer import TransducerSystem

        return TransducerSystem(config, recipe, device)
    if "quartznet" in config:
        from training.quartznet import QuartzNetSystem

        return QuartzNetSystem(config, recipe, device)
    from training.wenet import WenetSystem

    return WenetSystem(config, recipe, device)
