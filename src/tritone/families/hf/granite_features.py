"""What Granite Speech 5 hears: mel bands and their differences, two frames side by side.

    waveform (batch, samples) in [-1, 1], num_samples (batch,)  ->  features (batch, frames, bins), num_frames (batch,)

Frames are centred on every `frame_shift`-th sample of the signal, which is mirrored at its ends; an odd last one gets
the next one beside it, and a zero for it if there is not enough. Logarithms end a number of decades below the
utterance's loudest, of its own frames alone. All arithmetic is in float32.
Source of the method: transformers, GraniteSpeech5FeatureExtractor; torchaudio, MelSpectrogram and compute_deltas.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tritone.bundle.manifest import Features
from tritone.families.layers.framing import between_mirrors, cut_frames

STACKED = 2
LEAST_POWER = 1e-10


class GraniteFbank(nn.Module):
    """Features of a batch of waveforms; 0 beyond the frames of a row.

    Args:
        sample_rate: in Hz.
        frame_length, frame_shift, n_fft: of one frame, before two are one; in samples.
        bands: of mel.
        floor: how many decades below the loudest logarithms end.
    """

    dft: Tensor
    mel: Tensor

    def __init__(
        self, sample_rate: int, frame_length: int, frame_shift: int, n_fft: int, bands: int, floor: float
    ) -> None:
        super().__init__()
        self.window_length, self.step, self.floor = frame_length, frame_shift, floor
        self.frame_length, self.frame_shift = frame_length + frame_shift, STACKED * frame_shift
        self.bins, self.least = 2 * STACKED * bands, n_fft // 2 + 1
        # A window shorter than the DFT lies in its middle; power does not depend on where the DFT begins.
        self.lead = n_fft // 2 - (n_fft - frame_length) // 2
        places = np.arange(frame_length)
        window = 0.5 - 0.5 * np.cos(2 * np.pi * places / frame_length)
        angles = 2 * np.pi / n_fft * np.outer(places, np.arange(n_fft // 2 + 1))
        spectrum = window[:, None] * np.concatenate([np.cos(angles), -np.sin(angles)], axis=1)
        # Plain constants of the front end: never part of a checkpoint.
        self.register_buffer("dft", torch.from_numpy(spectrum.astype(np.float32)), persistent=False)
        self.register_buffer("mel", _triangles(sample_rate, n_fft, bands), persistent=False)

    def least_samples(self, frames: int) -> int:
        """The shortest waveform that gives so many frames, and can be mirrored."""
        return max(self.least, (STACKED * (frames - 1) + 1) * self.step)

    def num_frames(self, num_samples: Tensor) -> Tensor:
        """Frames of utterances of so many samples, (batch,) int64 both; 0 of those that cannot be mirrored."""
        frames = (num_samples // self.step + STACKED - 1) // STACKED
        return torch.where(num_samples >= self.least, frames, torch.zeros_like(frames))

    def described(self) -> Features:
        """As a manifest has it; a frame is two."""
        return Features(
            kind="log-mel",
            frame_length=self.frame_length,
            frame_shift=self.frame_shift,
            num_mel_bins=self.bins,
            window="hanning",
            preemphasis=0.0,
            low_freq=0.0,
            snip_edges=False,
            sample_scale=1.0,
        )

    def forward(self, waveform: Tensor, num_samples: Tensor) -> tuple[Tensor, Tensor]:
        """Compute features; what is at or beyond `num_samples` (batch,) int64 may be anything."""
        num_frames = self.num_frames(num_samples)
        count = (STACKED * num_frames).view(-1, 1, 1)  # of frames before two are one
        places = torch.arange(waveform.shape[1] + 1, device=waveform.device)
        signal = F.pad(waveform, (0, 1)).masked_fill(places >= num_samples.unsqueeze(1), 0.0)
        end = torch.maximum(num_samples, (STACKED * num_frames - 1) * self.step + 1)
        signal = between_mirrors(signal, end, self.lead, self.window_length - self.lead)
        cut = cut_frames(signal, self.window_length, self.step) @ self.dft
        half = self.mel.shape[0]
        power = (cut[..., :half].square() + cut[..., half:].square()) @ self.mel
        logs = torch.log10(torch.clamp(power, min=LEAST_POWER))
        frames = torch.arange(logs.shape[1], device=logs.device).view(1, -1, 1)
        loudest = logs.masked_fill(frames >= count, math.log10(LEAST_POWER)).amax(dim=(1, 2), keepdim=True)
        logs = torch.maximum(logs, loudest - self.floor) / 4 + 1
        after = torch.where(frames == count - 1, logs, torch.cat([logs[:, 1:], logs[:, -1:]], dim=1))
        before = torch.cat([logs[:, :1], logs[:, :-1]], dim=1)
        both = torch.cat([logs, (after - before) / 2], dim=2).masked_fill(frames >= count, 0.0)
        whole = (both.shape[1] + 1) // STACKED
        stacked = F.pad(both, (0, 0, 0, 1))[:, : STACKED * whole].reshape(-1, whole, self.bins)
        return stacked, num_frames


def _triangles(sample_rate: int, n_fft: int, bands: int) -> Tensor:
    """torchaudio's filters (n_fft // 2 + 1, bands): triangles over Hz between centres on the HTK's mel scale.

    In float32 throughout, as there: next to an edge its rounding decides whether a band has a bin at all.
    """
    top = 2595.0 * math.log10(1.0 + sample_rate / 2 / 700.0)
    edges = 700.0 * (10.0 ** (torch.linspace(0.0, top, bands + 2) / 2595.0) - 1.0)
    frequencies = torch.linspace(0, sample_rate // 2, n_fft // 2 + 1).unsqueeze(1)
    rising = (frequencies - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - frequencies) / (edges[2:] - edges[1:-1])
    return torch.clamp(torch.minimum(rising, falling), min=0.0)
