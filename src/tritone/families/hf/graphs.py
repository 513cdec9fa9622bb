"""The graph of a bundle, as a module ready for export; contract in docs/design.md.

OfflineGraph     waveform, num_samples  ->  log_probs, num_frames, encoder_out

What goes in and comes out is float32 and int64, whatever precision the model computes in.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from tritone.audio import Waveform
from tritone.families.export.exportable import ExportableGraph, Run, trial_signal, utterances
from tritone.families.export.precision import as_dtype
from tritone.families.hf.features import Samples
from tritone.families.hf.model import Network

EXAMPLE_BATCH = 3
TRIAL_SECONDS = (0.05, 1.3, 2.9)


class OfflineGraph(ExportableGraph):
    """Whole utterances: waveform (batch, samples), num_samples (batch,) int64."""

    compared = ("log_probs",)

    def __init__(self, network: Network, front_end: Samples, sample_rate: int) -> None:
        super().__init__()
        self.front_end, self.network = front_end, network
        self.sample_rate = sample_rate

    @property
    def min_samples(self) -> int:
        """The shortest waveform with one encoder frame."""
        return self.network.config.reach

    @property
    def outputs(self) -> list[str]:
        return ["log_probs", "num_frames", "encoder_out"]

    @property
    def dynamic(self) -> dict[str, dict[int, str]]:
        return {"waveform": {0: "batch", 1: "samples"}, "num_samples": {0: "batch"}}

    def example(self) -> dict[str, Tensor]:
        samples = self.min_samples + 30011
        return {
            "waveform": torch.zeros(EXAMPLE_BATCH, samples),
            "num_samples": torch.tensor([samples, 20000, 5000]),
        }

    def trials(self) -> Iterator[Run]:
        lengths = [max(self.min_samples, round(seconds * self.sample_rate)) for seconds in TRIAL_SECONDS]
        signal = trial_signal(max(lengths), self.sample_rate)
        # What follows the shorter ones must not matter.
        yield Run([{"waveform": signal.repeat(len(lengths), 1), "num_samples": torch.tensor(lengths)}])
        # A trace may have taken the number of rows for a constant.
        yield Run([{"waveform": signal[None, : lengths[1]], "num_samples": torch.tensor(lengths[1:2])}])

    def hearing(self, waveform: Waveform) -> Run | None:
        """A recording as input; None if it is too short."""
        return utterances([waveform]) if len(waveform) >= self.min_samples else None

    def acoustic(self, features: Tensor, num_samples: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What `forward` returns, of features (batch, samples, 1) that are ready."""
        log_probs, num_frames, encoded = self.network(as_dtype(features, self.network.dtype), num_samples)
        return log_probs, num_frames, as_dtype(encoded, torch.float32)

    def forward(self, waveform: Tensor, num_samples: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        features, _ = self.front_end(waveform, num_samples)
        return self.acoustic(features, num_samples)
