"""Moonshine's network: convolutions over the samples, an encoder and a decoder with rotary positions.

    waveform (batch, samples) in [-1, 1], num_samples (batch,)  ->  encoder_out (batch, frames, width), num_frames

What is behind a row's samples changes nothing: the norm after the first convolution, which is over all of a recording,
counts its own frames alone. Upstream's counts the padding of a batch too, so that its rows depend on each other; of a
recording alone both are equal. The decoder is `layers.text_decoder`.
Source: transformers models/moonshine/modeling_moonshine.py.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tritone.families.export.precision import as_dtype
from tritone.families.layers.rotary import rotary
from tritone.families.layers.text_decoder import Block, DecoderSizes, TextDecoder, hidden_beyond

STEM = ((127, 64), (7, 3), (3, 2))  # kernels and strides of the convolutions
SUBSAMPLING = 64 * 3 * 2
MIN_SAMPLES = 127 + 64 * (7 - 1 + 3 * (3 - 1))  # of one frame: 895, 56 ms


@dataclass(frozen=True, kw_only=True)
class MoonshineSizes:
    """Sizes of a model. `theta`: the base of the angles of rotary positions."""

    decoder: DecoderSizes
    encoder_layers: int
    theta: float


def num_frames_of(num_samples: Tensor, *, convolutions: int = len(STEM)) -> Tensor:
    """How many frames the first convolutions make of so many samples, at least 0."""
    count = num_samples
    for kernel, stride in STEM[:convolutions]:
        count = torch.clamp(count - kernel + stride, min=0) // stride
    return count


def _sum(x: Tensor) -> Tensor:
    """(batch, 1, 1) of (batch, channels, frames): sums of sums, as runtimes add numbers one after the other."""
    return x.sum(dim=2, keepdim=True).sum(dim=1, keepdim=True)


class AudioEncoder(nn.Module):
    def __init__(self, sizes: MoonshineSizes) -> None:
        super().__init__()
        form, width = sizes.decoder, sizes.decoder.width
        self.rotary, self.theta = form.rotary, sizes.theta
        channels = (1, width, 2 * width, width)
        self.conv1, self.conv2, self.conv3 = (
            nn.Conv1d(channels[place], channels[place + 1], kernel, stride, bias=place > 0)
            for place, (kernel, stride) in enumerate(STEM)
        )
        self.groupnorm = nn.GroupNorm(1, width)
        self.blocks = nn.ModuleList(
            Block(width, form.heads, form.hidden, cross=False, biases=form.biases, norm_bias=form.norm_bias)
            for _ in range(sizes.encoder_layers)
        )
        self.ln_post = nn.LayerNorm(width, bias=form.norm_bias)

    def forward(self, waveform: Tensor, num_samples: Tensor) -> tuple[Tensor, Tensor]:
        """Args: as of the module; what is at or beyond `num_samples` may be anything finite."""
        dtype = self.conv1.weight.dtype
        x = torch.tanh(self.conv1(as_dtype(waveform, dtype).unsqueeze(1)))
        x = self._normed(x, num_frames_of(num_samples, convolutions=1))
        x = F.gelu(self.conv3(F.gelu(self.conv2(x)))).transpose(1, 2)
        num_frames = num_frames_of(num_samples)
        bias = hidden_beyond(num_frames, x.shape[1]).to(dtype)
        angles = as_dtype(rotary(x.shape[1], self.rotary, self.theta, x.device), dtype)
        for block in cast(Iterable[Block], self.blocks):
            x = block.encode(x, bias, angles)
        return self.ln_post(x), num_frames

    def _normed(self, x: Tensor, counts: Tensor) -> Tensor:
        """Norm of a row's own frames, all channels together; in float32, as sums of so many numbers need."""
        wide = as_dtype(x, torch.float32)
        own = (torch.arange(x.shape[2], device=x.device) < counts.unsqueeze(1)).unsqueeze(1)
        number = torch.clamp(counts, min=1).to(torch.float32).reshape(-1, 1, 1) * x.shape[1]
        mean = _sum(wide * own) / number
        centred = (wide - mean) * own
        variance = _sum(centred.square()) / number
        normed = as_dtype(centred * torch.rsqrt(variance + self.groupnorm.eps), x.dtype)
        return normed * self.groupnorm.weight[:, None] + self.groupnorm.bias[:, None]


class Network(nn.Module):
    """Encoder and decoder of one model."""

    def __init__(self, sizes: MoonshineSizes) -> None:
        super().__init__()
        self.encoder = AudioEncoder(sizes)
        self.decoder = TextDecoder(sizes.decoder)
