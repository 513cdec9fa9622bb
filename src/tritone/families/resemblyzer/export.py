"""From Resemblyzer's `pretrained.pt` to a bundle.

pretrained.pt  ->  manifest.json, and the graph of whole utterances in each precision
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tritone.errors import ExportError
from tritone.families.export.checkpoint import load_checkpoint, require_fit, tensors_of, without
from tritone.families.export.embedding import EmbeddingModel
from tritone.families.export.frame import write_bundle
from tritone.families.export.report import ExportReport
from tritone.families.resemblyzer.features import FEATURES, SAMPLE_RATE, Mel
from tritone.families.resemblyzer.model import EncoderConfig, VoiceEncoder
from tritone.families.resemblyzer.options import ResemblyzerOptions

STATE = "model_state"
TRAINING = ("similarity_weight", "similarity_bias")  # of the loss
GATES = 4
MAX_LAYERS, MAX_SIZE = 16, 2**14


def export_resemblyzer(**choices: Any) -> ExportReport:
    """Export Resemblyzer's voice encoder.

    Args:
        choices: the fields of `ResemblyzerOptions`.

    Raises:
        ExportError: the file is missing, damaged or no checkpoint of the encoder; or as of `write_bundle`, with its
            other errors.
        ValueError: see `ExportOptions`; or int8 or an impossible threshold is asked for.
    """
    options = ResemblyzerOptions(**choices)
    return write_bundle(ResemblyzerModel(options), options)


def load_encoder(path: Path) -> VoiceEncoder:
    """The network of a checkpoint, in float32 and eval mode.

    Raises:
        ExportError: the file is missing, damaged or no checkpoint of the encoder.
    """
    content = load_checkpoint(
        path,
        plain=f"Save the weights alone: torch.save({{{STATE!r}: model.state_dict()}}, path).",
        usual="pretrained.pt",
    )
    if not isinstance(content, dict) or STATE not in content:
        raise ExportError(f"checkpoint {path} has no {STATE}: it is none of Resemblyzer's encoder")
    state = without(tensors_of(content[STATE], path, f"a dict of tensors under {STATE}"), TRAINING)
    network = VoiceEncoder(_config(state))
    require_fit(
        {name: tuple(each.shape) for name, each in network.state_dict().items()}, state, str(path), "the encoder"
    )
    network.load_state_dict(state)
    return network.float().eval()


def _config(state: dict[str, Tensor]) -> EncoderConfig:
    """Sizes by the tensors; whether all fit is for `require_fit` to say."""
    layers = next(
        index for index in range(MAX_LAYERS + 1) if f"lstm.weight_hh_l{index}" not in state or index == MAX_LAYERS
    )
    hidden, out = state.get("lstm.weight_hh_l0", torch.zeros(0)), state.get("linear.bias", torch.zeros(0))
    sizes = hidden.shape[-1], out.numel()
    if not layers or not all(0 < size <= MAX_SIZE for size in sizes):
        raise ExportError(
            "the checkpoint is none of Resemblyzer's encoder: expected lstm.weight_hh_l0 (4 x hidden, hidden) and "
            f"linear.bias (embedding,), found {tuple(hidden.shape)} and {tuple(out.shape)}"
        )
    return EncoderConfig(hidden=sizes[0], layers=layers, embed_dim=sizes[1])


class ResemblyzerModel(EmbeddingModel):
    """A trained voice encoder."""

    family = "resemblyzer"
    sample_rate = SAMPLE_RATE
    features = FEATURES

    def __init__(self, options: ResemblyzerOptions) -> None:
        """Read the file that the options name."""
        options.progress("reading the checkpoint")
        self.options, self.threshold = options, options.threshold
        self.network, self.front_end = load_encoder(options.checkpoint), Mel()
        self.sources, self.choices = {"checkpoint": options.checkpoint}, {}
