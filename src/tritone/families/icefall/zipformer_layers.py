"""Building blocks of zipformer2, with upstream's parameter names.

Activations are (batch, frames, width) throughout, attention weights (batch, heads, queries, keys). Method and names
follow egs/librispeech/ASR/zipformer/{zipformer,scaling}.py of icefall, in the form that evaluation has.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tritone.families.export.precision import as_dtype
from tritone.families.layers.convolution import depthwise

MASKED_SCORE = -1000.0  # upstream's score of a key that may not be seen
SWOOSH_SLOPE = 0.08
SWOOSH_L = (4.0, 0.035)  # shift inside of the softplus, constant taken off
SWOOSH_R = (1.0, 0.313261687)


def swoosh(x: Tensor) -> Tensor:
    """softplus(x - shift) - 0.08 (x - shift), of an `x` that has the shift taken off already.

    The biases of the layers around it do the rest for nothing: that of the layer before takes the shift off, and that
    of the layer after what is missing of the activation, `swoosh_rest`.
    """
    return F.softplus(x) - SWOOSH_SLOPE * x


def swoosh_rest(kind: tuple[float, float]) -> float:
    """What must still be taken off the result of `swoosh`."""
    shift, constant = kind
    return SWOOSH_SLOPE * shift + constant


def bias_after_swoosh(layer: nn.Linear | nn.Conv1d | nn.Conv2d, kind: tuple[float, float]) -> Tensor:
    """The bias of a layer that takes the result of `swoosh` as it is; a convolution must not pad it."""
    assert layer.bias is not None
    return layer.bias - swoosh_rest(kind) * layer.weight.flatten(1).sum(1)


def scaled_linear(inputs: int, outputs: int, scale: float, bias: bool = True) -> nn.Linear:
    """A linear layer whose initial weights are `scale` times the usual ones, as upstream starts from."""
    layer = nn.Linear(inputs, outputs, bias=bias)
    with torch.no_grad():
        layer.weight.mul_(scale)
        if bias:
            nn.init.uniform_(layer.bias, -0.1 * scale, 0.1 * scale)
    return layer


def relative_positions(queries: int, keys: int, width: int, device: torch.device) -> Tensor:
    """Position vectors (queries + keys, width) of key minus query, from 1 - keys up to queries.

    The distance is compressed by a logarithm, then by an arc tangent, and the angle expanded in a Fourier series; the
    last column is 1. Row `keys - 1` is distance 0. The last row is not needed by anybody but `shift_relative`.
    """
    root = math.sqrt(width)
    offset = torch.arange(1 - keys, queries + 1, device=device).to(torch.float32)
    compressed = root * offset.sign() * ((offset.abs() + root).log() - math.log(root))
    angle = torch.atan(compressed * (2.0 * math.pi / width)).unsqueeze(1)
    rates = torch.arange(1, width // 2 + 1, device=device).to(torch.float32)
    series = torch.stack([torch.cos(angle * rates), torch.sin(angle * rates)], dim=-1).flatten(1)
    return torch.cat([series[:, : width - 1], torch.ones_like(series[:, :1])], dim=1)


def shift_relative(scores: Tensor, keys: int) -> Tensor:
    """From scores by distance (…, queries, queries + keys) to scores by key (…, queries, keys).

    Key j of query i is column j + queries - 1 - i. In the flat array that is a step one column short of a row, so
    that two slices do what a gather would.
    """
    queries, columns = scores.shape[-2], scores.shape[-1]
    flat = scores.flatten(-2)[..., queries - 1 : queries - 1 + queries * (columns - 1)]
    return flat.unflatten(-1, (queries, columns - 1))[..., :keys]


class BiasNorm(nn.Module):
    """x · exp(log_scale) / rms(x - bias); x itself is not shifted.

    Computed in float32, since squares leave the range of float16.
    """

    in_float32 = True

    def __init__(self, width: int) -> None:
        super().__init__()
        self.root = math.sqrt(width)
        self.log_scale = nn.Parameter(torch.tensor(1.0))
        self.bias = nn.Parameter(torch.empty(width).normal_(mean=0.0, std=1e-4))

    def scale(self, x: Tensor) -> Tensor:
        """What each frame is multiplied by: (batch, frames, 1)."""
        distance = torch.linalg.vector_norm(as_dtype(x, torch.float32) - self.bias, dim=-1, keepdim=True)
        # upstream divides by zero where x equals the bias, which only padding can
        return as_dtype(self.root * self.log_scale.exp() / distance.clamp(min=1e-12), x.dtype)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale(x)


class Bypass(nn.Module):
    """before + (after - before) · bypass_scale, a scale per channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.bypass_scale = nn.Parameter(torch.full((width,), 0.5))

    def forward(self, before: Tensor, after: Tensor) -> Tensor:
        return before + (after - before) * self.bypass_scale


class FeedForward(nn.Module):
    def __init__(self, width: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.in_proj = nn.Linear(width, hidden)
        self.dropout = nn.Dropout(dropout)
        self.out_proj = scaled_linear(hidden, width, 0.1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.linear(x, self.in_proj.weight, self.in_proj.bias - SWOOSH_L[0])
        return F.linear(self.dropout(swoosh(hidden)), self.out_proj.weight, bias_after_swoosh(self.out_proj, SWOOSH_L))


class AttentionWeights(nn.Module):
    """Weights that all attentions of a layer share: softmax(q·k + p·position)."""

    def __init__(self, width: int, heads: int, query_size: int, position_size: int, position_width: int) -> None:
        super().__init__()
        self.heads, self.query_size, self.position_size = heads, query_size, position_size
        self.in_proj = scaled_linear(width, heads * (2 * query_size + position_size), query_size**-0.25)
        self.linear_pos = scaled_linear(position_width, heads * position_size, 0.05, bias=False)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys (batch, heads, frames, query_size), position queries (batch, heads, frames, position_size).

        There is no 1/sqrt(size): the initial scale stands in for it.
        """
        sizes = [self.heads * size for size in (self.query_size, self.query_size, self.position_size)]
        query, key, place = self.in_proj(x).split(sizes, dim=-1)
        return (
            query.unflatten(-1, (self.heads, self.query_size)).transpose(1, 2),
            key.unflatten(-1, (self.heads, self.query_size)).transpose(1, 2),
            place.unflatten(-1, (self.heads, self.position_size)).transpose(1, 2),
        )

    def forward(
        self, query: Tensor, key: Tensor, place: Tensor, positions: Tensor, key_bias: Tensor, mask: Tensor | None
    ) -> Tensor:
        """Softmax over keys.

        Args:
            query, place: as of `project`.
            key: (batch, heads, keys, query_size).
            positions: (queries + keys, position_width), see `relative_positions`.
            key_bias: (batch, 1, keys, 1), added to the scores of a key.
            mask: (queries, keys), False where a key may not be seen, or None.
        """
        # The bias of a key is one more column of it and a one in every query: no pass over all scores for it.
        query = F.pad(query, (0, 1), value=1.0)
        key = torch.cat([key, key_bias.expand(-1, self.heads, -1, -1)], dim=-1)
        table = self.linear_pos(as_dtype(positions, place.dtype)).unflatten(-1, (self.heads, self.position_size))
        scores = query @ key.transpose(-2, -1)
        scores = scores + shift_relative(place @ table.permute(1, 2, 0), key.shape[2])
        if mask is not None:
            scores = scores.masked_fill(~mask, MASKED_SCORE)
        return as_dtype(torch.softmax(as_dtype(scores, torch.float32), dim=-1), query.dtype)


class SelfAttention(nn.Module):
    """Values of `x`, mixed with weights that were computed elsewhere."""

    def __init__(self, width: int, heads: int, value_size: int) -> None:
        super().__init__()
        self.heads, self.value_size = heads, value_size
        self.in_proj = nn.Linear(width, heads * value_size)
        self.out_proj = scaled_linear(heads * value_size, width, 0.05)

    def value(self, x: Tensor) -> Tensor:
        """(batch, heads, frames, value_size)."""
        return self.in_proj(x).unflatten(-1, (self.heads, self.value_size)).transpose(1, 2)

    def forward(self, weights: Tensor, value: Tensor) -> Tensor:
        return self.out_proj((weights @ value).transpose(1, 2).flatten(2))


class NonlinAttention(nn.Module):
    """A gated unit between whose gates the frames are mixed, by the weights of the first head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.hidden = 3 * width // 4
        self.in_proj = nn.Linear(width, 3 * self.hidden)
        self.out_proj = scaled_linear(self.hidden, width, 0.05)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What is mixed and the gate after that, both (batch, frames, hidden)."""
        gate, mixed, after = self.in_proj(x).chunk(3, dim=-1)
        return mixed * torch.tanh(gate), after

    def forward(self, weights: Tensor, mixed: Tensor, after: Tensor) -> Tensor:
        """`weights` (batch, queries, keys)."""
        return self.out_proj((weights @ mixed) * after)


@dataclass(frozen=True)
class Chunks:
    """How a causal convolution is to divide the frames of a stack.

    size: frames of a chunk, -1 for one chunk that is the utterance.
    left, right: (frames of a chunk,) and (batch, frames of a chunk) int64, the columns of the two corrections of the
        scale that a frame takes; `kernel` stands for none. The chunk is one of size `right` knows, see `edges`.
    """

    size: int
    left: Tensor
    right: Tensor


class CausalDepthwiseConv(nn.Module):
    """A causal convolution plus one that sees all of the chunk a frame is in, but nothing beyond it.

    The second is scaled by a factor that depends on the distance from the edges of the chunk.
    """

    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        self.kernel = kernel
        self.causal_conv = nn.Conv1d(width, width, (kernel + 1) // 2, groups=width)
        self.chunkwise_conv = nn.Conv1d(width, width, kernel, groups=width, padding=kernel // 2)
        self.chunkwise_conv_scale = nn.Parameter(torch.zeros(2, width, kernel))
        assert self.causal_conv.bias is not None
        nn.init.uniform_(self.causal_conv.bias, -0.1, 0.1)

    @property
    def lead(self) -> int:
        """Frames of the past that the causal part sees."""
        return self.kernel // 2

    def whole_scale(self, size: int) -> Tensor:
        """Factors (width, size) in a chunk that is complete."""
        left, right = self.chunkwise_conv_scale
        if size < self.kernel:
            return 1.0 + left[:, :size] + right[:, self.kernel - size :]
        return 1.0 + F.pad(left, (0, size - self.kernel)) + F.pad(right, (size - self.kernel, 0))

    def scale(self, chunks: Chunks) -> Tensor:
        """Factors (batch, width, frames of a chunk); where they are beyond the end of a row, anything."""
        left, right = F.pad(self.chunkwise_conv_scale, (0, 1))
        return 1.0 + left[:, chunks.left] + right[:, chunks.right].transpose(0, 1)

    def forward(self, x: Tensor, chunks: Chunks, shift: float = 0.0) -> Tensor:
        """(batch, width, frames) to the same, minus `shift`; chunks divide the frames evenly."""
        causal = depthwise(F.pad(x, (self.lead, 0)), self.causal_conv, shift)
        if chunks.size < 0:
            return causal + depthwise(x, self.chunkwise_conv) * self.scale(chunks)
        batch, width = x.shape[:2]
        within = x.unflatten(2, (-1, chunks.size)).transpose(1, 2)
        within = depthwise(within.reshape(-1, width, chunks.size), self.chunkwise_conv).unflatten(0, (batch, -1))
        within = within * self.scale(chunks).unsqueeze(1)
        return causal + within.transpose(1, 2).flatten(2)

    def step(self, x: Tensor, past: Tensor, shift: float = 0.0) -> tuple[Tensor, Tensor]:
        """One chunk (batch, width, frames) with `past` (batch, width, lead); also returns the next past."""
        seen = torch.cat([past, x], dim=2)
        within = depthwise(x, self.chunkwise_conv) * self.whole_scale(x.shape[2])
        return depthwise(seen, self.causal_conv, shift) + within, seen[:, :, x.shape[2] :]


class ConvolutionModule(nn.Module):
    """Gated linear unit, depthwise convolution, SwooshR, projection."""

    def __init__(self, width: int, kernel: int, causal: bool) -> None:
        super().__init__()
        self.in_proj = nn.Linear(width, 2 * width)
        self.depthwise_conv: CausalDepthwiseConv | nn.Conv1d
        if causal:
            self.depthwise_conv = CausalDepthwiseConv(width, kernel)
        else:
            self.depthwise_conv = nn.Conv1d(width, width, kernel, groups=width, padding=kernel // 2)
        self.out_proj = scaled_linear(width, width, 0.05)

    def gate(self, x: Tensor) -> Tensor:
        return F.glu(self.in_proj(x), dim=-1)

    def finish(self, x: Tensor) -> Tensor:
        return F.linear(swoosh(x.transpose(1, 2)), self.out_proj.weight, bias_after_swoosh(self.out_proj, SWOOSH_R))

    def forward(self, x: Tensor, frame_mask: Tensor, chunks: Chunks | None) -> Tensor:
        """x (batch, frames, width), frame_mask (batch, frames, 1) of its type; chunks of causal models."""
        x = (self.gate(x) * frame_mask).transpose(1, 2)
        convolution, shift = self.depthwise_conv, SWOOSH_R[0]
        if isinstance(convolution, nn.Conv1d):
            return self.finish(depthwise(x, convolution, shift))
        assert chunks is not None
        return self.finish(convolution(x, chunks, shift))

    def step(self, x: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        assert isinstance(self.depthwise_conv, CausalDepthwiseConv)
        x, past = self.depthwise_conv.step(self.gate(x).transpose(1, 2), past, SWOOSH_R[0])
        return self.finish(x), past
