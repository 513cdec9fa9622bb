"""Building blocks of FunASR's encoders, with upstream's parameter names.

Activations are (batch, frames, width) throughout. Method and names follow funasr/models/sanm/{attention,encoder}.py
and funasr/models/sense_voice/model.py.
"""

import math
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tritone.families.export.checkpoint import require_fit
from tritone.families.export.precision import as_dtype
from tritone.families.funasr.config import EncoderConfig
from tritone.families.layers.attention import HIDDEN

Network = TypeVar("Network", bound=nn.Module)


def fitted(make: Callable[[], Network], state: Mapping[str, Tensor], origin: str, what: str) -> Network:
    """A network in float32, ready for inference, with the tensors of a checkpoint; arguments as of `require_fit`.

    Raises:
        ExportError: tensors are missing, misshapen, not finite or unknown.
    """
    with torch.device("meta"):  # the sizes are a stranger's; memory is taken by tensors that are there
        network = make()
    wanted = {name: tuple(value.shape) for name, value in network.state_dict().items()}
    require_fit(wanted, state, origin, what)
    network.load_state_dict({name: value.float() for name, value in state.items()}, assign=True)
    return network.requires_grad_(False).eval()


def positions(places: Tensor, width: int) -> Tensor:
    """Position vectors (…, width) float32 of places (…) int64, the first of which is 1: all sines, then all cosines."""
    half = width // 2
    numbers = torch.arange(half, dtype=torch.float32, device=places.device)
    rates = torch.exp(numbers * -(math.log(10000.0) / (half - 1)))
    angles = places.to(torch.float32).unsqueeze(-1) * rates
    return torch.cat([torch.sin(angles), torch.cos(angles)], dim=-1)


class Memory(nn.Module):
    """A depthwise convolution over frames added to what goes in; frames that are none count as zeros (FSMN)."""

    def __init__(self, width: int, kernel: int, shift: int) -> None:
        super().__init__()
        self.fsmn_block = nn.Conv1d(width, width, kernel, groups=width, bias=False)
        left = (kernel - 1) // 2 + shift
        self.sides = (left, kernel - 1 - left)

    def memory(self, x: Tensor, valid: Tensor) -> Tensor:
        """Of x (batch, frames, width); `valid` (batch, frames, 1), 1 where a row has a frame and else 0."""
        x = x * valid
        return (self.convolved(F.pad(x.transpose(1, 2), self.sides)) + x) * valid

    def convolved(self, padded: Tensor) -> Tensor:
        """The convolution of (batch, width, frames and what is beside them), as (batch, frames, width)."""
        # In two dimensions: of these onnxruntime has kernels that take several channels at once.
        weight = self.fsmn_block.weight.unsqueeze(2)
        return F.conv2d(padded.unsqueeze(2), weight, groups=self.fsmn_block.groups).squeeze(2).transpose(1, 2)


class SanmAttention(Memory):
    """Attention of heads, plus the memory of its values."""

    wide_softmax = False
    fused = False

    def __init__(self, size: int, config: EncoderConfig) -> None:
        super().__init__(config.output_size, config.kernel, config.shift)
        self.heads, self.size = config.heads, config.output_size // config.heads
        self.linear_q_k_v = nn.Linear(size, 3 * config.output_size)
        self.linear_out = nn.Linear(config.output_size, config.output_size)

    def forward(self, x: Tensor, hidden: Tensor, valid: Tensor, past: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Attend to x (batch, frames, width) and what was before it.

        Args:
            hidden: (batch, 1, 1, keys), added to scores.
            valid: see `memory`.
            past: keys beside values (batch, frames, 2 · width) of frames before x.

        Returns:
            (batch, frames, width), and keys beside values of x.
        """
        found, width = self.linear_q_k_v(x), self.heads * self.size
        query, key_value = found[..., :width], found[..., width:]
        mixed = attend(query, key_value if past is None else torch.cat([past, key_value], dim=1), hidden, self)
        return self.linear_out(mixed) + self.memory(key_value[..., width:], valid), key_value


class Attending(Protocol):
    """How a module computes attention: `fused`, by one operator; `wide_softmax`, in float32; `heads` of `size`."""

    fused: bool
    wide_softmax: bool
    heads: int
    size: int


def attention_weights(query: Tensor, key: Tensor, hidden: Tensor, form: Attending) -> Tensor:
    """Weights (batch, heads, queries, keys) of queries and keys (batch, heads, …, size), where nothing is fused."""
    scores = (query * form.size**-0.5) @ key.transpose(-2, -1) + hidden
    if form.wide_softmax:
        scores = as_dtype(scores, torch.float32)
    return torch.softmax(scores, dim=-1)


def by_head(x: Tensor, form: Attending) -> Tensor:
    """(batch, length, width) as (batch, heads, length, size)."""
    return x.unflatten(-1, (form.heads, form.size)).transpose(1, 2)


def attend(query: Tensor, key_value: Tensor, hidden: Tensor, form: Attending) -> Tensor:
    """Scaled dot-product attention (batch, queries, width) in the form of a module.

    Args:
        query: (batch, queries, width).
        key_value: (batch, keys, 2 · width), keys beside values.
        hidden: (batch, 1, 1, keys), added to scores.
    """
    query, key, value = (by_head(each, form) for each in (query, *key_value.chunk(2, dim=-1)))
    if form.fused:
        return F.scaled_dot_product_attention(query, key, value, hidden).transpose(1, 2).flatten(2)
    weights = attention_weights(query, key, hidden, form)
    return (as_dtype(weights, value.dtype) @ value).transpose(1, 2).flatten(2)


class FeedForward(nn.Module):
    """Two linear layers with a ReLU between."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.w_1, self.w_2 = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.w_2(F.relu(self.w_1(x)))


class EncoderLayer(nn.Module):
    """Attention and feed-forward behind layer norms; what goes in is added where it has the width of the layer."""

    def __init__(self, size: int, config: EncoderConfig) -> None:
        super().__init__()
        self.self_attn = SanmAttention(size, config)
        self.feed_forward = FeedForward(config.output_size, config.hidden)
        self.norm1 = nn.LayerNorm(size, eps=config.norm_eps)
        self.norm2 = nn.LayerNorm(config.output_size, eps=config.norm_eps)
        self.is_residual = size == config.output_size

    def forward(self, x: Tensor, hidden: Tensor, valid: Tensor, past: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Arguments and results as of `SanmAttention`."""
        attended, key_value = self.self_attn(self.norm1(x), hidden, valid, past)
        x = x + attended if self.is_residual else attended
        return x + self.feed_forward(self.norm2(x)), key_value


class Encoder(nn.Module):
    """Rows of features to encoder frames. Results of a row do not depend on the padding behind it."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config, width = config, config.output_size
        self.encoders0 = nn.ModuleList([EncoderLayer(config.input_size, config)])
        self.encoders = nn.ModuleList(EncoderLayer(width, config) for _ in range(config.blocks - 1))
        self.after_norm = nn.LayerNorm(width, eps=config.norm_eps)

    @property
    def dtype(self) -> torch.dtype:
        """What it computes in."""
        first = self.encoders0[0]
        assert isinstance(first, EncoderLayer)
        return first.feed_forward.w_1.weight.dtype

    def forward(self, x: Tensor, frames: Tensor) -> Tensor:
        """Encode x (batch, frames, size) float32, of which each row has `frames` (batch,) int64."""
        places = torch.arange(1, x.shape[1] + 1, device=x.device)
        x = as_dtype(x * self.config.output_size**0.5 + positions(places, x.shape[2]), self.dtype)
        is_valid = torch.arange(x.shape[1], device=x.device) < frames.unsqueeze(1)
        valid = is_valid.unsqueeze(2).to(x.dtype)
        hidden = torch.where(is_valid, 0.0, HIDDEN).to(x.dtype)[:, None, None, :]
        for layer in (*self.encoders0, *self.encoders):
            x, _ = layer(x, hidden, valid)
        return self.behind(self.after_norm(x), hidden, valid)

    def behind(self, x: Tensor, hidden: Tensor, valid: Tensor) -> Tensor:
        """What follows the first norm."""
        return x


class EncoderInTwo(Encoder):
    """An encoder with further layers behind its norm, and a norm behind these (SenseVoice)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.tp_encoders = nn.ModuleList(EncoderLayer(config.output_size, config) for _ in range(config.after_blocks))
        self.tp_norm = nn.LayerNorm(config.output_size, eps=config.norm_eps)

    def behind(self, x: Tensor, hidden: Tensor, valid: Tensor) -> Tensor:
        for layer in self.tp_encoders:
            x, _ = layer(x, hidden, valid)
        return self.tp_norm(x)
