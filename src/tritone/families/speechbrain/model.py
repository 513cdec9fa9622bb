"""SpeechBrain's ECAPA-TDNN: convolutions over mirrored frames, batch norm after the ReLU, a pooling, one layer.

Names are upstream's. All convolutions keep the number of frames, because each row is mirrored at both of its
ends. So it gives what upstream gives for that row alone; in a batch upstream's convolutions see the padding.
Source of the method: SpeechBrain 1.1.2, speechbrain/lobes/models/ECAPA_TDNN.py and nnet/CNN.py.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tritone.families.export.precision import as_dtype
from tritone.families.layers.framing import between_mirrors
from tritone.families.layers.rows import Rows, cut, weighted, wide, wide_rows
from tritone.families.speechbrain.config import EcapaConfig

VARIANCE_GUARD = 1e-12  # the least variance that a root is taken of


class Convolution(nn.Module):
    """A convolution over frames, each row mirrored at its ends; what is behind them does not reach it."""

    def __init__(self, before: int, after: int, kernel: int = 1, dilation: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv1d(before, after, kernel, dilation=dilation)
        self.side = dilation * (kernel - 1) // 2

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        out: Tensor = self.conv(between_mirrors(x, rows.frames, self.side, self.side) if self.side else x)
        return out


class Norm(nn.Module):
    """A batch norm, under upstream's name."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(channels)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(x)
        return out


class Tdnn(nn.Module):
    """Convolution, ReLU, batch norm."""

    def __init__(self, before: int, after: int, kernel: int = 1, dilation: int = 1) -> None:
        super().__init__()
        self.conv, self.norm = Convolution(before, after, kernel, dilation), Norm(after)

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        out: Tensor = self.norm(F.relu(self.conv(x, rows)))
        return out


class Res2(nn.Module):
    """Slices of channels: the first as it is, each other through a layer that takes what was made of the one before."""

    def __init__(self, channels: int, scale: int, kernel: int, dilation: int) -> None:
        super().__init__()
        self.scale = scale
        self.blocks = nn.ModuleList(
            Tdnn(channels // scale, channels // scale, kernel, dilation) for _ in range(scale - 1)
        )

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        first, *slices = x.chunk(self.scale, dim=1)
        done: list[Tensor] = []
        for each, block in zip(slices, self.blocks, strict=True):
            done.append(block(done[-1] + each if done else each, rows))
        return torch.cat([first, *done], dim=1)


class SqueezeExcite(nn.Module):
    """A gain for each channel, of its mean over the row's frames."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = Convolution(channels, squeezed), Convolution(squeezed, channels)

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        return x * torch.sigmoid(self.conv2(F.relu(self.conv1(rows.mean(x), rows)), rows))


class Block(nn.Module):
    """What is between the first layer and the one that joins all, added to what comes in."""

    def __init__(self, before: int, after: int, kernel: int, dilation: int, config: EcapaConfig) -> None:
        super().__init__()
        self.tdnn1 = Tdnn(before, after)
        self.res2net_block = Res2(after, config.res2net_scale, kernel, dilation)
        self.tdnn2 = Tdnn(after, after)
        self.se_block = SqueezeExcite(after, config.se_channels)
        self.shortcut = Convolution(before, after) if before != after else None

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        out = self.tdnn2(self.res2net_block(self.tdnn1(x, rows), rows), rows)
        out = self.se_block(out, rows)
        return out + (x if self.shortcut is None else self.shortcut(x, rows))


class Pooling(nn.Module):
    """Mean and deviation of each channel, weighted by attention that sees them beside each frame."""

    def __init__(self, channels: int, hidden: int, *, context: bool) -> None:
        super().__init__()
        self.context = context
        self.tdnn = Tdnn(channels * 3 if context else channels, hidden)
        self.conv = Convolution(hidden, channels)

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        values, wider = wide_rows(x, rows)
        conv = self.tdnn.conv.conv
        if self.context:
            # Mean and deviation are the same for all frames: their part of the product is made once.
            frame, row = conv.weight.split([x.shape[1], 2 * x.shape[1]], dim=1)
            statistics = weighted(values, torch.zeros_like(values[:, :1]), wider, VARIANCE_GUARD).unsqueeze(2)
            hidden = F.conv1d(x, frame) + F.conv1d(as_dtype(statistics, x.dtype), row, conv.bias)
        else:
            hidden = conv(x)
        scores = self.conv(torch.tanh(self.tdnn.norm(F.relu(hidden))), rows)
        return as_dtype(weighted(values, wide(scores), wider, VARIANCE_GUARD), x.dtype)


class Ecapa(nn.Module):
    """features (batch, frames, bins), num_frames (batch,) -> embeddings (batch, embed_dim).

    Frames at or beyond a row's `num_frames` may be anything finite. `min_frames`: what can be mirrored.
    """

    subsampling: Literal[1] = 1

    def __init__(self, config: EcapaConfig) -> None:
        super().__init__()
        self.embed_dim = config.embed_dim
        sizes = list(zip(config.channels, config.kernel_sizes, config.dilations, strict=True))
        (width, kernel, dilation), *between, (joined, last_kernel, last_dilation) = sizes
        self.blocks = nn.ModuleList([Tdnn(config.input_size, width, kernel, dilation)])
        for before, (after, kernel, dilation) in zip(config.channels, between, strict=False):
            self.blocks.append(Block(before, after, kernel, dilation, config))
        self.mfa = Tdnn(sum(after for after, _, _ in between), joined, last_kernel, last_dilation)
        self.asp = Pooling(joined, config.attention_channels, context=config.global_context)
        self.asp_bn = Norm(2 * joined)
        self.fc = Convolution(2 * joined, config.embed_dim)
        self.min_frames = 1 + max(each.side for each in self.modules() if isinstance(each, Convolution))

    def forward(self, features: Tensor, num_frames: Tensor) -> Tensor:
        x, rows = cut(features, num_frames, self.fc.conv.weight.dtype)
        outs = []
        for block in self.blocks:
            x = block(x, rows)
            outs.append(x)
        pooled = self.asp(self.mfa(torch.cat(outs[1:], dim=1), rows), rows)
        return wide(self.fc(self.asp_bn(pooled).unsqueeze(2), rows).squeeze(2))
