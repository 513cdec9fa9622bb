"""Precisions of computation: what a network's weights and activations are, while features and results stay float32."""

import copy
from typing import TypeVar

import torch
from torch import Tensor, nn

from tritone.bundle.manifest import Precision

Network = TypeVar("Network", bound=nn.Module)

DTYPES: dict[Precision, torch.dtype] = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def as_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`x` as `dtype`; leaves no trace in an exported graph where nothing is to be done."""
    return x if x.dtype == dtype else x.to(dtype)


def kept_as(dtype: torch.dtype) -> torch.dtype:
    """What streams keep numbers of a type as: those of bfloat16 as the int16 of their bits, which numpy has."""
    return torch.int16 if dtype == torch.bfloat16 else torch.float32


def kept(x: Tensor) -> Tensor:
    """`x` as streams keep it, see `kept_as`. Nothing is rounded."""
    return x.view(torch.int16) if x.dtype == torch.bfloat16 else as_dtype(x, torch.float32)


def taken(x: Tensor, dtype: torch.dtype) -> Tensor:
    """What `kept` made of numbers of a type, as they were."""
    return x.view(dtype) if x.dtype == torch.int16 else as_dtype(x, dtype)


class InFloat32(nn.Module):
    """A module that computes in float32 between layers that do not.

    torch's own kernels do so inside of LayerNorm whatever goes in. A graph for other runtimes has to say it.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module.float()

    def forward(self, x: Tensor) -> Tensor:
        return as_dtype(self.module(as_dtype(x, torch.float32)), x.dtype)


def in_precision(network: Network, precision: Precision, *, explicit: bool = False) -> Network:
    """A copy that computes in a precision; itself for "fp32".

    Modules that say `in_float32` keep their numbers, as do features and log-softmax.

    Args:
        precision: one that networks are traced in; int8 is made of the float32 graph.
        explicit: have the graph itself say that softmax and layer norms are float32 inside. torch's kernels see to it
            without, in one pass.
    """
    if precision == "fp32":
        return network
    narrow = copy.deepcopy(network)
    for module in list(narrow.modules()):
        if not getattr(module, "in_float32", False):
            for value in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                if value.is_floating_point():
                    value.data = value.data.to(DTYPES[precision])
        if explicit and hasattr(module, "wide_softmax"):
            module.wide_softmax = True  # type: ignore[assignment]
    for module in list(narrow.modules()) if explicit else ():
        for name, child in module.named_children():
            if isinstance(child, nn.LayerNorm):
                setattr(module, name, InFloat32(child))
    return narrow
