"""Granite Speech 5's encoder, with upstream's parameter names.

    stacked mel bands (batch, frames, bins), how many each row has (batch,)  ->  encoded (batch, T', width)

A conformer that attends within blocks of frames, of which some layers halve the frames, and which after half of its
layers hears the tokens that it would say so far. Rows never depend on what follows their last frame.
Method and names: transformers, models/granite_speech5/modeling_granite_speech5.py.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tritone.families.export.precision import as_dtype
from tritone.families.hf.config import GraniteConfig
from tritone.families.hf.layers import ACTIVATIONS, Heads, before, hidden_keys
from tritone.families.layers.attention import shifted
from tritone.families.layers.convolution import depthwise, fold_batch_norm

STACKED = 4  # of a frame's mel bands: two frames, each with its differences


class GraniteAttention(Heads):
    """Attention within blocks of frames, with a vector for each distance of two of them (Shaw's)."""

    def __init__(self, config: GraniteConfig) -> None:
        width, inner = config.hidden_size, config.num_attention_heads * config.size
        super().__init__(inner, config.num_attention_heads)
        self.block, self.furthest = config.context_size, config.max_position_embeddings
        self.q_proj = nn.Linear(width, inner, bias=False)
        self.k_proj = nn.Linear(width, inner, bias=False)
        self.v_proj = nn.Linear(width, inner, bias=False)
        self.o_proj = nn.Linear(inner, width)
        self.rel_pos_emb = nn.Embedding(2 * self.furthest + 1, self.size)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Attend from (batch, frames, width) under a mask (batch, frames, 1), False behind the end of a row."""
        batch, frames = x.shape[:2]
        whole = (frames + self.block - 1) // self.block * self.block
        blocks = F.pad(x, (0, 0, 0, self.block - 1))[:, :whole].reshape(-1, self.block, x.shape[2])
        inside = F.pad(mask, (0, 0, 0, self.block - 1))[:, :whole].reshape(-1, self.block, 1)
        query, key, value = (self.split(layer(blocks)) for layer in (self.q_proj, self.k_proj, self.v_proj))
        # Column r of `shifted` is a key r - (block - 1) frames behind its query.
        places = self.furthest + self.block - 1 - torch.arange(2 * self.block, device=x.device)
        scores = query @ self.rel_pos_emb(places).transpose(0, 1)
        added = shifted(scores, self.block) * self.size**-0.5 + hidden_keys(inside, x.dtype)
        return self.o_proj(self.mix(query, key, value, added).reshape(batch, whole, -1)[:, :frames])


class GraniteConvolution(nn.Module):
    """Pointwise, GLU, depthwise with a batch norm that `fold` makes part of it, SiLU, pointwise."""

    def __init__(self, config: GraniteConfig, stride: int) -> None:
        super().__init__()
        width, kernel = config.hidden_size, config.conv_kernel_size
        inner = width * config.conv_expansion_factor
        self.pointwise_lin1 = nn.Linear(width, 2 * inner)
        self.depthwise_conv = nn.Conv1d(inner, inner, kernel, stride, (kernel - 1) // 2, groups=inner, bias=False)
        self.norm: nn.Module = nn.BatchNorm1d(inner)
        self.pointwise_lin2 = nn.Linear(inner, width)

    def fold(self) -> None:
        """Multiply the batch norm into the depthwise layer."""
        assert isinstance(self.norm, nn.BatchNorm1d)
        fold_batch_norm(self.depthwise_conv, self.norm)
        self.norm = nn.Identity()

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = F.glu(self.pointwise_lin1(x), dim=-1).masked_fill(~mask, 0.0)
        x = self.norm(depthwise(x.transpose(1, 2), self.depthwise_conv)).transpose(1, 2)
        return self.pointwise_lin2(F.silu(x))


class GraniteFeedForward(nn.Module):
    def __init__(self, config: GraniteConfig) -> None:
        super().__init__()
        self.linear1 = nn.Linear(config.hidden_size, config.intermediate_size, bias=config.attention_bias)
        self.linear2 = nn.Linear(config.intermediate_size, config.hidden_size, bias=config.attention_bias)
        self.activation = ACTIVATIONS[config.hidden_act]

    def forward(self, x: Tensor) -> Tensor:
        return self.linear2(self.activation(self.linear1(x)))


class GraniteLayer(nn.Module):
    """Half a feed-forward, attention, convolution, half a feed-forward, each after a norm and added; a norm at last.

    One that `halves` the frames adds the convolution's every second frame to means of pairs; an odd one is left out.
    """

    def __init__(self, config: GraniteConfig, *, halves: bool) -> None:
        super().__init__()
        width, self.halves = config.hidden_size, halves
        self.norm_feed_forward1, self.feed_forward1 = nn.LayerNorm(width), GraniteFeedForward(config)
        self.norm_self_att, self.self_attn = nn.LayerNorm(width), GraniteAttention(config)
        self.norm_conv, self.conv = nn.LayerNorm(width), GraniteConvolution(config, 2 if halves else 1)
        self.norm_feed_forward2, self.feed_forward2 = nn.LayerNorm(width), GraniteFeedForward(config)
        self.norm_out = nn.LayerNorm(width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + 0.5 * self.feed_forward1(self.norm_feed_forward1(x))
        x = x + self.self_attn(self.norm_self_att(x), mask)
        convolved = self.conv(self.norm_conv(x), mask)
        if self.halves:
            pairs = x.shape[1] // 2
            x = (x[:, 0 : 2 * pairs : 2] + x[:, 1 : 2 * pairs : 2]) / 2
            convolved = convolved[:, :pairs]
        x = x + convolved
        x = x + 0.5 * self.feed_forward2(self.norm_feed_forward2(x))
        return self.norm_out(x)


class GraniteEncoder(nn.Module):
    """A layer to the encoder's width, layers, and in their middle what the tokens' probabilities so far add."""

    def __init__(self, config: GraniteConfig) -> None:
        super().__init__()
        self.stride, self.middle = config.stride, config.num_hidden_layers // 2
        self.input_linear = nn.Linear(STACKED * config.num_mel_bins, config.hidden_size)
        self.layers = nn.ModuleList(
            GraniteLayer(config, halves=place in config.subsample_layers) for place in range(config.num_hidden_layers)
        )
        self.out = nn.Linear(config.hidden_size, config.vocab_size)
        self.out_mid = nn.Linear(config.vocab_size, config.hidden_size)

    def num_frames(self, frames: Tensor) -> Tensor:
        """Encoder frames of so many that go in, (batch,) int64 both."""
        return frames // self.stride

    def forward(self, x: Tensor, frames: Tensor) -> Tensor:
        """Encode (batch, frames, bins) of which each row has `frames` (batch,) int64."""
        x = self.input_linear(x)
        mask = before(frames, x)
        for place, layer in enumerate(self.layers):
            x = layer(x, mask)
            if layer.halves:
                frames = frames // 2
                mask = before(frames, x)
            if place + 1 == self.middle:
                posteriors = torch.softmax(as_dtype(self.out(x), torch.float32), dim=-1)
                x = x + self.out_mid(as_dtype(posteriors, x.dtype))
        return x
