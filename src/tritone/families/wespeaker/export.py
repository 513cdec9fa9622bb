"""From upstream's files to a bundle.

config.yaml, avg_model.pt, mean_vec.npy  ->  manifest.json, and the graph of whole utterances in each precision
"""

from collections.abc import Sequence
from typing import Any

import torch

from tritone.audio import Waveform
from tritone.bundle.manifest import Embedding, Encoder, Precision, Role
from tritone.families.export.exportable import ExportableGraph, Graphs
from tritone.families.export.frame import ExportedModel, write_bundle
from tritone.families.export.precision import in_precision
from tritone.families.export.report import ExportReport
from tritone.families.export.stages import stage_graphs
from tritone.families.wespeaker.checkpoint import network_of, read_model
from tritone.families.wespeaker.drift import EmbeddingDrift, embedding_drift
from tritone.families.wespeaker.features import SpeakerFeatures
from tritone.families.wespeaker.front_end import manifest_features
from tritone.families.wespeaker.graphs import OfflineGraph
from tritone.families.wespeaker.mean import read_mean
from tritone.families.wespeaker.options import WespeakerOptions
from tritone.runtime import Graph


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


class WespeakerModel(ExportedModel):
    """A trained speaker model."""

    family = "wespeaker"

    def __init__(self, options: WespeakerOptions) -> None:
        """Read the files that the options name."""
        options.progress("reading the checkpoint")
        settings, weights = read_model(options.checkpoint, options.config)
        self.options = options
        self.sample_rate = settings.features.sample_rate
        self.features = manifest_features(settings.features, window=options.window, sample_scale=options.sample_scale)
        self.network = network_of(settings, weights, options.checkpoint)
        dim = self.network.embed_dim
        self.mean = None if options.mean_vec is None else torch.from_numpy(read_mean(options.mean_vec, dim))
        self.front_end = SpeakerFeatures(self.features, self.sample_rate)
        files = {"checkpoint": options.checkpoint, "config": options.config, "mean_vec": options.mean_vec}
        self.sources = {name: file for name, file in files.items() if file}
        self.choices = {"model": settings.name}

    def graphs_in(self, precision: Precision, explicit: bool) -> Graphs:
        network = in_precision(self.network, precision)
        offline = OfflineGraph(network, self.front_end, self.mean).eval()
        graphs: dict[Role, ExportableGraph] = {"encoder": offline}
        return graphs | stage_graphs(offline) if self.options.stages else graphs

    def drift(self, role: Role, opened: Graph, recordings: Sequence[Waveform]) -> EmbeddingDrift:
        return embedding_drift(self.graphs[role], opened, recordings)

    def manifest(self) -> dict[str, Any]:
        offline = self.graphs["encoder"]
        assert isinstance(offline, OfflineGraph)
        return {
            "kind": "embedding",
            "features": self.features,
            "encoder": Encoder(
                subsampling_rate=self.network.subsampling,
                output_dim=self.network.embed_dim,
                min_samples=offline.min_samples,
            ),
            "embedding": Embedding(mean_subtracted=self.mean is not None, threshold=self.options.threshold),
        }
