"""3D-Speaker's checkpoints of CAM++, which come without a config.

    campplus_cn_common.bin, campplus_voxceleb.bin: tensors  ->  ModelConfig

The tensors have the names that WeSpeaker gives them too, and tell the network. What they do not tell is the same for
all of 3D-Speaker's: a povey window, samples in [-1, 1], and a pooling without a guard under the root of its variance. A
checkpoint of WeSpeaker's training is told from them by its classifier, `projection`.
Source: 3D-Speaker, speakerlab/models/campplus/DTDNN.py and speakerlab/process/processor.py.
"""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from tritone.errors import ExportError
from tritone.families.wespeaker.campplus import HEAD_WIDTH
from tritone.families.wespeaker.config import (
    CAMPPLUS,
    FREQUENCY_STRIDE,
    CamPPlusConfig,
    FeatureConfig,
    ModelConfig,
)

SIZES = {
    "xvector.tdnn.linear.weight": 3,
    "xvector.dense.linear.weight": 3,
    "xvector.block1.tdnnd1.linear1.weight": 3,
    "xvector.block1.tdnnd1.cam_layer.linear_local.weight": 3,
}
"""Tensors that tell the sizes, and how many axes they have."""
NOTE = (
    "the checkpoint has no config and was taken for a CAM++ of 3D-Speaker: window povey, samples in [-1, 1]. Of "
    "another toolkit's, give --config, or --window and --sample-scale"
)


def is_campplus(state: Mapping[str, Tensor], ignored: tuple[str, ...]) -> bool:
    """Are these the tensors of a CAM++ that WeSpeaker has not trained?"""
    return "xvector.tdnn.linear.weight" in state and not ignored


def campplus_of(state: Mapping[str, Tensor], path: Path) -> ModelConfig:
    """The config of a checkpoint, by its tensors; `path` is for errors.

    Raises:
        ExportError: tensors that tell the sizes are missing, or have none.
    """
    if wrong := [name for name, axes in SIZES.items() if name not in state or state[name].dim() != axes]:
        raise ExportError(f"{path} looks like a CAM++ of 3D-Speaker without {', '.join(wrong)}, which tell its sizes")
    first, dense, widened, local = (state[name] for name in SIZES)
    bins, growth = first.shape[1] // HEAD_WIDTH * FREQUENCY_STRIDE, local.shape[0]
    if not growth or not bins:
        raise ExportError(f"{path} looks like a CAM++ of 3D-Speaker, but has tensors without numbers")
    return ModelConfig(
        name=CAMPPLUS,
        network=CamPPlusConfig(
            feat_dim=bins,
            embed_dim=dense.shape[0],
            growth_rate=growth,
            bn_size=widened.shape[0] // growth,
            init_channels=first.shape[0],
            variance_guard=0.0,
        ),
        features=FeatureConfig(num_mel_bins=bins, window="povey", sample_scale=1.0),
    )
