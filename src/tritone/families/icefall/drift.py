"""What an icefall graph in another precision makes of real audio, against the float32 network; see `families.drift`.

Of a transducer, what counts is the distribution over tokens that the joiner gives. It is compared along the path that
greedy search takes with the float32 network: frame by frame, the same tokens before it on both sides. Only the graph
that is judged changes; all others are the float32 ones.
"""

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from tritone.audio import Waveform
from tritone.families.export.drift import Array, Drift, distribution_drift
from tritone.families.export.exportable import ExportableGraph
from tritone.families.export.frame_drift import paired_frames
from tritone.families.export.stages import AcousticStage
from tritone.families.icefall.graphs import JoinerGraph, OfflineGraph, PredictorGraph, StreamingGraph
from tritone.runtime import Graph

Encoder: TypeAlias = OfflineGraph | StreamingGraph | AcousticStage


class TransducerDrift:
    """Measures the drift of graphs of one transducer.

    Args:
        offline, predictor, joiner: float32 networks.
        start: the context before the first token.
        silent: ids that are no tokens: blank, and the unknown token.
    """

    def __init__(
        self,
        offline: OfflineGraph,
        predictor: PredictorGraph,
        joiner: JoinerGraph,
        start: Sequence[int],
        silent: frozenset[int],
    ) -> None:
        self.offline, self.predictor, self.joiner = offline, predictor, joiner
        self.start, self.silent = tuple(start), silent

    @torch.no_grad()
    def __call__(self, graph: ExportableGraph, opened: Graph, recordings: Sequence[Waveform]) -> Drift:
        """Compare what `graph` was exported to with it."""
        if isinstance(graph, Encoder):
            return distribution_drift(self._of_encoder(graph, opened, recordings))
        return distribution_drift(self._of_part(graph, opened, recordings))

    def _of_encoder(
        self, graph: Encoder, opened: Graph, recordings: Sequence[Waveform]
    ) -> Iterator[tuple[Array, Array]]:
        for expected, found in paired_frames(graph, opened, recordings):
            _, predicted = self._greedy(torch.from_numpy(expected))
            yield (
                self._distribution(torch.from_numpy(expected), predicted),
                self._distribution(torch.from_numpy(found), predicted),
            )

    def _of_part(
        self, graph: ExportableGraph, opened: Graph, recordings: Sequence[Waveform]
    ) -> Iterator[tuple[Array, Array]]:
        for run in filter(None, map(self.offline.hearing, recordings)):
            encoded, num_frames, *_ = self.offline(*run.steps[0].values())
            frames = encoded[0, : int(num_frames)]
            contexts, predicted = self._greedy(frames)
            expected = self._distribution(frames, predicted)
            if isinstance(graph, PredictorGraph):
                [vectors] = opened({"context": contexts.numpy()}, graph.outputs)
                yield expected, self._distribution(frames, torch.from_numpy(vectors))
            else:
                feed = {"encoder_out": frames.numpy(), "predictor_out": predicted.numpy()}
                [logits] = opened(feed, graph.outputs)
                yield expected, torch.log_softmax(torch.from_numpy(logits), dim=1).numpy()

    def _distribution(self, frames: Tensor, predicted: Tensor) -> Array:
        found: Array = torch.log_softmax(self.joiner(frames, predicted)[0], dim=1).numpy()
        return found

    def _greedy(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        """The context that greedy search has in each frame (frames, context_size), and the predictor's vectors."""
        context = torch.tensor([self.start])
        [vector] = self.predictor(context)
        contexts, vectors = [], []
        for frame in frames.split(1):
            contexts.append(context)
            vectors.append(vector)
            best = int(self.joiner(frame, vector)[0].argmax())
            if best not in self.silent:
                context = torch.cat([context[:, 1:], torch.tensor([[best]])], dim=1)
                [vector] = self.predictor(context)
        if not contexts:
            return context[:0], vector[:0]
        return torch.cat(contexts), torch.cat(vectors)
