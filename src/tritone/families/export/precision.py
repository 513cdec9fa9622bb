"""Precisions of computation: what a network's weights and activations are, while features and results stay float32."""

import torch
from torch import Tensor

from tritone.bundle.manifest import Precision

DTYPES: dict[Precision, torch.dtype] = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def as_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`x` as `dtype`; leaves no trace in an exported graph where nothing is to be done."""
    return x if x.dtype == dtype else x.to(dtype)
