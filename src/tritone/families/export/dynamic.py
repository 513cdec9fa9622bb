"""Which axes of a module's inputs may vary, in the form that `torch.export` takes."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


def dynamic_shapes(
    module: nn.Module, inputs: Mapping[str, Tensor], dynamic: Mapping[str, Mapping[int, str]]
) -> tuple[Any, ...]:
    """Axes for `torch.export.export`; inputs that `forward` takes as `*args` are one tuple among them."""
    axes = tuple({axis: torch.export.Dim.DYNAMIC for axis in dynamic.get(name, {})} for name in inputs)
    parameters = list(inspect.signature(module.forward).parameters.values())
    for place, parameter in enumerate(parameters):
        if parameter.kind is parameter.VAR_POSITIONAL:
            return (*axes[:place], axes[place:])
    return axes
