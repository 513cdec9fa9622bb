"""Upstream's log-mel features as a torch module that exports to one matrix product over the samples.

    waveform (batch, samples) in [-1, 1], num_samples (batch,)  ->  features (batch, frames, bins), num_frames (batch,)

Pre-emphasis, a DFT of windows that are centred on every `frame_shift`-th sample of the signal mirrored at its ends,
Slaney's mel bands, logarithm, and normalisation by mean and deviation of the utterance. Each row is mirrored at its own
end and normalised over its own frames, so that it gets what upstream gives it alone. Dither is off.

A window shorter than the DFT lies in its middle, and what is around it counts for nothing: window and DFT of a frame
are one (frame_length × 2·bins) matrix. All arithmetic is in float32.
Source of the method: DeepLearningExamples, PyTorch/SpeechRecognition/Jasper/common/features.py.
"""

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tritone.audio.fbank import window
from tritone.families.jasper.config import FeatureConfig
from tritone.families.layers.framing import cut_frames, mirror_image
from tritone.families.layers.slaney import mel_banks

LOG_GUARD = 1e-20  # is added before the logarithm
DEVIATION_GUARD = 1e-5  # is added to the deviation that features are divided by

Matrix = npt.NDArray[np.float64]


class LogMel(nn.Module):
    """Features of a batch of waveforms; see the head of this file."""

    dft: Tensor
    mel: Tensor

    def __init__(self, config: FeatureConfig) -> None:
        super().__init__()
        self.config = config
        self.frame_length, self.frame_shift = config.frame_length, config.frame_shift
        banks = mel_banks(config.n_filt, config.sample_rate, config.n_fft, config.low_freq, config.high_freq)
        heard = np.flatnonzero(banks.any(axis=1))  # the first and the last bin of the DFT, as a rule, are not
        turns = np.outer(np.arange(config.frame_length), heard) % config.n_fft
        angles = 2 * np.pi * turns / config.n_fft
        spectrum = np.concatenate([np.cos(angles), -np.sin(angles)], axis=1)
        matrix = analysis_window(config.window, config.frame_length)[:, None] * spectrum
        # Plain constants of the front end: never part of a checkpoint.
        self.register_buffer("dft", torch.from_numpy(matrix.astype(np.float32)), persistent=False)
        self.register_buffer("mel", torch.from_numpy(banks[heard].astype(np.float32)), persistent=False)

    @property
    def lead_samples(self) -> int:
        """Samples of the first frame that lie before the first sample."""
        return self.config.n_fft // 2 - (self.config.n_fft - self.frame_length) // 2

    @property
    def _reach(self) -> int:
        """The most samples of a frame that lie after the last sample."""
        return self.frame_length - self.lead_samples - 1

    @property
    def min_samples(self) -> int:
        """The shortest waveform that has features.

        A whole window; enough to be mirrored as far as upstream mirrors it; and two frames, for a deviation.
        """
        return max(self.frame_length, self.config.n_fft // 2 + 1, self.frame_shift + 1)

    def num_frames(self, num_samples: Tensor) -> Tensor:
        """Frames of utterances (batch,) int64; 0 of what is shorter than `min_samples`."""
        frames = (num_samples + self.frame_shift - 1) // self.frame_shift
        return torch.where(num_samples >= self.min_samples, frames, torch.zeros_like(frames))

    def log_mel(self, waveform: Tensor, num_samples: Tensor) -> Tensor:
        """Features before normalisation, (batch, frames, bins); those at or beyond a row's own may be anything."""
        emphasis = self.config.preemphasis
        if emphasis:
            waveform = torch.cat([waveform[:, :1], waveform[:, 1:] - emphasis * waveform[:, :-1]], dim=1)
        power = cut_frames(self._mirrored(waveform, num_samples), self.frame_length, self.frame_shift) @ self.dft
        bins = self.mel.shape[0]
        energy = (power[..., :bins].square() + power[..., bins:].square()) @ self.mel
        return torch.log(energy + LOG_GUARD) if self.config.log else energy

    def _mirrored(self, signal: Tensor, end: Tensor) -> Tensor:
        """The signal between mirror images: `lead_samples` before it, those after it where each row has its `end`."""
        lead, length = self.lead_samples, end.unsqueeze(1)
        before = mirror_image(torch.arange(lead, 0, -1, device=signal.device).unsqueeze(0), length, edge_twice=False)
        after = torch.arange(self._reach, device=signal.device).unsqueeze(0)
        behind = mirror_image(length + after, length, edge_twice=False)
        padded = torch.cat([signal.gather(1, before), F.pad(signal, (0, self._reach))], dim=1)
        return padded.scatter(1, lead + length + after, signal.gather(1, behind))

    def forward(self, waveform: Tensor, num_samples: Tensor) -> tuple[Tensor, Tensor]:
        """Compute features.

        Args:
            waveform: (batch, samples); what is at or beyond `num_samples` (batch,) int64 may be anything.

        Returns:
            (batch, frames, bins), of which those at or beyond a row's own may be anything that is finite, and (batch,)
            how many are its own.
        """
        num_frames = self.num_frames(num_samples)
        features = self.log_mel(waveform, num_samples)
        if self.config.normalize == "none":
            return features, num_frames
        together = self.config.normalize == "all-features"
        # Of bands that are silent throughout, the mean is then 0 exactly, and no noise is divided by next to nothing.
        features = features - (features[:, :1, :1] if together else features[:, :1])
        places = torch.arange(features.shape[1], device=features.device)
        valid = (places < num_frames.unsqueeze(1)).unsqueeze(2)
        axes = (1, 2) if together else (1,)
        count = num_frames.unsqueeze(1).unsqueeze(2) * (features.shape[2] if together else 1)
        mean = features.masked_fill(~valid, 0.0).sum(dim=axes, keepdim=True) / torch.clamp(count, min=1).float()
        centred = (features - mean).masked_fill(~valid, 0.0)
        variance = centred.square().sum(dim=axes, keepdim=True) / torch.clamp(count - 1, min=1).float()
        return centred / (variance.sqrt() + DEVIATION_GUARD), num_frames


def analysis_window(name: str, length: int) -> Matrix:
    """A symmetric window (length,), by torch's name for it."""
    if name == "bartlett":
        return 1.0 - np.abs(np.linspace(-1.0, 1.0, length))
    return window({"hann": "hanning"}.get(name, name), length)
