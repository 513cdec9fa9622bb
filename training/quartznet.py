"""QuartzNet as the trainer sees it: separable convolutions with batch norms, CTC over characters, upstream's files.

upstream's config  ->  QuartzNetSystem  ->  quartznet.pt and quartznet.yaml, which `tritone export jasper` reads
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import yaml
from torch import Tensor, nn

from training.dataset import Batch
from training.files import save_torch
from training.recipe import Recipe
from training.scoring import Transcriber, greedy, padded_batches
from training.units import Labels
from tritone.families.jasper.config import BlockConfig, ModelConfig, parse_config
from tritone.families.jasper.model import BATCH_NORM_GUARD
from tritone.families.jasper.names import tensor_shapes
from tritone.families.layers.log_mel import LogMel

WEIGHTS, SETTINGS = "quartznet.pt", "quartznet.yaml"


class Block(nn.Module):
    """Repeats of convolution, norm, ReLU and dropout, and around them a convolution of one frame and its norm."""

    def __init__(self, config: BlockConfig, channels: int, dropout: float) -> None:
        super().__init__()
        self.config = config
        # Stride, padding and dilation are of the convolutions over frames.
        over_frames = (config.kernel_size, config.stride, config.padding, config.dilation)
        layers: list[nn.Module] = []
        for repeat in range(config.repeat):
            width = config.filters if repeat else channels
            if repeat:
                layers += [nn.ReLU(), nn.Dropout(dropout)]
            if config.separable:
                layers.append(nn.Conv1d(width, width, *over_frames, groups=width, bias=False))
                layers.append(nn.Conv1d(width, config.filters, 1, bias=False))
            else:
                layers.append(nn.Conv1d(width, config.filters, *over_frames, bias=False))
            layers.append(_norm(config.filters))
        self.mconv = nn.ModuleList(layers)
        self.ending = nn.Sequential(nn.ReLU(), nn.Dropout(dropout))
        self.res = nn.ModuleList()
        if config.residual:
            self.res.append(nn.Sequential(nn.Conv1d(channels, config.filters, 1, bias=False), _norm(config.filters)))

    def count(self, frames: Tensor) -> Tensor:
        """Frames that the block makes of so many."""
        config = self.config
        reach = config.dilation * (config.kernel_size - 1) + 1
        for _ in range(config.repeat):
            frames = (frames + 2 * config.padding - reach) // config.stride + 1
        return frames

    def forward(self, x: Tensor, frames: Tensor) -> Tensor:
        """(batch, channels, frames) of which rows have `frames` (batch,) each; what is behind those is not heard."""
        y, heard = x, _before(frames, x)
        for layer in self.mconv:
            if isinstance(layer, nn.Conv1d) and layer.kernel_size[0] > 1:
                if layer.stride[0] > 1 and y.shape[2] != heard.shape[2]:
                    heard = _before(self.count(frames), y)
                y = y * heard
            y = layer(y)
        for branch in self.res:
            y = y + branch(x)
        return self.ending(y)


def _norm(channels: int) -> nn.BatchNorm1d:
    return nn.BatchNorm1d(channels, eps=BATCH_NORM_GUARD)


def _before(frames: Tensor, x: Tensor) -> Tensor:
    return (torch.arange(x.shape[2], device=x.device) < frames.unsqueeze(1)).unsqueeze(1).to(x.dtype)


class QuartzNet(nn.Module):
    """The network as it learns; its tensors have upstream's names.

    Args:
        config: of a network with batch norms, ReLU, masks, and plain residuals around blocks of stride 1.
        dropouts: share of each block's activations that is dropped.

    Raises:
        ValueError: it is a network of another kind.
    """

    def __init__(self, config: ModelConfig, dropouts: Sequence[float]) -> None:
        super().__init__()
        self.blocks = [
            Block(block, channels, dropout)
            for block, channels, dropout in zip(config.blocks, config.inputs, dropouts, strict=True)
        ]
        head = nn.Conv1d(config.blocks[-1].filters, config.num_classes, 1)
        self.encoder = nn.ModuleDict({"layers": nn.ModuleList(self.blocks)})
        self.decoder = nn.ModuleDict({"layers": nn.ModuleList([head])})
        self.head = [head]  # in a list, or its tensors would have a second name
        shapes = {name: tuple(value.shape) for name, value in self.state_dict().items() if value.dim()}
        strided = any(block.stride > 1 and block.repeat > 1 for block in config.blocks)
        if shapes != tensor_shapes(config) or config.activation != "relu" or not config.masked or strided:
            raise ValueError(
                "the recipe trains a section `quartznet` with use_conv_masks, activation relu, normalization batch, "
                "without residual_dense and groups, and with repeat 1 where a block has a stride; this config differs"
            )

    def count(self, frames: Tensor) -> Tensor:
        """Encoder frames of so many frames of features."""
        for block in self.blocks:
            frames = block.count(frames)
        return frames

    def forward(self, feats: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Features (batch, frames, bins) and their frames (batch,) to log-probabilities in float32, and theirs."""
        x = feats.transpose(1, 2)
        for block in self.blocks:
            x = block(x, lengths)
            lengths = block.count(lengths)
        return torch.log_softmax(self.head[0](x).transpose(1, 2).float(), dim=2), lengths


class QuartzNetSystem:
    """See `systems.System`."""

    def __init__(self, config: dict[str, Any], recipe: Recipe, device: torch.device) -> None:
        self.config, self.recipe, self.device = config, recipe, device
        settings = parse_config(config)
        self.units = Labels(settings.labels)
        blocks = config["quartznet"]["encoder"]["blocks"]
        self.model = QuartzNet(settings, [float(block.get("dropout", 0.0)) for block in blocks]).to(device)
        self.features = LogMel(settings.features).to(device)
        self.silence = torch.zeros(settings.features.n_filt, device=device)

    def prepare(self, features: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Nothing: each utterance is normalised by itself."""

    def draw_chunk(self, rng: np.random.Generator) -> tuple[int, int]:
        """Always the whole utterance."""
        return -1, -1

    def mask_value(self, feats: Tensor, lengths: Tensor) -> Tensor:
        """Zero, the mean of normalised features."""
        return self.silence

    def losses(
        self, feats: Tensor, lengths: Tensor, batch: Batch, chunk: int, left: int, rng: np.random.Generator
    ) -> dict[str, Tensor]:
        """CTC, a mean over tokens and one more an utterance, so that empty ones count for something."""
        with torch.autocast(self.device.type, torch.bfloat16, self.recipe.bfloat16 and self.device.type == "cuda"):
            log_probs, _ = self.model(feats, lengths)
        # Counted in CPU memory, where CTC wants them: fetching them from the GPU would make it wait in every step.
        frames = self.model.count(self.features.num_frames(batch.num_samples))
        tokens = batch.tokens.to(self.device, non_blocking=True)
        sums = F.ctc_loss(
            log_probs.transpose(0, 1),
            tokens,
            frames,
            batch.num_tokens,
            self.units.blank_id,
            reduction="sum",
            zero_infinity=True,
        )
        return {"loss": sums / (int(batch.num_tokens.sum()) + len(batch.num_tokens))}

    def modes(self) -> dict[str, Transcriber]:
        """Greedy transcription of whole utterances, without anything behind them."""
        return {"full": self._transcribe}

    @torch.no_grad()
    def _transcribe(self, waveforms: Sequence[np.ndarray]) -> list[str]:
        texts = [""] * len(waveforms)
        for chosen, padded, num_samples in padded_batches(waveforms, 0, self.device):
            log_probs, frames = self.model(*self.features(padded, num_samples))
            for index, text in zip(chosen, greedy(log_probs, frames, self.units), strict=True):
                texts[index] = text
        return texts

    def save(self, folder: Path, weights: dict[str, Tensor]) -> None:
        """Write quartznet.pt, convolutions in half precision, and quartznet.yaml."""
        small = {name: value.half() if value.dim() > 1 else value for name, value in weights.items()}
        save_torch({"ema_state_dict": small}, folder / WEIGHTS)
        (folder / SETTINGS).write_text(
            yaml.safe_dump(self.config, sort_keys=False, allow_unicode=True), encoding="utf-8"
        )

    def load(self, folder: Path) -> None:
        """Take the weights from the output folder of an earlier run."""
        content = torch.load(folder / WEIGHTS, map_location=self.device, weights_only=True)
        self.model.load_state_dict(content["ema_state_dict"])

    def extra_state(self) -> str:
        """None is needed."""
        return ""

    def load_extra_state(self, state: str) -> None:
        """None is needed."""
