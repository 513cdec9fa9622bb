"""Upstream's networks as upstream runs them: all rows of a batch are of one length, and nothing is masked.

    network of `families/wespeaker`  ->  PlainNetwork: features (batch, frames, bins)  ->  embeddings (batch, dim)

With the same weights; what Tritone's network costs beside it is the price of rows that may differ in length.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tritone.families.wespeaker.ecapa import Ecapa
from tritone.families.wespeaker.model import SpeakerNetwork
from tritone.families.wespeaker.pooling import Attentive, Statistics
from tritone.families.wespeaker.resnet import BasicBlock, ResNet

OPSET = 18


class PlainNetwork(nn.Module):
    """A ResNet or an ECAPA-TDNN of published form without masks.

    Raises:
        ValueError: there is no plain form of that network here.
    """

    def __init__(self, network: SpeakerNetwork) -> None:
        super().__init__()
        pool = getattr(network, "pool", None)
        is_usual = isinstance(pool, Attentive) if isinstance(network, Ecapa) else isinstance(pool, Statistics)
        if not isinstance(network, ResNet | Ecapa) or not is_usual:
            raise ValueError(f"there is no plain form of {type(network).__name__} with this pooling here")
        self.network = network.eval()

    def forward(self, features: Tensor) -> Tensor:
        """(batch, frames, bins) -> (batch, dim)."""
        x = features.to(next(self.network.parameters()).dtype).transpose(1, 2)
        return _resnet(self.network, x) if isinstance(self.network, ResNet) else _ecapa(self.network, x)


def _resnet(net: ResNet, x: Tensor) -> Tensor:
    x = F.relu(net.bn1(net.conv1(x.unsqueeze(1))))
    for block in (*net.layer1, *net.layer2, *net.layer3, *net.layer4):
        out = F.relu(block.bn1(block.conv1(x)))
        out = block.bn2(block.conv2(out))
        if not isinstance(block, BasicBlock):
            out = block.bn3(block.conv3(F.relu(out)))
        x = F.relu(out + block.shortcut(x))
    x = x.flatten(1, 2)
    first: Tensor = net.seg_1(torch.cat([x.mean(dim=2), torch.sqrt(x.var(dim=2) + 1e-7)], dim=1))
    return net.seg_2(net.seg_bn_1(F.relu(first))) if net.two_layers else first


def _ecapa(net: Ecapa, x: Tensor) -> Tensor:
    def tdnn(layer: Any, x: Tensor) -> Tensor:
        out: Tensor = layer.bn(F.relu(layer.conv(x)))
        return out

    def block(layer: Any, x: Tensor) -> Tensor:
        before, res2, after, gate = layer.se_res2block
        slices: Sequence[Tensor] = torch.chunk(tdnn(before, x), len(res2.convs) + 1, dim=1)
        done: list[Tensor] = []
        for each, conv, bn in zip(slices, res2.convs, res2.bns, strict=False):
            done.append(bn(F.relu(conv(done[-1] + each if done else each))))
        out = tdnn(after, torch.cat([*done, slices[-1]], dim=1))
        gain = torch.sigmoid(gate.linear2(F.relu(gate.linear1(out.mean(dim=2)))))
        return x + out * gain.unsqueeze(2)

    outs = [tdnn(net.layer1, x)]
    for layer in (net.layer2, net.layer3, net.layer4):
        outs.append(block(layer, outs[-1]))
    x = F.relu(net.conv(torch.cat(outs[1:], dim=1)))
    heard, pool = x, net.pool
    assert isinstance(pool, Attentive)
    if pool.context:
        statistics = torch.cat([x.mean(dim=2, keepdim=True), torch.sqrt(x.var(dim=2, keepdim=True) + 1e-7)], dim=1)
        heard = torch.cat([x, statistics.expand(-1, -1, x.shape[2])], dim=1)
    weights = torch.softmax(pool.linear2(torch.tanh(pool.linear1(heard))), dim=2)
    mean = (weights * x).sum(dim=2)
    deviation = torch.sqrt(((weights * x.square()).sum(dim=2) - mean.square()).clamp(min=1e-7))
    return net.bn2(net.linear(net.bn(torch.cat([mean, deviation], dim=1))))


def write_onnx(network: PlainNetwork, path: Path, frames: int, bins: int = 80) -> None:
    """Export with `feats` (batch, frames, bins) and `embs`, batch and frames dynamic, as upstream's exporter does."""
    torch.onnx.export(
        network,
        (torch.ones(1, frames, bins),),
        path,
        opset_version=OPSET,
        input_names=["feats"],
        output_names=["embs"],
        dynamic_axes={"feats": {0: "B", 1: "T"}, "embs": {0: "B"}},
        dynamo=False,
    )
