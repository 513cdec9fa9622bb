"""Upstream's CAM++: a small ResNet over bins, then densely connected convolutions over frames with masks of context.

Names are upstream's. The ResNet's strides are of bins alone; the first convolution over frames halves them.
"""

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tritone.families.export.precision import as_dtype
from tritone.families.layers.rows import Rows, cut, wide
from tritone.families.wespeaker.config import CAMPPLUS_LAYERS, FREQUENCY_STRIDE, CamPPlusConfig
from tritone.families.wespeaker.pooling import pooling

HEAD_WIDTH = 32
HEAD_BLOCKS = 2  # of each of its two stages
DILATIONS = (1, 2, 2)
SEGMENT = 100  # frames, after halving, whose mean is used
REDUCTION = 2


class HeadBlock(nn.Module):
    """Two 3x3 convolutions, the first with a stride over bins."""

    def __init__(self, stride: int) -> None:
        super().__init__()
        width = HEAD_WIDTH
        self.conv1 = nn.Conv2d(width, width, 3, (stride, 1), 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = nn.Sequential()
        if stride != 1:
            self.shortcut = nn.Sequential(nn.Conv2d(width, width, 1, (stride, 1), bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        x = rows.mute(x)
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(rows.mute(out)))
        return F.relu(out + self.shortcut(x))


class Head(nn.Module):
    """(batch, bins, frames) to (batch, 32 x bins / 8, frames), zero behind the rows' ends."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, HEAD_WIDTH, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(HEAD_WIDTH)
        self.layer1 = nn.ModuleList(HeadBlock(1 if place else 2) for place in range(HEAD_BLOCKS))
        self.layer2 = nn.ModuleList(HeadBlock(1 if place else 2) for place in range(HEAD_BLOCKS))
        self.conv2 = nn.Conv2d(HEAD_WIDTH, HEAD_WIDTH, 3, (2, 1), 1, bias=False)
        self.bn2 = nn.BatchNorm2d(HEAD_WIDTH)

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x.unsqueeze(1))))
        for block in (*self.layer1, *self.layer2):
            x = block(x, rows)
        x = F.relu(self.bn2(self.conv2(rows.mute(x))))
        return rows.mute(x.flatten(1, 2))


class Segments:
    """Which frames are of which segment of 100, and what shares they have in its context.

    The context of a segment is the mean of its frames plus the mean of all. Both are one product with a matrix:
    runtimes do not agree on poolings whose last window is not full.
    """

    def __init__(self, rows: Rows) -> None:
        mask = wide(rows.mask)
        length = mask.shape[2]
        self.of_frame = torch.arange(length, device=mask.device) // SEGMENT
        # Never a single one, whatever the example of a trace: tracers take sizes of 1 for constants.
        starts = torch.arange(length // SEGMENT + 2, device=mask.device) * SEGMENT
        member = (self.of_frame.unsqueeze(1) * SEGMENT == starts).to(mask.dtype)
        held = torch.clamp(rows.frames.unsqueeze(1) - starts, min=1, max=SEGMENT)
        counts = held.to(mask.dtype).unsqueeze(1)
        self.shares = (member / counts + 1 / rows.count()) * mask.transpose(1, 2)

    def contexts(self, x: Tensor) -> Tensor:
        """(batch, channels, frames) -> (batch, channels, segments)."""
        return as_dtype(torch.matmul(wide(x), self.shares), x.dtype)

    def spread(self, values: Tensor) -> Tensor:
        """Values of segments (batch, channels, segments) for each frame."""
        return values.index_select(2, self.of_frame)


class ContextMask(nn.Module):
    """A convolution, times a mask made of the means of row and segment. Wants zeros behind the rows' ends."""

    def __init__(self, before: int, after: int, dilation: int) -> None:
        super().__init__()
        self.linear_local = nn.Conv1d(before, after, 3, padding=dilation, dilation=dilation, bias=False)
        self.linear1 = nn.Conv1d(before, before // REDUCTION, 1)
        self.linear2 = nn.Conv1d(before // REDUCTION, after, 1)

    def forward(self, x: Tensor, segments: Segments) -> Tensor:
        # The mask is one for all frames of a segment, and made once.
        mask = torch.sigmoid(self.linear2(F.relu(self.linear1(segments.contexts(x)))))
        out: Tensor = self.linear_local(x) * segments.spread(mask)
        return out


class DenseLayer(nn.Module):
    """New channels, made of all that there are."""

    def __init__(self, before: int, dilation: int, config: CamPPlusConfig) -> None:
        super().__init__()
        width = config.bn_size * config.growth_rate
        self.nonlinear1 = nonlinear(config.nonlinearities, before)
        self.linear1 = nn.Conv1d(before, width, 1, bias=False)
        self.nonlinear2 = nonlinear(config.nonlinearities, width)
        self.cam_layer = ContextMask(width, config.growth_rate, dilation)

    def forward(self, x: Tensor, rows: Rows, segments: Segments) -> Tensor:
        hidden = self.nonlinear2(self.linear1(self.nonlinear1(x)))
        out: Tensor = self.cam_layer(rows.mute(hidden), segments)
        return out


class Transit(nn.Module):
    """Halves the channels."""

    def __init__(self, before: int, config: CamPPlusConfig) -> None:
        super().__init__()
        self.nonlinear = nonlinear(config.nonlinearities, before)
        self.linear = nn.Conv1d(before, before // 2, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(self.nonlinear(x))
        return out


class Convolved(nn.Module):
    """A convolution, and norm and activation after it."""

    def __init__(self, linear: nn.Conv1d, nonlinearities: tuple[str, ...]) -> None:
        super().__init__()
        self.linear = linear
        self.nonlinear = nonlinear(nonlinearities, linear.out_channels)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.nonlinear(self.linear(x))
        return out


def nonlinear(names: tuple[str, ...], channels: int) -> nn.Sequential:
    """Modules by upstream's names, of upstream's `config_str`."""
    made = nn.Sequential()
    for name in names:
        if name == "relu":
            made.add_module(name, nn.ReLU())
        elif name == "prelu":
            made.add_module(name, nn.PReLU(channels))
        else:
            made.add_module("batchnorm", nn.BatchNorm1d(channels, affine=name == "batchnorm"))
    return made


class CamPPlus(nn.Module):
    """features (batch, frames, bins), num_frames (batch,) -> embeddings (batch, embed_dim).

    Frames at or beyond a row's `num_frames` may be anything finite. `min_frames`: what a row needs for a finite result.
    `even`: no frame is beyond a row's own, so that convolutions need no masks; statistics have theirs all the same.
    """

    def __init__(self, config: CamPPlusConfig) -> None:
        super().__init__()
        self.even = False
        self.embed_dim, self.subsampling = config.embed_dim, 2
        self.head = Head()
        bins, channels = HEAD_WIDTH * (config.feat_dim // FREQUENCY_STRIDE), config.init_channels
        tdnn = nn.Conv1d(bins, channels, 5, stride=2, padding=2, bias=False)
        layers: OrderedDict[str, nn.Module] = OrderedDict(tdnn=Convolved(tdnn, config.nonlinearities))
        for place, (count, dilation) in enumerate(zip(CAMPPLUS_LAYERS, DILATIONS, strict=True), 1):
            block = OrderedDict[str, nn.Module]()
            for layer in range(count):
                block[f"tdnnd{layer + 1}"] = DenseLayer(channels, dilation, config)
                channels += config.growth_rate
            layers[f"block{place}"] = nn.Sequential(block)
            layers[f"transit{place}"] = Transit(channels, config)
            channels //= 2
        self.pool = pooling(config.pooling, channels, guard=config.variance_guard)
        layers["out_nonlinear"] = nonlinear(config.nonlinearities, channels)
        layers["stats"] = self.pool  # twice in the network and in its checkpoints, as upstream
        dense = nn.Conv1d(self.pool.out_dim, config.embed_dim, 1, bias=False)
        layers["dense"] = Convolved(dense, ("batchnorm_",))
        self.xvector = nn.Sequential(layers)
        self.min_frames = (self.pool.min_frames - 1) * self.subsampling + 1

    def frames(self, features: Tensor, num_frames: Tensor) -> tuple[Tensor, Rows]:
        """What is pooled: (batch, channels, frames)."""
        parts = dict(self.xvector.named_children())
        x, rows = cut(features, num_frames, self.head.conv1.weight.dtype, even=self.even)
        x = parts["tdnn"](self.head(x, rows))
        rows = rows.halved(x)
        segments = Segments(rows)
        for place in range(1, len(CAMPPLUS_LAYERS) + 1):
            for layer in parts[f"block{place}"].children():
                x = torch.cat([x, layer(x, rows, segments)], dim=1)
            x = parts[f"transit{place}"](x)
        return parts["out_nonlinear"](x), rows

    def forward(self, features: Tensor, num_frames: Tensor) -> Tensor:
        pooled = self.pool(*self.frames(features, num_frames))
        return wide(self.xvector.get_submodule("dense")(pooled.unsqueeze(2)).squeeze(2))
