"""Precisions of computation: what a network's weights and activations are, while features and results stay float32."""

import torch
from torch import Tensor, nn

from tritone.bundle.manifest import Precision

DTYPES: dict[Precision, torch.dtype] = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def as_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`x` as `dtype`; leaves no trace in an exported graph where nothing is to be done."""
    return x if x.dtype == dtype else x.to(dtype)


class InFloat32(nn.Module):
    """A module that computes in float32 between layers that do not.

    torch's own kernels do so inside of LayerNorm whatever goes in. A graph for other runtimes has to say it.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module.float()

    def forward(self, x: Tensor) -> Tensor:
        return as_dtype(self.module(as_dtype(x, torch.float32)), x.dtype)


def compute_wide(network: nn.Module) -> None:
    """Have a narrow network's graphs say that softmax and layer norms are float32 inside, in place."""
    for module in list(network.modules()):
        if hasattr(module, "wide_softmax"):
            module.wide_softmax = True  # type: ignore[assignment]
        for name, child in module.named_children():
            if isinstance(child, nn.LayerNorm):
                setattr(module, name, InFloat32(child))
