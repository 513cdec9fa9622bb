"""WeNet's conformer and transformer encoders, for whole utterances and for batched streaming steps.

    fbank (batch, frames, bins), lengths (batch,)  ->  encoder frames (batch, T', width), lengths (batch,)

Source: wenet/transformer/{encoder,encoder_layer}.py.
"""

import math
from typing import cast

import torch
from torch import Tensor, nn

from tritone.families.export.precision import as_dtype
from tritone.families.layers.sinusoids import sinusoids
from tritone.families.wenet.config import EncoderConfig
from tritone.families.wenet.layers import (
    ConvolutionModule,
    MultiHeadedAttention,
    PositionwiseFeedForward,
    Subsampling,
)


class GlobalCmvn(nn.Module):
    """(x - mean) * istd per feature bin; both are buffers of the checkpoint."""

    in_float32 = True  # as features are

    mean: Tensor
    istd: Tensor

    def __init__(self, bins: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(bins))
        self.register_buffer("istd", torch.ones(bins))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) * self.istd


def make_attention(config: EncoderConfig) -> MultiHeadedAttention:
    return MultiHeadedAttention(
        config.attention_heads,
        config.output_size,
        config.attention_dropout_rate,
        relative=config.selfattention_layer_type == "rel_selfattn",
        biases=(config.query_bias, config.key_bias, config.value_bias),
    )


def make_feed_forward(config: EncoderConfig) -> PositionwiseFeedForward:
    return PositionwiseFeedForward(config.output_size, config.linear_units, config.dropout_rate, config.activation_type)


class EncoderLayer(nn.Module):
    """Half feed-forward, attention, convolution, half feed-forward; a norm before or after each residual sum.

    A transformer's has attention and a whole feed-forward, and names their norms otherwise.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width, eps = config.output_size, config.norm_eps
        self.pre_norm = config.normalize_before
        self.self_attn = make_attention(config)
        self.feed_forward = make_feed_forward(config)
        self.norms = ("norm_mha", "norm_ff") if config.kind == "conformer" else ("norm1", "norm2")
        for name in self.norms:
            self.add_module(name, nn.LayerNorm(width, eps=eps))
        self.ff_scale = 1.0
        self.feed_forward_macaron: PositionwiseFeedForward | None = None
        if config.macaron_style:
            self.feed_forward_macaron = make_feed_forward(config)
            self.norm_ff_macaron = nn.LayerNorm(width, eps=eps)
            self.ff_scale = 0.5
        self.conv_module: ConvolutionModule | None = None
        if config.use_cnn_module:
            self.conv_module = ConvolutionModule(
                width, config.cnn_module_kernel, config.activation_type, config.cnn_module_norm, config.causal, eps
            )
            self.norm_conv, self.norm_final = nn.LayerNorm(width, eps=eps), nn.LayerNorm(width, eps=eps)
        self.dropout = nn.Dropout(config.dropout_rate)

    def _before(self, norm: nn.Module, x: Tensor) -> Tensor:
        return norm(x) if self.pre_norm else x

    def _after(self, norm: nn.Module, x: Tensor) -> Tensor:
        return x if self.pre_norm else norm(x)

    def _feed_forward(self, module: PositionwiseFeedForward, norm: nn.Module, x: Tensor) -> Tensor:
        return self._after(norm, x + self.ff_scale * self.dropout(module(self._before(norm, x))))

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        mask: Tensor,
        frame_mask: Tensor,
        att_cache: Tensor | None,
        cnn_cache: Tensor | None,
        upstream_padding: bool,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Returns the output, keys and values of these frames as they are stored, and the next convolution cache."""
        norm_mha, norm_ff = (self.get_submodule(name) for name in self.norms)
        if self.feed_forward_macaron is not None:
            x = self._feed_forward(self.feed_forward_macaron, self.norm_ff_macaron, x)
        inner = self._before(norm_mha, x)
        attended, stored = self.self_attn.attend_self(inner, positions, mask, att_cache)
        x = self._after(norm_mha, x + self.dropout(attended))
        if self.conv_module is not None:
            inner, cnn_cache = self.conv_module(
                self._before(self.norm_conv, x), frame_mask, cnn_cache, upstream_padding
            )
            x = self._after(self.norm_conv, x + self.dropout(inner))
        x = self._feed_forward(self.feed_forward, norm_ff, x)
        if self.conv_module is not None:
            x = self.norm_final(x)
        return x, stored, cnn_cache


def chunk_mask(steps: Tensor, chunk_size: int, left_chunks: int) -> Tensor:
    """(frames, frames): row i may see its own chunk and `left_chunks` chunks before it (all of them when negative)."""
    chunk = torch.div(steps, chunk_size, rounding_mode="floor")
    mask = chunk.unsqueeze(0) <= chunk.unsqueeze(1)
    if left_chunks >= 0:
        mask = mask & (chunk.unsqueeze(0) >= chunk.unsqueeze(1) - left_chunks)
    return mask


class Encoder(nn.Module):
    """Subsampling, position encoding and a stack of layers.

    `upstream_padding` brings back upstream's dependence of non-causal models on batch padding (see
    `ConvolutionModule`); it exists to compare with upstream's batched results and for nothing else.
    """

    upstream_padding = False

    def __init__(self, config: EncoderConfig, uses_cmvn: bool) -> None:
        super().__init__()
        self.config = config
        self.global_cmvn = GlobalCmvn(config.input_dim) if uses_cmvn else None
        self.embed = Subsampling(config)
        self.encoders = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_blocks))
        self.after_norm = nn.LayerNorm(config.output_size, eps=config.norm_eps)
        self.dropout = nn.Dropout(config.positional_dropout_rate)

    @property
    def dtype(self) -> torch.dtype:
        """What the layers compute in; features and their normalisation are float32 always."""
        return cast(MultiHeadedAttention, self.encoders[0].self_attn).linear_q.weight.dtype

    def _embed(self, feats: Tensor, offset: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Subsampled input with its place applied, the position vectors for the attention, and frame numbers (frames,).

        `offset` (batch or 1, 1) is the position of the first frame.
        """
        if self.global_cmvn is not None:
            feats = self.global_cmvn(feats)
        x = self.embed(as_dtype(feats, self.dtype)) * math.sqrt(self.config.output_size)
        steps = torch.arange(x.shape[1], device=x.device)
        vectors = as_dtype(sinusoids(offset + steps.unsqueeze(0), self.config.output_size), x.dtype)
        if self.config.pos_enc_layer_type == "abs_pos":
            x = x + vectors
        return self.dropout(x), vectors, steps

    def forward(
        self, feats: Tensor, lengths: Tensor, chunk_size: int = -1, left_chunks: int = -1
    ) -> tuple[Tensor, Tensor]:
        """Encode whole utterances.

        Args:
            feats: (batch, frames, bins), padded with anything; frames ≥ the subsampling's right context + 1.
            lengths: (batch,) valid frames.
            chunk_size: encoder frames per chunk, or -1 for full context. Models trained with one static size keep it.
            left_chunks: past chunks to see; -1 for all.

        Returns:
            (batch, T', width), of which rows at or beyond the lengths (batch,) are undefined.
        """
        if not self.config.use_dynamic_chunk:
            chunk_size = self.config.static_chunk_size or -1
        out_lengths = self.embed.num_frames(lengths)
        x, vectors, steps = self._embed(feats, torch.zeros(1, 1, dtype=torch.int64, device=feats.device))
        valid = steps.unsqueeze(0) < out_lengths.unsqueeze(1)
        mask = valid.unsqueeze(1)
        if chunk_size > 0:
            mask = mask & chunk_mask(steps, chunk_size, left_chunks)
        frame_mask = valid.unsqueeze(2).to(x.dtype)
        for layer in self.encoders:
            x, _, _ = layer(x, vectors, mask, frame_mask, None, None, self.upstream_padding)
        return (self.after_norm(x) if self.config.normalize_before else x), out_lengths

    @property
    def att_cache_shape(self) -> tuple[int, int, int]:
        """Layers, heads, and columns of one cached frame: stored key, then value."""
        attention = cast(MultiHeadedAttention, self.encoders[0].self_attn)
        return len(self.encoders), attention.heads, attention.key_size + attention.size

    def forward_chunk(
        self, feats: Tensor, lengths: Tensor, offset: Tensor, att_cache: Tensor, cnn_cache: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Encode one window of each of several streams.

        Args:
            feats: (batch, window, bins); each window starts where the stream's next encoder frame does.
            lengths: (batch,) valid frames of each window; less than the window only at the end of a stream.
            offset: (batch,) int64, encoder frames the stream has produced so far.
            att_cache: (batch, layers, heads, cache, columns), newest frame last; its length, 0 allowed, is how far a
                step may look back. Only the last `offset` frames count.
            cnn_cache: (batch, layers, kernel - 1, width), or None for models without causal convolution.

        Returns:
            Encoder frames (batch, chunk, width), their lengths (batch,), and both next caches. Frames and the next
            convolution cache are of type `dtype`, the attention's of the type of the one given. The attention's next
            cache is as long as the one given: what it has no room for is forgotten, and whoever wants to keep it gives
            a longer one, with anything finite at its start.
        """
        out_lengths = self.embed.num_frames(lengths)
        cached = att_cache.shape[3]
        x, vectors, steps = self._embed(feats, offset.unsqueeze(1))
        chunk = x.shape[1]
        valid = steps.unsqueeze(0) < out_lengths.unsqueeze(1)
        past = torch.arange(cached, device=feats.device).unsqueeze(0) >= cached - offset.unsqueeze(1)
        mask = torch.cat([past, valid], dim=1).unsqueeze(1)
        frame_mask = valid.unsqueeze(2).to(x.dtype)
        stored, convolved = [], []
        past_keys = as_dtype(att_cache, self.dtype)
        for index, layer in enumerate(self.encoders):
            lead = None if cnn_cache is None else cnn_cache[:, index]
            x, key_value, lead = layer(x, vectors, mask, frame_mask, past_keys[:, index], lead, False)
            stored.append(key_value)
            convolved.append(lead)
        added = as_dtype(torch.stack(stored, dim=1), att_cache.dtype)
        next_cnn = None if cnn_cache is None else torch.stack(convolved, dim=1)
        return (
            (self.after_norm(x) if self.config.normalize_before else x),
            out_lengths,
            torch.cat([att_cache, added], dim=3)[:, :, :, chunk:],
            next_cnn,
        )
