"""Whisper's log-mel features as a torch module that exports to one matrix product over the samples.

    waveform (batch, samples) in [-1, 1], num_samples (batch,)  ->  features (batch, frames, bins), num_frames (batch,)

Frames of 25 ms are centred on every 160th sample; the signal is mirrored at its start and followed by silence, as in
upstream's `transcribe`. Powers below 1e-10, and all that is more than 80 dB below the loudest of the whole recording,
count as that. The maximum of a row is its own: it does not depend on other rows or on padding.
Source: openai/whisper whisper/audio.py, `log_mel_spectrogram`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tritone.families.layers.clipped_mel import FRAME_LENGTH, FRAME_SHIFT, POWER_FLOOR, RANGE, matrices
from tritone.families.layers.framing import cut_frames


class LogMel(nn.Module):
    """Features of a batch of waveforms; see the head of this file."""

    dft: Tensor
    mel: Tensor

    def __init__(self, num_bins: int) -> None:
        super().__init__()
        self.num_bins = num_bins
        dft, mel = matrices(num_bins)
        # Plain constants of the front end: never part of a checkpoint.
        self.register_buffer("dft", torch.from_numpy(dft), persistent=False)
        self.register_buffer("mel", torch.from_numpy(mel), persistent=False)

    def forward(self, waveform: Tensor, num_samples: Tensor) -> tuple[Tensor, Tensor]:
        """Compute features.

        Args:
            waveform: (batch, samples); what is at or beyond `num_samples` (batch,) int64 may be anything.

        Returns:
            (batch, frames, bins), of which those at or beyond a row's own may be anything that is finite, and (batch,)
            how many are its own: one for each whole 160 samples.
        """
        places = torch.arange(waveform.shape[1], device=waveform.device)
        signal = F.pad(waveform.masked_fill(places >= num_samples.unsqueeze(1), 0.0), (0, FRAME_LENGTH))
        before = torch.arange(FRAME_LENGTH // 2, 0, -1, device=waveform.device)
        frames = cut_frames(torch.cat([signal[:, before], signal], dim=1), FRAME_LENGTH, FRAME_SHIFT)
        spectrum = frames @ self.dft
        width = self.mel.shape[0]
        power = (spectrum[..., :width].square() + spectrum[..., width:].square()) @ self.mel
        log_power = torch.log10(torch.clamp(power, min=POWER_FLOOR))
        floor = log_power.amax(dim=(1, 2), keepdim=True) - RANGE
        return (torch.maximum(log_power, floor) + 4.0) / 4.0, num_samples // FRAME_SHIFT
