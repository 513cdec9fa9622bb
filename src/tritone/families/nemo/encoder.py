"""NeMo's ConformerEncoder, for whole utterances, with upstream's parameter names; for streams see streaming.py.

    features (batch, frames, bins), lengths (batch,)  ->  encoder frames (batch, T', width), lengths (batch,)

A row's result depends on its own valid frames alone, as upstream's: frames behind its end are zero before every
convolution, and no frame attends to them.
Source of method and names: NeMo, nemo/collections/asr/modules/conformer_encoder.py and parts/submodules/{subsampling,
conformer_modules,multi_head_attention,causal_convs}.py.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tritone.families.export.precision import as_dtype
from tritone.families.layers.attention import HIDDEN, shifted
from tritone.families.layers.convolution import fold_batch_norm
from tritone.families.layers.sinusoids import sinusoids
from tritone.families.nemo.config import EncoderConfig, count_halved

STRIDE, KERNEL = 2, 3  # of the subsampling
CAUSAL_PADDING = (KERNEL - 1, STRIDE - 1)


def frame_mask(x: Tensor, lengths: Tensor) -> Tensor:
    """(batch, frames) bool: whether a frame of `x` (batch, frames, …) is before the end of its row."""
    return torch.arange(x.shape[1], device=x.device).unsqueeze(0) < lengths.unsqueeze(1)


class Subsampling(nn.Module):
    """Convolutions of stride 2 over frames and bands, and a projection; upstream's `pre_encode`.

    "dw_striding" has a convolution for each channel and a mixing one in place of each but the first.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.causal, self.factor = config.causal, config.factor
        padding, channels = 0 if config.causal else KERNEL // 2, config.channels
        layers: list[nn.Module] = [nn.Conv2d(1, channels, KERNEL, STRIDE, padding), nn.ReLU()]
        for _ in range(config.halvings - 1):
            if config.subsampling == "dw_striding":
                layers.append(nn.Conv2d(channels, channels, KERNEL, STRIDE, padding, groups=channels))
                layers.append(nn.Conv2d(channels, channels, 1))
            else:
                layers.append(nn.Conv2d(channels, channels, KERNEL, STRIDE, padding))
            layers.append(nn.ReLU())
        self.conv = nn.Sequential(*layers)
        bands = count_halved(config.features, config.halvings, causal=config.causal)
        self.out = nn.Linear(channels * bands, config.width)

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """(batch, frames, bins) in the type of the weights -> (batch, T', width), and its valid frames (batch,)."""
        x = x.unsqueeze(1)
        for layer in self.conv:
            if isinstance(layer, nn.Conv2d) and layer.stride == (STRIDE, STRIDE):
                x = x * as_dtype(frame_mask(x.transpose(1, 2), lengths), x.dtype)[:, None, :, None]
                if self.causal:
                    x = F.pad(x, (*CAUSAL_PADDING, *CAUSAL_PADDING))
                lengths = count_halved(lengths, 1, causal=self.causal)
            x = layer(x)
        return self.out(x.transpose(1, 2).flatten(2)), lengths

    def step(self, x: Tensor, begins: Tensor, ends: Tensor) -> Tensor:
        """The frames of a window of a stream, by a causal subsampling.

        With a factor f, frame n of a stream is made of the features from f·n - 2·(f - 1) to f·n, and so is a window's.
        What lies before or after the stream is zero before every convolution, as `forward` has it.

        Args:
            x: (batch, f·chunk + f - 1, bins) in the type of the weights.
            begins: (batch,) int64, the number of the window's first frame in the stream.
            ends: (batch,) how many features of the window are before the stream's end.

        Returns:
            (batch, chunk, width); the first ends // f frames are those of the stream.
        """
        x, rate = x.unsqueeze(1), self.factor
        for layer in self.conv:
            if isinstance(layer, nn.Conv2d) and layer.stride == (STRIDE, STRIDE):
                places = torch.arange(x.shape[2], device=x.device).unsqueeze(0)
                inside = (places >= (rate * (2 - begins) - 2).unsqueeze(1)) & (places < ends.unsqueeze(1))
                x = F.pad(x * as_dtype(inside, x.dtype)[:, None, :, None], CAUSAL_PADDING)
                rate, ends = rate // STRIDE, ends // STRIDE
            x = layer(x)
        return self.out(x.transpose(1, 2).flatten(2))


class RelativeAttention(nn.Module):
    """Attention with Transformer-XL's relative positions: ((q + u)·k + (q + v)·W p(i - j)) / √d."""

    wide_softmax = False
    fused = False

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width, self.heads, self.size = config.width, config.heads, config.width // config.heads
        self.linear_q = nn.Linear(width, width, bias=config.biases)
        self.linear_k = nn.Linear(width, width, bias=config.biases)
        self.linear_v = nn.Linear(width, width, bias=config.biases)
        self.linear_out = nn.Linear(width, width, bias=config.biases)
        self.linear_pos = nn.Linear(width, width, bias=False)
        self.pos_bias_u = nn.Parameter(torch.zeros(self.heads, self.size))
        self.pos_bias_v = nn.Parameter(torch.zeros(self.heads, self.size))

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, self.size)).transpose(1, 2)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each (batch, heads, frames, size), of (batch, frames, width)."""
        query, key, value = (self._split(layer(x)) for layer in (self.linear_q, self.linear_k, self.linear_v))
        return query, key, value

    def place(self, places: Tensor) -> Tensor:
        """What queries are multiplied with for distances: (1, heads, distances, size) of position vectors."""
        return self._split(self.linear_pos(places))

    def forward(self, query: Tensor, key: Tensor, value: Tensor, place: Tensor, mask: Tensor) -> Tensor:
        """Attend from frames to those that end with them; the first three are as of `project`.

        Args:
            place: as of `place`, of the distances keys - 1 … -queries.
            mask: (batch, 1 or queries, keys) bool, what may be seen.
        """
        query = query * self.size**-0.5
        content = query + (self.pos_bias_u * self.size**-0.5).unsqueeze(1)
        distance = (query + (self.pos_bias_v * self.size**-0.5).unsqueeze(1)) @ place.transpose(-2, -1)
        if self.fused:
            # Not in blocks of 8 as icefall's: torch.export cannot solve what rounding adds to three halvings.
            added = torch.where(mask.unsqueeze(1), shifted(distance, key.shape[2]), HIDDEN)
            mixed = F.scaled_dot_product_attention(content, key, value, added, scale=1.0)
            return self.linear_out(mixed.transpose(1, 2).flatten(2))
        scores = content @ key.transpose(-2, -1) + shifted(distance, key.shape[2])
        if self.wide_softmax:
            scores = as_dtype(scores, torch.float32)
        # A finite floor instead of -inf: a row without any key, which only padding can be, must not be NaN.
        scores = scores.masked_fill(~mask.unsqueeze(1), torch.finfo(scores.dtype).min)
        mixed = as_dtype(torch.softmax(scores, dim=-1), value.dtype) @ value
        return self.linear_out(mixed.transpose(1, 2).flatten(2))


class Convolution(nn.Module):
    """Pointwise, GLU, depthwise, norm, SiLU, pointwise; `fold` makes a batch norm a part of the depthwise layer."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width, biases = config.width, config.biases
        self.padding = config.padding
        self.pointwise_conv1 = nn.Conv1d(width, 2 * width, 1, bias=biases)
        self.depthwise_conv = nn.Conv1d(width, width, config.kernel, groups=width, bias=biases)
        self.batch_norm: nn.Module = (nn.BatchNorm1d if config.norm == "batch_norm" else nn.LayerNorm)(width)
        self.pointwise_conv2 = nn.Conv1d(width, width, 1, bias=biases)

    def fold(self) -> None:
        """Multiply a batch norm into the depthwise layer, in float64."""
        if isinstance(self.batch_norm, nn.BatchNorm1d):
            fold_batch_norm(self.depthwise_conv, self.batch_norm)
            self.batch_norm = nn.Identity()

    def gated(self, x: Tensor, valid: Tensor) -> Tensor:
        """What is convolved over time, of (batch, frames, width) and (batch, frames, 1), 1 for valid frames, else 0."""
        # A convolution of kernel 1 is a product per frame, and that needs no transpose.
        return F.glu(F.linear(x, self.pointwise_conv1.weight[:, :, 0], self.pointwise_conv1.bias), dim=-1) * valid

    def forward(self, x: Tensor) -> Tensor:
        """Convolve what `gated` gives, with as many more frames as the kernel takes: (batch, frames, width)."""
        x = self.depthwise_conv(x.transpose(1, 2)).transpose(1, 2)
        if isinstance(self.batch_norm, nn.BatchNorm1d):
            x = self.batch_norm(x.transpose(1, 2)).transpose(1, 2)
        else:
            x = self.batch_norm(x)
        return F.linear(F.silu(x), self.pointwise_conv2.weight[:, :, 0], self.pointwise_conv2.bias)


class FeedForward(nn.Module):
    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.linear1 = nn.Linear(config.width, config.hidden, bias=config.biases)
        self.linear2 = nn.Linear(config.hidden, config.width, bias=config.biases)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear2(F.silu(self.linear1(x)))


class ConformerLayer(nn.Module):
    """Half a feed-forward, attention, convolution, half a feed-forward, each after a norm and added; a norm at last."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.norm_feed_forward1, self.feed_forward1 = nn.LayerNorm(config.width), FeedForward(config)
        self.norm_self_att, self.self_attn = nn.LayerNorm(config.width), RelativeAttention(config)
        self.norm_conv, self.conv = nn.LayerNorm(config.width), Convolution(config)
        self.norm_feed_forward2, self.feed_forward2 = nn.LayerNorm(config.width), FeedForward(config)
        self.norm_out = nn.LayerNorm(config.width)

    def forward(self, x: Tensor, places: Tensor, mask: Tensor, valid: Tensor) -> Tensor:
        """(batch, frames, width); `places` as of `ConformerEncoder.places`, `valid` as of `Convolution.gated`."""
        x = x + 0.5 * self.feed_forward1(self.norm_feed_forward1(x))
        attention = self.self_attn
        x = x + attention(*attention.project(self.norm_self_att(x)), attention.place(places), mask)
        x = x + self.conv(F.pad(self.conv.gated(self.norm_conv(x), valid), (0, 0, *self.conv.padding)))
        return self.end(x)

    def end(self, x: Tensor) -> Tensor:
        """What follows the convolution."""
        x = x + 0.5 * self.feed_forward2(self.norm_feed_forward2(x))
        return self.norm_out(x)


class ConformerEncoder(nn.Module):
    """Subsampling and layers; names are those of upstream after `encoder.`."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.pre_encode = Subsampling(config)
        self.layers = nn.ModuleList(ConformerLayer(config) for _ in range(config.layers))
        self.out_proj = nn.Linear(config.width, config.output_dim) if config.output_dim else None

    @property
    def output_dim(self) -> int:
        """Of an encoder frame."""
        return self.config.output_dim or self.config.width

    @property
    def conformer_layers(self) -> list[ConformerLayer]:
        """The layers, by their type."""
        return [layer for layer in self.layers if isinstance(layer, ConformerLayer)]

    def fold(self) -> None:
        """See `Convolution.fold`."""
        for layer in self.conformer_layers:
            layer.conv.fold()

    def num_frames(self, lengths: Tensor) -> Tensor:
        """Encoder frames of so many frames of features (batch,); 0 of 0."""
        counted: Tensor = count_halved(lengths, self.config.halvings, causal=self.config.causal)
        return torch.where(lengths > 0, counted, torch.zeros_like(counted))

    def places(self, frames: int, device: torch.device) -> Tensor:
        """Position vectors (1, distances, width) of the distances frames - 1 … -frames."""
        distances = torch.arange(frames - 1, -frames - 1, -1, device=device)
        return as_dtype(sinusoids(distances, self.config.width), self.pre_encode.out.weight.dtype).unsqueeze(0)

    def forward(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Encode whole utterances.

        Args:
            features: (batch, frames, bins) float32; those at or beyond the lengths (batch,) int64 may be anything.

        Returns:
            (batch, T', output_dim), of which rows at or beyond the lengths (batch,) are undefined.
        """
        # Not a product: what is not finite must go too.
        features = features.masked_fill(~frame_mask(features, lengths).unsqueeze(2), 0.0)
        x, _ = self.pre_encode(as_dtype(features, self.pre_encode.out.weight.dtype), lengths)
        if self.config.xscale:
            x = x * math.sqrt(self.config.width)
        num_frames = self.num_frames(lengths)
        valid = frame_mask(x, num_frames)
        mask = valid.unsqueeze(1)
        if (visible := self._visible(torch.arange(x.shape[1], device=x.device))) is not None:
            mask = mask & visible
        places = self.places(x.shape[1], x.device)
        factor = as_dtype(valid, x.dtype).unsqueeze(2)
        for layer in self.layers:
            x = layer(x, places, mask, factor)
        return x if self.out_proj is None else self.out_proj(x), num_frames

    def _visible(self, frames: Tensor) -> Tensor | None:
        """(frames, frames): which columns a row may see by the context; None if all."""
        left, right = self.config.context
        query, key = frames.unsqueeze(1), frames.unsqueeze(0)
        if self.config.style == "regular" or right < 0:
            if left < 0 and right < 0:
                return None
            seen = torch.ones_like(query - key, dtype=torch.bool)
            if left >= 0:
                seen = seen & (query - key <= left)
            return seen & (key - query <= right) if right >= 0 else seen
        chunk = right + 1
        behind = torch.div(query, chunk, rounding_mode="floor") - torch.div(key, chunk, rounding_mode="floor")
        return (behind >= 0) & (behind <= left // chunk) if left >= 0 else behind >= 0
