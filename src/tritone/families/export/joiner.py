"""The joiner of a transducer as a graph, whatever the family: frames and predictions, projected, to logits."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from tritone.families.export.exportable import EXAMPLE_BATCH, ExportableGraph, Run

TRIAL_ROWS = 7  # of contexts and of frames to join


class JoinerGraph(ExportableGraph):
    """Frames and predictions, projected, (rows, dim) both, float32 -> logits (rows, vocab), and durations after them.

    Args:
        joiner: says its `dim`.
    """

    compared = ("logits",)
    counted = None

    def __init__(self, joiner: nn.Module) -> None:
        super().__init__()
        self.joiner = joiner

    @property
    def outputs(self) -> list[str]:
        return ["logits"]

    @property
    def dynamic(self) -> dict[str, dict[int, str]]:
        return {"encoder_out": {0: "rows"}, "predictor_out": {0: "rows"}}

    def example(self) -> dict[str, Tensor]:
        return {name: torch.zeros(EXAMPLE_BATCH, self.joiner.dim) for name in self.dynamic}  # type: ignore[call-overload]

    def trials(self) -> Iterator[Run]:
        random = torch.Generator().manual_seed(0)
        shape: tuple[int, int] = (TRIAL_ROWS, self.joiner.dim)  # type: ignore[assignment]
        yield Run([{name: torch.randn(shape, generator=random) for name in self.dynamic}])

    def forward(self, encoder_out: Tensor, predictor_out: Tensor) -> tuple[Tensor]:
        return (self.joiner(encoder_out, predictor_out),)
