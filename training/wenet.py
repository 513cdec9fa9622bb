"""WeNet's U2++ model as the trainer sees it: CTC and attention, feature statistics, WeNet's files."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor

from training.dataset import Batch
from training.files import save_torch
from training.network import Network, Objective, read_cmvn, write_cmvn
from training.recipe import Recipe
from training.scoring import Transcriber, network_modes
from training.units import Units
from tritone.families.layers.fbank import Fbank


class WenetSystem:
    """See `systems.System`."""

    def __init__(self, config: dict[str, Any], recipe: Recipe, device: torch.device) -> None:
        self.config, self.recipe, self.device = config, recipe, device
        self.units = Units()
        config["input_dim"], config["output_dim"] = 80, len(self.units)
        self.network = Network(config).to(device)
        self.model = self.network.model
        self.features = Fbank().to(device)
        self.objective = Objective(config)
        self.cmvn: dict[str, Any] | None = None

    def prepare(self, features: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Sum features, augmented as the network sees them, unless statistics were loaded; set the normalisation."""
        if self.cmvn is None:
            sums, squares, frames = np.zeros(80), np.zeros(80), 0
            for feats, lengths in features:
                valid = torch.arange(feats.shape[1], device=self.device) < lengths.unsqueeze(1)
                kept = feats[valid].double()
                sums += kept.sum(dim=0).cpu().numpy()
                squares += kept.square().sum(dim=0).cpu().numpy()
                frames += len(kept)
            self.cmvn = write_cmvn(sums, squares, frames)
        mean, istd = read_cmvn(self.cmvn)
        buffers = self.network.cmvn
        buffers.mean.copy_(torch.from_numpy(mean))
        buffers.istd.copy_(torch.from_numpy(istd))

    def draw_chunk(self, rng: np.random.Generator) -> tuple[int, int]:
        """Chunk size and left chunks of a step: full context, the served setting, or anything."""
        recipe, draw = self.recipe, rng.random()
        if draw < recipe.full_share:
            return -1, -1
        if draw < recipe.full_share + recipe.served_share:
            return recipe.chunk_served, recipe.left_served
        chunk = int(rng.integers(1, recipe.chunk_max + 1))
        most_left = max(1, 100 // chunk)
        return chunk, -1 if rng.random() < 0.4 else int(rng.integers(1, most_left + 1))

    def losses(
        self, feats: Tensor, lengths: Tensor, batch: Batch, chunk: int, left: int, rng: np.random.Generator
    ) -> dict[str, Tensor]:
        encoder = self.network.encoder
        shifted = rng.random() < self.recipe.shifted_positions
        encoder.first_position = int(rng.integers(self.recipe.max_position)) if shifted else 0
        tokens = batch.tokens.to(self.device, non_blocking=True)
        frames = encoder.embed.num_frames(self.features.num_frames(batch.num_samples))
        losses = self.objective(self.model, feats, lengths, tokens, frames, batch.num_tokens, chunk, left)
        encoder.first_position = 0
        return losses

    def mask_value(self, feats: Tensor, lengths: Tensor) -> Tensor:
        return self.network.cmvn.mean  # a zero, once it is normalised

    def modes(self) -> dict[str, Transcriber]:
        return network_modes(
            self.model,
            self.features,
            self.units,
            self.device,
            chunk_size=self.recipe.chunk_served,
            left_chunks=self.recipe.left_served,
        )

    def save(self, folder: Path, weights: dict[str, Tensor]) -> None:
        """Write final.pt, train.yaml, units.txt and global_cmvn."""
        save_torch(weights, folder / "final.pt")
        (folder / "train.yaml").write_text(
            yaml.safe_dump(self.config, sort_keys=False, allow_unicode=True), encoding="utf-8"
        )
        self.units.write(folder / "units.txt")
        (folder / "global_cmvn").write_text(json.dumps(self.cmvn), encoding="utf-8")

    def load(self, folder: Path) -> None:
        """Take weights and feature statistics from the output folder of an earlier run."""
        self.model.load_state_dict(torch.load(folder / "final.pt", map_location=self.device, weights_only=True))
        self.cmvn = json.loads((folder / "global_cmvn").read_text(encoding="utf-8"))

    def extra_state(self) -> str:
        return json.dumps(self.cmvn)

    def load_extra_state(self, state: str) -> None:
        self.cmvn = json.loads(state)
