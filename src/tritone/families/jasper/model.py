"""The network, ready to run: batch norms are part of the convolutions before them.

    features (batch, bins, 1, frames), frames of each row  ->  log_probs, frames, encoded (batch, channels, 1, frames)

Made of upstream's tensors by `Network.of`, in float64 where numbers are folded. Upstream zeroes what is behind a row's
end before every convolution. Here that is done before those that look at more than one frame: of all others, frames
behind the end have no influence on those before it. The branches of a block's inputs are one convolution of them all.

Frames are the width of images one pixel high: onnxruntime has kernels for these that it has not for signals, a few per
cent faster with large weights and five times with a convolution for each channel.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tritone.families.export.precision import as_dtype
from tritone.families.jasper.config import BlockConfig, ModelConfig
from tritone.families.jasper.names import branch_names, convolution_names
from tritone.families.layers.convolution import for_tensor_cores
from tritone.families.layers.framing import count_windows

BATCH_NORM_GUARD = 1e-3  # upstream's epsilon
GROUP_NORM_GUARD = 1e-5
ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "hardtanh": F.hardtanh, "selu": F.selu}


@dataclass(frozen=True)
class Rows:
    """How long each row is at some layer, (batch,) int64 each.

    `valid`: what is at or behind it is zeroed before a convolution. `own`: of the frames that are results. `block`:
    frames that the row has alone, upstream's padding included; norms over frames count all of these.
    `mask`: (batch, 1, 1, frames), 1 before `valid` and 0 from there on.
    """

    valid: Tensor
    own: Tensor
    block: Tensor
    mask: Tensor

    @classmethod
    def starting(cls, x: Tensor, valid: Tensor, own: Tensor, block: Tensor) -> "Rows":
        """The rows of features (batch, bins, 1, frames)."""
        return cls(valid, own, block, before(valid, x))


def before(end: Tensor, x: Tensor) -> Tensor:
    """(batch, 1, 1, frames) in the type of `x`: 1 where a frame is before the `end` of its row, else 0."""
    return (torch.arange(x.shape[3], device=x.device) < end.unsqueeze(1)).unsqueeze(1).unsqueeze(1).to(x.dtype)


class Convolution(nn.Module):
    """A convolution over frames, of (batch, channels, 1, frames).

    Args:
        weight: (filters, channels of a group, kernel).
        bias: (filters,).
        stride, dilation, padding, groups: as of torch's convolutions, in frames.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        *,
        stride: int = 1,
        dilation: int = 1,
        padding: int = 0,
        groups: int = 1,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.float().unsqueeze(2).contiguous(), requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias.float().contiguous(), requires_grad=False)
        self.stride, self.dilation, self.padding, self.groups = stride, dilation, padding, groups

    @property
    def width(self) -> int:
        """Frames that one of the result is made of, with those between them."""
        return (self.weight.shape[3] - 1) * self.dilation + 1

    @property
    def keeps_frames(self) -> bool:
        """Whether there are as many frames after it as before it."""
        return self.stride == 1 and 2 * self.padding == self.width - 1

    def count(self, frames: Tensor) -> Tensor:
        """Frames after it."""
        return count_windows(frames + 2 * self.padding, self.width, self.stride)

    def forward(self, x: Tensor) -> Tensor:
        sizes = (1, self.stride), (0, self.padding), (1, self.dilation)
        return F.conv2d(x, self.weight, self.bias, *sizes, self.groups)


class GroupNorm(nn.Module):
    """A norm over channels of a group and all frames of a row's block; in float32 whatever comes in."""

    def __init__(self, weight: Tensor, bias: Tensor, groups: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.float()[:, None, None], requires_grad=False)
        self.bias = nn.Parameter(bias.float()[:, None, None], requires_grad=False)
        self.groups = groups

    def forward(self, x: Tensor, block: Tensor) -> Tensor:
        wide = as_dtype(x, torch.float32)
        inside = before(block, wide)
        # The axis of frames is one size for all rows, their blocks are not.
        parts = wide.reshape(wide.shape[0], self.groups, -1, wide.shape[3])
        count = (block.float() * parts.shape[2]).clamp(min=1.0).reshape(-1, 1, 1, 1)
        mean = (parts * inside).sum(dim=(2, 3), keepdim=True) / count
        centred = (parts - mean) * inside
        variance = centred.square().sum(dim=(2, 3), keepdim=True) / count
        normal = (centred * torch.rsqrt(variance + GROUP_NORM_GUARD)).reshape(wide.shape)
        return as_dtype(normal * self.weight.float() + self.bias.float(), x.dtype)


class Repeat(nn.Module):
    """One repeat of a block, up to its activation: convolutions, norm and shuffling of groups."""

    def __init__(self, convolutions: Sequence[Convolution], norm: GroupNorm | None, groups: int) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(convolutions)
        self.norm, self.groups = norm, groups

    def forward(self, x: Tensor, rows: Rows) -> tuple[Tensor, Rows]:
        for convolution in self.convolutions:
            assert isinstance(convolution, Convolution)
            if convolution.width > 1 or self.norm is not None:
                x = x * rows.mask
            x = convolution(x)
            if not convolution.keeps_frames:
                valid = convolution.count(rows.valid)
                rows = Rows(valid, convolution.count(rows.own), convolution.count(rows.block), before(valid, x))
        if self.norm is not None:
            x = self.norm(x, rows.block)
        if self.groups > 1:
            grouped = x.reshape(x.shape[0], self.groups, x.shape[1] // self.groups, x.shape[3])
            x = grouped.transpose(1, 2).reshape(x.shape)
        return x, rows


class Branches(nn.Module):
    """The first `inputs` of a list on their way to the sum: one convolution of all, or each with a norm of its own."""

    def __init__(self, inputs: int, convolutions: Sequence[Convolution], norms: Sequence[GroupNorm]) -> None:
        super().__init__()
        self.inputs = inputs
        self.convolutions, self.norms = nn.ModuleList(convolutions), nn.ModuleList(norms)

    def forward(self, listed: Sequence[Tensor], rows: Rows) -> Tensor:
        listed = listed[: self.inputs]
        if not self.norms:
            return self.convolutions[0](torch.cat(list(listed), dim=1) if len(listed) > 1 else listed[0])
        parts = [
            norm(convolution(x * rows.mask), rows.block)
            for x, convolution, norm in zip(listed, self.convolutions, self.norms, strict=True)
        ]
        return torch.stack(parts).sum(dim=0) if len(parts) > 1 else parts[0]


class Block(nn.Module):
    """Some repeats, and the block's inputs added to the last one."""

    def __init__(self, repeats: Sequence[Repeat], branches: Branches | None, activation: str) -> None:
        super().__init__()
        self.repeats, self.branches = nn.ModuleList(repeats), branches
        self.activation = ACTIVATIONS[activation]

    def forward(self, listed: Sequence[Tensor], rows: Rows) -> tuple[Tensor, Rows]:
        """`listed`: what the branches read the first of; the repeats read the last of it."""
        x, start = listed[-1], rows
        for index, repeat in enumerate(self.repeats):
            x, rows = repeat(self.activation(x) if index else x, rows)
        if self.branches is not None:
            x = x + self.branches(listed, start)
        return self.activation(x), rows


class Network(nn.Module):
    """Encoder and CTC head."""

    fused = False

    def __init__(self, config: ModelConfig, blocks: Sequence[Block], head: Convolution) -> None:
        super().__init__()
        self.config = config
        self.blocks, self.head = nn.ModuleList(blocks), head

    @classmethod
    def of(cls, config: ModelConfig, state: Mapping[str, Tensor]) -> "Network":
        """Make a network of upstream's tensors, which fit the config; see `checkpoint.check_state`."""
        blocks = [_block(config, layer, state) for layer in range(len(config.blocks))]
        head = Convolution(state["decoder.layers.0.weight"], state["decoder.layers.0.bias"])
        return cls(config, blocks, head).eval()

    @property
    def dtype(self) -> torch.dtype:
        """What it computes in."""
        return self.head.weight.dtype

    @property
    def needs_blocks(self) -> bool:
        """Whether frames that upstream pads an utterance with change what comes before them."""
        return not self.config.masked or any(block.normalization != "batch" for block in self.config.blocks)

    def masked(self, masked: bool) -> "Network":
        """The same network, shared weights and all, that uses or does not use what is behind an utterance's end."""
        if masked == self.config.masked:
            return self
        blocks = [block for block in self.blocks if isinstance(block, Block)]
        return Network(replace(self.config, masked=masked), blocks, self.head).eval()

    def outputs_of_blocks(self, x: Tensor, rows: Rows) -> tuple[list[Tensor], Rows]:
        """What each block gives, (batch, filters, 1, frames)."""
        separable = any(block.separable for block in self.config.blocks)  # depthwise kernels want channels first
        listed, results = [for_tensor_cores(x) if self.fused and not separable else x], []
        for block, config in zip(self.blocks, self.config.blocks, strict=True):
            y, rows = block(listed, rows)
            listed = [*listed, y] if config.branches else [y]
            results.append(y)
        return results, rows

    def forward(self, x: Tensor, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities (batch, frames, classes) in float32, counts (batch,), and the last block's result."""
        results, rows = self.outputs_of_blocks(x, rows)
        logits = as_dtype(self.head(results[-1]).squeeze(2).transpose(1, 2), torch.float32)
        return torch.log_softmax(logits, dim=2), rows.own, results[-1]


def _block(config: ModelConfig, layer: int, state: Mapping[str, Tensor]) -> Block:
    block = config.blocks[layer]
    repeats = []
    for repeat in range(block.repeat):
        names, norm = convolution_names(block, layer, repeat, config.quartznet_names)
        weights = [state[f"{name}.weight"] for name in names]
        weights[-1], bias, normed = _folded(weights[-1], block, norm, state)
        # Groups are of the convolution that mixes channels; one over frames alone has a group for each.
        over_frames = {"stride": block.stride, "dilation": block.dilation, "padding": block.padding}
        if block.separable:
            depthwise = Convolution(weights[0], None, groups=weights[0].shape[0], **over_frames)
            convolutions = [depthwise, Convolution(weights[1], bias, groups=block.groups)]
        else:
            convolutions = [Convolution(weights[0], bias, groups=block.groups, **over_frames)]
        repeats.append(Repeat(convolutions, normed, block.groups))
    return Block(repeats, _branches(config, layer, state), config.activation)


def _branches(config: ModelConfig, layer: int, state: Mapping[str, Tensor]) -> Branches | None:
    block, weights, biases, norms = config.blocks[layer], [], [], []
    for pane in range(len(config.panes[layer])):
        name, norm = branch_names(layer, pane)
        weight, bias, normed = _folded(state[f"{name}.weight"], block, norm, state)
        weights.append(weight)
        if normed is not None:
            norms.append(normed)
        elif bias is not None:
            biases.append(bias)
    if not weights:
        return None
    if norms:
        return Branches(len(weights), [Convolution(weight, None) for weight in weights], norms)
    together = Convolution(torch.cat(weights, dim=1), torch.stack(biases).sum(dim=0))
    return Branches(len(weights), [together], [])


def _folded(
    weight: Tensor, block: BlockConfig, name: str, state: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor | None, GroupNorm | None]:
    """A convolution's weight and bias with its batch norm in them, or the norm that stays."""
    if block.normalization != "batch":
        groups = {"group": block.norm_groups, "instance": block.filters, "layer": 1}[block.normalization]
        groups = block.filters if groups == -1 else groups
        return weight, None, GroupNorm(state[f"{name}.weight"], state[f"{name}.bias"], groups)
    scale = state[f"{name}.weight"].double() * torch.rsqrt(state[f"{name}.running_var"].double() + BATCH_NORM_GUARD)
    bias = state[f"{name}.bias"].double() - state[f"{name}.running_mean"].double() * scale
    return (weight.double() * scale[:, None, None]).float(), bias, None
