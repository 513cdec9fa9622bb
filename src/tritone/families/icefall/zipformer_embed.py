"""The front end of zipformer2: three convolutions to half the frame rate, and one ConvNeXt layer.

    fbank (batch, frames, bins)  ->  (batch, (frames - 7) // 2, width), 50 frames a second

Source: egs/librispeech/ASR/zipformer/subsampling.py of icefall.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tritone.families.export.precision import as_dtype
from tritone.families.icefall.zipformer_layers import (
    SWOOSH_L,
    SWOOSH_R,
    BiasNorm,
    bias_after_swoosh,
    swoosh,
    swoosh_rest,
)

CHANNELS = (8, 32, 128)
CONVNEXT_KERNEL = 7
CONVNEXT_SIDE = CONVNEXT_KERNEL // 2  # frames that the ConvNeXt sees on either side
MIN_FRAMES = 9  # of fbank, for one frame


def embedded_bins(bins: int) -> int:
    """Frequencies left after the convolutions."""
    return ((bins - 1) // 2 - 1) // 2


def embedded_frames(frames: Tensor) -> Tensor:
    """Frames at 50 Hz of a number of fbank frames; 0 where they are too few."""
    return ((frames - 7) // 2).clamp(min=0)


class FirstConvolution(nn.Conv2d):
    """Stays float32 in narrow models: log-mel values go up to 20 and are not normalised, so they need their bits."""

    in_float32 = True


class ConvNeXt(nn.Module):
    """x + pointwise(SwooshL(pointwise(depthwise 7x7(x)))) - `rest()`, looking 3 frames back and 3 ahead.

    The pointwise convolutions are products with channels last, and so is the result: in onnxruntime's blocked layout,
    their result and its activation, three times as wide, had to be brought out of the layout and back into it.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        hidden = 3 * channels
        self.depthwise_conv = nn.Conv2d(
            channels, channels, CONVNEXT_KERNEL, groups=channels, padding=(CONVNEXT_SIDE, CONVNEXT_SIDE)
        )
        self.pointwise_conv1 = nn.Conv2d(channels, hidden, 1)
        self.pointwise_conv2 = nn.Conv2d(hidden, channels, 1)
        assert self.pointwise_conv2.bias is not None
        with torch.no_grad():
            self.pointwise_conv2.weight.mul_(0.01)
            nn.init.uniform_(self.pointwise_conv2.bias, -0.001, 0.001)

    def _finish(self, x: Tensor, mixed: Tensor) -> Tensor:
        first, last = self.pointwise_conv1, self.pointwise_conv2
        assert first.bias is not None
        x, mixed = x.permute(0, 2, 3, 1), mixed.permute(0, 2, 3, 1)
        hidden = swoosh(F.linear(mixed.flatten(0, 2), first.weight.flatten(1), first.bias - SWOOSH_L[0]))
        return x + F.linear(hidden, last.weight.flatten(1)).reshape(x.shape)

    def rest(self) -> Tensor:
        """What is to be added to each channel of the result; the layer after it does so for nothing."""
        return bias_after_swoosh(self.pointwise_conv2, SWOOSH_L)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, frames, bins) to (batch, frames, bins, channels)."""
        return self._finish(x, self.depthwise_conv(x))

    def step(self, x: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        """One chunk and 3 frames ahead of it, with `past` (batch, channels, 3, bins); also returns the next past."""
        frames = x.shape[2] - CONVNEXT_SIDE
        seen = torch.cat([past, x], dim=2)
        depthwise = self.depthwise_conv
        mixed = F.conv2d(seen, depthwise.weight, depthwise.bias, padding=(0, CONVNEXT_SIDE), groups=depthwise.groups)
        return self._finish(x[:, :, :frames], mixed), seen[:, :, frames : frames + CONVNEXT_SIDE]


class Subsampling(nn.Module):
    """`encoder_embed` of the checkpoint."""

    def __init__(self, bins: int, width: int, dropout: float) -> None:
        super().__init__()
        one, two, three = CHANNELS
        # upstream's indices: activations and training aids lie between the layers
        self.conv = nn.ModuleDict(
            {
                "0": FirstConvolution(1, one, 3, padding=(0, 1)),
                "4": nn.Conv2d(one, two, 3, stride=2),
                "7": nn.Conv2d(two, three, 3, stride=(1, 2)),
            }
        )
        self.convnext = ConvNeXt(three)
        self.out = nn.Linear(embedded_bins(bins) * three, width)
        self.out_norm = BiasNorm(width)
        self.dropout = nn.Dropout(dropout)

    def _convolve(self, feats: Tensor) -> Tensor:
        x = feats.unsqueeze(1)
        for index, layer in enumerate(self.conv.values()):
            assert isinstance(layer, nn.Conv2d)
            assert layer.bias is not None
            bias = bias_after_swoosh(layer, SWOOSH_R) if index else layer.bias
            x = as_dtype(x, layer.weight.dtype)
            x = swoosh(F.conv2d(x, layer.weight, bias - SWOOSH_R[0], stride=layer.stride, padding=layer.padding))
        return as_dtype(x, self.out.weight.dtype) - swoosh_rest(SWOOSH_R)

    def _project(self, x: Tensor) -> Tensor:
        """(batch, frames, bins, channels) to (batch, frames, width); the checkpoint has channels before bins."""
        channels = CHANNELS[-1]
        weight = self.out.weight.unflatten(1, (channels, self.out.in_features // channels)).transpose(1, 2)
        bias = self.out.bias + F.linear(self.convnext.rest(), weight.sum(1))
        return self.dropout(self.out_norm(F.linear(x.flatten(2), weight.flatten(1), bias)))

    def forward(self, feats: Tensor, num_frames: Tensor) -> Tensor:
        """Embed whole utterances.

        Args:
            feats: (batch, frames, bins); beyond an utterance, anything.
            num_frames: (batch,) frames at 50 Hz of each utterance; what is beyond them counts as zero in the ConvNeXt,
                which is what an utterance sees when it is alone.
        """
        x = self._convolve(feats)
        frames = torch.arange(x.shape[2], device=x.device)
        valid = (frames < num_frames.unsqueeze(1)).unsqueeze(1).unsqueeze(3)
        return self._project(self.convnext(torch.where(valid, x, torch.zeros_like(x[:, :1, :1, :1]))))

    def step(self, feats: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        """2·chunk + 13 fbank frames to `chunk` frames; `past` as of `ConvNeXt.step`."""
        x, past = self.convnext.step(self._convolve(feats), past)
        return self._project(x), past
