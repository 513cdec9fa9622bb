"""What a program's operators become before torch's compiler gets them.

    fx graph of a program  ->  the same, with operators that the compiler fuses in place of some calls of libraries

A program run operator by operator keeps them: there the library's kernels are the better ones.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx

MAX_TAPS = 64
NODES_OF_ONE = 300  # convolution: with more nodes for each, changing their layout does not pay; inductor's own rule
CONVOLUTIONS = (torch.ops.aten.conv1d.default, torch.ops.aten.conv2d.default)


def lower(graph: fx.Graph, constants: Mapping[str, Tensor]) -> None:
    """Change `graph`, over these constants, for torch's compiler and for nothing else.

    Depthwise convolutions over one axis become sums of shifted products. Those are fused with what is around them, and
    have channels last, as the layers of a conformer have; libraries want them first.
    """
    for node in list(graph.nodes):
        if node.target in CONVOLUTIONS:
            _replace_depthwise(graph, node, constants)


def _replace_depthwise(graph: fx.Graph, node: fx.Node, constants: Mapping[str, Tensor]) -> None:
    given = _arguments(node)
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


def wants_channels_last(graph: fx.Graph) -> bool:
    """Whether a GPU computes a graph that was lowered faster if its convolutions in two dimensions have channels last.

    With groups and steps of one they are five times as fast there (the ConvNeXt of a zipformer). With groups and longer
    steps they lose (a FastConformer's subsampling is 1.2 times as fast with channels first).
    """
    gain = 0
    for node in graph.nodes:
        if node.target in CONVOLUTIONS:
            given = _arguments(node)
            in_groups, by_one = given.get("groups", 1) > 1, max(_steps(given.get("stride", 1))) == 1
            if in_groups and by_one and node.target is torch.ops.aten.conv2d.default:
                return True
            gain += by_one or not in_groups
    return len(graph.nodes) < NODES_OF_ONE * gain


def _arguments(node: fx.Node) -> dict[str, Any]:
    """Those of an operator that are given, by their names."""
    names = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def _steps(value: Any) -> list[int]:
    return list(value) if isinstance(value, list | tuple) else [value]


def shifted_products(x: Tensor, weight: Tensor, bias: Tensor | None, padding: int, axis: int) -> Tensor:
    """A depthwise convolution along `axis`, counted from the end, of (batch, channels, …); its layout has them last.

    So has what it reads. What pads or joins frames has channels first, and then every tap of the sum would be read
    across the memory of what is around it.
    """
    taps = _computed_once(weight.float().flatten(1).transpose(0, 1).contiguous()).unbind()  # so that sums are float32
    x, axis = _computed_once(x.movedim(1, -1).contiguous()), axis - 1
    length = x.shape[axis] + 2 * padding - len(taps) + 1
    wide = torch.nn.functional.pad(x, [*[0] * (2 * (-axis - 1)), padding, padding]) if padding else x
    total = wide.narrow(axis, 0, length) * taps[0]
    for start in range(1, len(taps)):
        total = total + wide.narrow(axis, start, length) * taps[start]
    if bias is not None:
        total = total + bias
    return total.to(x.dtype).movedim(-1, 1)


def _computed_once(x: Tensor) -> Tensor:
    """`x`; asking for its strides has the compiler store it, which else computes it again for each of many uses."""
    return x.as_strided(x.shape, x.stride())
