"""Networks by their configs.

    ModelConfig  ->  features (batch, frames, bins), num_frames (batch,) int64  ->  embeddings (batch, embed_dim)

Every network has upstream's parameters under upstream's names, so that it takes upstream's state dicts and can be
trained, and three more attributes: `embed_dim`, `min_frames`, the fewest frames with a finite result, and
`subsampling`, how many frames of features one that is pooled stands for. Each row of a batch gives what upstream gives
for that row alone.
"""

from typing import TypeAlias

from tritone.families.wespeaker.campplus import CamPPlus
from tritone.families.wespeaker.config import EcapaConfig, ModelConfig, ResNetConfig
from tritone.families.wespeaker.ecapa import Ecapa
from tritone.families.wespeaker.resnet import ResNet

SpeakerNetwork: TypeAlias = ResNet | Ecapa | CamPPlus


def build_network(config: ModelConfig) -> SpeakerNetwork:
    """A network with weights of torch's own initialisation, in train mode."""
    if isinstance(config.network, ResNetConfig):
        return ResNet(config.network)
    if isinstance(config.network, EcapaConfig):
        return Ecapa(config.network)
    return CamPPlus(config.network)
