"""What a Whisper graph in another precision makes of audio: the distributions of the next tokens, against float32.

    recordings  ->  tokens that float32 writes, one after the other  ->  log-probabilities of both  ->  Drift

Both sides read the same tokens, so that one other choice does not count for all that follow it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tritone.audio import Waveform
from tritone.bundle import manifest
from tritone.bundle.manifest import Role
from tritone.families.export.drift import Array, Drift, distribution_drift
from tritone.families.export.exportable import Graphs
from tritone.families.whisper.features import FRAME_SHIFT
from tritone.families.whisper.graphs import DecoderGraph, EncoderGraph, FeaturesGraph
from tritone.runtime import Graph

TOKENS = 16  # of each recording, one window of it
RECORDINGS = 8

Call = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]


@dataclass(frozen=True)
class _Reading:
    """What float32 makes of a recording: its features, what the decoder hears, its tokens, their log-probabilities."""

    window: Tensor
    heard: Mapping[str, Tensor]
    tokens: Sequence[int]
    log_probs: Array


class TokenDrift:
    """Compares graphs with the float32 ones of a model, which read each recording once."""

    def __init__(self, graphs: Graphs, special: manifest.Whisper) -> None:
        features, encoder, decoder = graphs["features"], graphs["encoder"], graphs["decoder"]
        assert isinstance(features, FeaturesGraph)
        assert isinstance(encoder, EncoderGraph)
        assert isinstance(decoder, DecoderGraph)
        self._features, self._decoder, self._special = features, decoder, special
        self._exact: dict[str, Call] = {"encoder": _of_module(encoder), "decoder": _of_module(decoder)}
        self._readings: list[_Reading] = []

    @torch.no_grad()
    def of(self, role: Role, opened: Graph, recordings: Sequence[Waveform]) -> Drift:
        """The drift where the graph of one role is `opened`; recordings are the same at each call."""
        if not self._readings:
            self._readings = [self._read(recording) for recording in recordings[:RECORDINGS]]
        other = self._exact | {role: _of_opened(opened)}

        def pairs() -> Iterator[tuple[Array, Array]]:
            for reading in self._readings:
                heard = reading.heard if role == "decoder" else other["encoder"]({"features": reading.window})
                yield (
                    reading.log_probs,
                    self._log_probs(other["decoder"], heard, reading.tokens, len(reading.log_probs)),
                )

        return distribution_drift(pairs())

    def _read(self, recording: Waveform) -> _Reading:
        special = self._special
        samples = torch.from_numpy(recording[: special.window_frames * FRAME_SHIFT])[None]
        found, _ = self._features(samples, torch.tensor([samples.shape[1]]))
        window = torch.zeros(1, special.window_frames, found.shape[2])
        frames = min(samples.shape[1] // FRAME_SHIFT, special.window_frames)
        window[:, :frames] = found[:, :frames]
        heard = self._exact["encoder"]({"features": window})
        tokens = [special.sot, *list(special.languages.values())[:1], *list(special.tasks.values())[-1:]]
        tokens.append(special.no_timestamps)
        first = len(tokens)
        for _ in range(min(TOKENS, special.text_context - first)):
            tokens.append(int(self._log_probs(self._exact["decoder"], heard, tokens, 1)[-1].argmax()))
        wanted = len(tokens) - first + 1
        return _Reading(window, heard, tokens, self._log_probs(self._exact["decoder"], heard, tokens, wanted))

    def _log_probs(self, decoder: Call, heard: Mapping[str, Tensor], tokens: Sequence[int], wanted: int) -> Array:
        """Log-probabilities (wanted, vocab) after the last tokens."""
        inputs = {
            "tokens": torch.tensor([tokens]),
            "padding": torch.tensor([0]),
            "places": torch.arange(len(tokens) - wanted, len(tokens))[None],
            **{name: heard[name] for name in self._decoder.cross_names},
            **self._decoder.empty(1),
        }
        found: Array = decoder(inputs)["logits"][0].log_softmax(-1).numpy()
        return found


def _of_module(graph: EncoderGraph | DecoderGraph) -> Call:
    return lambda inputs: dict(zip(graph.outputs, graph(*inputs.values()), strict=True))


def _of_opened(opened: Graph) -> Call:
    def call(inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        names = list(opened.outputs)
        found = opened({name: np.ascontiguousarray(value.numpy()) for name, value in inputs.items()}, names)
        return {name: torch.from_numpy(value) for name, value in zip(names, found, strict=True)}

    return call
