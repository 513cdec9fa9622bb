"""pyannote.audio's segmentation network: learned filters, an LSTM in both directions, linear layers, sets of speakers.

    waveform (batch, samples)  ->  log-probabilities of sets of speakers (batch, frames, sets)

Names are upstream's, but for the first filters, which are made of their edges when a checkpoint is read. Source:
pyannote.audio 4.0, `PyanNet` (models/segmentation/PyanNet.py) and `SincNet` (models/blocks/sincnet.py), with the
filters of asteroid-filterbanks 0.4, `ParamSincFB`; the method is Ravanelli and Bengio 2018, arXiv:1808.00158.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from tritone.families.export.exportable import UtteranceGraph
from tritone.families.export.precision import as_dtype

SAMPLE_RATE = 16000  # Hz, the one of the filters
FILTERS, KERNEL = 80, 251  # of the first layer; half of them are odd
CHANNELS, WIDTH = 60, 5  # of the other two convolutions
POOL = 3  # maxima of so many frames after each convolution
LEAST_HZ = 50.0  # of a filter's lower edge, and of its width


@dataclass(frozen=True, kw_only=True)
class SegmentationConfig:
    """Sizes; `sets`: of speakers, the classes of a frame. `stride`: of the first filters, in samples."""

    hidden: int
    layers: int
    bidirectional: bool
    linear: tuple[int, ...]
    sets: int
    stride: int

    @property
    def frame_samples(self) -> int:
        """From one frame to the next."""
        return self.stride * POOL**3

    @property
    def field_samples(self) -> int:
        """What one frame sees."""
        field = 1
        for kernel, step in reversed(self._layers):
            field = (field - 1) * step + kernel
        return field

    def num_frames(self, num_samples: Tensor) -> Tensor:
        """How many frames there are of so many samples."""
        for kernel, step in self._layers:
            num_samples = torch.div(num_samples - kernel, step, rounding_mode="floor") + 1
        return num_samples

    @property
    def _layers(self) -> tuple[tuple[int, int], ...]:
        """Width and step of each convolution and each maximum."""
        return (KERNEL, self.stride), (POOL, POOL), *((WIDTH, 1), (POOL, POOL)) * 2


def filters_of(low_hz: Tensor, band_hz: Tensor) -> Tensor:
    """The first filters as weights of a convolution, (2 x bands, 1, KERNEL): even ones, then odd ones.

    Each is the band between two edges, windowed, with the middle at 1 (even) or 0 (odd).

    Args:
        low_hz, band_hz: (bands, 1), the lower edge and the width of each band, as they are learned.
    """
    # In float32 and in upstream's order: the quotients lose digits, which the network was trained with.
    half = KERNEL // 2
    low = LEAST_HZ + low_hz.float().abs()
    high = (low + LEAST_HZ + band_hz.float().abs()).clamp(LEAST_HZ, SAMPLE_RATE / 2)
    times = 2 * math.pi * (torch.arange(-half, 0.0).unsqueeze(0) / SAMPLE_RATE)
    window = torch.hamming_window(KERNEL, periodic=False, dtype=torch.float64)[:half].float()
    width = 2 * (high - low)
    even = (torch.sin(high @ times) - torch.sin(low @ times)) / (times / 2) * window
    odd = (torch.cos(low @ times) - torch.cos(high @ times)) / (times / 2) * window
    even = torch.cat([even, width, even.flip(1)], dim=1)
    odd = torch.cat([odd, torch.zeros_like(width), -odd.flip(1)], dim=1)
    return (torch.cat([even, odd]) / torch.cat([width, width])).unsqueeze(1)


class SincNet(nn.Module):
    """Waveforms (batch, samples) float32 to (batch, CHANNELS, frames)."""

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.wav_norm1d = nn.InstanceNorm1d(1, affine=True)
        self.conv1d = nn.ModuleList(
            [
                nn.Conv1d(1, FILTERS, KERNEL, stride=stride, bias=False),
                nn.Conv1d(FILTERS, CHANNELS, WIDTH),
                nn.Conv1d(CHANNELS, CHANNELS, WIDTH),
            ]
        )
        self.norm1d = nn.ModuleList([nn.InstanceNorm1d(size, affine=True) for size in (FILTERS, CHANNELS, CHANNELS)])

    def forward(self, waveform: Tensor) -> Tensor:
        first = self.wav_norm1d
        # In float32: the variance of soft audio is nothing in halves.
        weight, bias = (as_dtype(each, torch.float32) for each in (first.weight, first.bias))
        x = functional.instance_norm(waveform.unsqueeze(1), weight=weight, bias=bias, eps=first.eps)
        x = as_dtype(x, first.weight.dtype)
        for index, (convolution, norm) in enumerate(zip(self.conv1d, self.norm1d, strict=True)):
            x = convolution(x)
            if index == 0:
                x = x.abs()
            x = functional.leaky_relu(norm(functional.max_pool1d(x, POOL, POOL)))
        return x


class PyanNet(nn.Module):
    """Waveforms (batch, samples) to log-probabilities (batch, frames, sets) float32."""

    def __init__(self, config: SegmentationConfig) -> None:
        super().__init__()
        self.config = config
        self.sincnet = SincNet(config.stride)
        self.lstm = nn.LSTM(
            CHANNELS, config.hidden, config.layers, batch_first=True, bidirectional=config.bidirectional
        )
        sizes = (config.hidden * (1 + config.bidirectional), *config.linear)
        self.linear = nn.ModuleList(
            [nn.Linear(before, after) for before, after in zip(sizes, config.linear, strict=False)]
        )
        self.classifier = nn.Linear(sizes[-1], config.sets)

    def forward(self, waveform: Tensor) -> Tensor:
        x, _ = self.lstm(self.sincnet(waveform).transpose(1, 2))
        for linear in self.linear:
            x = functional.leaky_relu(linear(x))
        return torch.log_softmax(as_dtype(self.classifier(x), torch.float32), dim=-1)


class SegmentationGraph(UtteranceGraph):
    """waveform (batch, samples), num_samples (batch,) -> log_probs (batch, frames, sets), num_frames (batch,).

    All rows of a batch have as many frames: what follows a row's own samples is silence, which the network hears.
    """

    sample_rate = SAMPLE_RATE

    def __init__(self, network: PyanNet) -> None:
        super().__init__()
        self.network = network

    @property
    def min_samples(self) -> int:
        return self.network.config.field_samples

    @property
    def outputs(self) -> list[str]:
        return ["log_probs", "num_frames"]

    def acoustic(self, features: Tensor, num_samples: Tensor) -> tuple[Tensor, ...]:
        raise NotImplementedError("the network takes waveforms")

    def forward(self, waveform: Tensor, num_samples: Tensor) -> tuple[Tensor, ...]:
        inside = torch.arange(waveform.shape[1], device=waveform.device) < num_samples.unsqueeze(1)
        found = self.network(torch.where(inside, waveform, torch.zeros((), device=waveform.device)))
        return found, self.network.config.num_frames(torch.zeros_like(num_samples) + waveform.shape[1])
