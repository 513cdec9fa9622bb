"""Building blocks of WeNet's encoders and decoders, with upstream's parameter names.

Activations are (batch, frames, width) throughout; masks are True where a position may be used. Method and names follow
wenet/transformer/{attention,convolution,positionwise_feed_forward,subsampling,embedding}.py.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tritone.families.export.precision import as_dtype
from tritone.families.layers.attention import HIDDEN
from tritone.families.layers.convolution import after_channels_last, channels_last, rectified_windows
from tritone.families.layers.framing import count_windows
from tritone.families.wenet.config import EncoderConfig

ACTIVATION_MODULES: dict[str, type[nn.Module]] = {
    "swish": nn.SiLU,
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "hardtanh": nn.Hardtanh,
    "tanh": nn.Tanh,
    "selu": nn.SELU,
}

# (kernel, stride) of each valid convolution, and the name upstream gives to the projection after them
SUBSAMPLING_LAYERS: dict[str, tuple[tuple[tuple[int, int], ...], str]] = {
    "conv2d": (((3, 2), (3, 2)), "out"),
    "conv2d6": (((3, 2), (5, 3)), "linear"),
    "conv2d8": (((3, 2), (3, 2), (3, 2)), "linear"),
}


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, dropout: nn.Dropout, wide: bool = False) -> Tensor:
    """Attention of heads (batch, heads, frames, size) under `mask` (broadcastable to batch, heads, queries, keys).

    The query is scaled already. A query that may see no key at all, which only padding can be, gets the mean of all
    values. `wide`: the softmax is float32 in the graph, as it is inside torch's kernels anyhow.
    """
    scores = query @ key.transpose(-2, -1)
    if wide:
        scores = as_dtype(scores, torch.float32)
    # A finite floor instead of -inf: a fully masked row would be NaN, and poison what it touches. Upstream clears such
    # rows with a second pass over all weights; their frames are undefined either way.
    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = torch.softmax(scores, dim=-1)
    mixed = dropout(as_dtype(weights, value.dtype)) @ value
    return mixed.transpose(1, 2).flatten(2)


class MultiHeadedAttention(nn.Module):
    """Scaled dot-product attention; with `relative`, WeNet's position term on the keys.

    WeNet scores ((q+u)·k + (q+v)·p) / sqrt(d) where p belongs to the *absolute* position of the key and is the same
    for every query (there is no relative shift). That equals q·(k+p) + (u·k + v·p), so a key is stored as
    [k+p, u·k + v·p] and a query as [q, 1]: one product instead of two, and the position projection of a cached key is
    never computed again. The fused form adds the second term to the mask, which leaves keys as wide as a head.
    """

    wide_softmax = False
    fused = False

    def __init__(
        self,
        heads: int,
        width: int,
        dropout: float,
        *,
        relative: bool = False,
        biases: tuple[bool, bool, bool] = (True, True, True),
    ) -> None:
        super().__init__()
        self.heads, self.size, self.relative = heads, width // heads, relative
        self.linear_q = nn.Linear(width, width, bias=biases[0])
        self.linear_k = nn.Linear(width, width, bias=biases[1])
        self.linear_v = nn.Linear(width, width, bias=biases[2])
        self.linear_out = nn.Linear(width, width, bias=biases[0])
        self.dropout = nn.Dropout(dropout)
        if relative:
            self.linear_pos = nn.Linear(width, width, bias=False)
            self.pos_bias_u = nn.Parameter(torch.zeros(heads, self.size))
            self.pos_bias_v = nn.Parameter(torch.zeros(heads, self.size))
            nn.init.xavier_uniform_(self.pos_bias_u)
            nn.init.xavier_uniform_(self.pos_bias_v)

    @property
    def key_size(self) -> int:
        """Columns of a stored key."""
        return self.size + 1 if self.relative else self.size

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, self.size)).transpose(1, 2)

    def query(self, x: Tensor) -> Tensor:
        query = self._split(self.linear_q(x)) * self.size**-0.5
        if self.relative:
            ones = torch.full_like(query[..., :1], self.size**-0.5)
            query = torch.cat([query, ones], dim=-1)
        return query

    def key_value(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """Keys then values of `x` along the last axis: (batch, heads, frames, key_size + size)."""
        if self.fused and not self.relative:
            layers = self.linear_k, self.linear_v
            weight = torch.cat([layer.weight.unflatten(0, (self.heads, self.size)) for layer in layers], dim=1)
            bias = torch.cat([_bias(layer).unflatten(0, (self.heads, self.size)) for layer in layers], dim=1)
            return F.linear(x, weight.flatten(0, 1), bias.flatten()).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        key, value = self._split(self.linear_k(x)), self._split(self.linear_v(x))
        if self.relative:
            place = self._split(self.linear_pos(positions))
            bias = key @ self.pos_bias_u.unsqueeze(-1) + place @ self.pos_bias_v.unsqueeze(-1)
            key = torch.cat([key + place, bias], dim=-1)
        return torch.cat([key, value], dim=-1)

    def forward(self, x: Tensor, key_value: Tensor, mask: Tensor) -> Tensor:
        """Attend from `x` to what `key_value` returned, under a mask (batch or 1, frames or 1, keys)."""
        key, value = key_value[..., : self.key_size], key_value[..., self.key_size :]
        if self.fused and not self.relative:
            return self._fused(self._split(self.linear_q(x)), key, value, None, mask)
        return self.linear_out(attend(self.query(x), key, value, mask.unsqueeze(1), self.dropout, self.wide_softmax))

    def attend_self(self, x: Tensor, positions: Tensor, mask: Tensor, past: Tensor | None) -> tuple[Tensor, Tensor]:
        """Attend from `x` to `past`, stored keys and values of earlier frames, and itself.

        Returns:
            (batch, frames, width), and keys and values of `x` as they are stored.
        """
        if self.fused and self.relative:
            return self._attend_relative(x, positions, mask, past)
        key_value = self.key_value(x, positions)
        seen = key_value if past is None else torch.cat([past, key_value], dim=2)
        return self(x, seen, mask), key_value

    def _attend_relative(
        self, x: Tensor, positions: Tensor, mask: Tensor, past: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        width = self.heads * self.size
        joined = F.linear(x, *self._joined())
        query, key, value = (self._split(joined[..., part * width : (part + 1) * width]) for part in range(3))
        place = self._split(self.linear_pos(positions))
        key = key + place
        scaled = (self.pos_bias_v * self.size**-0.5).unsqueeze(-1)
        bias = joined[..., 3 * width : 3 * width + self.heads].transpose(1, 2) + (place @ scaled).squeeze(-1)
        bias = bias.contiguous()  # else it is laid out by frames, and no fused kernel of attention takes that
        # Unscaled, as the plain form stores it: both forms may continue a stream.
        stored = torch.cat([key, (bias * self.size**0.5).unsqueeze(-1), value], dim=-1)
        if past is not None:
            # One by one, so that each is laid out as kernels of attention want it.
            key = torch.cat([past[..., : self.size], key], dim=2)
            value = torch.cat([past[..., self.size + 1 :], value], dim=2)
            bias = torch.cat([past[..., self.size] * self.size**-0.5, bias], dim=2)
        return self._fused(query, key, value, bias, mask), stored

    def _joined(self) -> tuple[Tensor, Tensor]:
        """Weight and bias of one layer for query, key, value, and u·k / sqrt(d) of each head.

        Rows of zeros make the number of outputs a multiple of 8, which tensor cores ask for.
        """
        scaled = (self.pos_bias_u.float() * self.size**-0.5).unsqueeze(1)
        heads, dtype = (self.heads, self.size), self.pos_bias_u.dtype
        content = (scaled @ self.linear_k.weight.float().unflatten(0, heads)).squeeze(1)
        offset = (scaled @ _bias(self.linear_k).float().unflatten(0, heads).unsqueeze(-1)).flatten()
        content = as_dtype(F.pad(content, (0, 0, 0, -self.heads % 8)), dtype)
        offset = as_dtype(F.pad(offset, (0, -self.heads % 8)), dtype)
        layers = self.linear_q, self.linear_k, self.linear_v
        weight = torch.cat([*(layer.weight for layer in layers), content])
        return weight, torch.cat([*map(_bias, layers), offset])

    def _fused(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, mask: Tensor) -> Tensor:
        """Attention as one operator, and the layer after it; `bias` (batch, heads, keys) is added to the scores."""
        visible = mask.unsqueeze(1)
        added = torch.zeros_like(visible, dtype=query.dtype) if bias is None else bias.unsqueeze(2)
        added = torch.where(visible, added, HIDDEN)
        dropout = self.dropout.p if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, added, dropout)
        return self.linear_out(mixed.transpose(1, 2).flatten(2))


def _bias(layer: nn.Linear) -> Tensor:
    return layer.weight.new_zeros(layer.out_features) if layer.bias is None else layer.bias


class PositionwiseFeedForward(nn.Module):
    def __init__(self, width: int, hidden: int, dropout: float, activation: str) -> None:
        super().__init__()
        self.w_1 = nn.Linear(width, hidden)
        self.activation = ACTIVATION_MODULES[activation]()
        self.dropout = nn.Dropout(dropout)
        self.w_2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.w_2(self.dropout(self.activation(self.w_1(x))))


class ConvolutionModule(nn.Module):
    """Pointwise, GLU, depthwise, norm, activation, pointwise.

    Causal form: `cache` (batch, kernel - 1, width), the last inputs, goes in front *before* the first pointwise layer,
    because that layer has a bias and zeros do not stay zeros through it.
    """

    def __init__(self, width: int, kernel: int, activation: str, norm: str, causal: bool, eps: float) -> None:
        super().__init__()
        self.causal, self.kernel = causal, kernel
        self.pointwise_conv1 = nn.Conv1d(width, 2 * width, 1)
        self.depthwise_conv = nn.Conv1d(width, width, kernel, padding=0 if causal else (kernel - 1) // 2, groups=width)
        self.norm = nn.BatchNorm1d(width, eps=eps) if norm == "batch_norm" else nn.LayerNorm(width, eps=eps)
        self.activation = ACTIVATION_MODULES[activation]()
        self.pointwise_conv2 = nn.Conv1d(width, width, 1)

    def forward(
        self, x: Tensor, mask: Tensor, cache: Tensor | None, upstream_padding: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Take x (batch, frames, width), mask (batch, frames, 1), cache None for zeros; return x and the next cache."""
        if upstream_padding:
            x = x * mask
        if self.causal:
            lead = self.kernel - 1
            x = F.pad(x, (0, 0, lead, 0)) if cache is None else torch.cat([cache, x], dim=1)
            cache = x[:, x.shape[1] - lead :]
        # a convolution of kernel 1 is a product per frame, and that needs no transpose
        x = F.glu(F.linear(x, self.pointwise_conv1.weight[:, :, 0], self.pointwise_conv1.bias), dim=-1)
        if not self.causal and not upstream_padding:
            # Upstream lets GLU(bias) of padded frames into the window of the last real ones, so that a result depends
            # on the batch. Cleared here, every utterance gets what it gets alone.
            x = x * mask
        x = self.depthwise_conv(x.transpose(1, 2))
        x = self.norm(x).transpose(1, 2) if isinstance(self.norm, nn.BatchNorm1d) else self.norm(x.transpose(1, 2))
        return F.linear(self.activation(x), self.pointwise_conv2.weight[:, :, 0], self.pointwise_conv2.bias), cache


class Subsampling(nn.Module):
    """Valid 2-D convolutions with ReLU, then a projection; frame j sees inputs rate·j … rate·j + right_context.

    The fused form has channels last. Its first convolution, of a single channel, is a product with all windows.
    """

    fused = False

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.layers, self._projection = SUBSAMPLING_LAYERS[config.input_layer]
        width, bins, channels = config.output_size, config.input_dim, 1
        convolutions: list[nn.Module] = []
        self.rate, self.right_context = 1, 0
        for kernel, stride in self.layers:
            convolutions += [nn.Conv2d(channels, width, kernel, stride), nn.ReLU()]
            channels, bins = width, (bins - kernel) // stride + 1
            self.right_context += (kernel - 1) * self.rate
            self.rate *= stride
        self.conv = nn.Sequential(*convolutions)
        projection = nn.Linear(width * bins, width)
        if self._projection == "out":
            self.out = nn.Sequential(projection)
        else:
            self.linear = projection

    def num_frames(self, lengths: Tensor) -> Tensor:
        for kernel, stride in self.layers:
            lengths = count_windows(lengths, kernel, stride)
        return lengths

    def forward(self, x: Tensor) -> Tensor:
        projection = self.out[0] if self._projection == "out" else self.linear
        assert isinstance(projection, nn.Linear)
        if not self.fused:
            return projection(self.conv(x.unsqueeze(1)).transpose(1, 2).flatten(2))
        first, _, *others = self.conv
        assert isinstance(first, nn.Conv2d)
        x = rectified_windows(x, first)
        for layer in others:
            x = channels_last(x, layer) if isinstance(layer, nn.Conv2d) else layer(x)
        return after_channels_last(x, projection)
