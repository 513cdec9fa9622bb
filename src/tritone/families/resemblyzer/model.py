"""Resemblyzer's network: three layers of an LSTM over each part of 160 frames, and the mean of what they end with.

Names are upstream's. Source of the method: Resemblyzer 0.1.4, `VoiceEncoder` of resemblyzer/voice_encoder.py.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tritone.families.export.precision import as_dtype
from tritone.families.resemblyzer.features import BINS, PART, STEP


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """Sizes, which a checkpoint's tensors have; upstream's own are the defaults."""

    hidden: int = 256
    layers: int = 3
    embed_dim: int = 256


class VoiceEncoder(nn.Module):
    """mel (batch, frames, bins), num_frames (batch,) -> embeddings (batch, embed_dim), of length 1.

    Frames at or beyond a row's `num_frames` may be anything finite. `min_frames`: what a row has at least.
    """

    subsampling = STEP
    min_frames = PART

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.embed_dim = config.embed_dim
        self.lstm = nn.LSTM(BINS, config.hidden, config.layers, batch_first=True)
        self.linear = nn.Linear(config.hidden, config.embed_dim)

    def forward(self, mel: Tensor, num_frames: Tensor) -> Tensor:
        batch = mel.shape[0]
        starts = torch.arange((mel.shape[1] - PART) // STEP + 1, device=mel.device) * STEP
        inside = (starts < num_frames.unsqueeze(1) - PART + 1).unsqueeze(2)
        indices = (starts.unsqueeze(1) + torch.arange(PART, device=mel.device)).flatten()
        parts = as_dtype(mel, self.linear.weight.dtype).index_select(1, indices).reshape(-1, PART, BINS)
        _, (hidden, _) = self.lstm(parts)
        found = as_dtype(torch.relu(self.linear(hidden[-1])), torch.float32)
        found = (found / found.norm(dim=1, keepdim=True)).reshape(batch, -1, self.embed_dim)
        # A part behind a row's end may have no direction, which is not a number.
        total = torch.where(inside, found, torch.zeros((), device=mel.device)).sum(dim=1)
        return total / total.norm(dim=1, keepdim=True)
