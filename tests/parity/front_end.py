"""Feeding upstream's features through the whole system.

Golden inputs are features, the system takes waveforms. A bundle exported with this front end reads its samples as
features, one frame after the other; everything behind it (graphs, pipelines, server) is what every bundle has.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from parity.golden_cases import Case
from tritone.families.fbank import count_windows
from tritone.families.wenet.config import ModelConfig
from tritone.families.wenet.export import export_wenet


class FeaturesAsSamples(nn.Module):
    """waveform (batch, frames * bins) -> features (batch, frames, bins)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.frame_length = self.frame_shift = config.num_mel_bins

    def forward(self, waveform: Tensor, num_samples: Tensor) -> tuple[Tensor, Tensor]:
        frames = waveform.shape[1] // self.frame_shift
        features = waveform[:, : frames * self.frame_shift].reshape(waveform.shape[0], frames, self.frame_shift)
        return features, count_windows(num_samples, self.frame_length, self.frame_shift)


def streaming_sizes(case: Case) -> tuple[int, int]:
    """Chunk size and left chunks of a streaming case."""
    return int(case.expected["chunk_size"]), int(case.expected["num_left_chunks"])


def export_case(case: Case, output: Path) -> Path:
    streaming = "chunk_size" in case.expected
    chunk_size, left_chunks = streaming_sizes(case) if streaming else (16, 5)
    return export_wenet(
        checkpoint=case.path / "final.pt",
        config=case.path / "train.yaml",
        tokens=case.path / "units.txt",
        output=output,
        streaming=streaming,
        chunk_size=chunk_size,
        left_chunks=left_chunks,
        runtimes=("onnxruntime", "torch"),
        make_front_end=FeaturesAsSamples,
    ).bundle.path


def as_samples(case: Case) -> list[np.ndarray]:
    """The utterances of a case as waveforms for such a bundle."""
    feats, lengths = case.inputs["feats"], case.inputs["feats_lengths"]
    return [np.ascontiguousarray(feats[i, :n]).reshape(-1) for i, n in enumerate(lengths)]


def golden_tensors(case: Case) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(case.inputs["feats"]), torch.from_numpy(case.inputs["feats_lengths"]).long()
