"""The head of CTC models: a linear layer and log-softmax, float32 whatever goes in."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def token_log_probs(layer: nn.Linear, x: Tensor, *, fused: bool) -> Tensor:
    """Log-probabilities (batch, frames, tokens) float32 of encoded frames (batch, frames, width); `layer` has a bias.

    The fused form has a multiple of 8 outputs inside, which tensor cores ask for.
    """
    if not fused:
        return torch.log_softmax(layer(x).float(), dim=-1)
    missing = -layer.out_features % 8
    weight, bias = F.pad(layer.weight, (0, 0, 0, missing)), F.pad(layer.bias, (0, missing), value=-math.inf)
    return torch.log_softmax(F.linear(x, weight, bias), dim=-1, dtype=torch.float32)[..., : layer.out_features]
