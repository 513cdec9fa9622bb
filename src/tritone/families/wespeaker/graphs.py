"""The graph of a WeSpeaker bundle, as a module ready for export; contract in docs/design.md.

OfflineGraph     waveform, num_samples  ->  embeddings (batch, dim)

What goes in and comes out is float32 and int64, whatever precision the network computes in.
"""

import copy

import torch
from torch import Tensor

from tritone.families.export.exportable import EXAMPLE_BATCH, UtteranceGraph
from tritone.families.export.precision import as_dtype
from tritone.families.wespeaker.ecapa import Ecapa
from tritone.families.wespeaker.features import SpeakerFeatures
from tritone.families.wespeaker.model import SpeakerNetwork


class OfflineGraph(UtteranceGraph):
    """Whole utterances: waveform (batch, samples), num_samples (batch,) int64.

    Args:
        network: in the precision that it shall compute in.
        front_end: makes features from samples.
        mean: (embed_dim,) float32, subtracted from every embedding; None for nothing.
    """

    compared = ("embeddings",)
    counted = None
    relative = True

    mean: Tensor | None

    def __init__(self, network: SpeakerNetwork, front_end: SpeakerFeatures, mean: Tensor | None = None) -> None:
        super().__init__()
        self.front_end, self.network = front_end, network
        self.sample_rate = front_end.sample_rate
        self.register_buffer("mean", mean, persistent=False)

    @property
    def min_samples(self) -> int:
        """The shortest waveform with a finite embedding."""
        return self.front_end.least_samples(self.network.min_frames)

    @property
    def outputs(self) -> list[str]:
        return ["embeddings"]

    def example(self) -> dict[str, Tensor]:
        samples = self.min_samples + 30011
        return {
            "waveform": torch.zeros(EXAMPLE_BATCH, samples),
            "num_samples": torch.tensor([samples, samples // 2, max(self.min_samples, samples // 5)]),
        }

    def evenly(self) -> "OfflineGraph | None":
        """Only for networks over images: masks cost ECAPA-TDNN nothing."""
        if isinstance(self.network, Ecapa):
            return None
        network = copy.copy(self.network)  # with the same weights
        network.even = True
        return OfflineGraph(network, self.front_end, self.mean).eval()

    def is_even(self, *inputs: Tensor) -> Tensor:
        waveform, num_samples = inputs
        frames = self.front_end.num_frames
        return torch.all(frames(num_samples) >= frames(torch.zeros_like(num_samples) + waveform.shape[1]))

    def acoustic(self, features: Tensor, num_samples: Tensor) -> tuple[Tensor]:
        num_frames = self.front_end.num_frames(num_samples)
        embeddings = as_dtype(self.network(features, num_frames), torch.float32)
        return (embeddings if self.mean is None else embeddings - self.mean,)
