"""A decoder that writes text while it attends to audio, of the forms that upstreams' models have.

    encoder_out                           ->  cross keys and values of each layer, once
    tokens, caches, cross keys and values ->  logits of the next token, longer caches

Parameters have the names of OpenAI's checkpoints. Rows of a call may begin with padding: `padding` counts its places,
which nobody attends to and which count for no position. Several rows in a row may share one recording, so that the
hypotheses of a beam share its keys and values.
Sources: openai/whisper whisper/model.py; transformers models/{moonshine,canary}, whose differences are fields of
`DecoderSizes`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tritone.families.export.precision import as_dtype
from tritone.families.layers.attention import HIDDEN
from tritone.families.layers.rotary import rotated
from tritone.kinds.encoder_decoder.part import Activation

PROJECTIONS = ("query", "key", "value", "out")
# transformers' names, in the order in which they are replaced by ours.
RENAMED = (
    ("model.", ""),
    ("embed_tokens", "token_embedding"),
    ("embedding_layernorm", "embedding_ln"),
    ("encoder.layer_norm", "encoder.ln_post"),
    ("decoder.norm", "decoder.ln"),
    ("layers.", "blocks."),
    ("encoder_attn", "cross_attn"),
    ("self_attn", "attn"),
    ("q_proj", "query"),
    ("k_proj", "key"),
    ("v_proj", "value"),
    ("o_proj", "out"),
    ("mlp.fc1", "mlp.0"),
    ("mlp.fc2", "mlp.2"),
    ("input_layernorm", "attn_ln"),
    ("final_layernorm", "mlp_ln"),
    ("proj_out", "decoder.head"),
)
AFTER_ATTENTION = "post_attention_layernorm"  # before the MLP of an encoder's layer, the audio of a decoder's


class Gated(nn.Module):
    """SwiGLU: half of the channels, each times the silu of its partner in the other half."""

    def forward(self, x: Tensor) -> Tensor:
        value, gate = x.chunk(2, dim=-1)
        return value * F.silu(gate)


ACTIVATIONS: dict[Activation, Callable[[], nn.Module]] = {"gelu": nn.GELU, "relu": nn.ReLU, "gated-silu": Gated}


@dataclass(frozen=True, kw_only=True)
class DecoderSizes:
    """Sizes and form of a decoder. `context`: tokens of prompt and text together.

    `tied`: the output layer is the table of the tokens' vectors. `biases`: projections of attention that have one.
    `rotary`: so many numbers of each head are turned by the position; 0: a vector of the position is added to each
    token's. `embedding_norm`: what is read is normed first.
    """

    vocab: int
    context: int
    width: int
    heads: int
    layers: int
    hidden: int
    tied: bool = True
    biases: tuple[str, ...] = ("query", "value", "out")
    norm_bias: bool = True
    head_bias: bool = False
    embedding_norm: bool = False
    activation: Activation = "gelu"
    rotary: int = 0

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.width // self.heads

    def block(self, *, cross: bool = True) -> "Block":
        """One layer."""
        return Block(
            self.width,
            self.heads,
            self.hidden,
            cross=cross,
            biases=self.biases,
            norm_bias=self.norm_bias,
            activation=self.activation,
        )


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, biases: tuple[str, ...]) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (
            nn.Linear(width, width, bias=name in biases) for name in PROJECTIONS
        )

    def split(self, x: Tensor) -> Tensor:
        """(batch, length, width) as (batch, heads, length, head_dim)."""
        return x.reshape(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)

    def keys(self, x: Tensor, angles: Tensor | None = None) -> Tensor:
        return turned(self.split(self.key(x)), angles)

    def values(self, x: Tensor) -> Tensor:
        return self.split(self.value(x))

    def attend(
        self, x: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None = None, angles: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """What x (batch, length, width) attends to, and the scores (batch, heads, length, keys) behind it.

        Args:
            keys: (batch, heads, head_dim, keys).
            values: (batch, heads, keys, head_dim).
            bias: is added to the scores.
            angles: see `turned`.
        """
        query = turned(self.split(self.query(x)), angles)
        scores = (query * query.shape[-1] ** -0.5) @ keys
        weights = F.softmax(scores if bias is None else scores + bias, dim=-1)
        return self.out((weights @ values).transpose(1, 2).reshape(x.shape)), scores


def turned(x: Tensor, angles: Tensor | None) -> Tensor:
    """Vectors (batch, heads, length, head_dim), the first numbers of each turned by the position.

    Args:
        angles: cosines and sines (2, …, length, size), see `rotary`; None turns nothing.
    """
    if angles is None:
        return x
    size = angles.shape[-1]
    return torch.cat([rotated(x[..., :size], angles), x[..., size:]], dim=-1)


class Block(nn.Module):
    def __init__(
        self,
        width: int,
        heads: int,
        hidden: int,
        *,
        cross: bool,
        biases: tuple[str, ...] = DecoderSizes.biases,
        norm_bias: bool = True,
        activation: Activation = "gelu",
    ) -> None:
        super().__init__()
        self.attn, self.attn_ln = Attention(width, heads, biases), nn.LayerNorm(width, bias=norm_bias)
        if cross:
            self.cross_attn, self.cross_attn_ln = Attention(width, heads, biases), nn.LayerNorm(width, bias=norm_bias)
        wide = 2 * hidden if activation == "gated-silu" else hidden
        self.mlp = nn.Sequential(nn.Linear(width, wide), ACTIVATIONS[activation](), nn.Linear(hidden, width))
        self.mlp_ln = nn.LayerNorm(width, bias=norm_bias)

    def encode(self, x: Tensor, bias: Tensor | None = None, angles: Tensor | None = None) -> Tensor:
        """A layer of an encoder: each of x (batch, length, width) attends to all that `bias` does not hide."""
        y = self.attn_ln(x)
        x = x + self.attn.attend(y, self.attn.keys(y, angles).transpose(2, 3), self.attn.values(y), bias, angles)[0]
        x = x + self.mlp(self.mlp_ln(x))
        return x


class TextDecoder(nn.Module):
    rotary: Tensor

    def __init__(self, sizes: DecoderSizes) -> None:
        super().__init__()
        self.sizes, width = sizes, sizes.width
        self.token_embedding = nn.Embedding(sizes.vocab, width)
        if sizes.rotary:
            self.register_buffer("rotary", torch.zeros(2, sizes.context, sizes.rotary))
        else:
            self.positional_embedding = nn.Parameter(torch.zeros(sizes.context, width))
        if sizes.embedding_norm:
            self.embedding_ln = nn.LayerNorm(width)
        self.blocks = nn.ModuleList(sizes.block() for _ in range(sizes.layers))
        self.ln = nn.LayerNorm(width, bias=sizes.norm_bias)
        if not sizes.tied or sizes.head_bias:
            self.head = nn.Linear(width, sizes.vocab, bias=sizes.head_bias)

    def forward(
        self,
        tokens: Tensor,
        padding: Tensor,
        places: Tensor,
        cross: list[Tensor],
        past: list[Tensor],
        num_frames: Tensor | None = None,
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Continue rows of text.

        Args:
            tokens: (rows, length) int64, the new ones.
            padding: (rows,) int64, how many places at the start of a row, its past included, are no tokens.
            places: (rows, wanted) int64, the new tokens after which logits are wanted.
            cross: for each layer keys (recordings, heads, head_dim, positions) and values (recordings, heads,
                positions, head_dim); rows that share a recording stand together, as many for each.
            past: for each layer keys and values (rows, heads, past, head_dim).
            num_frames: (recordings,) int64, how many of the positions are a recording's own; None: all are.

        Returns:
            Logits (rows, wanted, vocab); keys and values with the new tokens; for each layer, the scores of the
            cross-attention (rows, heads, length, positions).
        """
        dtype = self.token_embedding.weight.dtype
        rows, length = tokens.shape
        here = past[0].shape[2] + torch.arange(length, device=tokens.device)
        there = torch.arange(past[0].shape[2] + length, device=tokens.device)
        position = torch.clamp(here.unsqueeze(0) - padding.unsqueeze(1), min=0)
        seen = (there <= here.unsqueeze(1)).unsqueeze(0) & (there >= padding.reshape(rows, 1, 1))
        bias = torch.where(seen, 0.0, HIDDEN).to(dtype).unsqueeze(1)
        beyond = None if num_frames is None else hidden_beyond(num_frames, cross[0].shape[3]).to(dtype)
        x = self.token_embedding(tokens)
        angles = None
        if self.sizes.rotary:
            angles = self.rotary[:, position].unsqueeze(2)
        else:
            x = x + self.positional_embedding[position]
        if self.sizes.embedding_norm:
            x = self.embedding_ln(x)
        caches, scores = [], []
        for index, block in enumerate(cast(Iterable[Block], self.blocks)):
            y = block.attn_ln(x)
            keys = torch.cat([as_dtype(past[2 * index], dtype), block.attn.keys(y, angles)], dim=2)
            values = torch.cat([as_dtype(past[2 * index + 1], dtype), block.attn.values(y)], dim=2)
            x = x + block.attn.attend(y, keys.transpose(2, 3), values, bias, angles)[0]
            cross_keys, cross_values = (as_dtype(each, dtype) for each in cross[2 * index : 2 * index + 2])
            together = block.cross_attn_ln(x).reshape(cross_keys.shape[0], -1, x.shape[2])
            attended, score = block.cross_attn.attend(together, cross_keys, cross_values, beyond)
            x = x + attended.reshape(x.shape)
            x = x + block.mlp(block.mlp_ln(x))
            caches += [keys, values]
            # of all rows of a recording, side by side
            heads = score.shape[1]
            apart = score.reshape(score.shape[0], heads, -1, length, score.shape[3]).transpose(1, 2)
            scores.append(apart.reshape(rows, heads, length, score.shape[3]))
        chosen = torch.gather(self.ln(x), 1, places.unsqueeze(2).expand(-1, -1, x.shape[2]))
        weight = self.token_embedding.weight if self.sizes.tied else self.head.weight
        return F.linear(chosen, weight, self.head.bias if self.sizes.head_bias else None), caches, scores


def hidden_beyond(counts: Tensor, positions: int) -> Tensor:
    """What is added to scores so that nobody attends to positions at or beyond a row's count: (rows, 1, 1, positions).

    Args:
        counts: (rows,) int64.
    """
    there = torch.arange(positions, device=counts.device)
    return torch.where(there < counts.reshape(-1, 1, 1, 1), 0.0, HIDDEN)


def of_transformers(name: str) -> str:
    """What a tensor of a decoder of transformers (Moonshine's, Canary's) is called here."""
    name = name.replace(AFTER_ATTENTION, "cross_attn_ln" if "decoder." in name else "mlp_ln")
    for old, new in RENAMED:
        name = name.removeprefix(old) if not new else name.replace(old, new)
    return name
