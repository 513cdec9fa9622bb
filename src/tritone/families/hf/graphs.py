"""The graph of a bundle, as a module ready for export; contract in docs/design.md.

OfflineGraph     waveform, num_samples  ->  log_probs, num_frames, encoder_out

What goes in and comes out is float32 and int64, whatever precision the model computes in.
"""

import torch
from torch import Tensor

from tritone.families.export.exportable import UtteranceGraph
from tritone.families.export.precision import as_dtype
from tritone.families.hf.features import HfFeatures
from tritone.families.hf.model import Network


class OfflineGraph(UtteranceGraph):
    """Whole utterances: waveform (batch, samples), num_samples (batch,) int64."""

    def __init__(self, network: Network, front_end: HfFeatures, sample_rate: int) -> None:
        super().__init__()
        self.front_end, self.network = front_end, network
        self.sample_rate = sample_rate

    @property
    def min_samples(self) -> int:
        return self.front_end.least_samples(self.network.config.reach)

    def acoustic(self, features: Tensor, num_samples: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        frames = self.front_end.num_frames(num_samples)
        log_probs, num_frames, encoded = self.network(as_dtype(features, self.network.dtype), frames)
        return log_probs, num_frames, as_dtype(encoded, torch.float32)
