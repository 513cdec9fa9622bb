"""The names and shapes of a network's tensors, and the names that checkpoints may have besides.

ModelConfig  ->  {name: shape}
"""

import torch

from tritone.families.wespeaker.config import ModelConfig
from tritone.families.wespeaker.model import build_network

Shape = tuple[int, ...]

COUNTER = "num_batches_tracked"  # matters in training alone; averaging makes it a fraction
PROJECTION = "projection."  # the classifier of training's speakers
FRONT_END = "frontend."  # a network that was trained in the place of filterbanks


def tensor_shapes(config: ModelConfig) -> dict[str, Shape]:
    """What a checkpoint must hold; batch norms' counters are left out."""
    with torch.device("meta"):
        state = build_network(config).state_dict()
    return {name: tuple(value.shape) for name, value in state.items() if not name.endswith(COUNTER)}
