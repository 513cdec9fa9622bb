"""Kaldi fbank as a torch module that exports to a handful of ONNX matrix products.

    waveform (batch, samples) in [-1, 1], num_samples (batch,)  ->  log-mel (batch, frames, bins), num_frames (batch,)

Pre-emphasis, window and DFT of a frame are linear, so they fold into one matrix that is built in float64. The frame's
mean is subtracted before the product: inside the matrix it would cancel large numbers and lose precision under a DC
offset.
Source of the method: Kaldi src/feat/feature-window.cc and mel-computations.cc; dither is 0 and snip_edges true.
"""

import math

import numpy as np
import torch
from torch import Tensor, nn

from tritone.audio.fbank import mel_banks, window

INT16_SCALE = 32768.0  # Kaldi features are defined on 16-bit sample values
LOG_FLOOR = float(np.finfo(np.float32).eps)


def count_windows(length: Tensor, width: int, step: int) -> Tensor:
    """Whole windows of `width` that fit into `length` (int64) when moved by `step`; 0 when none does.

    Never divides a negative number, and never in floating point: ONNX truncates where torch floors, and float32
    miscounts audio of more than ten minutes.
    """
    return torch.clamp(length - (width - step), min=0) // step


class Fbank(nn.Module):
    """Log-mel features of a batch of waveforms; all arithmetic in float32.

    Args:
        sample_rate: in Hz.
        frame_length, frame_shift: in samples.
        num_mel_bins, window_type, preemphasis, low_freq, high_freq: as in Kaldi's fbank options.
    """

    dft: Tensor
    mel: Tensor

    def __init__(
        self,
        *,
        sample_rate: int = 16000,
        frame_length: int = 400,
        frame_shift: int = 160,
        num_mel_bins: int = 80,
        window_type: str = "povey",
        preemphasis: float = 0.97,
        low_freq: float = 20.0,
        high_freq: float = 0.0,
    ) -> None:
        super().__init__()
        self.frame_length, self.frame_shift = frame_length, frame_shift
        fft_size = 1 << (frame_length - 1).bit_length()
        # Row i of `emphasis` is the contribution of sample i: itself, and -preemphasis in the next sample.
        emphasis = np.eye(frame_length) - preemphasis * np.eye(frame_length, k=1)
        emphasis[0, 0] -= preemphasis
        angles = 2 * np.pi / fft_size * np.outer(np.arange(frame_length), np.arange(fft_size // 2))
        spectrum = np.concatenate([np.cos(angles), -np.sin(angles)], axis=1)
        matrix = INT16_SCALE * emphasis @ (window(window_type, frame_length)[:, None] * spectrum)
        banks = mel_banks(num_mel_bins, sample_rate, fft_size, low_freq, high_freq)
        # Plain constants of the front end: never part of a checkpoint.
        self.register_buffer("dft", torch.from_numpy(matrix.astype(np.float32)), persistent=False)
        self.register_buffer("mel", torch.from_numpy(banks.astype(np.float32)), persistent=False)

    def num_frames(self, num_samples: Tensor) -> Tensor:
        """Frames that lie wholly inside `num_samples` samples; 0 when shorter than one frame."""
        return count_windows(num_samples, self.frame_length, self.frame_shift)

    def frames(self, waveform: Tensor) -> Tensor:
        """Cut (batch, samples) into overlapping frames (batch, frames, frame_length).

        Frames are put together from hops of the greatest common divisor, which export as plain slices: onnxruntime
        runs them several times faster than a gather or a convolution with an identity kernel.
        """
        hop = math.gcd(self.frame_length, self.frame_shift)
        step, width = self.frame_shift // hop, self.frame_length // hop
        count = (waveform.shape[1] - self.frame_length) // self.frame_shift + 1
        used = (count - 1) * self.frame_shift + self.frame_length
        hops = waveform[:, :used].reshape(waveform.shape[0], (count - 1) * step + width, hop)
        parts = [hops[:, i : i + (count - 1) * step + 1 : step] for i in range(width)]
        return torch.cat(parts, dim=2)

    def forward(self, waveform: Tensor, num_samples: Tensor) -> tuple[Tensor, Tensor]:
        frames = self.frames(waveform)
        frames = frames - frames.mean(dim=2, keepdim=True)
        spectrum = frames @ self.dft
        bins = self.mel.shape[0]
        power = spectrum[..., :bins].square() + spectrum[..., bins:].square()
        return torch.log(torch.clamp(power @ self.mel, min=LOG_FLOOR)), self.num_frames(num_samples)
