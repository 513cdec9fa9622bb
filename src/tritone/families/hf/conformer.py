"""The layers of Wav2Vec2-Conformer and Wav2Vec2-BERT, with upstream's parameter names.

    frames (batch, frames, width), how many each row has (batch,)  ->  the same, encoded

Rows never depend on what follows their last frame: no frame attends to it, and it is zero before each convolution.
transformers leaves that out in Wav2Vec2-Conformer, so that there the padding of a batch leaks into its last frames.
Method and names: transformers, models/wav2vec2_conformer/modeling_wav2vec2_conformer.py and models/wav2vec2_bert.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tritone.families.export.precision import as_dtype
from tritone.families.hf.config import ModelConfig
from tritone.families.hf.layers import ACTIVATIONS, FeedForward, Heads, before, hidden_keys
from tritone.families.layers.attention import shifted
from tritone.families.layers.convolution import depthwise, fold_batch_norm
from tritone.families.layers.rotary import rotary, rotated
from tritone.families.layers.sinusoids import sinusoids

NORM_GUARD = 1e-5  # torch's epsilon, which Wav2Vec2-Conformer has in its layers whatever its config says


class ConformerAttention(Heads):
    """Attention that knows the distance of two frames, in one of upstream's ways or not at all.

    "relative": Transformer-XL's, sinusoids of each distance; "relative_key": Shaw's, a vector for each distance, those
    beyond the longest are one; "rotary": what queries and keys are made of is turned by its place.
    """

    def __init__(self, config: ModelConfig) -> None:
        width, self.kind = config.hidden_size, config.position_embeddings_type
        super().__init__(width, config.num_attention_heads)
        self.linear_q = nn.Linear(width, width)
        self.linear_k = nn.Linear(width, width)
        self.linear_v = nn.Linear(width, width)
        self.linear_out = nn.Linear(width, width)
        if self.kind == "relative":
            self.linear_pos = nn.Linear(width, width, bias=False)
            self.pos_bias_u = nn.Parameter(torch.zeros(self.heads, self.size))
            self.pos_bias_v = nn.Parameter(torch.zeros(self.heads, self.size))
        if self.kind == "relative_key":
            self.left, self.right = config.left_max_position_embeddings, config.right_max_position_embeddings
            self.distance_embedding = nn.Embedding(self.left + self.right + 1, self.size)

    def forward(self, x: Tensor, hidden: Tensor, places: Tensor | None) -> Tensor:
        """Attend from (batch, frames, width) to itself.

        Args:
            hidden: see `hidden_keys`.
            places: see `ConformerEncoder.places`.
        """
        turned = x
        if self.kind == "rotary":
            assert places is not None
            turned = rotated(self.split(x), places).transpose(1, 2).flatten(2)
        query, key = self.split(self.linear_q(turned)), self.split(self.linear_k(turned))
        value = self.split(self.linear_v(x))
        added, count = hidden, x.shape[1]
        if self.kind == "relative":
            assert places is not None
            scores = (query + self.pos_bias_v.unsqueeze(1)) @ self.split(self.linear_pos(places)).transpose(2, 3)
            query, added = query + self.pos_bias_u.unsqueeze(1), shifted(scores, count) * self.size**-0.5 + hidden
        if self.kind == "relative_key":
            # Column r of `shifted` is a key r - (count - 1) frames behind its query.
            distances = torch.arange(2 * count, device=x.device) - (count - 1)
            scores = query @ self.distance_embedding.weight.transpose(0, 1)
            scores = scores.index_select(3, distances.clamp(-self.left, self.right) + self.left)
            added = shifted(scores, count) * self.size**-0.5 + hidden
        return self.linear_out(self.mix(query, key, value, added))


def gated(x: Tensor, mask: Tensor, first: nn.Conv1d, layer: nn.Conv1d, sides: tuple[int, int]) -> Tensor:
    """A pointwise layer, GLU and a depthwise layer of (batch, frames, width) -> (batch, width, frames).

    Args:
        mask: (batch, frames, 1), False behind the end of a row, where there are zeros between the two.
        sides: how many zeros are before and behind the frames.
    """
    # A convolution of kernel 1 is a product for each frame, and that needs no transpose.
    x = F.glu(F.linear(x, first.weight[:, :, 0], first.bias), dim=-1).masked_fill(~mask, 0.0)
    return depthwise(F.pad(x.transpose(1, 2), sides), layer)


class Convolution(nn.Module):
    """Norm, pointwise, GLU, depthwise, norm, activation, pointwise; `fold` makes a batch norm part of the depthwise."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width, kernel = config.hidden_size, config.conv_depthwise_kernel_size
        causal = config.has_causal_convolutions
        self.sides = (kernel - 1, 0) if causal else ((kernel - 1) // 2, (kernel - 1) // 2)
        self.layer_norm = nn.LayerNorm(width, config.layer_norm_eps if causal else NORM_GUARD)
        self.pointwise_conv1 = nn.Conv1d(width, 2 * width, 1, bias=False)
        self.depthwise_conv = nn.Conv1d(width, width, kernel, groups=width, bias=False)
        self.batch_norm = None if causal else nn.BatchNorm1d(width)
        self.depthwise_layer_norm = nn.LayerNorm(width, config.layer_norm_eps) if causal else None
        self.activation = ACTIVATIONS[config.hidden_act]
        self.pointwise_conv2 = nn.Conv1d(width, width, 1, bias=False)

    def fold(self) -> None:
        """Multiply a batch norm into the depthwise layer."""
        if self.batch_norm is not None:
            fold_batch_norm(self.depthwise_conv, self.batch_norm)
            self.batch_norm = None

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Convolve (batch, frames, width) under a mask (batch, frames, 1), False behind the end of a row."""
        x = gated(self.layer_norm(x), mask, self.pointwise_conv1, self.depthwise_conv, self.sides)
        if self.batch_norm is not None:
            x = self.batch_norm(x)
        x = x.transpose(1, 2)
        x = x if self.depthwise_layer_norm is None else self.depthwise_layer_norm(x)
        return F.linear(self.activation(x), self.pointwise_conv2.weight[:, :, 0])


class ConformerLayer(nn.Module):
    """Half a feed-forward, attention, convolution, half a feed-forward, each after a norm and added; a norm at last."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width, guard = config.hidden_size, config.layer_norm_eps if config.takes_fbank else NORM_GUARD
        self.ffn1_layer_norm, self.ffn1 = nn.LayerNorm(width, guard), FeedForward(config)
        self.self_attn_layer_norm, self.self_attn = nn.LayerNorm(width, guard), ConformerAttention(config)
        self.conv_module = Convolution(config)
        self.ffn2_layer_norm, self.ffn2 = nn.LayerNorm(width, guard), FeedForward(config)
        self.final_layer_norm = nn.LayerNorm(width, guard)

    def forward(self, x: Tensor, hidden: Tensor, mask: Tensor, places: Tensor | None) -> Tensor:
        x = x + 0.5 * self.ffn1(self.ffn1_layer_norm(x))
        x = x + self.self_attn(self.self_attn_layer_norm(x), hidden, places)
        x = x + self.conv_module(x, mask)
        x = x + 0.5 * self.ffn2(self.ffn2_layer_norm(x))
        return self.final_layer_norm(x)


class ConformerEncoder(nn.Module):
    """Layers, and in Wav2Vec2-Conformer a norm behind them."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(ConformerLayer(config) for _ in range(config.num_hidden_layers))
        self.layer_norm = None if config.takes_fbank else nn.LayerNorm(config.hidden_size, config.layer_norm_eps)

    def places(self, x: Tensor) -> Tensor | None:
        """What attention knows of places in (batch, frames, width), which is the same for all layers.

        Sinusoids (1, distances, width) of the distances frames - 1 … -frames; or angles (2, frames, size).
        """
        count, config = x.shape[1], self.config
        if config.position_embeddings_type == "relative":
            distances = torch.arange(count - 1, -count - 1, -1, device=x.device)
            return as_dtype(sinusoids(distances, config.hidden_size), x.dtype).unsqueeze(0)
        if config.position_embeddings_type == "rotary":
            size = config.hidden_size // config.num_attention_heads
            return as_dtype(rotary(count, size, config.rotary_embedding_base, x.device), x.dtype)
        return None

    def forward(self, x: Tensor, frames: Tensor) -> Tensor:
        """Encode (batch, frames, width) of which each row has `frames` (batch,) int64."""
        mask = before(frames, x)
        hidden, places = hidden_keys(mask, x.dtype), self.places(x)
        for layer in self.layers:
            x = layer(x, hidden, mask, places)
        return x if self.layer_norm is None else self.layer_norm(x)
