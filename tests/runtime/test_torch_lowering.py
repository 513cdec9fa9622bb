"""What torch's compiler gets in place of some operators computes the same."""

from typing import Any

import pytest
import torch
from torch import nn

from tritone.runtime.torch.lowering import lower, shifted_products, wants_channels_last


class Two(nn.Module):
    """A depthwise convolution between two that are not."""

    def __init__(self, kind: Any, kernel: Any, padding: Any, bias: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            kind(3, 8, kernel), kind(8, 8, kernel, padding=padding, groups=8, bias=bias), kind(8, 8, kernel, stride=2)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layers(x)
        return found


@pytest.mark.parametrize(
    ("kind", "kernel", "padding", "bias", "shape"),
    [
        (nn.Conv1d, 5, 0, True, (2, 3, 20)),
        (nn.Conv1d, 5, 2, False, (2, 3, 20)),
        (nn.Conv2d, (1, 5), (0, 2), True, (2, 3, 4, 20)),
        (nn.Conv2d, (5, 1), (2, 0), True, (2, 3, 20, 4)),
    ],
)
@torch.no_grad()
def test_depthwise_convolutions_become_sums_of_products(
    kind: Any, kernel: Any, padding: Any, bias: bool, shape: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    module, x = Two(kind, kernel, padding, bias).eval(), torch.randn(shape)
    program = torch.fx.symbolic_trace(torch.export.export(module, (x,)).module())
    lower(program.graph, {name: each for name, each in program.named_parameters()})
    program.recompile()
    targets = [node.target for node in program.graph.nodes]
    assert targets.count(shifted_products) == 1
    assert sum("conv" in str(target) for target in targets) == 2
    (found,) = found if isinstance(found := program(x), tuple | list) else (found,)
    torch.testing.assert_close(found, module(x))


@pytest.mark.parametrize("layout", ["channels first", "channels last", "padded"])
def test_sums_of_products_have_channels_last_whatever_they_read(layout: str) -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(2, 20, 8), torch.randn(8, 1, 5), torch.randn(8)
    x = x.transpose(1, 2)
    if layout == "channels first":
        x = x.contiguous()
    elif layout == "padded":
        x = torch.nn.functional.pad(x, (4, 0))
    found = shifted_products(x, weight, bias, 2, -1)
    assert found.stride(1) == 1
    torch.testing.assert_close(found, torch.nn.functional.conv1d(x, weight, bias, padding=2, groups=8))


class Nodes(nn.Module):
    """A convolution and as many other nodes; with 400 they are more than one is worth a change of layouts for."""

    def __init__(self, others: int, **options: Any) -> None:
        super().__init__()
        self.layer, self.others = nn.Conv2d(8, 8, 3, **options), others

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x)
        for _ in range(self.others):
            x = x + 1
        return x


@pytest.mark.slow
@pytest.mark.parametrize(
    ("others", "options", "expected"),
    [
        (1, {}, True),
        (400, {}, False),
        (400, {"groups": 8}, True),
        (1, {"groups": 8, "stride": 2}, False),
    ],
)
def test_convolutions_want_channels_last_where_that_pays(others: int, options: dict[str, int], expected: bool) -> None:
    module, x = Nodes(others, **options).eval(), torch.randn(1, 8, 9, 9)
    program = torch.fx.symbolic_trace(torch.export.export(module, (x,)).module())
    assert wants_channels_last(program.graph) is expected
