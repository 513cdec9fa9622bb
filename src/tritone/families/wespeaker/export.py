"""From upstream's files to a bundle.

config.yaml, avg_model.pt, mean_vec.npy  ->  manifest.json, and the graph of whole utterances in each precision
"""

from typing import Any

import torch

from tritone.families.export.embedding import EmbeddingModel
from tritone.families.export.frame import write_bundle
from tritone.families.export.report import ExportReport
from tritone.families.wespeaker.checkpoint import network_of, read_model
from tritone.families.wespeaker.features import SpeakerFeatures
from tritone.families.wespeaker.front_end import manifest_features
from tritone.families.wespeaker.mean import read_mean
from tritone.families.wespeaker.options import WespeakerOptions


def export_wespeaker(**choices: Any) -> ExportReport:
    """Export a speaker model: ResNet, ECAPA-TDNN or CAM++.

    Args:
        choices: the fields of `WespeakerOptions`.

    Raises:
        ExportError: a file is missing, damaged or unsupported; or as of `write_bundle`, with its other errors.
        ValueError: see `ExportOptions`; or int8, an unknown window, a scale of 0 or an impossible threshold is asked
            for.
    """
    options = WespeakerOptions(**choices)
    return write_bundle(WespeakerModel(options), options)


class WespeakerModel(EmbeddingModel):
    """A trained speaker model."""

    family = "wespeaker"

    def __init__(self, options: WespeakerOptions) -> None:
        """Read the files that the options name."""
        options.progress("reading the checkpoint")
        checkpoint, config = options.files
        settings, weights, self.notes = read_model(checkpoint, config)
        self.options, self.threshold = options, options.threshold
        self.sample_rate = settings.features.sample_rate
        self.features = manifest_features(settings.features, window=options.window, sample_scale=options.sample_scale)
        self.network = network_of(settings, weights, checkpoint)
        dim = self.network.embed_dim
        self.mean = None if options.mean_vec is None else torch.from_numpy(read_mean(options.mean_vec, dim))
        self.front_end = SpeakerFeatures(self.features, self.sample_rate)
        files = {"checkpoint": checkpoint, "config": config, "mean_vec": options.mean_vec}
        self.sources = {name: file for name, file in files.items() if file}
        self.choices = {"model": settings.name}
