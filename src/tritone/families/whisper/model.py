"""Whisper's network, with the parameter names of OpenAI's checkpoints.

    features (batch, frames, bins)  ->  encoder_out (batch, frames / 2, width)

The decoder is `layers.text_decoder`. Source: openai/whisper whisper/model.py.
"""

from collections.abc import Iterable
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tritone.families.export.precision import as_dtype
from tritone.families.layers.text_decoder import Block, DecoderSizes, TextDecoder
from tritone.families.whisper.dims import Dims


class AudioEncoder(nn.Module):
    positional_embedding: Tensor

    def __init__(self, dims: Dims) -> None:
        super().__init__()
        width = dims.audio_width
        self.conv1 = nn.Conv1d(dims.num_bins, width, kernel_size=3, padding=1)
        self.conv2 = nn.Conv1d(width, width, kernel_size=3, stride=2, padding=1)
        self.register_buffer("positional_embedding", torch.zeros(dims.audio_context, width))
        self.blocks = nn.ModuleList(
            Block(width, dims.audio_heads, dims.audio_hidden, cross=False) for _ in range(dims.audio_layers)
        )
        self.ln_post = nn.LayerNorm(width)

    def forward(self, features: Tensor) -> Tensor:
        """Args: features (batch, frames, bins), twice as many frames as there are positions."""
        x = F.gelu(self.conv2(F.gelu(self.conv1(as_dtype(features, self.conv1.weight.dtype).transpose(1, 2)))))
        x = x.transpose(1, 2) + self.positional_embedding
        for block in cast(Iterable[Block], self.blocks):
            x = block.encode(x)
        return self.ln_post(x)


class Network(nn.Module):
    """Encoder and decoder of one model."""

    def __init__(self, dims: Dims) -> None:
        super().__init__()
        self.dims = dims
        self.encoder = AudioEncoder(dims)
        self.decoder = TextDecoder(decoder_sizes(dims))


def decoder_sizes(dims: Dims) -> DecoderSizes:
    """The sizes of a model's decoder."""
    return DecoderSizes(
        vocab=dims.vocab,
        context=dims.text_context,
        width=dims.audio_width,
        heads=dims.text_heads,
        layers=dims.text_layers,
        hidden=dims.text_hidden,
        tied=dims.tied,
    )
