"""Checkpoints of pyannote.audio, which hold a ResNet of WeSpeaker and its config themselves.

    pytorch_model.bin: state_dict, hyper_parameters, pyannote.audio  ->  ModelConfig

The tensors have WeSpeaker's names behind `resnet.`, and tell which of its ResNets it is. pyannote's pooling is TSTP
without a guard under the root of its variance.
Source: pyannote/audio/models/embedding/wespeaker/ of pyannote.audio 3 and 4.
"""

from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

from torch import Tensor

from tritone.errors import ExportError
from tritone.families.export.settings import Section, shown
from tritone.families.wespeaker.config import MAX_SIZE, RESNETS, FeatureConfig, ModelConfig, ResNetConfig

MODULE = "resnet."
UNREAD = ("torch", "pyannote")  # versions and the training's task are kept as objects
SETTINGS = ("sample_rate", "num_mel_bins", "frame_length", "frame_shift", "dither")
FIXED = {
    "num_channels": 1,
    "window_type": "hamming",
    "use_energy": False,
    "round_to_power_of_two": True,
    "snip_edges": True,
    "fbank_centering_span": None,
}
"""Settings that are read with these values alone, which all published models have."""


def is_lightning(content: Any) -> bool:
    """Is this the content of a checkpoint of pyannote.audio?"""
    return isinstance(content, Mapping) and "pyannote.audio" in content


def config_of(content: Mapping[str, Any], state: Mapping[str, Tensor], path: Path) -> ModelConfig:
    """The config of a checkpoint: features from its hyper-parameters, the network from its tensors.

    Args:
        content: of the whole checkpoint.
        state: its tensors, without `resnet.` before their names.
        path: of the checkpoint, for errors.

    Raises:
        ExportError: it is no ResNet of WeSpeaker's, or has features that cannot be had.
    """
    settings = Section(f"{path.name}: hyper_parameters", content.get("hyper_parameters", {}), (*SETTINGS, *FIXED))
    for key, usual in FIXED.items():
        if (value := settings.get(key, usual)) != usual:
            raise ExportError(f"{settings.path}.{key} is {shown(value)}; this version reads {usual} alone")

    def size(name: str) -> int:
        return state[name].shape[0] if name in state and state[name].dim() else 0

    def blocks(stage: int) -> int:
        return next(index for index in count() if f"layer{stage}.{index}.conv1.weight" not in state)

    kind = ("layer1.0.conv3.weight" in state, (blocks(1), blocks(2), blocks(3), blocks(4)))
    name = next((name for name, known in RESNETS.items() if known == kind), None)
    if name is None or not size("conv1.weight") or not size("seg_1.weight"):
        raise ExportError(
            f"{path} is a model of pyannote.audio, but none of WeSpeaker's {', '.join(RESNETS)}: of its models that "
            "embed voices these can be exported"
        )
    bins = settings.whole("num_mel_bins", 80, least=1, most=MAX_SIZE)
    return ModelConfig(
        name=name,
        network=ResNetConfig(
            bottleneck=kind[0],
            blocks=kind[1],
            feat_dim=bins,
            embed_dim=size("seg_1.weight"),
            two_emb_layer="seg_2.weight" in state,
            width=size("conv1.weight"),
            variance_guard=0.0,
        ),
        features=FeatureConfig(
            sample_rate=settings.whole("sample_rate", 16000, least=1),
            num_mel_bins=bins,
            frame_length_ms=settings.number("frame_length", 25),
            frame_shift_ms=settings.number("frame_shift", 10),
        ),
    )
