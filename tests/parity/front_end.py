"""Feeding upstream's features through the whole system.

Golden inputs are features, the system takes waveforms. A bundle exported with this front end reads its samples as
features, one frame after the other; everything behind it (graphs, pipelines, server) is what every bundle has.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from effort import runtimes
from parity.golden_cases import Case
from tritone.bundle.manifest import Runtime
from tritone.families.icefall.export import export_icefall
from tritone.families.icefall.graphs import PADDING
from tritone.families.jasper.export import export_jasper
from tritone.families.layers.framing import count_windows
from tritone.families.wenet.config import ModelConfig
from tritone.families.wenet.export import export_wenet
from tritone.families.wespeaker.export import export_wespeaker


class FeaturesAsSamples(nn.Module):
    """waveform (batch, frames * bins) -> features (batch, frames, bins), `padding` where a row has ended."""

    def __init__(self, bins: int, padding: float | None = None) -> None:
        super().__init__()
        self.frame_length = self.frame_shift = bins
        self.padding = padding

    lead_samples = 0

    def least_samples(self, frames: int) -> int:
        return frames * self.frame_shift

    window_samples = flush_samples = least_samples

    def num_frames(self, num_samples: Tensor) -> Tensor:
        return count_windows(num_samples, self.frame_length, self.frame_shift)

    def forward(self, waveform: Tensor, num_samples: Tensor, first: Tensor | None = None) -> tuple[Tensor, Tensor]:
        frames = waveform.shape[1] // self.frame_shift
        features = waveform[:, : frames * self.frame_shift].reshape(waveform.shape[0], frames, self.frame_shift)
        num_frames = self.num_frames(num_samples)
        if self.padding is not None:
            beyond = torch.arange(frames) >= num_frames.unsqueeze(1)
            features = features.masked_fill(beyond.unsqueeze(2), self.padding)
        return features, num_frames


def streaming_sizes(case: Case) -> tuple[int, int]:
    """Chunk size and left chunks of a streaming case."""
    return int(case.expected["chunk_size"]), int(case.expected["num_left_chunks"])


def export_case(case: Case, output: Path, runtime: Runtime) -> Path:
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
        runtimes=(runtime,),
        make_front_end=_for_wenet,
    ).bundle.path


def _for_wenet(config: ModelConfig) -> FeaturesAsSamples:
    return FeaturesAsSamples(config.num_mel_bins)


ICEFALL_RUNTIMES: tuple[Runtime, ...] = ("onnxruntime", "torchscript")


def icefall_sizes(case: Case) -> dict[str, Any]:
    """What a case of icefall's says of itself."""
    sizes: dict[str, Any] = json.loads((case.path / "hparams.json").read_text(encoding="utf-8"))
    return sizes


def export_icefall_case(case: Case, output: Path) -> Path:
    """Sizes are those that the case was streamed with; all else is read off its tensors.

    The smallest network of all is for torchscript too, the others for onnxruntime.
    """
    sizes = icefall_sizes(case)
    small = "conformer" in sizes["kind"] and not sizes["streaming"]
    bpe_model = case.path / "bpe.model"
    options: dict[str, Any] = {}
    if "conformer" in sizes["kind"]:
        options["causal"] = sizes["causal_convolution"]
    if sizes["streaming"] and "conformer" in sizes["kind"]:
        options |= {
            "chunk_size": sizes["decode_chunk_size"],
            "left_context": sizes["left_context"],
            "right_context": sizes["right_context"],
            "start_context": [sizes["blank_id"]] * sizes["context_size"],  # as upstream's streams of this recipe begin
        }
    elif sizes["streaming"]:
        # upstream counts a zipformer's frames before their number is halved
        options |= {"chunk_size": int(sizes["chunk_size"]) // 2, "left_context": int(sizes["left_context_frames"]) // 2}
    return export_icefall(
        checkpoint=case.path / "pretrained.pt",
        output=output,
        tokens=None if bpe_model.is_file() else case.path / "tokens.txt",
        bpe_model=bpe_model if bpe_model.is_file() else None,
        streaming=sizes["streaming"],
        runtimes=ICEFALL_RUNTIMES if small else ICEFALL_RUNTIMES[:1],
        make_front_end=_for_icefall,
        **options,
    ).bundle.path


def _for_icefall(bins: int) -> FeaturesAsSamples:
    return FeaturesAsSamples(bins, PADDING)


JASPER_RUNTIMES: tuple[Runtime, ...] = (*runtimes(), "torchscript") if "torch" in runtimes() else runtimes()
WESPEAKER_RUNTIMES: tuple[Runtime, ...] = ("onnxruntime", "torchscript")
UNMASKED = "unmasked"  # the folder beside the bundle


def export_jasper_case(case: Case, output: Path) -> Path:
    """These cases have samples of their own. Beside the bundle is one that hears what upstream's unmasked net hears."""
    files = {"checkpoint": case.path / "checkpoint.pt", "config": case.path / "config.yaml"}
    export_jasper(**files, output=output.with_name(UNMASKED), masked=False)
    return export_jasper(**files, output=output, masked=True, runtimes=JASPER_RUNTIMES).bundle.path


def export_wespeaker_case(case: Case, output: Path) -> Path:
    """Its samples lie in another case. ECAPA's network, which traces fastest, is for torchscript too."""
    small = "ECAPA" in (case.path / "config.yaml").read_text(encoding="utf-8")
    return export_wespeaker(
        checkpoint=case.path / "avg_model.pt",
        config=case.path / "config.yaml",
        mean_vec=case.path / "mean_vec.npy",
        output=output,
        runtimes=WESPEAKER_RUNTIMES if small else WESPEAKER_RUNTIMES[:1],
    ).bundle.path


def as_samples(case: Case) -> list[np.ndarray]:
    """The utterances of a case as waveforms for such a bundle."""
    inputs = case.inputs
    feats, lengths = (
        (inputs["feats"], inputs["feats_lengths"]) if "feats" in inputs else (inputs["features"], inputs["lengths"])
    )
    return [np.ascontiguousarray(feats[i, :n]).reshape(-1) for i, n in enumerate(lengths)]


def golden_tensors(case: Case) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(case.inputs["feats"]), torch.from_numpy(case.inputs["feats_lengths"]).long()
