"""Upstream's ECAPA-TDNN: convolutions over frames, batch norm after the ReLU, a pooling, one layer.

Names are upstream's. All convolutions keep the number of frames.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tritone.families.layers.rows import Rows, cut, wide
from tritone.families.wespeaker.config import RES2_SCALE, EcapaConfig
from tritone.families.wespeaker.pooling import pooling

POOLED = 1536  # channels, whatever the others are
SQUEEZED = 128  # of squeeze and excitation
DILATIONS = (2, 3, 4)


class Tdnn(nn.Module):
    """Convolution, ReLU, batch norm. Wider than a frame, it wants zeros behind the rows' ends."""

    def __init__(self, before: int, after: int, kernel: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv1d(before, after, kernel, padding=kernel // 2)
        self.bn = nn.BatchNorm1d(after)

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        out: Tensor = self.bn(F.relu(self.conv(x)))
        return out


class Res2(nn.Module):
    """Slices of channels, each but the last through a convolution that takes the one before it too."""

    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        width = channels // RES2_SCALE
        self.convs = nn.ModuleList(
            nn.Conv1d(width, width, 3, padding=dilation, dilation=dilation) for _ in range(RES2_SCALE - 1)
        )
        self.bns = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(RES2_SCALE - 1))

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        slices = x.chunk(RES2_SCALE, dim=1)
        done: list[Tensor] = []
        for each, conv, bn in zip(slices, self.convs, self.bns, strict=False):
            summed = done[-1] + each if done else each
            done.append(bn(F.relu(conv(rows.mute(summed)))))
        return torch.cat([*done, slices[-1]], dim=1)


class SqueezeExcite(nn.Module):
    """A gain for each channel, of its mean over the row's frames."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.linear1 = nn.Linear(channels, SQUEEZED)
        self.linear2 = nn.Linear(SQUEEZED, channels)

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        gain = torch.sigmoid(self.linear2(F.relu(self.linear1(rows.mean(x).squeeze(2)))))
        return x * gain.unsqueeze(2)


class Block(nn.Module):
    """What is between two layers, added to what comes in."""

    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.se_res2block = nn.ModuleList(
            [Tdnn(channels, channels), Res2(channels, dilation), Tdnn(channels, channels), SqueezeExcite(channels)]
        )

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        out = x
        for part in self.se_res2block:
            out = part(out, rows)
        return x + out


class Ecapa(nn.Module):
    """features (batch, frames, bins), num_frames (batch,) -> embeddings (batch, embed_dim).

    Frames at or beyond a row's `num_frames` may be anything finite. `min_frames`: what a row needs for a finite result.
    """

    def __init__(self, config: EcapaConfig) -> None:
        super().__init__()
        self.embed_dim, self.subsampling = config.embed_dim, 1
        channels = config.channels
        self.layer1 = Tdnn(config.feat_dim, channels, 5)
        self.layer2, self.layer3, self.layer4 = (Block(channels, dilation) for dilation in DILATIONS)
        self.conv = nn.Conv1d(3 * channels, POOLED, 1)
        self.pool = pooling(config.pooling, POOLED, context=config.global_context)
        self.min_frames = self.pool.min_frames
        self.bn = nn.BatchNorm1d(self.pool.out_dim)
        self.linear = nn.Linear(self.pool.out_dim, config.embed_dim)
        self.bn2 = nn.BatchNorm1d(config.embed_dim) if config.emb_bn else nn.Identity()

    def frames(self, features: Tensor, num_frames: Tensor) -> tuple[Tensor, Rows]:
        """What is pooled, before its ReLU: (batch, 1536, frames)."""
        x, rows = cut(features, num_frames, self.conv.weight.dtype)
        outs = [self.layer1(x, rows)]
        for layer in (self.layer2, self.layer3, self.layer4):
            outs.append(layer(outs[-1], rows))
        return self.conv(torch.cat(outs[1:], dim=1)), rows

    def forward(self, features: Tensor, num_frames: Tensor) -> Tensor:
        x, rows = self.frames(features, num_frames)
        return wide(self.bn2(self.linear(self.bn(self.pool(F.relu(x), rows)))))
