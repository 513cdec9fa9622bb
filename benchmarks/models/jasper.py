"""Jasper and QuartzNet of any size with random weights: speed does not depend on what a network has learnt.

    python -m benchmarks.models.jasper --output DIR --blocks 10x5dr --runtimes onnxruntime,torch

    "10x5dr"  ->  jasper.pt, jasper.yaml in upstream's form  ->  `tritone export jasper`  ->  bundle

Needs the extra `export`.
"""

import re
from pathlib import Path
from typing import Any

import torch
import yaml

from benchmarks.models.random_bundle import export_random, options_parser
from benchmarks.models.wenet import babble
from tritone.bundle import Bundle
from tritone.families.jasper.config import ModelConfig, parse_config
from tritone.families.jasper.export import export_jasper
from tritone.families.jasper.graphs import OfflineGraph
from tritone.families.jasper.model import Network
from tritone.families.jasper.names import branch_names, convolution_names, tensor_shapes
from tritone.families.layers.log_mel import LogMel

LABELS = [*" abcdefghijklmnopqrstuvwxyz'"]
JASPER = ((256, 11), (384, 13), (512, 17), (640, 21), (768, 25))  # filters and kernel of each fifth of the blocks
QUARTZNET = ((256, 33), (256, 39), (512, 51), (512, 63), (512, 75))
SIZES = re.compile(r"(\d+)x(\d+)(dr)?")
BLANK_HEAD_START = 4.0  # natural-log units; about as many blanks as a trained model says


def config_of(blocks: str) -> dict[str, Any]:
    """Upstream's config of a net.

    Args:
        blocks: "BxRdr" for Jasper with dense residuals, "BxR" for QuartzNet; B is a multiple of five, R the repeats of
            each block. Published are 10x5dr and 15x5.

    Raises:
        ValueError: it is none of these.
    """
    match = SIZES.fullmatch(blocks)
    if match is None or not 0 < int(match[1]) <= 100 or int(match[1]) % 5 or not 0 < int(match[2]) <= 10:
        raise ValueError(f"expected blocks like 10x5dr (Jasper) or 15x5 (QuartzNet), a multiple of 5; got {blocks!r}")
    count, repeat, dense = int(match[1]), int(match[2]), bool(match[3])
    first, last, width = (11, (896, 29), 1024) if dense else (33, (512, 87), 1024)
    single = {"repeat": 1, "residual": False}
    listed = [{"filters": 256, "kernel_size": [first], "stride": [2], "separable": not dense, **single}]
    for filters, kernel in JASPER if dense else QUARTZNET:
        block = {"filters": filters, "repeat": repeat, "kernel_size": [kernel], "residual": True}
        block |= {"residual_dense": True} if dense else {"separable": True}
        listed += [dict(block) for _ in range(count // 5)]
    listed.append({"filters": last[0], "kernel_size": [last[1]], "dilation": [2], "separable": not dense, **single})
    listed.append({"filters": width, "kernel_size": [1], "separable": False, **single})
    if dense:
        for each in listed:
            each.pop("separable", None)
    features = {"sample_rate": 16000, "window": "hann", "n_filt": 64, "n_fft": 512, "pad_align": 16}
    return {
        "name": "Jasper" if dense else "QuartzNet",
        "labels": LABELS,
        "input_val": {"audio_dataset": {"sample_rate": 16000}, "filterbank_features": features},
        "jasper" if dense else "quartznet": {
            "encoder": {"in_feats": 64, "activation": "relu", "use_conv_masks": True, "blocks": listed},
            "decoder": {"in_feats": width},
        },
    }


def write_checkpoint(blocks: str, folder: Path, seed: int = 7) -> dict[str, Path]:
    """Write a checkpoint and its config to `folder`, see `config_of`; returns both paths by name."""
    content = config_of(blocks)
    config = parse_config(content)
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, shape in tensor_shapes(config).items():
        if len(shape) == 3:
            # After an activation, and with as much added as comes in, numbers keep their size from layer to layer.
            gain = 1.0 if shape[1] == 1 else 2.0
            state[name] = torch.randn(shape, generator=generator).mul_((gain / (shape[1] * shape[2])) ** 0.5)
        elif name.endswith((".running_var", ".weight")):
            state[name] = torch.ones(shape)
        else:
            state[name] = torch.randn(shape, generator=generator).mul_(0.1)
    for layer, panes in enumerate(config.panes):
        last = convolution_names(config.blocks[layer], layer, config.blocks[layer].repeat - 1, config.quartznet_names)
        for name in (last[1], *(branch_names(layer, pane)[1] for pane in range(len(panes)))):
            state[f"{name}.weight"] /= (1 + len(panes)) ** 0.5
    _balance(config, state)
    folder.mkdir(parents=True, exist_ok=True)
    paths = {"checkpoint": folder / "jasper.pt", "config": folder / "jasper.yaml"}
    content_of = {"epoch": 0, "step": 0, "best_wer": 1.0, "state_dict": state, "ema_state_dict": None}
    torch.save(content_of, paths["checkpoint"])
    paths["config"].write_text(yaml.safe_dump(content), encoding="utf-8")
    return paths


@torch.no_grad()
def _balance(config: ModelConfig, state: dict[str, torch.Tensor]) -> None:
    """Let the net say many different labels, and about as many blanks as a trained one."""
    waveform = torch.from_numpy(babble(48_000, seed=1))[None]
    num_samples = torch.tensor([waveform.shape[1]])
    front_end = LogMel(config.features)
    _, count, encoded = OfflineGraph(Network.of(config, state), front_end)(waveform, num_samples)
    weight = state["decoder.layers.0.weight"][..., 0]
    logits = encoded[0, : int(count)] @ weight.T
    scale = 3.0 / logits.std(dim=0)
    weight.mul_(scale.unsqueeze(1))
    state["decoder.layers.0.bias"] = -logits.mean(dim=0) * scale
    state["decoder.layers.0.bias"][config.blank_id] += BLANK_HEAD_START


def random_bundle(blocks: str, output: Path, *, seed: int = 7, **options: Any) -> Bundle:
    """Export a random net, see `config_of`; further arguments are those of `export_jasper`."""
    return export_random(export_jasper, lambda folder: write_checkpoint(blocks, folder, seed), output, **options)


def main() -> None:
    parser = options_parser("Write a bundle of a Jasper or QuartzNet with random weights.")
    parser.add_argument("--blocks", default="10x5dr", help="10x5dr (Jasper), 15x5 (QuartzNet), or others like these")
    given = vars(parser.parse_args())
    print(random_bundle(given.pop("blocks"), **given).path)


if __name__ == "__main__":
    main()
