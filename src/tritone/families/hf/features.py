"""The samples themselves as features, normalised as upstream's feature extractor does it.

    waveform (batch, samples) in [-1, 1], num_samples (batch,)  ->  features (batch, samples, 1), num_samples

Mean and variance are those of each utterance alone, in float32. Source: transformers, Wav2Vec2FeatureExtractor.
"""

import torch
from torch import Tensor, nn

VARIANCE_GUARD = 1e-7


class Samples(nn.Module):
    """The front end of a graph; its frames are samples, as long as their shift."""

    frame_length = frame_shift = 1

    def __init__(self, normalize: bool) -> None:
        super().__init__()
        self.normalize = normalize

    def num_frames(self, num_samples: Tensor) -> Tensor:
        """Frames of utterances of so many samples, (batch,) int64 both."""
        return num_samples

    def forward(self, waveform: Tensor, num_samples: Tensor) -> tuple[Tensor, Tensor]:
        """Normalise; what is at or beyond `num_samples` (batch,) int64 may be anything, and is 0 in the result."""
        end = num_samples.unsqueeze(1)
        behind = torch.arange(waveform.shape[1], device=waveform.device) >= end
        signal = waveform.masked_fill(behind, 0.0)
        if self.normalize:
            count = end.clamp(min=1).float()
            centred = (signal - signal.sum(dim=1, keepdim=True) / count).masked_fill(behind, 0.0)
            variance = centred.square().sum(dim=1, keepdim=True) / count
            signal = centred / (variance + VARIANCE_GUARD).sqrt()
        return signal.unsqueeze(2), num_samples
