"""Building blocks of wav2vec 2.0 and its relatives, with upstream's parameter names.

Activations are (batch, frames, channels) throughout, in the convolutions too: windows of frames are cut by slices, and
a convolution is one product with them. So norms need no transposed copies, and int8 reaches these products as well.
Results of a row never depend on what follows its last frame: convolutions over samples are not padded, the norm over
an utterance counts its own frames alone, and positional convolutions find zeros behind the last one.
Method and names: transformers, models/wav2vec2/modeling_wav2vec2.py, and hubert, wavlm and data2vec beside it. What
omniasr has under other names is the same; see `checkpoint.renamed`.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tritone.families.export.precision import as_dtype
from tritone.families.hf.config import ModelConfig
from tritone.families.layers.attention import HIDDEN
from tritone.families.layers.framing import count_windows, cut_frames

NORM_GUARD = 1e-5  # torch's epsilon
GATES = 8  # outputs of WavLM's gate for each head: two sums of four

tanh_gelu = partial(F.gelu, approximate="tanh")
ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": tanh_gelu,
    "gelu_pytorch_tanh": tanh_gelu,
    "relu": F.relu,
    "selu": F.selu,
    "silu": F.silu,
    "swish": F.silu,
}


def before(end: Tensor, x: Tensor) -> Tensor:
    """(batch, frames, 1) bool: whether a frame of `x` (batch, frames, channels) is before the `end` of its row."""
    return (torch.arange(x.shape[1], device=x.device) < end.unsqueeze(1)).unsqueeze(2)


def hidden_keys(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """(batch, 1, 1, frames), what is added to scores: 0, or `HIDDEN` where `mask` (batch, frames, 1) is False."""
    return torch.where(mask, 0.0, HIDDEN).to(dtype).view(mask.shape[0], 1, 1, -1)


class UtteranceNorm(nn.Module):
    """Upstream's group norm with a group for each channel: each is normalised over the frames of an utterance.

    Only frames before a row's end count. In float32 whatever comes in.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor, frames: Tensor) -> Tensor:
        wide = as_dtype(x, torch.float32)
        # Means are products with a row of weights: nothing as large as the activations is written for them.
        share = before(frames, x).transpose(1, 2).float() / frames.clamp(min=1).view(-1, 1, 1).float()
        centred = wide - share @ wide
        scale = torch.rsqrt(share @ centred.square() + NORM_GUARD) * self.weight.float()
        return as_dtype(centred * scale + self.bias.float(), x.dtype)


class FeatureConvolution(nn.Module):
    """One convolution of the feature extractor, with its norm, if it has one, and activation."""

    def __init__(self, config: ModelConfig, index: int) -> None:
        super().__init__()
        inputs = config.conv_dim[index - 1] if index else 1
        self.kernel, self.stride = config.conv_kernel[index], config.conv_stride[index]
        self.conv = nn.Conv1d(inputs, config.conv_dim[index], self.kernel, self.stride, bias=config.conv_bias)
        self.layer_norm: nn.Module | None = None
        if config.group_norm and index == 0:
            self.layer_norm = UtteranceNorm(config.conv_dim[index])
        elif not config.group_norm:
            self.layer_norm = nn.LayerNorm(config.conv_dim[index])
        self.activation = ACTIVATIONS[config.feat_extract_activation]

    def forward(self, x: Tensor, frames: Tensor) -> tuple[Tensor, Tensor]:
        """Convolve (batch, frames, channels) of which each row has `frames` (batch,) int64."""
        channels = x.shape[2]
        windows = cut_frames(x.flatten(1), self.kernel * channels, self.stride * channels)
        x = F.linear(windows, self.conv.weight.transpose(1, 2).flatten(1), self.conv.bias)
        frames = count_windows(frames, self.kernel, self.stride)
        if isinstance(self.layer_norm, UtteranceNorm):
            x = self.layer_norm(x, frames)
        elif self.layer_norm is not None:
            x = self.layer_norm(x)
        return self.activation(x), frames


class FeatureExtractor(nn.Module):
    """Samples (batch, samples, 1) to frames."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.conv_layers = nn.ModuleList(FeatureConvolution(config, index) for index in range(len(config.conv_dim)))

    def forward(self, x: Tensor, num_samples: Tensor) -> tuple[Tensor, Tensor]:
        frames = num_samples
        for layer in self.conv_layers:
            x, frames = layer(x, frames)
        return x, frames


class FeatureProjection(nn.Module):
    """Frames of the extractor to the width of the encoder."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        inputs = config.feature_projection_input_dim if config.takes_fbank else config.conv_dim[-1]
        self.layer_norm = nn.LayerNorm(inputs, config.layer_norm_eps) if config.feat_proj_layer_norm else None
        self.projection = nn.Linear(inputs, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.projection(x if self.layer_norm is None else self.layer_norm(x))


class PositionalConvolution(nn.Module):
    """One convolution over frames with as many results; its weight norm is part of the weight.

    `config.conv_pos_batch_norm` puts a batch norm before it, data2vec a layer norm without weights behind it.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width = config.conv_pos_kernel_size if config.is_data2vec else config.num_conv_pos_embeddings
        channels, groups = config.hidden_size, config.num_conv_pos_embedding_groups
        self.conv = nn.Conv1d(channels, channels, width, padding=width // 2, groups=groups)
        self.batch_norm = nn.BatchNorm1d(channels) if config.conv_pos_batch_norm else None
        self.layer_norm = nn.LayerNorm(channels, elementwise_affine=False) if config.is_data2vec else None
        self.activation = ACTIVATIONS[config.feat_extract_activation]

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Convolve (batch, frames, channels) under a mask (batch, frames, 1), False behind the end of a row."""
        count = x.shape[1]
        x = x.transpose(1, 2)
        if self.batch_norm is not None:
            x = self.batch_norm(x)
        x = self.conv(x.masked_fill(~mask.transpose(1, 2), 0.0))
        x = x[:, :, :count].transpose(1, 2)  # an even width gives one frame more
        return self.activation(x if self.layer_norm is None else self.layer_norm(x))


class PositionalConvolutions(nn.Module):
    """data2vec's positional convolutions, one after the other."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(PositionalConvolution(config) for _ in range(config.num_conv_pos_embeddings))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, mask)
        return x


class RelativePositions(nn.Module):
    """WavLM's bias of attention by the distance of two frames, (heads, queries, keys), shared by all layers.

    Distances fall into buckets: one for each short distance, logarithmic ones up to the largest. Beyond it all are one,
    so a table of all distances up to it gives any.
    """

    buckets: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.num_buckets, config.num_attention_heads)
        self.furthest = config.max_bucket_distance
        self.register_buffer("buckets", distance_buckets(config.num_buckets, config.max_bucket_distance), False)

    def forward(self, count: int, device: torch.device) -> Tensor:
        """The bias of as many queries and keys."""
        places = torch.arange(count, device=device)
        distances = (places.unsqueeze(0) - places.unsqueeze(1)).clamp(-self.furthest, self.furthest) + self.furthest
        return self.embedding(self.buckets).transpose(0, 1)[:, distances]


def distance_buckets(count: int, furthest: int) -> Tensor:
    """The bucket of each distance, key minus query, from -`furthest` to `furthest`: (2·furthest + 1,) int64.

    In upstream's float32 arithmetic, which decides at the bounds of buckets.
    """
    half = count // 2
    exact = half // 2
    with torch.device("cpu"):
        distances = torch.arange(-furthest, furthest + 1)
        size = distances.abs()
        logarithm = torch.log(size.float() / exact) / math.log(furthest / exact) * (half - exact)
        far = (exact + logarithm).clamp(max=half - 1, min=0).long()
        return torch.where(size < exact, size, far) + (distances > 0).long() * half


class Heads(nn.Module):
    """What all attention of all frames to all frames has: heads, and how they mix values."""

    wide_softmax = False
    fused = False

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.size = heads, width // heads

    def split(self, x: Tensor) -> Tensor:
        """(batch, frames, width) -> (batch, heads, frames, size)."""
        return x.unflatten(-1, (self.heads, self.size)).transpose(1, 2)

    def mix(self, query: Tensor, key: Tensor, value: Tensor, added: Tensor) -> Tensor:
        """(batch, frames, width) of three (batch, heads, frames, size), and of what is added to their scores."""
        if self.fused:
            mixed = F.scaled_dot_product_attention(query, key, value, added)
        else:
            scores = (query * self.size**-0.5) @ key.transpose(2, 3) + added
            weights = torch.softmax(as_dtype(scores, torch.float32) if self.wide_softmax else scores, dim=-1)
            mixed = as_dtype(weights, value.dtype) @ value
        return mixed.transpose(1, 2).flatten(2)


class Attention(Heads):
    """Attention of wav2vec 2.0; WavLM's has a gate for each query and head, which weighs the bias of distances."""

    def __init__(self, config: ModelConfig) -> None:
        width = config.hidden_size
        super().__init__(width, config.num_attention_heads)
        self.k_proj = nn.Linear(width, width)
        self.v_proj = nn.Linear(width, width)
        self.q_proj = nn.Linear(width, width)
        self.out_proj = nn.Linear(width, width)
        if config.is_wavlm:
            self.gru_rel_pos_const = nn.Parameter(torch.ones(1, self.heads, 1, 1))
            self.gru_rel_pos_linear = nn.Linear(self.size, GATES)

    def forward(self, x: Tensor, hidden: Tensor, positions: Tensor | None) -> Tensor:
        """Attend from (batch, frames, width) to itself.

        Args:
            hidden: (batch, 1, 1, frames), what is added to scores: 0 or `HIDDEN`.
            positions: the bias of `RelativePositions`, or None.
        """
        added = hidden if positions is None else self._gate(x) * positions + hidden
        if self.fused:
            layers = self.q_proj, self.k_proj, self.v_proj
            joined = F.linear(x, torch.cat([each.weight for each in layers]), torch.cat([each.bias for each in layers]))
            query, key, value = map(self.split, joined.chunk(3, dim=-1))
        else:
            query, key, value = (self.split(layer(x)) for layer in (self.q_proj, self.k_proj, self.v_proj))
        return self.out_proj(self.mix(query, key, value, added))

    def _gate(self, x: Tensor) -> Tensor:
        """(batch, heads, frames, 1)."""
        sums = self.gru_rel_pos_linear(self.split(x)).unflatten(-1, (2, GATES // 2)).sum(dim=-1)
        first, second = torch.sigmoid(sums).chunk(2, dim=-1)
        return first * (second * self.gru_rel_pos_const - 1.0) + 2.0


class FeedForward(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.intermediate_dense = nn.Linear(config.hidden_size, config.intermediate_size)
        self.output_dense = nn.Linear(config.intermediate_size, config.hidden_size)
        self.activation = ACTIVATIONS[config.hidden_act]

    def forward(self, x: Tensor) -> Tensor:
        return self.output_dense(self.activation(self.intermediate_dense(x)))


class LanguageAdapter(nn.Module):
    """What MMS adds to the result of a layer, with weights for each language."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear_1 = nn.Linear(width, inner)
        self.linear_2 = nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_2(F.relu(self.linear_1(self.norm(x))))


class EncoderLayer(nn.Module):
    """Attention and feed-forward layer, with layer norms behind them, or before them where they are stable."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.stable = config.stable
        self.attention = Attention(config)
        self.layer_norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.feed_forward = FeedForward(config)
        self.final_layer_norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        inner = config.language_adapter
        self.adapter_layer = LanguageAdapter(config.hidden_size, inner) if inner is not None else None

    def forward(self, x: Tensor, hidden: Tensor, positions: Tensor | None) -> Tensor:
        if not self.stable:
            x = self.layer_norm(x + self.attention(x, hidden, positions))
            return self.final_layer_norm(x + self.feed_forward(x))
        x = x + self.attention(self.layer_norm(x), hidden, positions)
        x = x + self.feed_forward(self.final_layer_norm(x))
        return x if self.adapter_layer is None else x + self.adapter_layer(x)


class Encoder(nn.Module):
    """Positions and layers."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.stable = config.stable
        self.pos_conv_embed = PositionalConvolutions(config) if config.is_data2vec else PositionalConvolution(config)
        self.layer_norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_hidden_layers))
        self.positions = RelativePositions(config) if config.is_wavlm else None

    def forward(self, x: Tensor, frames: Tensor) -> Tensor:
        """Encode (batch, frames, width) of which each row has `frames` (batch,) int64."""
        mask = before(frames, x)
        x = x + self.pos_conv_embed(x, mask)
        if not self.stable:
            x = self.layer_norm(x)
        hidden = hidden_keys(mask, x.dtype)
        positions = None if self.positions is None else self.positions(x.shape[1], x.device)
        for layer in self.layers:
            x = layer(x, hidden, positions)
        return self.layer_norm(x) if self.stable else x
