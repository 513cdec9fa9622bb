"""zipformer2 of icefall: stacks of layers at several frame rates, for whole utterances.

    fbank (batch, frames, bins), lengths (batch,)  ->  (batch, frames at 25 Hz, width), lengths (batch,)

Every utterance gets what it gets alone and without padding, which upstream's batches do not give (see `Zipformer`).
Source: egs/librispeech/ASR/zipformer/zipformer.py of icefall.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tritone.families.export.precision import as_dtype
from tritone.families.icefall.zipformer_config import OUTPUT_DOWNSAMPLING, StackConfig, ZipformerConfig
from tritone.families.icefall.zipformer_embed import MIN_FRAMES, Subsampling, embedded_frames
from tritone.families.icefall.zipformer_layers import (
    MASKED_SCORE,
    AttentionWeights,
    BiasNorm,
    Bypass,
    Chunks,
    ConvolutionModule,
    FeedForward,
    NonlinAttention,
    SelfAttention,
    relative_positions,
)


@dataclass(frozen=True)
class Surroundings:
    """What the layers of a stack share in one call.

    positions: (2 · frames, position_width), see `relative_positions`.
    key_bias: (batch, 1, frames, 1), 0 for frames of the utterance and a large negative number for padding.
    frame_mask: (batch, frames, 1), 1 and 0.
    mask: (frames, frames), False where a key may not be seen, or None.
    chunks: of causal models.
    """

    positions: Tensor
    key_bias: Tensor
    frame_mask: Tensor
    mask: Tensor | None
    chunks: Chunks | None


class ZipformerLayer(nn.Module):
    """Feed-forwards, attentions and convolutions in turn, with one set of attention weights for all of them."""

    def __init__(self, stack: StackConfig, config: ZipformerConfig) -> None:
        super().__init__()
        width, hidden = stack.width, stack.feed_forward
        self.self_attn_weights = AttentionWeights(
            width, stack.heads, stack.query_size, stack.position_size, config.position_width
        )
        self.self_attn1 = SelfAttention(width, stack.heads, stack.value_size)
        self.self_attn2 = SelfAttention(width, stack.heads, stack.value_size)
        self.feed_forward1 = FeedForward(width, hidden * 3 // 4, config.dropout)
        self.feed_forward2 = FeedForward(width, hidden, config.dropout)
        self.feed_forward3 = FeedForward(width, hidden * 5 // 4, config.dropout)
        self.nonlin_attention = NonlinAttention(width)
        self.conv_module1 = ConvolutionModule(width, stack.kernel, config.causal)
        self.conv_module2 = ConvolutionModule(width, stack.kernel, config.causal)
        self.bypass, self.bypass_mid = Bypass(width), Bypass(width)
        self.norm = BiasNorm(width)
        # in every checkpoint of upstream, used by nothing
        self.bypass_scale = nn.Parameter(torch.full((width,), 0.5), requires_grad=False)

    def forward(self, x: Tensor, around: Surroundings) -> Tensor:
        before = x
        query, key, place = self.self_attn_weights.project(x)
        weights = self.self_attn_weights(query, key, place, around.positions, around.key_bias, around.mask)
        x = x + self.feed_forward1(x)
        x = x + self.nonlin_attention(weights[:, 0], *self.nonlin_attention.project(x))
        x = x + self.self_attn1(weights, self.self_attn1.value(x))
        x = x + self.conv_module1(x, around.frame_mask, around.chunks)
        x = x + self.feed_forward2(x)
        x = self.bypass_mid(before, x)
        x = x + self.self_attn2(weights, self.self_attn2.value(x))
        x = x + self.conv_module2(x, around.frame_mask, around.chunks)
        x = x + self.feed_forward3(x)
        return self.bypass(before, self.norm(x))


class Downsample(nn.Module):
    """The weighted mean of each group of `rate` frames, softmax(bias) being the weights."""

    def __init__(self, rate: int) -> None:
        super().__init__()
        self.rate = rate
        self.bias = nn.Parameter(torch.zeros(rate))

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """(batch, frames, width) to a `rate`-th of the frames, which `rate` divides.

        The last frame of a row stands in for those that its last group lacks, as upstream has it for the last row of
        a batch: it gets their weights too, and they none.
        """
        weights = torch.softmax(self.bias.float(), dim=0)
        frames = torch.arange(x.shape[1], device=x.device)
        own = weights.repeat(x.shape[1] // self.rate)
        from_here = weights.flip(0).cumsum(0).flip(0).repeat(x.shape[1] // self.rate)
        last = lengths.unsqueeze(1) - 1
        share = torch.where(frames < last, own, torch.where(frames == last, from_here, torch.zeros_like(own)))
        return (x * as_dtype(share, x.dtype).unsqueeze(2)).unflatten(1, (-1, self.rate)).sum(2)

    def whole(self, x: Tensor) -> Tensor:
        """The same of groups that are complete."""
        weights = as_dtype(torch.softmax(self.bias.float(), dim=0), x.dtype)
        return (x.unflatten(1, (-1, self.rate)) * weights.unsqueeze(1)).sum(2)


def upsample(x: Tensor, rate: int) -> Tensor:
    """Every frame `rate` times."""
    return x.unsqueeze(2).expand(-1, -1, rate, -1).flatten(1, 2)


def with_width(x: Tensor, width: int) -> Tensor:
    """The first channels, or all of them and zeros."""
    return x[..., :width] if x.shape[-1] >= width else F.pad(x, (0, width - x.shape[-1]))


class Layers(nn.Module):
    """`encoders.N` at 50 Hz, `encoders.N.encoder` of the others."""

    def __init__(self, stack: StackConfig, config: ZipformerConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(ZipformerLayer(stack, config) for _ in range(stack.layers))

    def forward(self, x: Tensor, around: Surroundings) -> Tensor:
        for layer in self.layers:
            x = layer(x, around)
        return x


class DownsampledLayers(nn.Module):
    """`encoders.N` of a stack that is slower than 50 Hz."""

    def __init__(self, stack: StackConfig, config: ZipformerConfig) -> None:
        super().__init__()
        self.encoder = Layers(stack, config)
        self.downsample = Downsample(stack.downsampling)
        self.out_combiner = Bypass(stack.width)


class Stacks(nn.Module):
    """`encoder` of the checkpoint; its parts are put together by `Zipformer` and its streaming form."""

    def __init__(self, config: ZipformerConfig) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(
            (Layers if stack.downsampling == 1 else DownsampledLayers)(stack, config) for stack in config.stacks
        )
        self.downsample_output = Downsample(OUTPUT_DOWNSAMPLING)


def join_widths(outputs: Sequence[Tensor]) -> Tensor:
    """Channels of the last stack, and those it lacks from the latest stack before that has them."""
    pieces, width = [outputs[-1]], outputs[-1].shape[-1]
    for output in reversed(outputs[:-1]):
        if output.shape[-1] > width:
            pieces.append(output[..., width:])
            width = output.shape[-1]
    return torch.cat(pieces, dim=-1) if len(pieces) > 1 else pieces[0]


class Zipformer(nn.Module):
    """Front end and stacks, under upstream's names `encoder_embed.*` and `encoder.*`.

    Upstream lets the padding of a batch reach valid frames: through the ConvNeXt, which looks ahead, and through the
    last group of each downsampling. Here neither happens. `upstream_padding` brings it back to compare with upstream's
    batched results and for nothing else.
    """

    upstream_padding = False
    subsampling = 4
    min_frames = MIN_FRAMES

    def __init__(self, config: ZipformerConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder_embed = Subsampling(config.input_dim, config.stacks[0].width, config.dropout)
        self.encoder = Stacks(config)

    @property
    def output_dim(self) -> int:
        return self.config.output_dim

    @property
    def dtype(self) -> torch.dtype:
        """What the layers compute in; features are float32 always."""
        return self.encoder_embed.out.weight.dtype

    def num_frames(self, lengths: Tensor) -> Tensor:
        """Encoder frames of fbank frames."""
        return (embedded_frames(lengths) + 1) // 2

    def forward(
        self, feats: Tensor, lengths: Tensor, chunk_size: int = -1, left_context: int = -1
    ) -> tuple[Tensor, Tensor]:
        """Encode whole utterances.

        Args:
            feats: (batch, frames, bins), at least 9 frames; beyond the lengths, anything.
            lengths: (batch,) valid frames.
            chunk_size: frames at 50 Hz that see one another, -1 for all; others than -1 need a causal model.
            left_context: frames at 50 Hz before the chunk that are seen, rounded down to whole chunks (but at least
                one), -1 for all.

        Returns:
            (batch, frames at 25 Hz, output_dim), of which rows at or beyond the lengths (batch,) are undefined.

        Raises:
            ValueError: a chunk size that does not fit the model.
        """
        config = self.config
        self._check_chunk(chunk_size, left_context)
        embedded = embedded_frames(lengths)
        # `ends`: where a row ends for the operations that upstream leaves to end with the batch
        ends = torch.full_like(embedded, (feats.shape[1] - 7) // 2) if self.upstream_padding else embedded
        x = self.encoder_embed(feats, ends)
        # padded once, so that every stack, chunks and the output divide the frames evenly
        unit = max(config.max_downsampling, chunk_size)
        groups = (x.shape[1] + unit - 1) // unit
        x = F.pad(x, (0, 0, 0, groups * unit - x.shape[1]))
        outputs: list[Tensor] = []
        for stack, module in zip(config.stacks, self.encoder.encoders, strict=True):
            x = with_width(x, stack.width)
            rate = stack.downsampling
            around = self._surroundings(stack, x, embedded, ends, chunk_size, left_context)
            if isinstance(module, DownsampledLayers):
                slow = module.encoder(module.downsample(x, ends), around)
                x = module.out_combiner(x, upsample(slow, rate))
            else:
                x = module(x, around)
            outputs.append(x)
        x = self.encoder.downsample_output(join_widths(outputs), ends)
        return x, (embedded + 1) // 2

    def _check_chunk(self, chunk_size: int, left_context: int) -> None:
        if chunk_size == -1:
            return
        if not self.config.causal:
            raise ValueError(f"chunk_size {chunk_size} needs a causal model; this one sees whole utterances (-1)")
        rates = [stack.downsampling for stack in self.config.stacks]
        if chunk_size < 1 or any(chunk_size % rate for rate in (*rates, OUTPUT_DOWNSAMPLING)):
            raise ValueError(f"chunk_size must be -1 or a multiple of {self.config.max_downsampling}, got {chunk_size}")

    def _surroundings(
        self, stack: StackConfig, x: Tensor, embedded: Tensor, ends: Tensor, chunk_size: int, left_context: int
    ) -> Surroundings:
        """For a stack whose input is `x`, (batch, frames at 50 Hz, width)."""
        rate = stack.downsampling
        count = x.shape[1] // rate
        frames = torch.arange(count, device=x.device)
        valid = (frames * rate < embedded.unsqueeze(1)).to(x.dtype)
        mask, chunks = None, None
        if self.config.causal:
            size = -1 if chunk_size < 0 else chunk_size // rate
            chunks = make_chunks(frames if size < 0 else frames[:size], (ends + rate - 1) // rate, size, stack.kernel)
            if size > 0:
                mask = chunk_mask(
                    frames, size, left_context if left_context < 0 else max(left_context // chunk_size, 1)
                )
        return Surroundings(
            positions=relative_positions(count, count, self.config.position_width, x.device),
            key_bias=((1.0 - valid) * MASKED_SCORE).unsqueeze(1).unsqueeze(3),
            frame_mask=valid.unsqueeze(2),
            mask=mask,
            chunks=chunks,
        )


def make_chunks(frames: Tensor, ends: Tensor, size: int, kernel: int) -> Chunks:
    """Chunks of `size` frames for rows that end at `ends` (batch,); a row shorter than a chunk has a shorter chunk.

    `frames` are the numbers of the frames of one chunk.
    """
    lengths = ends if size < 0 else ends.clamp(max=size)
    right = frames + kernel - lengths.unsqueeze(1)
    return Chunks(
        size=size,
        left=frames.clamp(max=kernel),
        right=torch.where((right >= 0) & (right < kernel), right, torch.full_like(right, kernel)),
    )


def chunk_mask(frames: Tensor, size: int, left_chunks: int) -> Tensor:
    """(queries, keys): a frame sees its own chunk and `left_chunks` (-1: all) before it."""
    chunk = frames // size
    mask = chunk.unsqueeze(0) <= chunk.unsqueeze(1)
    return mask if left_chunks < 0 else mask & (chunk.unsqueeze(0) >= chunk.unsqueeze(1) - left_chunks)
