"""Convolutions as kernels want them: 2-D ones with channels last for tensor cores, depthwise ones for onnxruntime.

With channels last, tensors stay (batch, channels, frames, bins) by their axes; their memory is (batch, frames, bins,
channels). That is for the fused forms of networks.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def channels_last(x: Tensor, layer: nn.Conv2d) -> Tensor:
    """A convolution without padding."""
    weight = layer.weight.contiguous(memory_format=torch.channels_last)
    return F.conv2d(x, weight, layer.bias, layer.stride)


def rectified_windows(x: Tensor, layer: nn.Conv2d) -> Tensor:
    """A convolution without padding of (batch, frames, bins), the only channel, and its ReLU.

    It is one product with all windows, which applies the ReLU to what it writes: the largest tensor of a network.
    """
    (tall, wide), (down, across) = layer.kernel_size, layer.stride
    padding = -tall * wide % 8  # zeros, for tensor cores
    windows = F.pad(x.unfold(1, tall, down).unfold(2, wide, across).flatten(3), (0, padding))
    assert layer.bias is not None
    weight = F.pad(layer.weight.flatten(1), (0, padding))
    found: Tensor = torch._addmm_activation(layer.bias, windows.flatten(0, 2), weight.transpose(0, 1))
    return found.unflatten(0, windows.shape[:3]).permute(0, 3, 1, 2)


def after_channels_last(x: Tensor, layer: nn.Linear) -> Tensor:
    """A layer for (batch, frames, channels · bins), the channels in front, of (batch, channels, frames, bins)."""
    weight = layer.weight.unflatten(1, (x.shape[1], -1)).transpose(1, 2).flatten(1)
    return F.linear(x.permute(0, 2, 3, 1).flatten(2), weight, layer.bias)


def for_tensor_cores(x: Tensor) -> Tensor:
    """Activations with channels last in half precisions, and as they are in float32, whose kernels want them first.

    What follows keeps the layout. Else every convolution is surrounded by two that only change it.
    """
    return x if x.dtype == torch.float32 else x.contiguous(memory_format=torch.channels_last)


def depthwise(x: Tensor, layer: nn.Conv1d, shift: float = 0.0) -> Tensor:
    """A depthwise convolution of (batch, width, frames), minus `shift`.

    As one in two dimensions: of these onnxruntime has kernels that take several channels at once, 3 times as fast for
    whole utterances and 10 times for chunks.
    """
    side = layer.padding[0]
    assert isinstance(side, int)
    assert layer.bias is not None or not shift
    bias, weight = None if layer.bias is None else layer.bias - shift, layer.weight.unsqueeze(2)
    stride = (1, layer.stride[0])
    return F.conv2d(x.unsqueeze(2), weight, bias, stride, padding=(0, side), groups=layer.groups).squeeze(2)


def fold_batch_norm(layer: nn.Conv1d, norm: nn.BatchNorm1d) -> None:
    """Make a batch norm behind a convolution a part of it, in float64."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = norm.weight.double() * torch.rsqrt(norm.running_var.double() + norm.eps)
    bias = 0.0 if layer.bias is None else layer.bias.double()
    shift = (bias - norm.running_mean.double()) * scale + norm.bias.double()
    layer.weight = nn.Parameter((layer.weight.double() * scale[:, None, None]).float(), requires_grad=False)
    layer.bias = nn.Parameter(shift.float(), requires_grad=False)
