"""NVIDIA's log-mel features as a torch module that exports to one matrix product over the samples.

    waveform (batch, samples) in [-1, 1], num_samples (batch,)  ->  features (batch, frames, bins), num_frames (batch,)

Pre-emphasis, a DFT of windows that are centred on every `frame_shift`-th sample of the signal, Slaney's mel bands,
logarithm, and normalisation by mean and deviation of the utterance. Each row has its own end and is normalised over its
own frames, so that it gets what upstream gives it alone. Dither is off.

Beyond its ends the signal is mirrored (Jasper, QuartzNet) or zero (NeMo of today), `LogMelConfig.edges`. A window
shorter than the DFT lies in its middle, and what is around it counts for nothing: window and DFT of a frame are one
(frame_length × 2·bins) matrix. All arithmetic is in float32.
Sources of the method: DeepLearningExamples, PyTorch/SpeechRecognition/Jasper/common/features.py; NeMo,
nemo/collections/asr/parts/preprocessing/features.py.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tritone.audio.fbank import window
from tritone.bundle.manifest import Features
from tritone.errors import ExportError
from tritone.families.export.settings import MAX_SIZE
from tritone.families.layers.framing import between_mirrors, cut_frames
from tritone.families.layers.mel import Matrix, mel_banks, spectrum_and_filters

Normalize: TypeAlias = Literal["per-feature", "all-features", "none"]
WINDOWS = ("hann", "hamming", "blackman", "bartlett")
MAX_TABLE = 2**26  # numbers in the DFT's matrix or the filters'
DEVIATION_GUARD = 1e-5  # is added to the deviation that features are divided by


@dataclass(frozen=True, kw_only=True)
class LogMelConfig:
    """Log-mel features. `frame_length`, `frame_shift`, `n_fft` in samples; `low_freq`, `high_freq` in Hz.

    `preemphasis`: 0 for none. `edges`: what is beyond the ends of the signal. `log_guard`: is added before the
    logarithm, or with `clamped` the least that it is taken of.
    """

    section: ClassVar[str] = "preprocessor"  # of upstream's config, in messages

    sample_rate: int = 16000
    frame_length: int = 320
    frame_shift: int = 160
    n_fft: int = 512
    n_filt: int = 64
    window: str = "hann"
    normalize: Normalize = "per-feature"
    preemphasis: float = 0.97
    low_freq: float = 0.0
    high_freq: float = 8000.0
    log: bool = True
    edges: Literal["mirrored", "zeros"] = "mirrored"
    log_guard: float = 1e-20
    clamped: bool = False

    def __post_init__(self) -> None:
        if not 2 <= self.frame_length <= self.n_fft <= MAX_SIZE or not 0 < self.frame_shift <= MAX_SIZE:
            raise ExportError(
                f"{self.section}: windows of {self.frame_length} samples every {self.frame_shift} do not fit into "
                f"n_fft {self.n_fft}; a window has 2 samples or more, and n_fft as many or more"
            )
        if self.n_fft * max(self.frame_length, self.n_filt) > MAX_TABLE:
            raise ExportError(
                f"{self.section}: n_fft {self.n_fft} with {self.n_filt} filters of windows of {self.frame_length} "
                "samples cannot be right: the tables of such features would not fit into memory"
            )
        if not 0 <= self.low_freq < self.high_freq <= self.sample_rate / 2:
            raise ExportError(
                f"{self.section}: lowfreq {self.low_freq:g} and highfreq {self.high_freq:g} should lie between 0 "
                f"and half the sample rate ({self.sample_rate / 2:g} Hz), the lower one first"
            )
        if self.window not in WINDOWS:
            raise ExportError(
                f"{self.section}.window is {self.window!r}; upstream computes with {', '.join(WINDOWS)} alone"
            )


class LogMel(nn.Module):
    """Features of a batch of waveforms; see the head of this file."""

    dft: Tensor
    mel: Tensor

    def __init__(self, config: LogMelConfig) -> None:
        super().__init__()
        self.config = config
        self.frame_length, self.frame_shift = config.frame_length, config.frame_shift
        banks = mel_banks(config.n_filt, config.sample_rate, config.n_fft, config.low_freq, config.high_freq)
        dft, mel = spectrum_and_filters(analysis_window(config.window, config.frame_length), config.n_fft, banks)
        # Plain constants of the front end: never part of a checkpoint.
        self.register_buffer("dft", torch.from_numpy(dft), persistent=False)
        self.register_buffer("mel", torch.from_numpy(mel), persistent=False)

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
        """The shortest waveform that has features: two frames, for a deviation.

        Where the signal is mirrored also a whole window, and enough to be mirrored as far as upstream mirrors it.
        """
        if self.config.edges == "zeros":
            return 2 * self.frame_shift
        return max(self.frame_length, self.config.n_fft // 2 + 1, self.frame_shift + 1)

    def num_frames(self, num_samples: Tensor) -> Tensor:
        """Frames of utterances (batch,) int64; 0 of what is shorter than `min_samples`."""
        beyond = self.frame_shift - 1 if self.config.edges == "mirrored" else 0  # a frame that is begun counts there
        frames = (num_samples + beyond) // self.frame_shift
        return torch.where(num_samples >= self.min_samples, frames, torch.zeros_like(frames))

    def log_mel(self, waveform: Tensor, num_samples: Tensor) -> Tensor:
        """Features before normalisation, (batch, frames, bins); those at or beyond a row's own may be anything."""
        emphasis = self.config.preemphasis
        if emphasis:
            waveform = torch.cat([waveform[:, :1], waveform[:, 1:] - emphasis * waveform[:, :-1]], dim=1)
        padded = self._mirrored if self.config.edges == "mirrored" else self._with_zeros
        return self._log_energy(padded(waveform, num_samples))

    def _log_energy(self, signal: Tensor) -> Tensor:
        """Features (batch, frames, bins) of the whole frames of a signal (batch, samples) after pre-emphasis."""
        power = cut_frames(signal, self.frame_length, self.frame_shift) @ self.dft
        bins = self.mel.shape[0]
        energy = (power[..., :bins].square() + power[..., bins:].square()) @ self.mel
        if not self.config.log:
            return energy
        guard = self.config.log_guard
        return torch.log(energy.clamp(min=guard) if self.config.clamped else energy + guard)

    def of_window(self, waveform: Tensor, num_samples: Tensor) -> tuple[Tensor, Tensor]:
        """Features of windows of streams, which have zeros beyond their ends and are not normalised.

        Args:
            waveform: (batch, samples), which begins one sample before the first frame does; streams begin with so many
                zeros as the first frame of the first window needs.
            num_samples: (batch,) int64, those before the end of the stream.

        Returns:
            (batch, frames, bins), and how many of them (batch,) an utterance that ends there has.
        """
        signal = waveform[:, 1:] - self.config.preemphasis * waveform[:, :-1]
        places = torch.arange(signal.shape[1], device=signal.device)
        signal = signal.masked_fill(places >= num_samples.unsqueeze(1) - 1, 0.0)
        frames = torch.clamp(num_samples - 1 - self.lead_samples, min=0) // self.frame_shift
        return self._log_energy(signal), frames

    def _mirrored(self, signal: Tensor, end: Tensor) -> Tensor:
        """The signal between mirror images: `lead_samples` before it, those after it where each row has its `end`."""
        return between_mirrors(signal, end, self.lead_samples, self._reach)

    def _with_zeros(self, signal: Tensor, end: Tensor) -> Tensor:
        """The signal between zeros, which begin at the `end` of each row; whole frames only."""
        places = torch.arange(signal.shape[1], device=signal.device)
        signal = signal.masked_fill(places >= end.unsqueeze(1), 0.0)
        return F.pad(signal, (self.lead_samples, max(0, self._reach + 1 - self.frame_shift)))

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


def features_of(config: LogMelConfig) -> Features:
    """Features as a manifest has them."""
    return Features(
        kind="log-mel",
        frame_length=config.frame_length,
        frame_shift=config.frame_shift,
        num_mel_bins=config.n_filt,
        window={"hann": "hanning"}.get(config.window, config.window),  # type: ignore[arg-type]  # checked before
        preemphasis=config.preemphasis,
        low_freq=config.low_freq,
        high_freq=config.high_freq,
        snip_edges=False,
        sample_scale=1.0,
        normalize=config.normalize,
    )
