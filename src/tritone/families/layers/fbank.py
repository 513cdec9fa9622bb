"""Kaldi fbank as a torch module that exports to a handful of ONNX matrix products.

    waveform (batch, samples) in [-1, 1], num_samples (batch,)  ->  log-mel (batch, frames, bins), num_frames (batch,)

Pre-emphasis, window and DFT of a frame are linear, so they fold into one matrix that is built in float64. The frame's
mean is subtracted before the product: inside the matrix it would cancel large numbers and lose precision under a DC
offset. The fused form transforms frames by FFT: on a GPU the product takes six times as long.

Without `snip_edges`, frames are centred and the signal is mirrored at its ends, which are elsewhere in each row. Only
the few samples beyond the ends are gathered one by one and put in place; frames are cut by slices either way.
Source of the method: Kaldi src/feat/feature-window.cc and mel-computations.cc; dither is 0.
"""

from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tritone.audio.fbank import SAMPLE_SCALE, mel_banks, window
from tritone.families.layers.framing import count_windows, cut_frames, mirror_image

LOG_FLOOR = float(np.finfo(np.float32).eps)


class FrontEnd(Protocol):
    """What turns samples into features: `Fbank`, or a stand-in with frame arithmetic of its own.

    `frame_length`, `frame_shift` in samples. `lead_samples`: zeros that streams begin with, in whose place the front
    end puts what its frames want before the first sample.
    """

    frame_length: int
    frame_shift: int

    @property
    def lead_samples(self) -> int: ...

    def least_samples(self, frames: int) -> int:
        """The shortest waveform that gives so many frames."""

    def num_frames(self, num_samples: Tensor) -> Tensor:
        """Frames of utterances of so many samples, (batch,) int64 both."""

    def window_samples(self, frames: int) -> int:
        """Samples of a stream that hold exactly so many frames."""

    def flush_samples(self, frames: int) -> int:
        """How far from the end of the audio a window may begin, so that it begins within `frames` frames after it.

        A window that begins at frame k of a stream with T frames is at k · frame_shift < samples + this number if and
        only if k < T + frames.
        """

    def __call__(self, waveform: Tensor, num_samples: Tensor, first: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Features of utterances, or of windows of streams if `first` says which rows begin one; see `Fbank`."""


class Fbank(nn.Module):
    """Log-mel features of a batch of waveforms; all arithmetic in float32.

    Args:
        sample_rate: in Hz.
        frame_length, frame_shift: in samples.
        num_mel_bins, window_type, preemphasis, low_freq, high_freq, snip_edges: as in Kaldi's fbank options.
        sample_scale: what samples are multiplied with; Kaldi's own features are of 16-bit numbers.
        padding_value: of features beyond the last frame of a row; None leaves there what comes out.
        remove_offset: whether each frame's mean is subtracted first.
        log_floor: the least energy that a logarithm is taken of.
        empty_filters: see `mel_banks`.
    """

    dft: Tensor
    window: Tensor
    mel: Tensor
    fused = False
    fused_in_halves = True  # an FFT in float32 is as exact as Kaldi's own, four times less so than the products

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
        snip_edges: bool = True,
        sample_scale: float = SAMPLE_SCALE,
        padding_value: float | None = None,
        remove_offset: bool = True,
        log_floor: float = LOG_FLOOR,
        empty_filters: bool = False,
    ) -> None:
        super().__init__()
        if not snip_edges and not frame_shift <= frame_length:
            raise ValueError(f"frames of {frame_length} samples cannot be centred {frame_shift} samples apart")
        self.frame_length, self.frame_shift = frame_length, frame_shift
        self.snip_edges, self.padding_value = snip_edges, padding_value
        self.preemphasis, self.remove_offset, self.log_floor = preemphasis, remove_offset, log_floor
        fft_size = 1 << (frame_length - 1).bit_length()
        # Row i of `emphasis` is the contribution of sample i: itself, and -preemphasis in the next sample.
        emphasis = np.eye(frame_length) - preemphasis * np.eye(frame_length, k=1)
        emphasis[0, 0] -= preemphasis
        angles = 2 * np.pi / fft_size * np.outer(np.arange(frame_length), np.arange(fft_size // 2))
        spectrum = np.concatenate([np.cos(angles), -np.sin(angles)], axis=1)
        scaled_window = sample_scale * window(window_type, frame_length)
        matrix = emphasis @ (scaled_window[:, None] * spectrum)
        banks = mel_banks(num_mel_bins, sample_rate, fft_size, low_freq, high_freq, empty_filters=empty_filters)
        # Plain constants of the front end: never part of a checkpoint.
        self.register_buffer("dft", torch.from_numpy(matrix.astype(np.float32)), persistent=False)
        self.register_buffer("window", torch.from_numpy(scaled_window.astype(np.float32)), persistent=False)
        self.register_buffer("mel", torch.from_numpy(banks.astype(np.float32)), persistent=False)

    @property
    def lead_samples(self) -> int:
        """Samples of the first frame that lie before the first sample."""
        return 0 if self.snip_edges else self.frame_length // 2 - self.frame_shift // 2

    @property
    def _reach(self) -> int:
        """The most samples of a frame that lie after the last sample."""
        return 0 if self.snip_edges else self.frame_length - self.frame_length // 2

    def least_samples(self, frames: int) -> int:
        """The shortest waveform that gives so many frames."""
        if self.snip_edges:
            return self.window_samples(frames)
        return frames * self.frame_shift - self.frame_shift // 2

    def window_samples(self, frames: int) -> int:
        """Samples of a stream that hold exactly so many frames."""
        return (frames - 1) * self.frame_shift + self.frame_length

    def flush_samples(self, frames: int) -> int:
        """See `FrontEnd.flush_samples`."""
        if self.snip_edges:
            return frames * self.frame_shift - self.frame_length + 1
        return (frames - 1) * self.frame_shift + self.frame_shift // 2 + 1

    def num_frames(self, num_samples: Tensor) -> Tensor:
        """Frames of `num_samples` samples: those that lie wholly inside, or without `snip_edges` all that are centred
        inside.
        """
        if self.snip_edges:
            return count_windows(num_samples, self.frame_length, self.frame_shift)
        return (num_samples + self.frame_shift // 2) // self.frame_shift

    def frames(self, waveform: Tensor) -> Tensor:
        """Cut (batch, samples) into overlapping frames (batch, frames, frame_length)."""
        return cut_frames(waveform, self.frame_length, self.frame_shift)

    def _mirrored(self, waveform: Tensor, end: Tensor, first: Tensor | None) -> Tensor:
        """Put mirror images in place of what lies before the signal and after it.

        Args:
            waveform: (batch, samples); each signal starts at `lead_samples`, or before the row does where it is not
                the `first` (batch,) window of its stream. None: all rows start here.
            end: (batch,) where the signal of each row ends; samples from there on may be anything.
        """
        lead = self.lead_samples
        length = torch.clamp(end - lead, min=0).unsqueeze(1)

        def image(index: Tensor) -> Tensor:
            return lead + mirror_image(index, length, edge_twice=True)

        before = torch.arange(lead - 1, -1, -1, device=waveform.device).unsqueeze(0)
        after = torch.arange(self._reach, device=waveform.device).unsqueeze(0)
        start, sources = waveform.gather(1, image(before)), image(length + after)
        if first is not None:
            starts = first.unsqueeze(1)
            start = torch.where(starts, start, waveform[:, :lead])
            # What is mirrored at the end of a later window lies inside it: its frames have most of their samples.
            sources = torch.where(starts, sources, torch.clamp(end.unsqueeze(1) - 1 - after, min=0))
        mirrored = waveform.gather(1, sources)
        return torch.cat([start, waveform[:, lead:]], dim=1).scatter(1, end.unsqueeze(1) + after, mirrored)

    def _power(self, signal: Tensor) -> Tensor:
        """Power spectra (batch, frames, bins) of the frames of (batch, samples)."""
        bins = self.mel.shape[0]
        if self.fused:
            frames = signal.unfold(1, self.frame_length, self.frame_shift)
            if self.remove_offset:
                frames = frames - frames.mean(dim=2, keepdim=True)
            before = torch.cat([frames[..., :1], frames[..., :-1]], dim=2)
            spectrum = torch.fft.rfft((frames - self.preemphasis * before) * self.window, n=2 * bins)
            return torch.view_as_real(spectrum)[..., :bins, :].square().sum(dim=3)
        frames = self.frames(signal)
        spectrum = (frames - frames.mean(dim=2, keepdim=True) if self.remove_offset else frames) @ self.dft
        return spectrum[..., :bins].square() + spectrum[..., bins:].square()

    def forward(self, waveform: Tensor, num_samples: Tensor, first: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Compute features.

        Args:
            waveform: (batch, samples); what is at or beyond `num_samples` (batch,) int64 may be anything.
            first: (batch,) bool for windows of streams, whether a row is a stream's first. Streams begin with
                `lead_samples` zeros, which count among `num_samples`, and a row with fewer samples than the window has
                is its stream's end. None: rows are whole utterances.

        Returns:
            (batch, frames, bins), and (batch,) how many frames of each row are of audio.
        """
        if self.snip_edges:
            num_frames, signal = self.num_frames(num_samples), waveform
        elif first is None:
            num_frames = self.num_frames(num_samples)
            padded = F.pad(waveform, (self.lead_samples, self._reach))
            signal = self._mirrored(padded, num_samples + self.lead_samples, None)
        else:
            # Before its lead, num_samples is that much less than nothing.
            shifted = num_samples - self.lead_samples + self.frame_shift // 2
            windows = (waveform.shape[1] - self.frame_length) // self.frame_shift + 1
            num_frames = torch.clamp(torch.clamp(shifted, min=0) // self.frame_shift, max=windows)
            signal = self._mirrored(F.pad(waveform, (0, self._reach)), num_samples, first)[:, : waveform.shape[1]]
        features = torch.log(torch.clamp(self._power(signal) @ self.mel, min=self.log_floor))
        if self.padding_value is not None:
            places = torch.arange(features.shape[1], device=features.device)
            beyond = (places >= num_frames.unsqueeze(1)).unsqueeze(2)
            features = features.masked_fill(beyond, self.padding_value)
        return features, num_frames
