"""What a Whisper graph in another precision makes of audio: the distributions of the next tokens, against float32.

    recordings  ->  tokens that float32 writes, one after the other  ->  log-probabilities of both  ->  Drift

Both sides read the same tokens, so that one other choice does not count for all that follow it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tritone.audio import Waveform
from tritone.bundle import manifest
from tritone.bundle.manifest import Role
from tritone.families.export.drift import Array, Drift, distribution_drift
from tritone.families.whisper.dims import FRAME_SHIFT
from tritone.runtime import Graph

TOKENS = 16  # of each recording, one window of it
RECORDINGS = 8

Opener: TypeAlias = Callable[[Role], Graph]
CrossAttention: TypeAlias = Mapping[str, npt.NDArray[np.float32]]


@dataclass(frozen=True)
class _Reading:
    """What float32 makes of a recording: its features, keys and values, its tokens, their log-probabilities."""

    window: npt.NDArray[np.float32]
    cross: CrossAttention
    tokens: Sequence[int]
    log_probs: Array


class TokenDrift:
    """Compares graphs with the float32 ones of a model, which read each recording once. `exact` opens these."""

    def __init__(self, exact: Opener, special: manifest.Whisper, recordings: Sequence[Waveform]) -> None:
        """Read the recordings; one graph is open at a time, since those of a large model are gigabytes."""
        self._special = special
        features = exact("features")
        windows = [self._window(features, each) for each in recordings[:RECORDINGS]]
        encoder = exact("encoder")
        cross = [self._encoded(encoder, each) for each in windows]
        del features, encoder
        self._decoder = exact("decoder")
        self._readings = [self._read(*each) for each in zip(windows, cross, strict=True)]

    def of(self, role: Role, opened: Graph) -> Drift:
        """The drift where the graph of one role is `opened`."""
        decoder = opened if role == "decoder" else self._decoder

        def pairs() -> Iterator[tuple[Array, Array]]:
            for reading in self._readings:
                cross = self._encoded(opened, reading.window) if role == "encoder" else reading.cross
                wanted = len(reading.log_probs)
                yield reading.log_probs, self._log_probs(decoder, cross, reading.tokens, wanted)

        return distribution_drift(pairs())

    def _window(self, graph: Graph, recording: Waveform) -> Array:
        """The features (1, window_frames, bins) of a recording's first window."""
        special = self._special
        samples = np.ascontiguousarray(recording[: special.window_frames * FRAME_SHIFT])[None]
        inputs = {"waveform": samples, "num_samples": np.array([samples.shape[1]], np.int64)}
        [found] = graph(inputs, ["features"])
        window = np.zeros((1, special.window_frames, found.shape[2]), np.float32)
        frames = min(samples.shape[1] // FRAME_SHIFT, special.window_frames)
        window[:, :frames] = found[:, :frames]
        return window

    def _read(self, window: Array, cross: CrossAttention) -> _Reading:
        special = self._special
        tokens = [special.sot, *list(special.languages.values())[:1], *list(special.tasks.values())[-1:]]
        tokens.append(special.no_timestamps)
        first = len(tokens)
        for _ in range(min(TOKENS, special.text_context - first)):
            tokens.append(int(self._log_probs(self._decoder, cross, tokens, 1)[-1].argmax()))
        wanted = len(tokens) - first + 1
        return _Reading(window, cross, tokens, self._log_probs(self._decoder, cross, tokens, wanted))

    def _encoded(self, encoder: Graph, window: npt.NDArray[np.float32]) -> CrossAttention:
        names = self._special.cross_names
        return dict(zip(names, encoder({"features": window}, names), strict=True))

    def _log_probs(self, decoder: Graph, cross: CrossAttention, tokens: Sequence[int], wanted: int) -> Array:
        """Log-probabilities (wanted, vocab) after the last tokens."""
        special = self._special
        empty = np.zeros((1, special.heads, 0, special.head_dim), np.float32)
        inputs: dict[str, npt.NDArray[Any]] = {
            "tokens": np.array([tokens], np.int64),
            "padding": np.zeros(1, np.int64),
            "places": np.arange(len(tokens) - wanted, len(tokens), dtype=np.int64)[None],
            **cross,
            **dict.fromkeys(special.self_names, empty),
        }
        [[logits]] = decoder(inputs, ["logits"])
        shifted: Array = logits - logits.max(axis=-1, keepdims=True)
        return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
