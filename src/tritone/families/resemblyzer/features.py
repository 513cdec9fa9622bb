"""Resemblyzer's features as a torch module: the power of mel bands of an utterance that is made loud enough.

    waveform (batch, samples) in [-1, 1], num_samples (batch,)  ->  mel (batch, frames, 40), num_frames (batch,)

Quiet utterances are amplified to a level of -30 dB, as upstream's preprocessing does; its removal of silence is not
part of it. Frames are centred on every 160th sample between zeros, as librosa 0.10 and newer put them there (older ones
mirrored the signal), and there are as many as the parts need that the network hears. All arithmetic is in float32.
Source of the method: Resemblyzer 0.1.4, resemblyzer/audio.py and compute_partial_slices of voice_encoder.py.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tritone.bundle.manifest import Features
from tritone.families.layers.framing import cut_frames
from tritone.families.layers.mel import mel_banks

SAMPLE_RATE = 16000
FRAME_LENGTH, FRAME_SHIFT = 400, 160  # samples
BINS = 40
PART = 160  # frames that the network hears at once
STEP = 77  # frames from one part to the next, 1.3 parts a second
LEAST_SHARE = 0.75  # of a part that must be of audio, but for the first
LEVEL = 10 ** (-30 / 20)  # root mean square
FEATURES = Features(
    kind="mel",
    frame_length=FRAME_LENGTH,
    frame_shift=FRAME_SHIFT,
    num_mel_bins=BINS,
    window="hanning",
    preemphasis=0.0,
    low_freq=0.0,
    snip_edges=False,
    sample_scale=1.0,
)


def count_parts(num_samples: Tensor) -> Tensor:
    """Parts of utterances of so many samples: one, and one more for each step of which enough is left."""
    enough = round(LEAST_SHARE * PART * FRAME_SHIFT)
    return torch.clamp(num_samples - enough, min=0) // (STEP * FRAME_SHIFT) + 1


class Mel(nn.Module):
    """Features of a batch of waveforms; see the head of this file."""

    dft: Tensor
    mel: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.sample_rate = SAMPLE_RATE
        angles = 2 * np.pi / FRAME_LENGTH * np.outer(np.arange(FRAME_LENGTH), np.arange(FRAME_LENGTH // 2 + 1))
        window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(FRAME_LENGTH) / FRAME_LENGTH)
        spectrum = window[:, None] * np.concatenate([np.cos(angles), -np.sin(angles)], axis=1)
        banks = mel_banks(BINS, SAMPLE_RATE, FRAME_LENGTH, 0.0, SAMPLE_RATE / 2)
        # Plain constants of the front end: never part of a checkpoint.
        self.register_buffer("dft", torch.from_numpy(spectrum.astype(np.float32)), persistent=False)
        self.register_buffer("mel", torch.from_numpy(banks.astype(np.float32)), persistent=False)

    def least_samples(self, frames: int) -> int:
        """The shortest waveform that is taken: a window. All have the frames of one part at least."""
        return FRAME_LENGTH

    def num_frames(self, num_samples: Tensor) -> Tensor:
        """Frames of the parts of utterances, (batch,) int64 both."""
        return (count_parts(num_samples) - 1) * STEP + PART

    def forward(self, waveform: Tensor, num_samples: Tensor) -> tuple[Tensor, Tensor]:
        """Compute features.

        Args:
            waveform: (batch, samples); what is at or beyond `num_samples` (batch,) int64 may be anything.

        Returns:
            (batch, frames, bins), of which those at or beyond a row's own may be anything that is finite, and (batch,)
            how many are its own.
        """
        places = torch.arange(waveform.shape[1], device=waveform.device)
        signal = waveform.masked_fill(places >= num_samples.unsqueeze(1), 0.0)
        power = signal.square().sum(dim=1) / torch.clamp(num_samples, min=1)
        gain = LEVEL / torch.sqrt(torch.clamp(power, min=torch.finfo(torch.float32).tiny))
        signal = signal * torch.clamp(gain, min=1.0).unsqueeze(1)
        # As many frames as the longest waveform of this shape needs; its number of parts is written without a
        # maximum, which a trace would take for a constant.
        frames = waveform.shape[1] // (STEP * FRAME_SHIFT) * STEP + PART
        half = FRAME_LENGTH // 2
        padded = F.pad(signal, (half, PART * FRAME_SHIFT + half))
        cut = cut_frames(padded[:, : (frames - 1) * FRAME_SHIFT + FRAME_LENGTH], FRAME_LENGTH, FRAME_SHIFT) @ self.dft
        bins = self.mel.shape[0]
        return (cut[..., :bins].square() + cut[..., bins:].square()) @ self.mel, self.num_frames(num_samples)
