"""What a program's operators become before torch's compiler gets them.

    fx module of a program  ->  the same, with operators that the compiler fuses in place of some calls of libraries

A program run operator by operator keeps them: there the library's kernels are the better ones.
"""

import operator
from typing import Any

import torch
from torch import Tensor, fx

MAX_TAPS = 64
CONVOLUTIONS = (torch.ops.aten.conv1d.default, torch.ops.aten.conv2d.default)


def lowered(module: fx.GraphModule) -> fx.GraphModule:
    """A copy of `module`, on the same constants, for torch's compiler and for nothing else.

    Depthwise convolutions over one axis become sums of shifted products. Those are fused with what is around them, and
    need no transposition: libraries want channels first, the layers of a conformer have them last.
    """
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    result = fx.GraphModule(module, graph)
    for node in list(graph.nodes):
        if node.target in CONVOLUTIONS:
            _replace_depthwise(result, node)
    result.recompile()
    return result


def _replace_depthwise(module: fx.GraphModule, node: fx.Node) -> None:
    names = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    given: dict[str, Any] = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    source = given["weight"]
    if not isinstance(source, fx.Node) or source.op != "get_attr":
        return
    weight: Tensor = operator.attrgetter(str(source.target))(module)
    kernel, channels = weight.shape[2:], weight.shape[0]
    taps = kernel.numel()
    depthwise = given.get("groups", 1) == channels and weight.shape[1] == 1
    simple = all(step == 1 for key in ("stride", "dilation") for step in _steps(given.get(key, 1)))
    if not depthwise or not simple or max(kernel) != taps or not 1 < taps <= MAX_TAPS:
        return
    axis = [size > 1 for size in kernel].index(True)
    name = f"{str(source.target).replace('.', '_')}_taps"
    module.register_buffer(name, weight.flatten(1).T.contiguous())
    padding = (*_steps(given.get("padding", 0)), *[0] * len(kernel))[axis]
    with module.graph.inserting_before(node):
        found = module.graph.get_attr(name)
        bias = given.get("bias")
        new = module.graph.call_function(shifted_products, (given["input"], found, bias, padding, axis - len(kernel)))
    node.replace_all_uses_with(new)
    module.graph.erase_node(node)


def _steps(value: Any) -> list[int]:
    return list(value) if isinstance(value, list | tuple) else [value]


def shifted_products(x: Tensor, taps: Tensor, bias: Tensor | None, padding: int, axis: int) -> Tensor:
    """A depthwise convolution along `axis` of (batch, channels, …), counted from the end, with `taps` (taps, channels)."""
    # Computed with the channels last. Strides are asked for so that the compiler computes `x` once, not for each tap.
    x = x.movedim(1, -1)
    x = x.as_strided(x.shape, x.stride())
    count, along = taps.shape[0], axis - 1
    length = x.shape[along] + 2 * padding - count + 1
    pads = [0] * (2 * -along)
    pads[-2:] = [padding, padding]
    wide = torch.nn.functional.pad(x, pads) if padding else x
    total = wide.narrow(along, 0, length).float() * taps[0]
    for tap in range(1, count):
        total = total + wide.narrow(along, tap, length).float() * taps[tap]
    if bias is not None:
        total = total + bias
    return total.to(x.dtype).movedim(-1, 1)
