"""What a transducer's graph in another precision makes of real audio, against the float32 network; see `drift`.

What counts is the distribution over tokens that the joiner gives. It is compared along the path that
greedy search takes with the float32 network: frame by frame, the same tokens before it on both sides. Only the graph
that is judged changes; all others are the float32 ones.
"""

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256

import torch
from torch import Tensor

from tritone.audio import Waveform
from tritone.families.export.drift import Array, Drift, distribution_drift
from tritone.families.export.exportable import ExportableGraph
from tritone.families.export.frame_drift import paired_frames
from tritone.runtime import Graph


class TransducerDrift:
    """Measures the drift of graphs of one transducer.

    Args:
        offline, predictor, joiner: float32 networks.
        start: the context before the first token.
        silent: ids that are no tokens: blank, and the unknown token.
        vocab_size: logits beyond it, those of durations, are left out.
    """

    def __init__(
        self,
        offline: ExportableGraph,
        predictor: ExportableGraph,
        joiner: ExportableGraph,
        start: Sequence[int],
        silent: frozenset[int],
        vocab_size: int,
    ) -> None:
        self.offline, self.predictor, self.joiner = offline, predictor, joiner
        self.start, self.silent, self.vocab_size = tuple(start), silent, vocab_size
        self._paths: dict[bytes, tuple[dict[str, Tensor], Tensor]] = {}
        self._encoded: dict[bytes, Tensor] = {}

    @torch.no_grad()
    def __call__(self, graph: ExportableGraph, opened: Graph, recordings: Sequence[Waveform]) -> Drift:
        """Compare what `graph` was exported to with it."""
        if "encoder_out" in graph.compared:
            return distribution_drift(self._of_encoder(graph, opened, recordings))
        return distribution_drift(self._of_part(graph, opened, recordings))

    def _of_encoder(
        self, graph: ExportableGraph, opened: Graph, recordings: Sequence[Waveform]
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
        for frames in [each for each in map(self._frames, recordings) if each is not None]:
            fed, predicted = self._greedy(frames)
            expected = self._distribution(frames, predicted)
            if "predictor_out" in graph.compared:
                [vectors] = opened({name: value.numpy() for name, value in fed.items()}, ("predictor_out",))
                yield expected, self._distribution(frames, torch.from_numpy(vectors))
            else:
                feed = {"encoder_out": frames.numpy(), "predictor_out": predicted.numpy()}
                [logits] = opened(feed, graph.outputs)
                yield expected, torch.log_softmax(torch.from_numpy(logits[:, : self.vocab_size]), dim=1).numpy()

    def _frames(self, recording: Waveform) -> Tensor | None:
        """The frames (frames, dim) of a recording, None if it is too short.

        Encoded once: of a large model the encoder is nearly all that measuring predictor and joiner costs.
        """
        key = sha256(recording.tobytes()).digest()
        if key not in self._encoded and (run := self.offline.hearing(recording)) is not None:
            encoded, num_frames, *_ = self.offline(*run.steps[0].values())
            self._encoded[key] = encoded[0, : int(num_frames)]
        return self._encoded.get(key)

    def _distribution(self, frames: Tensor, predicted: Tensor) -> Array:
        found: Array = torch.log_softmax(self.joiner(frames, predicted)[0][:, : self.vocab_size], dim=1).numpy()
        return found

    def _greedy(self, frames: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """What the predictor gets in each frame of greedy search, by input, and its vectors (frames, dim).

        Searched once: the frames of a recording are the same for all graphs that are measured.
        """
        key = sha256(frames.numpy().tobytes()).digest()
        if key not in self._paths:
            self._paths[key] = self._searched(frames)
        return self._paths[key]

    def _searched(self, frames: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        fed = {name: torch.zeros_like(value[:1]) for name, value in self.predictor.example().items()}
        states = [name for name in fed if name != "context"]
        fed["context"] = torch.tensor([self.start])
        results = self._predict(fed)
        steps, vectors = [], []
        for frame in frames.split(1):
            steps.append(fed)
            vectors.append(results["predictor_out"])
            best = int(self.joiner(frame, vectors[-1])[0][:, : self.vocab_size].argmax())
            if best not in self.silent:
                context = torch.cat([fed["context"][:, 1:], torch.tensor([[best]])], dim=1)
                fed = {"context": context, **{name: results[f"next_{name}"] for name in states}}
                results = self._predict(fed)
        if not steps:
            return {name: value[:0] for name, value in fed.items()}, results["predictor_out"][:0]
        return {name: torch.cat([step[name] for step in steps]) for name in fed}, torch.cat(vectors)

    def _predict(self, fed: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(zip(self.predictor.outputs, self.predictor(*fed.values()), strict=True))
