"""WeSpeaker's networks of their published sizes with random weights: speed does not depend on what one has learnt.

    python -m benchmarks.models.speaker --output DIR --size resnet34 --runtimes onnxruntime,torch

    "resnet34"  ->  avg_model.pt, config.yaml in upstream's form  ->  `tritone export wespeaker`  ->  bundle

Batch norms hold statistics of speech, so that numbers keep their size from layer to layer and embeddings are finite and
differ from voice to voice. Needs the extra `export`.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import nn

from benchmarks.models.random_bundle import export_random, kept_bundle, options_parser
from tritone.bundle import Bundle
from tritone.bundle.manifest import Precision, Runtime
from tritone.families.wespeaker.config import ModelConfig, parse_config
from tritone.families.wespeaker.export import export_wespeaker
from tritone.families.wespeaker.features import SpeakerFeatures
from tritone.families.wespeaker.front_end import manifest_features
from tritone.families.wespeaker.model import SpeakerNetwork, build_network
from tritone.loadtest.workload.speech import Tape

# Upstream's name, size of the embedding and pooling, as its recipes have them.
SIZES: dict[str, tuple[str, int, str]] = {
    "resnet18": ("ResNet18", 256, "TSTP"),
    "resnet34": ("ResNet34", 256, "TSTP"),
    "resnet152": ("ResNet152", 256, "TSTP"),
    "resnet221": ("ResNet221", 256, "TSTP"),
    "resnet293": ("ResNet293", 256, "TSTP"),
    "ecapa_c512": ("ECAPA_TDNN_c512", 192, "ASTP"),
    "ecapa_c1024": ("ECAPA_TDNN_c1024", 192, "ASTP"),
    "ecapa_glob_c512": ("ECAPA_TDNN_GLOB_c512", 192, "ASTP"),
    "ecapa_glob_c1024": ("ECAPA_TDNN_GLOB_c1024", 192, "ASTP"),
    "campplus": ("CAMPPlus", 512, "TSTP"),
}
CLIPS, CLIP_S = 32, 2.0  # of speech, for the batch norms


def config_of(size: str) -> dict[str, Any]:
    """Upstream's config.yaml of one of `SIZES`.

    Raises:
        ValueError: it is none of them.
    """
    if size not in SIZES:
        raise ValueError(f"unknown size {size!r}; there are {', '.join(SIZES)}")
    model, embed_dim, pooling = SIZES[size]
    return {
        "model": model,
        "model_args": {"feat_dim": 80, "embed_dim": embed_dim, "pooling_func": pooling},
        "dataset_args": {
            "fbank_args": {"num_mel_bins": 80, "frame_shift": 10, "frame_length": 25, "dither": 1.0},
            "resample_rate": 16000,
            "num_frms": 200,
        },
    }


def write_checkpoint(size: str, folder: Path, seed: int = 7) -> dict[str, Path]:
    """Write a checkpoint and its config to `folder`, see `config_of`; returns both paths by name."""
    content = config_of(size)
    folder.mkdir(parents=True, exist_ok=True)
    paths = {"checkpoint": folder / "avg_model.pt", "config": folder / "config.yaml"}
    torch.save(random_network(parse_config(content), seed).state_dict(), paths["checkpoint"])
    paths["config"].write_text(yaml.safe_dump(content), encoding="utf-8")
    return paths


@torch.no_grad()
def random_network(config: ModelConfig, seed: int = 7) -> SpeakerNetwork:
    """A network in eval mode that gives sane embeddings: batch norms know what random weights make of speech."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = build_network(config).train()
    norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = None  # the mean of all that it sees, not of the latest
    tape, rng = Tape.shipped(config.features.sample_rate), np.random.default_rng(seed)
    clips = np.stack([tape.cut(round(CLIP_S * tape.sample_rate), rng) for _ in range(CLIPS)])
    front_end = SpeakerFeatures(manifest_features(config.features), config.features.sample_rate)
    features, num_frames = front_end(torch.from_numpy(clips), torch.full((CLIPS,), clips.shape[1]))
    network(features, num_frames)
    return network.eval()


def random_bundle(size: str, output: Path, *, seed: int = 7, **options: Any) -> Bundle:
    """Export a random network, see `config_of`; further arguments are those of `export_wespeaker`."""
    return export_random(export_wespeaker, lambda folder: write_checkpoint(size, folder, seed), output, **options)


def kept_speaker(size: str, folder: Path, runtime: Runtime, precision: Precision) -> Bundle:
    """A bundle with stages for one runtime and precision, exported if `folder` does not have it yet."""
    path = folder / f"speaker-{size}-{runtime}-{precision}"
    options: dict[str, Any] = {"name": size, "runtimes": (runtime,), "precisions": (precision,), "stages": True}
    return kept_bundle(path, lambda: random_bundle(size, path, **options))


def main() -> None:
    parser = options_parser("Write a bundle of a speaker model with random weights.")
    parser.add_argument("--size", default="resnet34", choices=list(SIZES))
    given = vars(parser.parse_args())
    print(random_bundle(given.pop("size"), **given).path)


if __name__ == "__main__":
    main()
