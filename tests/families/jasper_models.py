"""Small random Jaspers and QuartzNets for tests: tensors, files, and a network written straight after upstream's."""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import yaml
from torch import Tensor

from tritone.families.jasper.config import ModelConfig, parse_config
from tritone.families.jasper.names import tensor_shapes

LABELS = [*" abcdefgh'"]


def small_config(kind: str = "jasper", **encoder: Any) -> dict[str, Any]:
    """Upstream's config of a net of five blocks: dense residual, or separable with plain residuals."""
    added = {"residual_dense": True} if kind == "jasper" else {"separable": True}
    blocks = [
        {"filters": 8, "repeat": 1, "kernel_size": [11], "stride": [2], "residual": False},
        {"filters": 8, "repeat": 2, "kernel_size": [5], "residual": True, **added},
        {"filters": 12, "repeat": 2, "kernel_size": [3], "residual": True, **added},
        {"filters": 16, "repeat": 1, "kernel_size": [7], "dilation": [2], "residual": False},
        {"filters": 16, "repeat": 1, "kernel_size": [1], "residual": False},
    ]
    return {
        "name": kind,
        "labels": LABELS,
        "input_val": {
            "audio_dataset": {"sample_rate": 16000, "trim_silence": True},
            "filterbank_features": {"sample_rate": 16000, "window": "hann", "n_filt": 16, "n_fft": 512},
        },
        kind: {
            "encoder": {"in_feats": 16, "activation": "relu", "use_conv_masks": True, "blocks": blocks, **encoder},
            "decoder": {"in_feats": 16},
        },
    }


def random_state(config: ModelConfig, seed: int = 0) -> dict[str, Tensor]:
    """Tensors under upstream's names, with norms that do something."""
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, shape in tensor_shapes(config).items():
        values = torch.randn(shape, generator=generator)
        if len(shape) == 3:
            state[name] = values * (1.5 / (shape[1] * shape[2])) ** 0.5
        elif name.endswith(("running_var", ".weight")):
            state[name] = 0.5 + values.abs()
        else:
            state[name] = 0.3 * values
    return state


def write_model(folder: Path, content: dict[str, Any], seed: int = 0) -> tuple[Path, Path]:
    """A checkpoint and a config in upstream's form; the averaged weights are those of `seed`."""
    config = parse_config(content)
    state, other = random_state(config, seed), random_state(config, seed + 1)
    with_counters = {
        f"{name.removesuffix('.running_var')}.num_batches_tracked": torch.tensor(3)
        for name in state
        if name.endswith("running_var")
    }
    checkpoint = {
        "epoch": 3,
        "step": 77,
        "best_wer": float("inf"),
        "state_dict": other | with_counters,
        "ema_state_dict": state | with_counters,
        "optimizer": {},
        "scaler": {},
    }
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(checkpoint, folder / "checkpoint.pt")
    (folder / "config.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    return folder / "checkpoint.pt", folder / "config.yaml"


class Reference:
    """One utterance through upstream's network as it stands, in float64: masks, branches and norms one by one."""

    def __init__(self, config: ModelConfig, state: dict[str, Tensor]) -> None:
        self.config = config
        self.state = {name: value.double() for name, value in state.items()}

    def __call__(self, features: Tensor, length: int) -> tuple[Tensor, int]:
        """Features (bins, frames) with upstream's padding to log-probabilities (frames, classes) and their number."""
        listed, count = [features.double()[None]], length
        for layer, block in enumerate(self.config.blocks):
            root = f"encoder.layers.{layer}.{'mconv' if self.config.quartznet_names else 'conv'}"
            x, begun, place = listed[-1], count, 0
            for repeat in range(block.repeat):
                if block.separable:
                    x, count = self._conv(x, count, f"{root}.{place}", block, x.shape[1])
                    x, count = self._conv(x, count, f"{root}.{place + 1}", None, block.groups)
                    place += 2
                else:
                    x, count = self._conv(x, count, f"{root}.{place}", block, block.groups)
                    place += 1
                x = self._norm(x, f"{root}.{place}", block)
                place += 1
                if block.groups > 1:
                    x = (
                        x.view(-1, block.groups, x.shape[1] // block.groups, x.shape[2])
                        .transpose(1, 2)
                        .reshape(x.shape)
                    )
                    place += 1
                if repeat < block.repeat - 1:
                    x = self._activation(x)
                    place += 2
            dense = block.residual and block.dense
            if block.residual:
                for pane, branch in enumerate(listed if dense else listed[:1]):
                    name = f"encoder.layers.{layer}.res.{pane}"
                    y, _ = self._conv(branch, begun, f"{name}.0", None, 1)
                    x = x + self._norm(y, f"{name}.1", block)
            x = self._activation(x)
            listed = [*listed, x] if dense else [x]
        logits = F.conv1d(listed[-1], self.state["decoder.layers.0.weight"], self.state["decoder.layers.0.bias"])
        return torch.log_softmax(logits[0].T, dim=1), count

    def _conv(self, x: Tensor, count: int, name: str, block: Any, groups: int) -> tuple[Tensor, int]:
        weight = self.state[f"{name}.weight"]
        kernel, stride, dilation = weight.shape[2], block.stride if block else 1, block.dilation if block else 1
        padding = kernel // 2 * dilation
        if self.config.masked:
            x = x.clone()
            x[:, :, count:] = 0
        count = (count + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
        return F.conv1d(x, weight, None, stride, padding, dilation, groups), count

    def _norm(self, x: Tensor, name: str, block: Any) -> Tensor:
        weight, bias = self.state[f"{name}.weight"], self.state[f"{name}.bias"]
        if block.normalization == "batch":
            mean, variance = self.state[f"{name}.running_mean"], self.state[f"{name}.running_var"]
            return F.batch_norm(x, mean, variance, weight, bias, eps=1e-3)
        groups = {"group": block.norm_groups, "instance": -1, "layer": 1}[block.normalization]
        return torch.group_norm(x, x.shape[1] if groups == -1 else groups, weight, bias, 1e-5)

    def _activation(self, x: Tensor) -> Tensor:
        return {"relu": F.relu, "hardtanh": F.hardtanh, "selu": F.selu}[self.config.activation](x)
