"""What torch's compiler gets in place of some operators computes the same."""

from typing import Any

import pytest
import torch
from torch import nn

from tritone.runtime.torch.lowering import lower, shifted_products


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
