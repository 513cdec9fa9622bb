"""Rotary positions: halves of a vector are turned against each other by angles that grow with its place."""

import torch
from torch import Tensor


def rotary(count: int, size: int, base: float, device: torch.device) -> Tensor:
    """Cosines and sines (2, count, size) float32 of the places 0 … count - 1, for vectors of an even `size`."""
    rates = base ** -(torch.arange(0, size, 2, dtype=torch.float32, device=device) / size)
    angles = torch.arange(count, device=device).to(torch.float32).unsqueeze(1) * rates
    angles = torch.cat([angles, angles], dim=1)
    return torch.stack([angles.cos(), angles.sin()])


def rotated(x: Tensor, angles: Tensor) -> Tensor:
    """Turn (…, count, size) by what `rotary` returns."""
    first, second = x.chunk(2, dim=-1)
    return x * angles[0] + torch.cat([-second, first], dim=-1) * angles[1]
