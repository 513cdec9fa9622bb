"""From SpeechBrain's files to a bundle.

hyperparams.yaml, embedding_model.ckpt, mean_var_norm_emb.ckpt
    ->  manifest.json, and the graph of whole utterances in each precision
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tritone.errors import ExportError
from tritone.families.export.checkpoint import file_in, load_checkpoint, require_fit, tensors_of, without
from tritone.families.export.embedding import EmbeddingModel
from tritone.families.export.frame import write_bundle
from tritone.families.export.report import ExportReport
from tritone.families.speechbrain.config import EcapaConfig, read_config
from tritone.families.speechbrain.features import Decibels, manifest_features
from tritone.families.speechbrain.model import Ecapa
from tritone.families.speechbrain.options import SpeechbrainOptions

CHECKPOINT, CONFIG = "embedding_model.ckpt", "hyperparams.yaml"
PLAIN = "Save the tensors alone: torch.save(model.state_dict(), path)."


def export_speechbrain(**choices: Any) -> ExportReport:
    """Export an ECAPA-TDNN of SpeechBrain.

    Args:
        choices: the fields of `SpeechbrainOptions`.

    Raises:
        ExportError: a file is missing, damaged or unsupported; or as of `write_bundle`, with its other errors.
        ValueError: see `ExportOptions`; or int8 or an impossible threshold is asked for.
    """
    options = SpeechbrainOptions(**choices)
    return write_bundle(SpeechbrainModel(options), options)


def load_network(config: EcapaConfig, path: Path) -> Ecapa:
    """The network of a config with a checkpoint's weights, in float32 and eval mode.

    Raises:
        ExportError: the file is missing or damaged, or its tensors do not fit.
    """
    content = load_checkpoint(path, plain=PLAIN, usual=CHECKPOINT)
    state = without(tensors_of(content, path, "a dict of tensors"), ())
    with torch.device("meta"):  # allocates nothing that is not in the checkpoint
        network = Ecapa(config)
    own = network.state_dict()
    wanted = {name: tuple(each.shape) for name, each in without(own, ()).items()}
    require_fit(wanted, state, str(path), f"embedding_model of its {CONFIG}")
    network.to_empty(device="cpu")
    network.load_state_dict({name: state.get(name, torch.zeros(())) for name in own})
    return network.float().eval()


def read_mean(path: Path, dim: int) -> Tensor:
    """The mean of many embeddings, (dim,) float32, of a `mean_var_norm_emb.ckpt`.

    Raises:
        ExportError: the file is missing or damaged, or holds no such mean.
    """
    content = load_checkpoint(path, plain="Write it as SpeechBrain does.", usual="mean_var_norm_emb.ckpt")
    mean = content.get("glob_mean") if isinstance(content, dict) else None
    if not isinstance(mean, Tensor) or mean.numel() != dim or not mean.is_floating_point() or not mean.isfinite().all():
        found = tuple(mean.shape) if isinstance(mean, Tensor) else type(mean).__name__
        raise ExportError(f"{path} has glob_mean {found}; expected {dim} finite numbers, as an embedding has")
    return mean.reshape(dim).float()


class SpeechbrainModel(EmbeddingModel):
    """A trained ECAPA-TDNN."""

    family = "speechbrain"

    def __init__(self, options: SpeechbrainOptions) -> None:
        """Read the files that the options name."""
        options.progress("reading the checkpoint")
        checkpoint = file_in(options.checkpoint, CHECKPOINT)
        config = checkpoint.with_name(CONFIG) if options.config is None else options.config
        settings = read_config(config)
        self.options, self.threshold = options, options.threshold
        self.sample_rate = settings.features.sample_rate
        self.features = manifest_features(settings.features)
        self.network, self.front_end = load_network(settings.network, checkpoint), Decibels(settings.features)
        self.mean = None if options.mean_vec is None else read_mean(options.mean_vec, settings.network.embed_dim)
        files = {"checkpoint": checkpoint, "config": config, "mean_vec": options.mean_vec}
        self.sources = {name: file for name, file in files.items() if file}
        self.choices = {}
