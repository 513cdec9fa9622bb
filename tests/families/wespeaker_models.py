"""Small random WeSpeaker models in upstream's form, and what upstream makes of one utterance, written down again.

content_of("ResNet18", ...)   ->  the content of a config.yaml
write_model(folder, content)  ->  avg_model.pt and config.yaml
Reference(content, state)     ->  embeddings of features (frames, bins) of one utterance, in float64
"""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import yaml
from torch import Tensor

from tritone.families.wespeaker.config import parse_config
from tritone.families.wespeaker.names import tensor_shapes

SMALL: dict[str, dict[str, Any]] = {
    "resnet": {"model": "ResNet18", "m_channels": 4, "embed_dim": 16},
    "ecapa": {"model": "ECAPA_TDNN", "channels": 16, "embed_dim": 12, "global_context_att": True},
    "campplus": {"model": "CAMPPlus", "growth_rate": 4, "bn_size": 2, "init_channels": 8, "embed_dim": 16},
}
"""Arguments of `content_of`, one model of each kind."""


def content_of(model: str, *, feat_dim: int = 80, embed_dim: int = 16, **args: Any) -> dict[str, Any]:
    """Upstream's config of a model with these arguments."""
    return {
        "exp_dir": "exp/anywhere",
        "model": model,
        "model_init": None,
        "model_args": {"feat_dim": feat_dim, "embed_dim": embed_dim, **args},
        "dataset_args": {
            "resample_rate": 16000,
            "num_frms": 200,
            "frontend": "fbank",
            "fbank_args": {"num_mel_bins": feat_dim, "frame_shift": 10, "frame_length": 25, "dither": 1.0},
            "spec_aug": False,
        },
        "projection_args": {"project_type": "arc_margin", "scale": 32.0, "easy_margin": False},
    }


def small_content(kind: str, **changes: Any) -> dict[str, Any]:
    """The config of a model of `SMALL`."""
    return content_of(**{**SMALL[kind], **changes})


def random_state(content: dict[str, Any], seed: int = 0) -> dict[str, Tensor]:
    """Tensors under upstream's names, with norms that do something."""
    generator = torch.Generator().manual_seed(seed)
    state: dict[str, Tensor] = {}
    for name, shape in tensor_shapes(parse_config(content)).items():
        if name.startswith("xvector.stats."):
            state[name] = state[name.replace("xvector.stats.", "pool.")]
            continue
        values = torch.randn(shape, generator=generator)
        if len(shape) > 1:
            state[name] = values * (1.5 / values[0].numel()) ** 0.5
        elif name.endswith(("running_var", ".weight")):
            state[name] = 0.5 + values.abs()
        else:
            state[name] = 0.3 * values
    return state


def training_extras(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """What a checkpoint of training holds beside the network, as averaging leaves it."""
    counters = {
        f"{name.removesuffix('running_var')}num_batches_tracked": torch.tensor(1234.5)
        for name in state
        if name.endswith("running_var")
    }
    return {**counters, "projection.weight": torch.zeros(5, 16)}


def write_model(folder: Path, content: dict[str, Any], seed: int = 0) -> tuple[Path, Path]:
    """A checkpoint and a config in upstream's form."""
    state = random_state(content, seed)
    folder.mkdir(parents=True, exist_ok=True)
    torch.save({**state, **training_extras(state)}, folder / "avg_model.pt")
    (folder / "config.yaml").write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return folder / "avg_model.pt", folder / "config.yaml"


class Reference:
    """One utterance through upstream's network, in float64, layer by layer from the names in its state dict."""

    def __init__(self, content: dict[str, Any], state: dict[str, Tensor], *, guard: float = 1e-7) -> None:
        self.guard = guard  # under the root of variances
        self.model, self.args = content["model"], content["model_args"]
        self.state = {name: value.double() for name, value in state.items()}

    def __call__(self, features: Tensor) -> Tensor:
        """(frames, bins) -> (embed_dim,)."""
        x = features.double().T.unsqueeze(0)
        if self.model == "CAMPPlus":
            return self._campplus(x)[0]
        return (self._ecapa(x) if self.model.startswith("ECAPA") else self._resnet(x))[0]

    def _conv(self, x: Tensor, name: str, **sizes: Any) -> Tensor:
        convolve = F.conv2d if x.dim() == 4 else F.conv1d
        return convolve(x, self.state[f"{name}.weight"], self.state.get(f"{name}.bias"), **sizes)

    def _norm(self, x: Tensor, name: str) -> Tensor:
        own = (self.state.get(f"{name}.{part}") for part in ("running_mean", "running_var", "weight", "bias"))
        mean, variance, weight, bias = own
        return F.batch_norm(x, mean, variance, weight, bias)

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.state[f"{name}.weight"], self.state[f"{name}.bias"])

    def _residual(self, x: Tensor, name: str, stride: Any) -> Tensor:
        bottleneck = f"{name}.conv3.weight" in self.state
        first = {} if bottleneck else {"stride": stride, "padding": 1}
        second = {"stride": stride if bottleneck else 1, "padding": 1}
        y = torch.relu(self._norm(self._conv(x, f"{name}.conv1", **first), f"{name}.bn1"))
        y = self._norm(self._conv(y, f"{name}.conv2", **second), f"{name}.bn2")
        if bottleneck:
            y = self._norm(self._conv(torch.relu(y), f"{name}.conv3"), f"{name}.bn3")
        if f"{name}.shortcut.0.weight" in self.state:
            x = self._norm(self._conv(x, f"{name}.shortcut.0", stride=stride), f"{name}.shortcut.1")
        return torch.relu(x + y)

    def _count(self, pattern: str) -> int:
        return next(index for index in range(1000) if pattern.format(index) not in self.state)

    def _resnet(self, x: Tensor) -> Tensor:
        x = torch.relu(self._norm(self._conv(x.unsqueeze(1), "conv1", padding=1), "bn1"))
        for stage in (1, 2, 3, 4):
            for block in range(self._count(f"layer{stage}.{{}}.conv1.weight")):
                x = self._residual(x, f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1)
        first = self._linear(self._pool(x.flatten(1, 2), "TSTP"), "seg_1")
        if not self.args.get("two_emb_layer"):
            return first
        return self._linear(self._norm(torch.relu(first), "seg_bn_1"), "seg_2")

    def _ecapa(self, x: Tensor) -> Tensor:
        x = self._norm(torch.relu(self._conv(x, "layer1.conv", padding=2)), "layer1.bn")
        outs = []
        for layer in (2, 3, 4):
            root = f"layer{layer}.se_res2block"
            y = self._norm(torch.relu(self._conv(x, f"{root}.0.conv")), f"{root}.0.bn")
            parts, last = list(y.split(y.shape[1] // 8, dim=1)), torch.zeros(1, dtype=torch.float64)
            for part in range(7):
                heard = self._conv(parts[part] + last, f"{root}.1.convs.{part}", padding=layer, dilation=layer)
                parts[part] = last = self._norm(torch.relu(heard), f"{root}.1.bns.{part}")
            y = self._norm(torch.relu(self._conv(torch.cat(parts, dim=1), f"{root}.2.conv")), f"{root}.2.bn")
            gain = self._linear(torch.relu(self._linear(y.mean(dim=2), f"{root}.3.linear1")), f"{root}.3.linear2")
            x = x + y * torch.sigmoid(gain).unsqueeze(2)
            outs.append(x)
        x = self._linear(
            self._norm(self._pool(torch.relu(self._conv(torch.cat(outs, dim=1), "conv")), "ASTP"), "bn"), "linear"
        )
        return self._norm(x, "bn2") if self.args.get("emb_bn") else x

    def _nonlinear(self, x: Tensor, name: str) -> Tensor:
        for kind in self.args.get("config_str", "batchnorm-relu").split("-"):
            if kind == "relu":
                x = torch.relu(x)
            elif kind == "prelu":
                x = F.prelu(x, self.state[f"{name}.prelu.weight"])
            else:
                x = self._norm(x, f"{name}.batchnorm")
        return x

    def _campplus(self, x: Tensor) -> Tensor:
        x = torch.relu(self._norm(self._conv(x.unsqueeze(1), "head.conv1", padding=1), "head.bn1"))
        for stage in (1, 2):
            for block in (0, 1):
                x = self._residual(x, f"head.layer{stage}.{block}", (1 if block else 2, 1))
        x = torch.relu(self._norm(self._conv(x, "head.conv2", stride=(2, 1), padding=1), "head.bn2")).flatten(1, 2)
        x = self._nonlinear(self._conv(x, "xvector.tdnn.linear", stride=2, padding=2), "xvector.tdnn.nonlinear")
        for block, (layers, dilation) in enumerate(((12, 1), (24, 2), (16, 2)), 1):
            for layer in range(1, layers + 1):
                root = f"xvector.block{block}.tdnnd{layer}"
                y = self._conv(self._nonlinear(x, f"{root}.nonlinear1"), f"{root}.linear1")
                y = self._nonlinear(y, f"{root}.nonlinear2")
                means = F.avg_pool1d(y, 100, 100, ceil_mode=True).repeat_interleave(100, dim=2)[:, :, : y.shape[2]]
                context = self._conv(y.mean(dim=2, keepdim=True) + means, f"{root}.cam_layer.linear1")
                gain = torch.sigmoid(self._conv(torch.relu(context), f"{root}.cam_layer.linear2"))
                local = self._conv(y, f"{root}.cam_layer.linear_local", padding=dilation, dilation=dilation)
                x = torch.cat([x, local * gain], dim=1)
            x = self._conv(self._nonlinear(x, f"xvector.transit{block}.nonlinear"), f"xvector.transit{block}.linear")
        x = self._pool(self._nonlinear(x, "xvector.out_nonlinear"), "TSTP")
        dense = self._conv(x.unsqueeze(2), "xvector.dense.linear").squeeze(2)
        return self._norm(dense, "xvector.dense.nonlinear.batchnorm")

    def _pool(self, x: Tensor, default: str) -> Tensor:
        kind = self.args.get("pooling_func", default)
        mean = x.mean(dim=2)
        squares = (x - mean.unsqueeze(2)).square().sum(dim=2)
        deviation = torch.sqrt(squares / torch.tensor(x.shape[2] - 1.0) + self.guard)  # of one frame: not a number
        if kind in ("TAP", "TSDP", "TSTP"):
            return {"TAP": mean, "TSDP": deviation, "TSTP": torch.cat([mean, deviation], dim=1)}[kind]
        if kind == "ASTP":
            context = "GLOB" in self.model or self.args.get("global_context_att")
            spread = [each.unsqueeze(2).expand_as(x) for each in (mean, deviation)]
            seen = torch.cat([x, *spread], dim=1) if context else x
            return _attended(x, self._conv(torch.tanh(self._conv(seen, "pool.linear1")), "pool.linear2"))
        queries = ["pool.n_query.0.", "pool.n_query.1."] if kind == "MQMHASTP" else ["pool."]
        parts = []
        for query in queries:
            heads = 8 if kind == "MQMHASTP" else 2
            for head, chunk in enumerate(x.split(x.shape[1] // heads, dim=1)):
                root = f"{query}heads_att_trans.{head}"
                parts.append(
                    _attended(chunk, self._conv(torch.tanh(self._conv(chunk, f"{root}.att_0")), f"{root}.att_1"))
                )
        return torch.cat(parts, dim=1)


def _attended(x: Tensor, scores: Tensor) -> Tensor:
    weights = torch.softmax(scores, dim=2)
    mean = (weights * x).sum(dim=2)
    variance = (weights * x * x).sum(dim=2) - mean * mean
    return torch.cat([mean, torch.sqrt(variance.clamp(min=1e-7))], dim=1)
