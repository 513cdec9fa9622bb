"""The names and shapes that upstream gives a network's tensors.

ModelConfig  ->  {name: shape}, the state dict that a checkpoint must hold
state dict of an older release, or of a .nemo archive  ->  the same under today's names
"""

import re
from collections.abc import Iterator, Mapping

from torch import Tensor

from tritone.families.jasper.config import BlockConfig, ModelConfig

Shape = tuple[int, ...]

OLD_PREFIXES = (("jasper_encoder.encoder.", "encoder.layers."), ("jasper_decoder.decoder_layers.", "decoder.layers."))
TRAINING = ("acoustic_model.*", "audio_preprocessor.*", "preprocessor.*", "spec_augmentation.*", "loss.*")
"""What may be left out: features, which the config says, augmentation and loss."""
ARCHIVED_PARTS = (
    ("encoder.encoder", "encoder.layers"),
    ("decoder.decoder_layers", "decoder.layers"),
    ("conv.weight", "weight"),
)
NORM = ("weight", "bias", "running_mean", "running_var")  # of a batch norm; of others the first two


def convolution_names(block: BlockConfig, layer: int, repeat: int, quartznet_names: bool) -> tuple[list[str], str]:
    """Where the convolutions of one repeat are, and its norm."""
    parts = 1 + block.separable + 1 + (block.groups > 1)  # convolutions, norm, shuffling
    # Activation and dropout come between two repeats.
    place, root = repeat * (parts + 2), f"encoder.layers.{layer}.{'mconv' if quartznet_names else 'conv'}"
    last = place + 1 + block.separable
    return [f"{root}.{index}" for index in range(place, last)], f"{root}.{last}"


def branch_names(layer: int, pane: int) -> tuple[str, str]:
    """Where the convolution of a residual branch is, and its norm."""
    return f"encoder.layers.{layer}.res.{pane}.0", f"encoder.layers.{layer}.res.{pane}.1"


def tensor_shapes(config: ModelConfig) -> dict[str, Shape]:
    """All tensors of a network, but the counters of its norms."""
    return dict(_shapes(config))


def _shapes(config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    for layer, (block, channels, panes) in enumerate(zip(config.blocks, config.inputs, config.panes, strict=True)):
        for repeat in range(block.repeat):
            width = block.filters if repeat else channels
            convolutions, norm = convolution_names(block, layer, repeat, config.quartznet_names)
            if block.separable:
                yield f"{convolutions[0]}.weight", (width, 1, block.kernel_size)
                yield f"{convolutions[1]}.weight", (block.filters, width // block.groups, 1)
            else:
                yield f"{convolutions[0]}.weight", (block.filters, width // block.groups, block.kernel_size)
            yield from _norm(norm, block)
        for pane, width in enumerate(panes):
            convolution, norm = branch_names(layer, pane)
            yield f"{convolution}.weight", (block.filters, width, 1)
            yield from _norm(norm, block)
    yield "decoder.layers.0.weight", (config.num_classes, config.blocks[-1].filters, 1)
    yield "decoder.layers.0.bias", (config.num_classes,)


def _norm(name: str, block: BlockConfig) -> Iterator[tuple[str, Shape]]:
    for part in NORM if block.normalization == "batch" else NORM[:2]:
        yield f"{name}.{part}", (block.filters,)


def todays_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state dict of the first release under the names of the second; any other as it is."""
    result = {}
    for name, value in state.items():
        for old, new in OLD_PREFIXES:
            name = re.sub(f"^{re.escape(old)}", new, name)
        result[name] = value
    return result


def from_archived_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state dict of a .nemo archive under upstream's names, as upstream's converter renames it."""
    result = {}
    for name, value in state.items():
        for old, new in ARCHIVED_PARTS:
            name = name.replace(old, new)
        result[name] = value
    return result
