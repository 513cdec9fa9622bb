"""SpeechBrain's Fbank as a torch module: mel bands in decibels, less their mean over the utterance.

    waveform (batch, samples) in [-1, 1], num_samples (batch,)  ->  features (batch, frames, bins), num_frames (batch,)

Frames are centred on every `frame_shift`-th sample between zeros. Bands are triangles on the HTK's mel scale, as wide
above their centre as below. Decibels end 80 below an utterance's loudest band, of its own frames alone. All
arithmetic is in float32.
Source of the method: SpeechBrain 1.1.2, STFT, Filterbank and InputNormalization of speechbrain/processing/features.py.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tritone.bundle.manifest import Features
from tritone.families.layers.framing import cut_frames
from tritone.families.layers.normalised import normalised
from tritone.families.speechbrain.config import FbankConfig

LEAST_POWER = 1e-10
LEAST_DECIBELS = 10 * math.log10(LEAST_POWER)
RANGE_DECIBELS = 80.0


class Decibels(nn.Module):
    """Features of a batch of waveforms; 0 at and beyond the frames of a row."""

    dft: Tensor
    mel: Tensor

    def __init__(self, config: FbankConfig) -> None:
        super().__init__()
        self.sample_rate = config.sample_rate
        self.frame_length, self.frame_shift = config.frame_length, config.frame_shift
        # A window shorter than the DFT lies in its middle; power does not depend on where the DFT begins.
        self.lead = config.n_fft // 2 - (config.n_fft - config.frame_length) // 2
        places = np.arange(config.frame_length)
        window = 0.54 - 0.46 * np.cos(2 * np.pi * places / config.frame_length)
        angles = 2 * np.pi / config.n_fft * np.outer(places, np.arange(config.n_fft // 2 + 1))
        spectrum = window[:, None] * np.concatenate([np.cos(angles), -np.sin(angles)], axis=1)
        # Plain constants of the front end: never part of a checkpoint.
        self.register_buffer("dft", torch.from_numpy(spectrum.astype(np.float32)), persistent=False)
        self.register_buffer("mel", mel_triangles(config), persistent=False)

    def least_samples(self, frames: int) -> int:
        """The shortest waveform that gives so many frames."""
        return max(1, (frames - 1) * self.frame_shift)

    def num_frames(self, num_samples: Tensor) -> Tensor:
        """Frames of utterances of so many samples, (batch,) int64 both."""
        return num_samples // self.frame_shift + 1

    def forward(self, waveform: Tensor, num_samples: Tensor) -> tuple[Tensor, Tensor]:
        """Compute features.

        Args:
            waveform: (batch, samples); what is at or beyond `num_samples` (batch,) int64 may be anything.

        Returns:
            (batch, frames, bins), and (batch,) how many frames of each row are its own.
        """
        places = torch.arange(waveform.shape[1], device=waveform.device)
        signal = waveform.masked_fill(places >= num_samples.unsqueeze(1), 0.0)
        padded = F.pad(signal, (self.lead, self.frame_length - self.lead))
        cut = cut_frames(padded, self.frame_length, self.frame_shift) @ self.dft
        bins, num_frames = self.mel.shape[0], self.num_frames(num_samples)
        power = (cut[..., :bins].square() + cut[..., bins:].square()) @ self.mel
        decibels = 10 * torch.log10(torch.clamp(power, min=LEAST_POWER))
        frames = torch.arange(decibels.shape[1], device=waveform.device)
        own = decibels.masked_fill((frames >= num_frames.unsqueeze(1)).unsqueeze(2), LEAST_DECIBELS)
        decibels = torch.maximum(decibels, own.amax(dim=(1, 2), keepdim=True) - RANGE_DECIBELS)
        return normalised(decibels, num_frames, "mean"), num_frames


def mel_triangles(config: FbankConfig) -> Tensor:
    """Upstream's filters (n_fft // 2 + 1, bins), in float32 throughout as there: next to an edge its rounding decides
    whether a band has a bin at all."""

    def mel(hz: float) -> float:
        return 2595 * math.log10(1 + hz / 700)

    edges = 700 * (
        10 ** (torch.linspace(mel(config.low_freq), mel(config.high_freq), config.num_mel_bins + 2) / 2595) - 1
    )
    centre, width = edges[1:-1], edges[1:-1] - edges[:-2]
    frequencies = torch.linspace(0, config.sample_rate // 2, config.n_fft // 2 + 1)
    return torch.clamp(1 - torch.abs((frequencies.unsqueeze(1) - centre) / width), min=0)


def manifest_features(config: FbankConfig) -> Features:
    """Features as a manifest has them."""
    return Features(
        kind="mel-decibels",
        frame_length=config.frame_length,
        frame_shift=config.frame_shift,
        num_mel_bins=config.num_mel_bins,
        window="hamming",
        preemphasis=0.0,
        low_freq=config.low_freq,
        high_freq=config.high_freq,
        snip_edges=False,
        sample_scale=1.0,
        normalize="mean",
    )
