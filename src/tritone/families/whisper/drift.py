"""What a Whisper graph in another precision makes of audio: the distributions of the next tokens, against float32.

    recordings  ->  tokens that float32 writes, one after the other  ->  log-probabilities of both  ->  Drift

Both sides read the same tokens, so that one other choice does not count for all that follow it.
"""

from collections.abc import Iterator, Mapping, Sequence
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

Graphs: TypeAlias = dict[Role, Graph]
Heard: TypeAlias = Mapping[str, npt.NDArray[np.float32]]


@dataclass(frozen=True)
class _Reading:
    """What float32 makes of a recording: its features, what the decoder hears, its tokens, their log-probabilities."""

    window: npt.NDArray[np.float32]
    heard: Heard
    tokens: Sequence[int]
    log_probs: Array


class TokenDrift:
    """Compares graphs with the float32 ones of a model, which read each recording once."""

    def __init__(self, exact: Graphs, special: manifest.Whisper) -> None:
        self._exact, self._special = exact, special
        self._readings: list[_Reading] = []

    def of(self, role: Role, opened: Graph, recordings: Sequence[Waveform]) -> Drift:
        """The drift where the graph of one role is `opened`; recordings are the same at each call."""
        if not self._readings:
            self._readings = [self._read(recording) for recording in recordings[:RECORDINGS]]
            del self._exact["features"], self._exact["encoder"]  # which are gigabytes of a large model
        other = self._exact | {role: opened}

        def pairs() -> Iterator[tuple[Array, Array]]:
            for reading in self._readings:
                heard = reading.heard if role == "decoder" else self._encoded(other["encoder"], reading.window)
                wanted = len(reading.log_probs)
                yield reading.log_probs, self._log_probs(other["decoder"], heard, reading.tokens, wanted)

        return distribution_drift(pairs())

    def _read(self, recording: Waveform) -> _Reading:
        special = self._special
        samples = np.ascontiguousarray(recording[: special.window_frames * FRAME_SHIFT])[None]
        inputs = {"waveform": samples, "num_samples": np.array([samples.shape[1]], np.int64)}
        [found] = self._exact["features"](inputs, ["features"])
        window = np.zeros((1, special.window_frames, found.shape[2]), np.float32)
        frames = min(samples.shape[1] // FRAME_SHIFT, special.window_frames)
        window[:, :frames] = found[:, :frames]
        heard = self._encoded(self._exact["encoder"], window)
        tokens = [special.sot, *list(special.languages.values())[:1], *list(special.tasks.values())[-1:]]
        tokens.append(special.no_timestamps)
        first = len(tokens)
        for _ in range(min(TOKENS, special.text_context - first)):
            tokens.append(int(self._log_probs(self._exact["decoder"], heard, tokens, 1)[-1].argmax()))
        wanted = len(tokens) - first + 1
        return _Reading(window, heard, tokens, self._log_probs(self._exact["decoder"], heard, tokens, wanted))

    def _encoded(self, encoder: Graph, window: npt.NDArray[np.float32]) -> Heard:
        names = self._special.cross_names
        return dict(zip(names, encoder({"features": window}, names), strict=True))

    def _log_probs(self, decoder: Graph, heard: Heard, tokens: Sequence[int], wanted: int) -> Array:
        """Log-probabilities (wanted, vocab) after the last tokens."""
        special = self._special
        empty = np.zeros((1, special.heads, 0, special.head_dim), np.float32)
        inputs: dict[str, npt.NDArray[Any]] = {
            "tokens": np.array([tokens], np.int64),
            "padding": np.zeros(1, np.int64),
            "places": np.arange(len(tokens) - wanted, len(tokens), dtype=np.int64)[None],
            **heard,
            **dict.fromkeys(special.self_names, empty),
        }
        [[logits]] = decoder(inputs, ["logits"])
        shifted: Array = logits - logits.max(axis=-1, keepdims=True)
        return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
