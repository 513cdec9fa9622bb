"""The two forms of a network: a plain one for ONNX, and one made of torch's fused kernels for programs of torch.

Runtimes of ONNX graphs fuse products, masks and sums themselves, and do it best with few kinds of operators. torch
launches what it gets: there attention is one operator, layouts are those that kernels of a GPU read, and constants are
joined when a program is opened.

A module that differs has a class attribute `fused`, False, and computes the same in either form up to rounding. One
with `fused_in_halves` differs only where the network computes in a half precision: its other form rounds a little more.
"""

import copy
from typing import TypeVar

import torch
from torch import nn

Module = TypeVar("Module", bound=nn.Module)


def fused(module: Module) -> Module:
    """A copy of `module` in the form for torch, on the same weights."""
    shared = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    result = copy.deepcopy(module, shared)
    in_halves = any(each.dtype in (torch.float16, torch.bfloat16) for each in module.parameters())
    for part in result.modules():
        if hasattr(part, "fused"):
            part.fused = in_halves or not getattr(part, "fused_in_halves", False)
    return result
