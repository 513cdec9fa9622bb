"""What a program's operators become before torch's compiler gets them.

    fx graph of a program  ->  the same, with operators that the compiler fuses in place of some calls of libraries

A program run operator by operator keeps them: there the library's kernels are the better ones.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx

MAX_TAPS = 64
CONVOLUTIONS = (torch.ops.aten.conv1d.default, torch.ops.aten.conv2d.default)


def lower(graph: fx.Graph, constants: Mapping[str, Tensor]) -> None:
    """Change `graph`, over these constants, for torch's compiler and for nothing else.

    Depthwise convolutions over one axis become sums of shifted products. Those are fused with what is around them, and
    need no transposition: libraries want channels first, the layers of a conformer have them last.
    """
    for node in list(graph.nodes):
        if node.target in CONVOLUTIONS:
            _replace_depthwise(graph, node, constants)


def _replace_depthwise(graph: fx.Graph, node: fx.Node, constants: Mapping[str, Tensor]) -> None:
    names = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    given: dict[str, Any] = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    weight = constants.get(str(given["weight"].target))
    if weight is None:
        return
    kernel, channels = weight.shape[2:], weight.shape[0]
    taps = kernel.numel()
    depthwise = given.get("groups", 1) == channels and weight.shape[1] == 1
    simple = all(step == 1 for key in ("stride", "dilation") for step in _steps(given.get(key, 1)))
    if not depthwise or not simple or max(kernel) != taps or not 1 < taps <= MAX_TAPS:
        return
    axis = [size > 1 for size in kernel].index(True)
    padding = (*_steps(given.get("padding", 0)), *[0] * len(kernel))[axis]
    arguments = given["input"], given["weight"], given.get("bias"), padding, axis - len(kernel)
    with graph.inserting_before(node):
        node.replace_all_uses_with(graph.call_function(shifted_products, arguments))
    graph.erase_node(node)


def _steps(value: Any) -> list[int]:
    return list(value) if isinstance(value, list | tuple) else [value]


def shifted_products(x: Tensor, weight: Tensor, bias: Tensor | None, padding: int, axis: int) -> Tensor:
    """A depthwise convolution along `axis`, counted from the end, of (batch, channels, …), in the layout of `x`."""
    channels_last = x.stride(1) == 1
    taps = _computed_once(weight.flatten(1).transpose(0, 1).contiguous())
    if channels_last:
        x, axis = x.movedim(1, -1), axis - 1
    else:
        taps = taps.unflatten(1, (-1, *[1] * (x.dim() - 2)))
        bias = None if bias is None else bias.unflatten(0, (-1, *[1] * (x.dim() - 2)))
    x = _computed_once(x)
    count = taps.shape[0]
    length = x.shape[axis] + 2 * padding - count + 1
    wide = torch.nn.functional.pad(x, [*[0] * (2 * (-axis - 1)), padding, padding]) if padding else x
    total = wide.narrow(axis, 0, length).float() * taps[0]
    for tap in range(1, count):
        total = total + wide.narrow(axis, tap, length).float() * taps[tap]
    if bias is not None:
        total = total + bias
    total = total.to(x.dtype)
    return total.movedim(-1, 1) if channels_last else total


def _computed_once(x: Tensor) -> Tensor:
    """`x`; asking for its strides has the compiler store it, which else computes it again for each of many uses."""
    return x.as_strided(x.shape, x.stride())
