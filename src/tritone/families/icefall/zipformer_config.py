"""The sizes of a zipformer2, read off the tensors of a checkpoint.

state dict of icefall  ->  ZipformerConfig
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from tritone.errors import ExportError
from tritone.families.icefall.zipformer_embed import embedded_bins

PUBLISHED_POSITION_SIZE = 4  # `--pos-head-dim` of every published recipe
OUTPUT_DOWNSAMPLING = 2


@dataclass(frozen=True, kw_only=True)
class StackConfig:
    """One stack of equal layers, which run at 50 Hz divided by `downsampling`."""

    layers: int
    downsampling: int
    width: int
    heads: int
    query_size: int
    value_size: int
    position_size: int
    feed_forward: int
    kernel: int


@dataclass(frozen=True, kw_only=True)
class ZipformerConfig:
    """Sizes of a zipformer2. `dropout` is for training only."""

    stacks: tuple[StackConfig, ...]
    causal: bool
    position_width: int = 48
    input_dim: int = 80
    dropout: float = 0.0

    @property
    def output_dim(self) -> int:
        return max(stack.width for stack in self.stacks)

    @property
    def max_downsampling(self) -> int:
        return max(*(stack.downsampling for stack in self.stacks), OUTPUT_DOWNSAMPLING)

    @classmethod
    def from_state(
        cls,
        state: Mapping[str, Tensor],
        *,
        num_heads: Sequence[int] | None = None,
        input_dim: int = 80,
    ) -> "ZipformerConfig":
        """Read the sizes off the tensors of a checkpoint.

        Args:
            state: upstream's state dict; names other than `encoder_embed.*` and `encoder.*` are not looked at.
            num_heads: of each stack, or one number for all. Tensors do not show it: without it, the size of a
                head's position query is taken to be 4, as in all published recipes.
            input_dim: bins of the features; of the few that lead to the same sizes, 80 is usual.

        Raises:
            ExportError: a tensor is missing or has a size that cannot be. The message names it.
        """
        return _read_sizes(state, num_heads, input_dim)


def _read_sizes(state: Mapping[str, Tensor], num_heads: Sequence[int] | None, input_dim: int) -> ZipformerConfig:
    def tensor(name: str, axes: int) -> Tensor:
        found = state.get(name)
        if found is None or found.ndim != axes:
            seen = "is missing" if found is None else f"has shape {tuple(found.shape)}, not {axes} axes"
            raise ExportError(
                f"zipformer checkpoint: tensor {name} {seen}. Give the file that icefall's zipformer recipe wrote "
                "(the second version, egs/librispeech/ASR/zipformer); others cannot be read."
            )
        return found

    counted = {int(found[1]) for name in state if (found := re.match(r"encoder\.encoders\.(\d+)\.", name))}
    count = len(counted)
    if not counted or counted != set(range(count)):
        raise ExportError(
            f"zipformer checkpoint: stacks encoder.encoders.N are {sorted(counted) or 'missing'}; they should be "
            "0, 1, … without a gap. Is this a whole zipformer2 checkpoint?"
        )
    if num_heads is not None and len(num_heads) not in (1, count):
        raise ExportError(f"{len(num_heads)} numbers of heads for {count} stacks; give one, or one for each stack")
    if num_heads is not None and min(num_heads) < 1:
        raise ExportError(f"{','.join(map(str, num_heads))} heads: every stack has at least one")
    embed = tensor("encoder_embed.out.weight", 2)
    if embed.shape[1] != embedded_bins(input_dim) * tensor("encoder_embed.conv.7.weight", 4).shape[0]:
        raise ExportError(
            f"zipformer checkpoint: encoder_embed.out.weight has {embed.shape[1]} columns, which features of "
            f"{input_dim} bins do not lead to. Name the number of bins the model was trained with."
        )
    out = tensor("encoder.downsample_output.bias", 1)
    if out.shape[0] != OUTPUT_DOWNSAMPLING:
        raise ExportError(
            f"zipformer checkpoint: encoder.downsample_output.bias has {out.shape[0]} elements; only output "
            f"downsampling by {OUTPUT_DOWNSAMPLING} is known, upstream's own limit."
        )
    stacks, position_width, causal = [], 0, False
    for index in range(count):
        prefix = f"encoder.encoders.{index}."
        downsampling = 1
        if f"{prefix}downsample.bias" in state:
            downsampling = tensor(f"{prefix}downsample.bias", 1).shape[0]
            prefix += "encoder."
        pattern = re.compile(re.escape(prefix) + r"layers\.(\d+)\.")
        layers = len({found[1] for name in state if (found := pattern.match(name))})
        first = f"{prefix}layers.0."
        positions = tensor(f"{first}self_attn_weights.linear_pos.weight", 2)
        projected = tensor(f"{first}self_attn_weights.in_proj.weight", 2).shape[0]
        values = tensor(f"{first}self_attn1.in_proj.weight", 2).shape[0]
        heads = _given_heads(num_heads, index) or positions.shape[0] // PUBLISHED_POSITION_SIZE
        position_size, rest = divmod(positions.shape[0], heads) if heads else (0, 1)
        query_size, odd = divmod(projected - positions.shape[0], 2 * heads) if heads else (0, 1)
        value_size, uneven = divmod(values, heads) if heads else (0, 1)
        if rest or odd or uneven or min(position_size, query_size, value_size) < 1:
            raise ExportError(
                f"zipformer checkpoint: {first}self_attn_weights.linear_pos.weight has {positions.shape[0]} rows, "
                f"self_attn_weights.in_proj.weight {projected} and self_attn1.in_proj.weight {values}, which {heads} "
                f"heads do not divide. Name the number of heads of each stack (the recipe's --num-heads)."
            )
        conv = f"{first}conv_module1.depthwise_conv."
        causal = f"{conv}chunkwise_conv_scale" in state
        stacks.append(
            StackConfig(
                layers=layers,
                downsampling=downsampling,
                width=tensor(f"{first}bypass.bypass_scale", 1).shape[0],
                heads=heads,
                query_size=query_size,
                value_size=value_size,
                position_size=position_size,
                feed_forward=tensor(f"{first}feed_forward2.in_proj.weight", 2).shape[0],
                kernel=tensor(conv + ("chunkwise_conv.weight" if causal else "weight"), 3).shape[2],
            )
        )
        position_width = positions.shape[1]
    return ZipformerConfig(stacks=tuple(stacks), causal=causal, position_width=position_width, input_dim=input_dim)


def _given_heads(num_heads: Sequence[int] | None, index: int) -> int:
    return 0 if num_heads is None else num_heads[index if len(num_heads) > 1 else 0]
