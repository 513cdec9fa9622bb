"""The network, and its two graphs with the contracts of docs/design.md.

features (batch, frames, bins)  ->  4 side by side  ->  causal convolutions  ->  log_probs (batch, frames / 4, vocab)
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tritone.audio import Waveform
from tritone.families.export.exportable import EXAMPLE_BATCH, ExportableGraph, Run, UtteranceGraph, trial_signal
from tritone.families.export.precision import as_dtype
from tritone.families.layers.fbank import Fbank

SAMPLE_RATE, BINS, RATE = 16_000, 80, 4
FRAME_LENGTH, FRAME_SHIFT = 400, 160  # samples


@dataclass(frozen=True)
class Sizes:
    """`kernel`: frames that a layer looks at, its own and those before it."""

    vocab: int
    width: int = 64
    layers: int = 3
    kernel: int = 5


class Murmur(nn.Module):
    """Each layer adds to its input what its convolution over past frames makes of it."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.stem = nn.Linear(RATE * BINS, sizes.width)
        width, layers = sizes.width, range(sizes.layers)
        self.past = nn.ModuleList(nn.Conv1d(width, width, sizes.kernel, groups=width) for _ in layers)
        self.mix = nn.ModuleList(nn.Linear(width, width) for _ in layers)
        self.head = nn.Linear(sizes.width, sizes.vocab)

    def forward(self, features: Tensor, past: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities, the frames behind them, and the next `past` (batch, layers, kernel - 1, width)."""
        dtype = self.stem.weight.dtype
        frames = features.shape[1] // RATE
        x = torch.relu(self.stem(as_dtype(features[:, : frames * RATE], dtype).reshape(-1, frames, RATE * BINS)))
        kept = []
        for layer, (conv, mix) in enumerate(zip(self.past, self.mix, strict=True)):
            whole = torch.cat([as_dtype(past[:, layer], dtype), x], dim=1)
            kept.append(whole[:, frames:])
            x = x + torch.relu(mix(conv(whole.transpose(1, 2)).transpose(1, 2)))
        log_probs = torch.log_softmax(as_dtype(self.head(x), torch.float32), dim=-1)
        return log_probs, as_dtype(x, torch.float32), as_dtype(torch.stack(kept, dim=1), torch.float32)

    def silence(self, batch: int) -> Tensor:
        """The past of streams that start."""
        sizes = self.sizes
        return torch.zeros(batch, sizes.layers, sizes.kernel - 1, sizes.width)


def front_end() -> Fbank:
    """Kaldi's fbank, as the network was trained with."""
    return Fbank(
        sample_rate=SAMPLE_RATE,
        frame_length=FRAME_LENGTH,
        frame_shift=FRAME_SHIFT,
        num_mel_bins=BINS,
        window_type="povey",
    )


class WholeGraph(UtteranceGraph):
    """Role `encoder`: whole utterances. No frame sees those after it, so padding behind a row changes nothing."""

    def __init__(self, network: Murmur) -> None:
        super().__init__()
        self.front_end, self.network, self.sample_rate = front_end(), network, SAMPLE_RATE

    @property
    def min_samples(self) -> int:
        return self.front_end.least_samples(RATE)

    def acoustic(self, features: Tensor, num_samples: Tensor) -> tuple[Tensor, ...]:
        past = self.network.silence(1).expand(features.shape[0], -1, -1, -1)
        log_probs, encoded, _ = self.network(features, past)
        return log_probs, self.front_end.num_frames(num_samples) // RATE, encoded


class StepGraph(ExportableGraph):
    """Role `streaming_encoder`: a window of many streams."""

    compared = ("log_probs",)

    def __init__(self, network: Murmur, chunk_size: int) -> None:
        super().__init__()
        self.front_end, self.network, self.chunk_size = front_end(), network, chunk_size
        self.window = self.front_end.window_samples(RATE * chunk_size)
        self.shift = RATE * chunk_size * FRAME_SHIFT

    @property
    def outputs(self) -> list[str]:
        return ["log_probs", "num_frames", "encoder_out", "next_past"]

    @property
    def dynamic(self) -> dict[str, dict[int, str]]:
        return {"waveform": {0: "batch", 1: "samples"}, "num_samples": {0: "batch"}, "past": {0: "batch"}}

    def example(self) -> dict[str, Tensor]:
        waveform, ends = torch.zeros(EXAMPLE_BATCH, self.window), torch.full((EXAMPLE_BATCH,), self.window)
        return {"waveform": waveform, "num_samples": ends, "past": self.network.silence(EXAMPLE_BATCH)}

    def trials(self) -> Iterator[Run]:
        yield self.hearing(trial_signal(self.window + 3 * self.shift, SAMPLE_RATE).numpy())

    def hearing(self, waveform: Waveform) -> Run:
        steps = []
        for start in range(0, max(1, len(waveform) - self.window + self.shift), self.shift):
            piece = torch.from_numpy(waveform[start : start + self.window])
            block = nn.functional.pad(piece, (0, self.window - len(piece)))[None]
            steps.append({"waveform": block, "num_samples": torch.tensor([len(piece)])})
        return Run(steps, {"past": self.network.silence(1)})

    def forward(self, waveform: Tensor, num_samples: Tensor, past: Tensor) -> tuple[Tensor, ...]:
        features, num_frames = self.front_end(waveform, num_samples)
        log_probs, encoded, after = self.network(features, past)
        return log_probs, num_frames // RATE, encoded, after
