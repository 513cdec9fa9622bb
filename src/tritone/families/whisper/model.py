"""Whisper's network, with the parameter names of OpenAI's checkpoints.

    features (batch, frames, bins)        ->  encoder_out (batch, frames / 2, width)
    encoder_out                           ->  cross keys and values of each layer of the decoder, once
    tokens, caches, cross keys and values ->  logits of the next token, longer caches

Rows of a decoder call may begin with padding: `padding` counts its places, which nobody attends to and which count for
no position. Several rows in a row may share one recording, so that the hypotheses of a beam share its keys and values.
Source: openai/whisper whisper/model.py.
"""

from collections.abc import Iterable
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tritone.families.export.precision import as_dtype
from tritone.families.layers.attention import HIDDEN
from tritone.families.whisper.dims import Dims


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def split(self, x: Tensor) -> Tensor:
        """(batch, length, width) as (batch, heads, length, head_dim)."""
        return x.reshape(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)

    def keys(self, x: Tensor) -> Tensor:
        return self.split(self.key(x))

    def values(self, x: Tensor) -> Tensor:
        return self.split(self.value(x))

    def attend(self, x: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """What x (batch, length, width) attends to, and the scores (batch, heads, length, keys) behind it.

        Args:
            keys: (batch, heads, head_dim, keys).
            values: (batch, heads, keys, head_dim).
            bias: is added to the scores.
        """
        query = self.split(self.query(x))
        scores = (query * query.shape[-1] ** -0.5) @ keys
        weights = F.softmax(scores if bias is None else scores + bias, dim=-1)
        return self.out((weights @ values).transpose(1, 2).reshape(x.shape)), scores


class Block(nn.Module):
    def __init__(self, width: int, heads: int, hidden: int, *, cross: bool) -> None:
        super().__init__()
        self.attn, self.attn_ln = Attention(width, heads), nn.LayerNorm(width)
        if cross:
            self.cross_attn, self.cross_attn_ln = Attention(width, heads), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))
        self.mlp_ln = nn.LayerNorm(width)


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
            y = block.attn_ln(x)
            x = x + block.attn.attend(y, block.attn.keys(y).transpose(2, 3), block.attn.values(y))[0]
            x = x + block.mlp(block.mlp_ln(x))
        return self.ln_post(x)


class TextDecoder(nn.Module):
    def __init__(self, dims: Dims) -> None:
        super().__init__()
        width = dims.audio_width
        self.token_embedding = nn.Embedding(dims.vocab, width)
        self.positional_embedding = nn.Parameter(torch.zeros(dims.text_context, width))
        self.blocks = nn.ModuleList(
            Block(width, dims.text_heads, dims.text_hidden, cross=True) for _ in range(dims.text_layers)
        )
        self.ln = nn.LayerNorm(width)
        if not dims.tied:
            self.head = nn.Linear(width, dims.vocab, bias=False)
        self.tied = dims.tied

    def forward(
        self, tokens: Tensor, padding: Tensor, places: Tensor, cross: list[Tensor], past: list[Tensor]
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Continue rows of text.

        Args:
            tokens: (rows, length) int64, the new ones.
            padding: (rows,) int64, how many places at the start of a row, its past included, are no tokens.
            places: (rows, wanted) int64, the new tokens after which logits are wanted.
            cross: for each layer keys (recordings, heads, head_dim, positions) and values (recordings, heads,
                positions, head_dim); rows that share a recording stand together, as many for each.
            past: for each layer keys and values (rows, heads, past, head_dim).

        Returns:
            Logits (rows, wanted, vocab); keys and values with the new tokens; for each layer, the scores of the
            cross-attention (rows, heads, length, positions).
        """
        dtype = self.ln.weight.dtype
        rows, length = tokens.shape
        here = past[0].shape[2] + torch.arange(length, device=tokens.device)
        there = torch.arange(past[0].shape[2] + length, device=tokens.device)
        position = torch.clamp(here.unsqueeze(0) - padding.unsqueeze(1), min=0)
        seen = (there <= here.unsqueeze(1)).unsqueeze(0) & (there >= padding.reshape(rows, 1, 1))
        bias = torch.where(seen, 0.0, HIDDEN).to(dtype).unsqueeze(1)
        x = self.token_embedding(tokens) + self.positional_embedding[position]
        caches, scores = [], []
        for index, block in enumerate(cast(Iterable[Block], self.blocks)):
            y = block.attn_ln(x)
            keys = torch.cat([as_dtype(past[2 * index], dtype), block.attn.keys(y)], dim=2)
            values = torch.cat([as_dtype(past[2 * index + 1], dtype), block.attn.values(y)], dim=2)
            x = x + block.attn.attend(y, keys.transpose(2, 3), values, bias)[0]
            cross_keys, cross_values = (as_dtype(each, dtype) for each in cross[2 * index : 2 * index + 2])
            together = block.cross_attn_ln(x).reshape(cross_keys.shape[0], -1, x.shape[2])
            attended, score = block.cross_attn.attend(together, cross_keys, cross_values)
            x = x + attended.reshape(x.shape)
            x = x + block.mlp(block.mlp_ln(x))
            caches += [keys, values]
            # of all rows of a recording, side by side
            heads = score.shape[1]
            apart = score.reshape(score.shape[0], heads, -1, length, score.shape[3]).transpose(1, 2)
            scores.append(apart.reshape(rows, heads, length, score.shape[3]))
        chosen = torch.gather(self.ln(x), 1, places.unsqueeze(2).expand(-1, -1, x.shape[2]))
        weight = self.token_embedding.weight if self.tied else self.head.weight
        return F.linear(chosen, weight), caches, scores


class Network(nn.Module):
    """Encoder and decoder of one model."""

    def __init__(self, dims: Dims) -> None:
        super().__init__()
        self.dims = dims
        self.encoder = AudioEncoder(dims)
        self.decoder = TextDecoder(dims)
