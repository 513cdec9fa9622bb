"""Upstream's features as a torch module: Kaldi's fbank, less its mean over the utterance.

    waveform (batch, samples) in [-1, 1], num_samples (batch,)  ->  features (batch, frames, bins), num_frames (batch,)

The mean, and the deviation where a model wants that too, are of a row's own frames alone, so that each row gets what
upstream gives the utterance by itself. Dither is off. All arithmetic is in float32.
Source: wespeaker/dataset/processor.py (compute_fbank) and wespeaker/dataset/dataset_utils.py (apply_cmvn).
"""

from torch import Tensor

from tritone.bundle.manifest import Features
from tritone.families.layers.fbank import Fbank
from tritone.families.layers.normalised import normalised


class SpeakerFeatures(Fbank):
    """Features of a batch of waveforms; 0 at and beyond the frames of a row."""

    def __init__(self, features: Features, sample_rate: int) -> None:
        super().__init__(
            sample_rate=sample_rate,
            frame_length=features.frame_length,
            frame_shift=features.frame_shift,
            num_mel_bins=features.num_mel_bins,
            window_type=features.window,
            preemphasis=features.preemphasis,
            low_freq=features.low_freq,
            high_freq=features.high_freq,
            snip_edges=features.snip_edges,
            sample_scale=features.sample_scale,
        )
        self.sample_rate, self.normalize = sample_rate, features.normalize

    def forward(self, waveform: Tensor, num_samples: Tensor, first: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Compute features.

        Args:
            waveform: (batch, samples); what is at or beyond `num_samples` (batch,) int64 may be anything.

        Returns:
            (batch, frames, bins), and (batch,) how many frames of each row are of audio.
        """
        features, num_frames = super().forward(waveform, num_samples, first)
        return normalised(features, num_frames, self.normalize), num_frames
