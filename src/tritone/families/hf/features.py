"""What goes into the networks: samples as upstream's feature extractors normalise them, or stacked mel bands.

    waveform (batch, samples) in [-1, 1], num_samples (batch,)  ->  features (batch, frames, bins), num_frames (batch,)

Mean and variance are those of each utterance alone, in float32. Sources: transformers, Wav2Vec2FeatureExtractor,
OmniASRFeatureExtractor, SeamlessM4TFeatureExtractor and LasrFeatureExtractor.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from tritone.bundle.manifest import Features
from tritone.errors import ExportError
from tritone.families.export.settings import shown
from tritone.families.hf.config import AnyConfig, GraniteConfig, LasrConfig, ModelConfig
from tritone.families.hf.granite_features import GraniteFbank
from tritone.families.layers.fbank import Fbank
from tritone.families.layers.framing import count_windows

VARIANCE_GUARD = 1e-7
OMNIASR_GUARD = 1e-5
LASR_WINDOW: Literal["hanning"] = "hanning"
LASR_BAND = (125.0, 7500.0)  # Hz
LASR_FLOOR = 1e-5
MAX_SIZE = 2**12  # of windows in samples, and of bands
RATES = (1000, 768_000)  # Hz, what manifests allow
EXTRACTORS: Mapping[str, str] = {
    "omniasr_ctc": "OmniASRFeatureExtractor",
    "wav2vec2-bert": "SeamlessM4TFeatureExtractor",
    "lasr_ctc": "LasrFeatureExtractor",
    "granite_speech5_ctc": "GraniteSpeech5FeatureExtractor",
}
"""The feature extractors of types that have another than wav2vec 2.0."""


class HfFeatures(Protocol):
    """The front end of a graph; `frame_length`, `frame_shift` in samples."""

    frame_length: int
    frame_shift: int

    def least_samples(self, frames: int) -> int:
        """The shortest waveform that gives so many frames."""

    def num_frames(self, num_samples: Tensor) -> Tensor:
        """Frames of utterances of so many samples, (batch,) int64 both."""

    def described(self) -> Features:
        """As a manifest has it."""

    def __call__(self, waveform: Tensor, num_samples: Tensor) -> tuple[Tensor, Tensor]:
        """See `Samples.forward`."""


class Samples(nn.Module):
    """The samples themselves; frames are as long as their shift. `guard` is added to the variance."""

    frame_length = frame_shift = 1

    def __init__(self, normalize: bool, guard: float = VARIANCE_GUARD) -> None:
        super().__init__()
        self.normalize, self.guard = normalize, guard

    def least_samples(self, frames: int) -> int:
        """The shortest waveform that gives so many frames."""
        return frames

    def num_frames(self, num_samples: Tensor) -> Tensor:
        """Frames of utterances of so many samples, (batch,) int64 both."""
        return num_samples

    def described(self) -> Features:
        """As a manifest has it."""
        return Features.of_samples("all-features" if self.normalize else "none")

    def forward(self, waveform: Tensor, num_samples: Tensor) -> tuple[Tensor, Tensor]:
        """Normalise; what is at or beyond `num_samples` (batch,) int64 may be anything, and is 0 in the result."""
        end = num_samples.unsqueeze(1)
        behind = torch.arange(waveform.shape[1], device=waveform.device) >= end
        signal = waveform.masked_fill(behind, 0.0)
        if self.normalize:
            count = end.clamp(min=1).float()
            centred = (signal - signal.sum(dim=1, keepdim=True) / count).masked_fill(behind, 0.0)
            variance = centred.square().sum(dim=1, keepdim=True) / count
            signal = centred / (variance + self.guard).sqrt()
        return signal.unsqueeze(2), num_samples


class StackedFbank(nn.Module):
    """Kaldi's mel bands, each normalised over the utterance, and `stacked` frames side by side as one.

    Frames that are left over at the end are dropped: upstream's attention mask hides the one that they are in.
    """

    def __init__(self, sample_rate: int, bands: int, stacked: int) -> None:
        super().__init__()
        self.fbank = Fbank(sample_rate=sample_rate, num_mel_bins=bands)
        self.bins, self.stacked = bands * stacked, stacked
        self.frame_length = self.fbank.window_samples(stacked)
        self.frame_shift = self.fbank.frame_shift * stacked

    def least_samples(self, frames: int) -> int:
        """The shortest waveform that gives so many frames."""
        return (frames - 1) * self.frame_shift + self.frame_length

    def num_frames(self, num_samples: Tensor) -> Tensor:
        """Frames of utterances of so many samples, (batch,) int64 both."""
        return count_windows(num_samples, self.frame_length, self.frame_shift)

    def described(self) -> Features:
        """As a manifest has it; a frame is a stacked one."""
        return Features(
            frame_length=self.frame_length,
            frame_shift=self.frame_shift,
            num_mel_bins=self.bins,
            normalize="per-feature",
        )

    def forward(self, waveform: Tensor, num_samples: Tensor) -> tuple[Tensor, Tensor]:
        """Compute features; what is at or beyond `num_samples` (batch,) int64 may be anything, and is 0 there."""
        features, counts = self.fbank(waveform, num_samples)
        counts = counts.view(-1, 1, 1)
        beyond = torch.arange(features.shape[1], device=features.device).view(1, -1, 1) >= counts
        # Upstream's mean and variance count the frame that is left over, too.
        features = features.masked_fill(beyond, 0.0)
        mean = features.sum(dim=1, keepdim=True) / counts.clamp(min=1).float()
        centred = (features - mean).masked_fill(beyond, 0.0)
        variance = centred.square().sum(dim=1, keepdim=True) / (counts - 1).clamp(min=1).float()
        normalised = centred / (variance + VARIANCE_GUARD).sqrt()
        whole = features.shape[1] // self.stacked
        return normalised[:, : whole * self.stacked].reshape(-1, whole, self.bins), self.num_frames(num_samples)


class LasrFbank(Fbank):
    """LASR's mel bands: of samples in [-1, 1] as they are, and 0 beyond a row's end."""

    def __init__(self, sample_rate: int, frame_length: int, frame_shift: int, bands: int) -> None:
        super().__init__(
            sample_rate=sample_rate,
            frame_length=frame_length,
            frame_shift=frame_shift,
            num_mel_bins=bands,
            window_type=LASR_WINDOW,
            preemphasis=0.0,
            low_freq=LASR_BAND[0],
            high_freq=LASR_BAND[1],
            sample_scale=1.0,
            padding_value=0.0,
            remove_offset=False,
            log_floor=LASR_FLOOR,
            empty_filters=True,
        )
        self.bands = bands

    def described(self) -> Features:
        """As a manifest has it."""
        return Features(
            frame_length=self.frame_length,
            frame_shift=self.frame_shift,
            num_mel_bins=self.bands,
            window=LASR_WINDOW,
            preemphasis=0.0,
            low_freq=LASR_BAND[0],
            high_freq=LASR_BAND[1],
            sample_scale=1.0,
        )


def read_front_end(content: Mapping[str, Any], path: Path, config: AnyConfig) -> tuple[HfFeatures, int]:
    """The front end that a feature extractor's settings ask for, and the sample rate in Hz; `path` has them.

    Raises:
        ExportError: they are of another kind of features than the model's, or something in them is unsupported.
    """
    expected = EXTRACTORS.get(config.model_type, "Wav2Vec2FeatureExtractor")
    kind, rate = content.get("feature_extractor_type", expected), content.get("sampling_rate", 16000)
    if kind != expected:
        raise ExportError(f"{path} is of a {str(kind)[:80]}; a {config.model_type} has a {expected}")
    if not isinstance(rate, int) or not RATES[0] <= rate <= RATES[1]:
        raise ExportError(f"{path} has sampling_rate {shown(rate)}; expected Hz, from {RATES[0]} to {RATES[1]}")
    if isinstance(config, LasrConfig):
        return _of_lasr(content, path, config, rate), rate
    if isinstance(config, GraniteConfig):
        return _of_granite(content, path, config, rate), rate
    if config.takes_fbank:
        return _stacked(content, path, config, rate), rate
    normalize, size = content.get("do_normalize", True), content.get("feature_size", 1)
    if size != 1 or not isinstance(normalize, bool):
        raise ExportError(
            f"{path} has do_normalize {shown(normalize)} and feature_size {shown(size)}; expected a bool and 1"
        )
    return Samples(normalize, OMNIASR_GUARD if config.is_omniasr else VARIANCE_GUARD), rate


def _stacked(content: Mapping[str, Any], path: Path, config: ModelConfig, rate: int) -> StackedFbank:
    bands, stacked = content.get("num_mel_bins", 80), content.get("stride", 2)
    whole = all(isinstance(each, int) and each > 0 for each in (bands, stacked))
    if not whole or bands * stacked != config.feature_projection_input_dim:
        raise ExportError(
            f"{path} has num_mel_bins {shown(bands)} and stride {shown(stacked)}; the model takes frames of "
            f"{config.feature_projection_input_dim} (feature_projection_input_dim), their product"
        )
    try:
        return StackedFbank(rate, bands, stacked)
    except ValueError as error:
        raise ExportError(f"{path}: {error}") from error


def _sizes(content: Mapping[str, Any], path: Path, usual: Mapping[str, int]) -> list[int]:
    """Whole numbers by their names, of which the second is the length of a window."""
    given = {name: content.get(name, default) for name, default in usual.items()}
    if not all(isinstance(each, int) and 0 < each <= MAX_SIZE for each in given.values()) or given["win_length"] < 2:
        raise ExportError(f"{path} has {shown(given)}; expected whole numbers above 0, at most {MAX_SIZE}")
    return list(given.values())


def _of_granite(content: Mapping[str, Any], path: Path, config: GraniteConfig, rate: int) -> GraniteFbank:
    usual = {"num_mel_bins": 80, "win_length": 400, "hop_length": 160, "n_fft": 512, "delta_win_length": 3}
    bands, length, shift, n_fft, differences = _sizes(content, path, usual)
    floor, filled = content.get("logmel_floor_db", 8.0), content.get("padding_value", 0.0)
    if bands != config.num_mel_bins or not shift <= length <= n_fft or n_fft % 2 or differences not in (3, 4):
        raise ExportError(
            f"{path} has num_mel_bins {bands}, hop_length {shift}, win_length {length}, n_fft {n_fft} and "
            f"delta_win_length {differences}; expected {config.num_mel_bins} bands as in config.json, steps up to a "
            "window's length, a window up to n_fft, which is even, and differences of 3 frames"
        )
    if isinstance(floor, bool) or not isinstance(floor, int | float) or not 0 <= floor < 100 or filled != 0:
        raise ExportError(
            f"{path} has logmel_floor_db {shown(floor)} and padding_value {shown(filled)}; expected 0 to 100, and 0"
        )
    return GraniteFbank(rate, length, shift, n_fft, bands, float(floor))


def _of_lasr(content: Mapping[str, Any], path: Path, config: LasrConfig, rate: int) -> LasrFbank:
    usual = {"feature_size": 128, "win_length": 400, "hop_length": 160, "n_fft": 512}
    bands, length, shift, n_fft = _sizes(content, path, usual)
    if bands != config.num_mel_bins or n_fft != 1 << (length - 1).bit_length():
        raise ExportError(
            f"{path} has feature_size {bands} and n_fft {n_fft}; expected {config.num_mel_bins}, the num_mel_bins of "
            f"config.json, and the next power of two to win_length {length}"
        )
    try:
        return LasrFbank(rate, length, shift, bands)
    except ValueError as error:
        raise ExportError(f"{path}: {error}") from error
