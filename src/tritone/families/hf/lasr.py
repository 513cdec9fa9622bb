"""LASR's encoder (MedASR), with upstream's parameter names.

    mel bands (batch, frames, bands), how many each row has (batch,)  ->  encoded (batch, T', width), how many (batch,)

A conformer with rotary positions, whose layers weigh what they add. Rows never depend on what follows their last frame.
Method and names: transformers, models/lasr/modeling_lasr.py.
"""

from torch import Tensor, nn
from torch.nn import functional as F

from tritone.families.export.precision import as_dtype
from tritone.families.hf.config import LasrConfig
from tritone.families.hf.conformer import gated
from tritone.families.hf.layers import ACTIVATIONS, Heads, before, hidden_keys
from tritone.families.layers.convolution import fold_batch_norm
from tritone.families.layers.framing import count_windows, cut_frames
from tritone.families.layers.rotary import rotary, rotated


class LasrSubsampling(nn.Module):
    """Two layers around two convolutions over frames, without padding; upstream's `subsampler`."""

    def __init__(self, config: LasrConfig) -> None:
        super().__init__()
        width, channels = config.hidden_size, config.subsampling_conv_channels
        self.kernel, self.stride = config.subsampling_conv_kernel_size, config.subsampling_conv_stride
        self.dense_0 = nn.Linear(config.num_mel_bins, width)
        self.conv_0 = nn.Conv1d(width, width, self.kernel, self.stride)
        self.conv_1 = nn.Conv1d(width, channels, self.kernel, self.stride)
        self.dense_1 = nn.Linear(channels, width)

    def forward(self, x: Tensor, frames: Tensor) -> tuple[Tensor, Tensor]:
        x = F.relu(self.dense_0(x))
        for layer in (self.conv_0, self.conv_1):
            channels = x.shape[2]
            windows = cut_frames(x.flatten(1), self.kernel * channels, self.stride * channels)
            x = F.relu(F.linear(windows, layer.weight.transpose(1, 2).flatten(1), layer.bias))
            frames = count_windows(frames, self.kernel, self.stride)
        return self.dense_1(x), frames


class LasrAttention(Heads):
    """Attention whose queries and keys are turned by their places."""

    def __init__(self, config: LasrConfig) -> None:
        width, biases = config.hidden_size, config.attention_bias
        super().__init__(width, config.num_attention_heads)
        self.q_proj = nn.Linear(width, width, bias=biases)
        self.k_proj = nn.Linear(width, width, bias=biases)
        self.v_proj = nn.Linear(width, width, bias=biases)
        self.o_proj = nn.Linear(width, width, bias=biases)

    def forward(self, x: Tensor, hidden: Tensor, angles: Tensor) -> Tensor:
        """Attend from (batch, frames, width) to itself; see `hidden_keys` and `rotary`."""
        query, key, value = (self.split(layer(x)) for layer in (self.q_proj, self.k_proj, self.v_proj))
        return self.o_proj(self.mix(rotated(query, angles), rotated(key, angles), value, hidden))


class LasrConvolution(nn.Module):
    """Pointwise, GLU, depthwise with a batch norm that `fold` makes part of it, activation, pointwise."""

    def __init__(self, config: LasrConfig) -> None:
        super().__init__()
        width, kernel, biases = config.hidden_size, config.conv_kernel_size, config.convolution_bias
        self.sides = ((kernel - 1) // 2, kernel // 2)
        self.pointwise_conv1 = nn.Conv1d(width, 2 * width, 1, bias=biases)
        self.depthwise_conv = nn.Conv1d(width, width, kernel, groups=width, bias=biases)
        self.norm: nn.Module = nn.BatchNorm1d(width)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.pointwise_conv2 = nn.Conv1d(width, width, 1, bias=biases)

    def fold(self) -> None:
        """Multiply the batch norm into the depthwise layer."""
        assert isinstance(self.norm, nn.BatchNorm1d)
        fold_batch_norm(self.depthwise_conv, self.norm)
        self.norm = nn.Identity()

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.norm(gated(x, mask, self.pointwise_conv1, self.depthwise_conv, self.sides)).transpose(1, 2)
        return F.linear(self.activation(x), self.pointwise_conv2.weight[:, :, 0], self.pointwise_conv2.bias)


class LasrFeedForward(nn.Module):
    def __init__(self, config: LasrConfig) -> None:
        super().__init__()
        self.linear1 = nn.Linear(config.hidden_size, config.intermediate_size, bias=config.attention_bias)
        self.linear2 = nn.Linear(config.intermediate_size, config.hidden_size, bias=config.attention_bias)
        self.activation = ACTIVATIONS[config.hidden_act]

    def forward(self, x: Tensor) -> Tensor:
        return self.linear2(self.activation(self.linear1(x)))


def _norm(config: LasrConfig) -> nn.LayerNorm:
    return nn.LayerNorm(config.hidden_size, config.layer_norm_eps, bias=False)


class LasrLayer(nn.Module):
    """Feed-forward, attention, convolution, feed-forward, each after a norm and added by weights; a norm at last."""

    def __init__(self, config: LasrConfig) -> None:
        super().__init__()
        self.norm_feed_forward1, self.feed_forward1 = _norm(config), LasrFeedForward(config)
        self.norm_self_att, self.self_attn = _norm(config), LasrAttention(config)
        self.norm_conv, self.conv = _norm(config), LasrConvolution(config)
        self.norm_feed_forward2, self.feed_forward2 = _norm(config), LasrFeedForward(config)
        self.norm_out = _norm(config)
        self.weights, self.conv_weights = config.feed_forward_residual_weights, config.conv_residual_weights

    def forward(self, x: Tensor, hidden: Tensor, mask: Tensor, angles: Tensor) -> Tensor:
        kept, added = self.weights
        x = kept * x + added * self.feed_forward1(self.norm_feed_forward1(x))
        x = x + self.self_attn(self.norm_self_att(x), hidden, angles)
        x = self.conv_weights[0] * x + self.conv_weights[1] * self.conv(self.norm_conv(x), mask)
        x = kept * x + added * self.feed_forward2(self.norm_feed_forward2(x))
        return self.norm_out(x)


class LasrEncoder(nn.Module):
    """Layers and a norm."""

    def __init__(self, config: LasrConfig) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(LasrLayer(config) for _ in range(config.num_hidden_layers))
        self.out_norm = _norm(config)

    def forward(self, x: Tensor, frames: Tensor) -> Tensor:
        """Encode (batch, frames, width) of which each row has `frames` (batch,) int64."""
        mask = before(frames, x)
        size = self.config.hidden_size // self.config.num_attention_heads
        angles = as_dtype(rotary(x.shape[1], size, self.config.rotary.rope_theta, x.device), x.dtype)
        hidden = hidden_keys(mask, x.dtype)
        for layer in self.layers:
            x = layer(x, hidden, mask, angles)
        return self.out_norm(x)
