"""What all exports of models that embed utterances do, and their graph as a module; contract in docs/design.md.

EmbeddingGraph     waveform, num_samples  ->  embeddings (batch, dim)

What goes in and comes out is float32 and int64, whatever precision the network computes in.
"""

import copy
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from tritone.audio import Waveform
from tritone.bundle.manifest import Encoder, Features, Precision, Role
from tritone.families.export.embedding_drift import EmbeddingDrift, embedding_drift
from tritone.families.export.exportable import EXAMPLE_BATCH, ExportableGraph, Graphs, UtteranceGraph
from tritone.families.export.frame import ExportedModel
from tritone.families.export.options import ExportOptions
from tritone.families.export.precision import as_dtype, in_precision
from tritone.families.export.stages import stage_graphs
from tritone.kinds.embedding.part import EmbeddingPart
from tritone.runtime import Graph


class SpeakerFrontEnd(Protocol):
    """What turns samples into features, as a module; `least_samples` and `num_frames` as of `fbank.FrontEnd`."""

    sample_rate: int

    def least_samples(self, frames: int) -> int: ...

    def num_frames(self, num_samples: Tensor) -> Tensor: ...

    def __call__(self, waveform: Tensor, num_samples: Tensor) -> tuple[Tensor, Tensor]: ...


class EmbeddingGraph(UtteranceGraph):
    """Whole utterances: waveform (batch, samples), num_samples (batch,) int64.

    Args:
        network: features (batch, frames, bins), num_frames (batch,) -> embeddings, in the precision that it shall
            compute in. `min_frames`: what a row needs for a finite result. One that can do without masks where no row
            is shorter than its batch has `even`, which says so.
        front_end: makes features from samples.
        mean: (embed_dim,) float32, subtracted from every embedding; None for nothing.
    """

    compared = ("embeddings",)
    counted = None
    relative = True

    mean: Tensor | None

    def __init__(self, network: Any, front_end: SpeakerFrontEnd, mean: Tensor | None = None) -> None:
        super().__init__()
        self.front_end, self.network = front_end, network
        self.sample_rate = front_end.sample_rate
        self.register_buffer("mean", mean, persistent=False)

    @property
    def min_samples(self) -> int:
        """The shortest waveform with a finite embedding."""
        least: int = self.front_end.least_samples(self.network.min_frames)
        return least

    @property
    def outputs(self) -> list[str]:
        return ["embeddings"]

    def example(self) -> dict[str, Tensor]:
        samples = self.min_samples + 30011
        return {
            "waveform": torch.zeros(EXAMPLE_BATCH, samples),
            "num_samples": torch.tensor([samples, samples // 2, max(self.min_samples, samples // 5)]),
        }

    def evenly(self) -> "EmbeddingGraph | None":
        if not hasattr(self.network, "even"):
            return None
        network = copy.copy(self.network)  # with the same weights
        network.even = True
        return EmbeddingGraph(network, self.front_end, self.mean).eval()

    def is_even(self, *inputs: Tensor) -> Tensor:
        waveform, num_samples = inputs
        frames = self.front_end.num_frames
        return torch.all(frames(num_samples) >= frames(torch.zeros_like(num_samples) + waveform.shape[1]))

    def acoustic(self, features: Tensor, num_samples: Tensor) -> tuple[Tensor]:
        num_frames = self.front_end.num_frames(num_samples)
        embeddings = as_dtype(self.network(features, num_frames), torch.float32)
        return (embeddings if self.mean is None else embeddings - self.mean,)


class EmbeddingModel(ExportedModel):
    """A trained model that embeds utterances.

    A subclass sets `network`, see `EmbeddingGraph`, with `embed_dim` and `subsampling`, how many frames of features one
    that is pooled stands for; `front_end`, and its `features` for the manifest. `mean`: (dim,), subtracted from every
    embedding. `threshold`: the cosine above which voices are the same speaker's.
    """

    options: ExportOptions
    network: Any
    front_end: SpeakerFrontEnd
    features: Features
    mean: Tensor | None = None
    threshold: float | None = None

    def graphs_in(self, precision: Precision, explicit: bool) -> Graphs:
        network: nn.Module = in_precision(self.network, precision)
        offline = EmbeddingGraph(network, self.front_end, self.mean).eval()
        graphs: dict[Role, ExportableGraph] = {"encoder": offline}
        return graphs | stage_graphs(offline) if self.options.stages else graphs

    def drift(self, role: Role, opened: Graph, recordings: Sequence[Waveform]) -> EmbeddingDrift:
        return embedding_drift(self.graphs[role], opened, recordings)

    def manifest(self) -> dict[str, Any]:
        offline = self.graphs["encoder"]
        assert isinstance(offline, EmbeddingGraph)
        return {
            "kind": "embedding",
            "features": self.features,
            "encoder": Encoder(
                subsampling_rate=self.network.subsampling,
                output_dim=self.network.embed_dim,
                min_samples=offline.min_samples,
            ),
            "embedding": EmbeddingPart(mean_subtracted=self.mean is not None, threshold=self.threshold),
        }
