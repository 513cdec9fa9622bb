"""Transducers with the operators that icefall's export-onnx scripts write: what published models of sherpa-onnx run.

    with upstream_operators(): write_sherpa_layout(network, folder, tokens)

The networks compute the same. Ours differ in how: one form of a zipformer's activation whose constants are in biases
around it, depthwise convolutions in two dimensions, pointwise ones as products, and positions and paddings of attention
without gathers and masks. Source: icefall, as it is when it is traced (`torch.jit.is_tracing()`):
egs/librispeech/ASR/zipformer/{zipformer,scaling,subsampling}.py (`SwooshLForward`, `SwooshLOnnx`), and
egs/librispeech/ASR/pruned_transducer_stateless5/{conformer,scaling}.py for whole utterances of conformers.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from torch import Tensor, nn
from torch.nn import functional as F

from tritone.families.icefall import layers, zipformer_layers
from tritone.families.icefall.zipformer_embed import ConvNeXt, Subsampling
from tritone.families.icefall.zipformer_layers import (
    MASKED_SCORE,
    SWOOSH_L,
    SWOOSH_R,
    SWOOSH_SLOPE,
    AttentionWeights,
    BiasNorm,
    CausalDepthwiseConv,
    Chunks,
    ConvolutionModule,
    FeedForward,
)


@contextlib.contextmanager
def upstream_operators() -> Iterator[None]:
    """Have zipformers, and conformers on whole utterances, compute as upstream's do while they are traced."""
    methods = [
        (FeedForward, "forward", _feed_forward),
        (ConvolutionModule, "forward", _convolution),
        (ConvolutionModule, "step", _convolution_step),
        (AttentionWeights, "forward", _attention),
        (BiasNorm, "scale", _norm_scale),
        (ConvNeXt, "_finish", _convnext),
        (Subsampling, "_convolve", _convolve),
        (Subsampling, "_project", _project),
        (zipformer_layers, "depthwise", _depthwise),
        (layers.ConvolutionModule, "forward", _conformer_convolution),
        (layers.RelativeAttention, "forward", _relative_attention),
        (layers.BasicNorm, "forward", _basic_norm),
    ]
    with contextlib.ExitStack() as stack:
        for owner, name, replacement in methods:
            stack.enter_context(mock.patch.object(owner, name, replacement))
        yield


def quantise_as_published(path: Path) -> Path:
    """Write a graph's int8 form beside it, as icefall's export does, and return its path."""
    narrow = path.with_suffix(".int8.onnx")
    quantize_dynamic(path, narrow, op_types_to_quantize=["MatMul"], weight_type=QuantType.QInt8)
    return narrow


def _swoosh_forward(x: Tensor, kind: tuple[float, float]) -> Tensor:
    """`SwooshLForward` and `SwooshRForward`, of the layers."""
    shift, constant = kind
    offset = x - shift
    total = (1.0 + offset.exp()).log()
    total = torch.where(total == float("inf"), offset, total)
    return total - SWOOSH_SLOPE * x - constant


def _swoosh_module(x: Tensor, kind: tuple[float, float]) -> Tensor:
    """`SwooshLOnnx` and `SwooshROnnx`, of the front end."""
    shift, constant = kind
    zero, offset = torch.zeros(()), x - shift
    total = torch.max(zero, offset) + torch.log1p(torch.exp(-torch.abs(zero - offset)))
    return total - SWOOSH_SLOPE * x - constant


def _feed_forward(self: FeedForward, x: Tensor) -> Tensor:
    return self.out_proj(_swoosh_forward(self.in_proj(x), SWOOSH_L))


def _convolution(self: ConvolutionModule, x: Tensor, frame_mask: Tensor, chunks: Chunks | None) -> Tensor:
    x = self.gate(x).masked_fill(frame_mask == 0, 0.0).transpose(1, 2)
    convolution = self.depthwise_conv
    if isinstance(convolution, CausalDepthwiseConv):
        assert chunks is not None
        x = convolution(x, chunks)
    else:
        x = convolution(x)
    return self.out_proj(_swoosh_forward(x.transpose(1, 2), SWOOSH_R))


def _convolution_step(self: ConvolutionModule, x: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
    assert isinstance(self.depthwise_conv, CausalDepthwiseConv)
    x, past = self.depthwise_conv.step(self.gate(x).transpose(1, 2), past)
    return self.out_proj(_swoosh_forward(x.transpose(1, 2), SWOOSH_R)), past


def _attention(
    self: AttentionWeights,
    query: Tensor,
    key: Tensor,
    place: Tensor,
    positions: Tensor,
    key_bias: Tensor,
    mask: Tensor | None,
) -> Tensor:
    scores = query @ key.transpose(-2, -1)
    table = self.linear_pos(positions[:-1]).unflatten(-1, (self.heads, self.position_size))
    by_distance = place @ table.permute(1, 2, 0)
    batch, heads, queries, columns = by_distance.shape
    rows = torch.arange(queries - 1, -1, -1).repeat(batch * heads).unsqueeze(-1)
    indexes = rows + torch.arange(key.shape[2])
    scores = scores + by_distance.reshape(-1, columns).gather(1, indexes).reshape(batch, heads, queries, -1)
    if mask is not None:
        scores = scores.masked_fill(~mask, MASKED_SCORE)
    return torch.softmax(scores.masked_fill(key_bias.transpose(2, 3) < 0, MASKED_SCORE), dim=-1)


def _norm_scale(self: BiasNorm, x: Tensor) -> Tensor:
    return torch.mean((x - self.bias) ** 2, dim=-1, keepdim=True) ** -0.5 * self.log_scale.exp()


def _depthwise(x: Tensor, layer: nn.Conv1d, shift: float = 0.0) -> Tensor:
    return layer(x)


def _convnext(self: ConvNeXt, x: Tensor, mixed: Tensor) -> Tensor:
    return x + self.pointwise_conv2(_swoosh_module(self.pointwise_conv1(mixed), SWOOSH_L))


def _convolve(self: Subsampling, feats: Tensor) -> Tensor:
    x = feats.unsqueeze(1)
    for layer in self.conv.values():
        x = _swoosh_module(layer(x), SWOOSH_R)
    return x


def _project(self: Subsampling, x: Tensor) -> Tensor:
    return self.out_norm(self.out(x.transpose(1, 2).flatten(2)))


def _conformer_convolution(
    self: layers.ConvolutionModule, x: Tensor, frame_mask: Tensor | None, past: Tensor | None
) -> tuple[Tensor, Tensor]:
    assert frame_mask is not None, "upstream's operators are those for whole utterances"
    x = F.glu(self.pointwise_conv1(x.transpose(1, 2)), dim=1).masked_fill(frame_mask.transpose(1, 2) == 0, 0.0)
    gated = F.pad(x, (self.kernel - 1, 0)) if self.causal else x
    x = self.pointwise_conv2(self.activation(self.depthwise_conv(gated)))
    return x.transpose(1, 2), gated.transpose(1, 2)


def _relative_attention(
    self: layers.RelativeAttention, x: Tensor, places: Tensor, mask: Tensor, past: Tensor | None
) -> tuple[Tensor, Tensor]:
    assert past is None, "upstream's operators are those for whole utterances"
    query, key, value = self.in_proj(x).unflatten(-1, (3, self.heads, self.size)).unbind(2)
    query, key, value = query * self.size**-0.5, key.permute(0, 2, 3, 1), value.transpose(1, 2)
    table = self.linear_pos(places[:, :-1]).unflatten(-1, (self.heads, self.size)).permute(0, 2, 3, 1)
    content = (query + self.pos_bias_u).transpose(1, 2) @ key
    by_distance = (query + self.pos_bias_v).transpose(1, 2) @ table
    batch, heads, queries, columns = by_distance.shape
    rows = torch.arange(queries - 1, -1, -1).repeat(batch * heads).unsqueeze(-1)
    indexes = rows + torch.arange(queries)
    scores = content + by_distance.reshape(-1, columns).gather(1, indexes).reshape(content.shape)
    weights = torch.softmax(scores.masked_fill(~mask.unsqueeze(1), float("-inf")), dim=-1)
    return self.out_proj((weights @ value).transpose(1, 2).flatten(2)), x


def _basic_norm(self: layers.BasicNorm, x: Tensor) -> Tensor:
    return x * (torch.mean(x**2, dim=-1, keepdim=True) + self.eps.exp()) ** -0.5
