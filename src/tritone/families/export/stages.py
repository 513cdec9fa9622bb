"""The two halves of an offline graph as graphs of their own, for serving them as separate models.

FeaturesStage    waveform, num_samples   ->  features (batch, frames, bins)
AcousticStage    features, num_samples   ->  what the offline graph gives

One after the other they are the offline graph, whatever the family: its `front_end`, and its method `acoustic`.
"""

import copy
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from tritone.audio import Waveform
from tritone.bundle.manifest import Role
from tritone.families.export.exportable import ExportableGraph, Run, UtteranceGraph


def stage_graphs(offline: UtteranceGraph) -> dict[Role, ExportableGraph]:
    """The stages of an offline graph , by their roles; they share its weights."""
    return {"features": FeaturesStage(offline).eval(), "acoustic": AcousticStage(offline).eval()}


class FeaturesStage(ExportableGraph):
    """Waveforms to features, float32 whatever the network computes in. What is behind a row's samples counts for 0."""

    compared = ("features",)
    counted = None
    quantised = False
    precise = True

    def __init__(self, offline: UtteranceGraph) -> None:
        super().__init__()
        self.front_end = offline.front_end
        self._offline = (offline,)  # not a part of this module

    @property
    def outputs(self) -> list[str]:
        return ["features"]

    @property
    def dynamic(self) -> dict[str, dict[int, str]]:
        return self._offline[0].dynamic

    def example(self) -> dict[str, Tensor]:
        return self._offline[0].example()

    def trials(self) -> Iterator[Run]:
        return self._offline[0].trials()

    def forward(self, waveform: Tensor, num_samples: Tensor) -> tuple[Tensor]:
        # Not every front end looks at the counts, and a trace drops an input that nobody looks at.
        places = torch.arange(waveform.shape[1], device=waveform.device)
        masked = waveform.masked_fill(places >= num_samples.unsqueeze(1), 0.0)
        features, _ = self.front_end(masked, num_samples)
        return (features,)


class AcousticStage(ExportableGraph):
    """Features to what the encoder returns; `num_samples` are of the waveforms, and the graph counts frames from it."""

    def __init__(self, offline: UtteranceGraph) -> None:
        super().__init__()
        self.network = _without_features(offline)
        self.compared, self.counted, self.relative = offline.compared, offline.counted, offline.relative
        self._offline = (offline,)  # not a part of this module: its matrices are of no use here

    @property
    def outputs(self) -> list[str]:
        return self._offline[0].outputs

    @property
    def dynamic(self) -> dict[str, dict[int, str]]:
        return {"features": {0: "batch", 1: "frames"}, "num_samples": {0: "batch"}}

    def example(self) -> dict[str, Tensor]:
        return self._with_features(self._offline[0].example())

    def trials(self) -> Iterator[Run]:
        for run in self._offline[0].trials():
            yield self._after_features(run)

    def hearing(self, waveform: Waveform) -> Run | None:
        """A recording as input; None if it is too short."""
        run = self._offline[0].hearing(waveform)
        return None if run is None else self._after_features(run)

    def evenly(self) -> "AcousticStage | None":
        offline = self._offline[0].evenly()
        return None if offline is None else AcousticStage(offline).eval()  # type: ignore[arg-type]  # of its own class

    def is_even(self, *inputs: Tensor) -> Tensor:
        features, num_samples = inputs
        frames = self.network.front_end.num_frames(num_samples)
        return torch.all(frames >= features.shape[1])

    def forward(self, features: Tensor, num_samples: Tensor) -> tuple[Tensor, ...]:
        return self.network.acoustic(features, num_samples)

    def _after_features(self, run: Run) -> Run:
        return replace(run, steps=[self._with_features(step) for step in run.steps])  # type: ignore[arg-type]

    @torch.no_grad()
    def _with_features(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        features, _ = self._offline[0].front_end(inputs["waveform"], inputs["num_samples"])
        return {"features": features, "num_samples": inputs["num_samples"]}


def _without_features(offline: UtteranceGraph) -> UtteranceGraph:
    """The same network with a front end that can only count: an exported program would keep its matrices."""
    front_end = copy.copy(offline._modules["front_end"])
    assert front_end is not None
    front_end._buffers, front_end._modules = {}, {}
    network = copy.copy(offline)
    network._modules = {**offline._modules, "front_end": front_end}
    return network
