"""Building blocks of icefall's reworked conformer: upstream's parameter names, its scales folded into the weights.

Activations are (batch, frames, width); masks are True where a position may be used.
Source of method and names: icefall, egs/librispeech/ASR/pruned_transducer_stateless{2,3,4,5}/{conformer,scaling}.py.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tritone.families.export.precision import as_dtype
from tritone.families.layers.attention import HIDDEN, extra_distances, shifted
from tritone.families.layers.convolution import after_channels_last, channels_last, depthwise

RESIDUAL_GAIN = 0.25  # upstream starts what is added to the residual stream this much smaller
NORM_EPS = 0.25
CHANNELS = (8, 32, 128)  # of the three convolutions before the layers


def valid_frames(lengths: Tensor) -> Tensor:
    """((L - 1) // 2 - 1) // 2 encoder frames of L feature frames; 0 where L is below 7.

    Never divides a negative number: ONNX truncates where torch floors.
    """
    halved = torch.clamp(lengths - 1, min=0) // 2
    return torch.clamp(halved - 1, min=0) // 2


class DoubleSwish(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(x - 1.0)


class BasicNorm(nn.Module):
    """x / sqrt(mean(x²) + exp(eps)): no mean is taken off, there is no gain, and `eps` is a logarithm.

    `in_float32` modules keep their parameters when a model is narrowed; this one computes in float32 as well, since
    squares leave the range of float16.
    """

    in_float32 = True

    def __init__(self, *, learned: bool) -> None:
        super().__init__()
        eps = torch.tensor(NORM_EPS).log()
        if learned:
            self.eps = nn.Parameter(eps)
        else:
            self.register_buffer("eps", eps)

    def forward(self, x: Tensor) -> Tensor:
        power = as_dtype(x, torch.float32).square().mean(dim=-1, keepdim=True)
        return x * as_dtype(torch.rsqrt(power + self.eps.exp()), x.dtype)


class FirstConvolution(nn.Conv2d):
    """Stays float32 in narrow models: log-mel values go up to 20 and are not normalised, so they need their bits."""

    in_float32 = True


def start_small(layer: nn.Linear | nn.Conv1d | nn.Conv2d, gain: float = 1.0) -> None:
    """Uniform weights whose outputs are `gain` times as large as the inputs, and biases within ±0.1 · gain."""
    fan_in = layer.weight[0].numel()
    bound = math.sqrt(3.0 / fan_in) * gain
    nn.init.uniform_(layer.weight, -bound, bound)
    if layer.bias is not None:
        nn.init.uniform_(layer.bias, -0.1 * gain, 0.1 * gain)


def pointwise(x: Tensor, layer: nn.Conv1d) -> Tensor:
    """A convolution of kernel 1 is a product per frame, and that needs no transpose."""
    return F.linear(x, layer.weight[:, :, 0], layer.bias)


class Subsampling(nn.Module):
    """Three 3x3 convolutions, then a projection: encoder frame j reads feature frames 4j - 1 … 4j + 7.

    The first convolution pads with a frame of zeros at either end. The fused form has channels last.
    """

    fused = False

    def __init__(self, bins: int, width: int) -> None:
        super().__init__()
        first, second, third = CHANNELS
        # Upstream's numbers count layers without parameters, which matter in its training alone.
        self.conv = nn.Sequential(
            FirstConvolution(1, first, 3, padding=1),
            nn.Identity(),
            DoubleSwish(),
            nn.Conv2d(first, second, 3, stride=2),
            nn.Identity(),
            DoubleSwish(),
            nn.Conv2d(second, third, 3, stride=2),
            nn.Identity(),
            DoubleSwish(),
        )
        self.out = nn.Linear(third * (((bins - 1) // 2 - 1) // 2), width)
        self.out_norm = BasicNorm(learned=False)
        for layer in (self.conv[0], self.conv[3], self.conv[6], self.out):
            assert isinstance(layer, nn.Conv2d | nn.Linear)
            start_small(layer)

    def forward(self, feats: Tensor) -> Tensor:
        """(batch, frames, bins) float32 -> (batch, valid_frames(frames), width)."""
        x = self.conv[0](feats.unsqueeze(1))
        x = as_dtype(x, self.out.weight.dtype)
        if not self.fused:
            for layer in list(self.conv)[1:]:
                x = layer(x)
            return self.out_norm(self.out(x.transpose(1, 2).flatten(2)))
        x = x.contiguous(memory_format=torch.channels_last)
        for layer in list(self.conv)[1:]:
            x = channels_last(x, layer) if isinstance(layer, nn.Conv2d) else layer(x)
        return self.out_norm(after_channels_last(x, self.out))


class RelativeAttention(nn.Module):
    """Attention with Transformer-XL's relative positions.

        score(i, j) = (q_i / sqrt(d) + u) · k_j + (q_i / sqrt(d) + v) · W p(i - j)

    Unlike WeNet's, only the query is scaled, not the biases. What is kept of past frames are their keys and values,
    not, as upstream, the activations of which it computes them at every step.
    """

    wide_softmax = False
    fused = False

    def __init__(self, heads: int, width: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.in_proj = nn.Linear(width, 3 * width)  # query, key, value
        self.linear_pos = nn.Linear(width, width, bias=False)
        self.out_proj = nn.Linear(width, width)
        self.pos_bias_u = nn.Parameter(torch.randn(heads, self.size) * 0.01)
        self.pos_bias_v = nn.Parameter(torch.randn(heads, self.size) * 0.01)
        self.dropout = nn.Dropout(dropout)
        start_small(self.in_proj)
        start_small(self.linear_pos)
        start_small(self.out_proj, RESIDUAL_GAIN)

    def _split(self, x: Tensor, parts: int) -> Tensor:
        """(batch, frames, parts · heads · size) -> (parts, batch, heads, frames, size)."""
        return x.unflatten(-1, (parts, self.heads, self.size)).permute(2, 0, 3, 1, 4)

    def forward(self, x: Tensor, places: Tensor, mask: Tensor, past: Tensor | None) -> tuple[Tensor, Tensor]:
        """Attend from `x` (batch, frames, width) to `past` and itself.

        Args:
            places: (1, distances, width), position vectors of the distances cached + frames - 1 … -frames, or further
                (see `extra_distances`).
            mask: (batch, 1 or frames, cached + frames).
            past: (batch, heads, cached, 2 · size), key then value of earlier frames, or None for none.

        Returns:
            (batch, frames, width), and key then value of all frames, `past` in front.
        """
        if self.fused:
            return self._fused(x, places, mask, past)
        query, key, value = self._split(self.in_proj(x), 3).unbind(0)
        query = query * self.size**-0.5
        seen = torch.cat([key, value], dim=-1)
        if past is not None:
            seen = torch.cat([past, seen], dim=2)
        key, value = seen[..., : self.size], seen[..., self.size :]
        place = self._split(self.linear_pos(places), 1)[0]
        content = (query + self.pos_bias_u.unsqueeze(1)) @ key.transpose(-2, -1)
        distance = (query + self.pos_bias_v.unsqueeze(1)) @ place.transpose(-2, -1)
        scores = content + shifted(distance, key.shape[2])
        if self.wide_softmax:
            scores = as_dtype(scores, torch.float32)
        # A finite floor instead of -inf: a row without any key, which only padding can be, must not be NaN.
        scores = scores.masked_fill(~mask.unsqueeze(1), torch.finfo(scores.dtype).min)
        weights = self.dropout(as_dtype(torch.softmax(scores, dim=-1), value.dtype))
        return self.out_proj((weights @ value).transpose(1, 2).flatten(2)), seen

    def _fused(self, x: Tensor, places: Tensor, mask: Tensor, past: Tensor | None) -> tuple[Tensor, Tensor]:
        width = self.heads * self.size
        joined = F.linear(
            x, _keys_by_head(self.in_proj.weight, self.heads), _keys_by_head(self.in_proj.bias, self.heads)
        )
        query = joined[..., :width].unflatten(-1, (self.heads, self.size)) * self.size**-0.5
        seen = joined[..., width:].unflatten(-1, (self.heads, 2 * self.size)).transpose(1, 2)
        if past is not None:
            seen = torch.cat([past, seen], dim=2)
        key, value, keys = seen[..., : self.size], seen[..., self.size :], seen.shape[2]
        place = self.linear_pos(places)[0].unflatten(-1, (self.heads, self.size)).permute(1, 2, 0)
        # One product for each head, of all queries of the batch.
        asked = (query + self.pos_bias_v).permute(2, 0, 1, 3).flatten(1, 2)
        distance = (asked @ place).unflatten(1, (x.shape[0], -1)).transpose(0, 1)
        missing = extra_distances(keys)
        visible = F.pad(mask, (0, missing)).unsqueeze(1)
        added = torch.where(visible, shifted(distance, keys + missing), HIDDEN)[..., :keys]
        dropout = self.dropout.p if self.training else 0.0
        asking = (query + self.pos_bias_u).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(asking, key, value, added, dropout, scale=1.0)
        return self.out_proj(mixed.transpose(1, 2).flatten(2)), seen


def _keys_by_head(joined: Tensor, heads: int) -> Tensor:
    """Weights for query, key, value -> for query, and then key and value of each head."""
    width = joined.shape[0] // 3
    pairs = joined[width:].unflatten(0, (2, heads, -1)).transpose(0, 1).flatten(0, 2)
    return torch.cat([joined[:width], pairs])


class ConvolutionModule(nn.Module):
    """Pointwise, GLU, depthwise, pointwise; no norm. What the causal form keeps is the output of the GLU."""

    fused = False

    def __init__(self, width: int, kernel: int, causal: bool) -> None:
        super().__init__()
        self.kernel, self.causal = kernel, causal
        self.pointwise_conv1 = nn.Conv1d(width, 2 * width, 1)
        self.depthwise_conv = nn.Conv1d(width, width, kernel, groups=width, padding=0 if causal else (kernel - 1) // 2)
        self.activation = DoubleSwish()
        self.pointwise_conv2 = nn.Conv1d(width, width, 1)
        start_small(self.pointwise_conv1)
        start_small(self.depthwise_conv)
        start_small(self.pointwise_conv2, RESIDUAL_GAIN)

    def forward(self, x: Tensor, frame_mask: Tensor | None, past: Tensor | None) -> tuple[Tensor, Tensor]:
        """Take x (batch, frames, width), a factor for gated frames, and earlier ones (batch, kernel - 1, width).

        Returns:
            (batch, frames, width), and the gated frames, of the causal form with `past`, or zeros, in front.
        """
        x = F.glu(pointwise(x, self.pointwise_conv1), dim=-1)
        if frame_mask is not None:
            x = x * frame_mask
        if self.causal:
            x = F.pad(x, (0, 0, self.kernel - 1, 0)) if past is None else torch.cat([past, x], dim=1)
        gated = x
        x = x.transpose(1, 2)
        x = self.depthwise_conv(x) if self.fused else depthwise(x, self.depthwise_conv)
        x = self.activation(x.transpose(1, 2))
        return pointwise(x, self.pointwise_conv2), gated


def make_feed_forward(width: int, hidden: int, dropout: float) -> nn.Sequential:
    first, last = nn.Linear(width, hidden), nn.Linear(hidden, width)
    start_small(first)
    start_small(last, RESIDUAL_GAIN)
    return nn.Sequential(first, nn.Identity(), DoubleSwish(), nn.Dropout(dropout), last)


class ConformerLayer(nn.Module):
    """Feed-forward, attention, convolution, feed-forward, each added as it is; one norm at the end of all."""

    def __init__(self, heads: int, width: int, hidden: int, kernel: int, causal: bool, dropout: float) -> None:
        super().__init__()
        self.feed_forward_macaron = make_feed_forward(width, hidden, dropout)
        self.self_attn = RelativeAttention(heads, width, dropout)
        self.conv_module = ConvolutionModule(width, kernel, causal)
        self.feed_forward = make_feed_forward(width, hidden, dropout)
        self.norm_final = BasicNorm(learned=True)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        places: Tensor,
        mask: Tensor,
        frame_mask: Tensor | None,
        past_keys: Tensor | None,
        past_gated: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the output, and what `RelativeAttention` and `ConvolutionModule` say of the frames."""
        x = x + self.dropout(self.feed_forward_macaron(x))
        attended, seen = self.self_attn(x, places, mask, past_keys)
        x = x + self.dropout(attended)
        convolved, gated = self.conv_module(x, frame_mask, past_gated)
        x = x + self.dropout(convolved)
        x = x + self.dropout(self.feed_forward(x))
        return self.norm_final(x), seen, gated
