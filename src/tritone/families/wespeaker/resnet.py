"""Upstream's ResNets: images of bins by frames, stages of 3x3 convolutions, a pooling over frames, one or two layers.

Names are upstream's. Its first layer does not shrink the image; the later three stages halve bins and frames.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from tritone.families.layers.convolution import for_tensor_cores
from tritone.families.layers.rows import Rows, cut, wide
from tritone.families.wespeaker.config import FREQUENCY_STRIDE, ResNetConfig
from tritone.families.wespeaker.pooling import pooling

HALVINGS = 3  # of frames
WIDENING = 4  # of a bottleneck's last convolution


class Block(nn.Module):
    """Base of both kinds: something added to what comes in, or to a 1x1 convolution of it where sizes change.

    Takes and gives images of which nothing is known behind a row's end.
    """

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.halves = stride == 2
        self.shortcut = nn.Sequential()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor, rows: Rows) -> tuple[Tensor, Rows]:
        raise NotImplementedError


class BasicBlock(Block):
    """Two 3x3 convolutions."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__(before, width, stride)
        self.conv1 = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)

    def forward(self, x: Tensor, rows: Rows) -> tuple[Tensor, Rows]:
        x = rows.mute(x)
        out = F.relu(self.bn1(self.conv1(x)))
        rows = rows.halved(out) if self.halves else rows
        out = self.bn2(self.conv2(rows.mute(out)))
        return F.relu(out + self.shortcut(x)), rows


class Bottleneck(Block):
    """A 3x3 convolution between two that look at one frame."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__(before, width * WIDENING, stride)
        self.conv1 = nn.Conv2d(before, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, width * WIDENING, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(width * WIDENING)

    def forward(self, x: Tensor, rows: Rows) -> tuple[Tensor, Rows]:
        out = rows.mute(F.relu(self.bn1(self.conv1(x))))
        out = F.relu(self.bn2(self.conv2(out)))
        rows = rows.halved(out) if self.halves else rows
        return F.relu(self.bn3(self.conv3(out)) + self.shortcut(x)), rows


def _stage(kind: type[Block], before: int, width: int, count: int, stride: int) -> nn.ModuleList:
    after = width * (WIDENING if kind is Bottleneck else 1)
    return nn.ModuleList([kind(before, width, stride), *(kind(after, width, 1) for _ in range(count - 1))])


class ResNet(nn.Module):
    """features (batch, frames, bins), num_frames (batch,) -> embeddings (batch, embed_dim).

    Frames at or beyond a row's `num_frames` may be anything finite. `min_frames`: what a row needs for a finite result.
    `even`: no frame is beyond a row's own, so that convolutions need no masks; poolings have theirs all the same.
    """

    fused = False

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__()
        self.even = False
        self.embed_dim, self.subsampling = config.embed_dim, 2**HALVINGS
        width, kind = config.width, Bottleneck if config.bottleneck else BasicBlock
        wider = WIDENING if config.bottleneck else 1
        self.conv1 = nn.Conv2d(1, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        first, second, third, fourth = config.blocks
        self.layer1 = _stage(kind, width, width, first, 1)
        self.layer2 = _stage(kind, wider * width, 2 * width, second, 2)
        self.layer3 = _stage(kind, 2 * wider * width, 4 * width, third, 2)
        self.layer4 = _stage(kind, 4 * wider * width, 8 * width, fourth, 2)
        pooled = 8 * wider * width * (config.feat_dim // FREQUENCY_STRIDE)
        self.pool = pooling(config.pooling, pooled, guard=config.variance_guard)
        self.min_frames = (self.pool.min_frames - 1) * self.subsampling + 1
        self.seg_1 = nn.Linear(self.pool.out_dim, config.embed_dim)
        self.two_layers = config.two_emb_layer
        if config.two_emb_layer:
            self.seg_bn_1 = nn.BatchNorm1d(config.embed_dim, affine=False)
            self.seg_2 = nn.Linear(config.embed_dim, config.embed_dim)

    def frames(self, features: Tensor, num_frames: Tensor) -> tuple[Tensor, Rows]:
        """What is pooled: (batch, channels x bins, frames)."""
        x, rows = cut(features, num_frames, self.conv1.weight.dtype, even=self.even)
        x = F.relu(self.bn1(self.conv1(x.unsqueeze(1))))
        x = for_tensor_cores(x) if self.fused else x
        for block in (*self.layer1, *self.layer2, *self.layer3, *self.layer4):
            x, rows = block(x, rows)
        return x.flatten(1, 2), rows

    def embeddings(self, features: Tensor, num_frames: Tensor) -> tuple[Tensor, Tensor]:
        """What the first layer gives and what the last one does; the same if there is one."""
        first = self.seg_1(self.pool(*self.frames(features, num_frames)))
        last = self.seg_2(self.seg_bn_1(F.relu(first))) if self.two_layers else first
        return wide(first), wide(last)

    def forward(self, features: Tensor, num_frames: Tensor) -> Tensor:
        return self.embeddings(features, num_frames)[1]
