"""Sinusoidal position vectors, computed where they are needed."""

import math

import torch
from torch import Tensor


def sinusoids(positions: Tensor, width: int) -> Tensor:
    """Position vectors (…, width) of integer `positions` (…): sine in even columns, cosine in odd ones.

    Upstreams read them from tables instead, which have an end: 5,000 rows stop a stream after 200 s.
    """
    rates = torch.exp(
        torch.arange(0, width, 2, dtype=torch.float32, device=positions.device) * -(math.log(10000.0) / width)
    )
    angles = positions.to(torch.float32).unsqueeze(-1) * rates
    return torch.stack([torch.sin(angles), torch.cos(angles)], dim=-1).flatten(-2)[..., :width]
