"""What graphs of a decoder that attends to audio make of it in another precision, against float32: its next tokens.

    recordings  ->  tokens that float32 writes, one after the other  ->  log-probabilities of both  ->  Drift

Both sides read the same tokens, so that one other choice does not count for all that follow it.
"""

import tempfile
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tritone.audio import Waveform
from tritone.bundle.attending import AttendingPart
from tritone.bundle.manifest import Role
from tritone.families.export.drift import Array, Drift, distribution_drift
from tritone.families.export.frame import ExportedModel
from tritone.families.onnx.large import WeightFile, beside
from tritone.runtime import Graph, open_graph

TOKENS = 16  # of each recording, one window of it
RECORDINGS = 8

Opener: TypeAlias = Callable[[Role], Graph]
CrossAttention: TypeAlias = Mapping[str, npt.NDArray[np.float32]]
Inputs: TypeAlias = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class _Reading:
    """What float32 makes of a recording: the encoder's inputs, keys and values, its tokens, their log-probabilities."""

    window: Inputs
    cross: CrossAttention
    tokens: Sequence[int]
    log_probs: Array


class TokenDrift:
    """Compares graphs with the float32 ones of a model, which read each recording once. `exact` opens these."""

    def __init__(
        self, exact: Opener, special: AttendingPart, start: Sequence[int], windows: Callable[[Opener], Sequence[Inputs]]
    ) -> None:
        """Read the recordings; one graph is open at a time, since those of a large model are gigabytes.

        Args:
            start: the tokens before a text.
            windows: the inputs of the encoder for one window of each recording.
        """
        self._special, self._start = special, start
        given = windows(exact)
        encoder = exact("encoder")
        cross = [self._encoded(encoder, each) for each in given]
        del encoder
        self._decoder = exact("decoder")
        self._readings = [self._read(*each) for each in zip(given, cross, strict=True)]

    def of(self, role: Role, opened: Graph) -> Drift:
        """The drift where the graph of one role is `opened`."""
        decoder = opened if role == "decoder" else self._decoder

        def pairs() -> Iterator[tuple[Array, Array]]:
            for reading in self._readings:
                cross = self._encoded(opened, reading.window) if role == "encoder" else reading.cross
                wanted = len(reading.log_probs)
                yield reading.log_probs, self._log_probs(decoder, cross, reading.tokens, wanted)

        return distribution_drift(pairs())

    def _read(self, window: Inputs, cross: CrossAttention) -> _Reading:
        special, tokens = self._special, [*self._start]
        first = len(tokens)
        for _ in range(min(TOKENS, special.text_context - first)):
            tokens.append(int(self._log_probs(self._decoder, cross, tokens, 1)[-1].argmax()))
        wanted = len(tokens) - first + 1
        return _Reading(window, cross, tokens, self._log_probs(self._decoder, cross, tokens, wanted))

    def _encoded(self, encoder: Graph, window: Inputs) -> CrossAttention:
        names = self._special.encoder_names
        return dict(zip(names, encoder(window, names), strict=True))

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


class AttendingModel(ExportedModel):
    """A trained model with a decoder that attends to audio. `special`: what the manifest says of it."""

    special: AttendingPart
    _weights: WeightFile | None = None
    _drift: TokenDrift | None = None

    @abstractmethod
    def start(self) -> Sequence[int]:
        """The tokens before a text that graphs are compared by."""

    @abstractmethod
    def windows(self, exact: Opener, recordings: Sequence[Waveform]) -> Sequence[Inputs]:
        """The inputs of the encoder for one window of each recording."""

    def prepare_drift(self, recordings: Sequence[Waveform]) -> None:
        """Read the recordings with the float32 ONNX graphs, whatever runtime other graphs are for."""
        if self._drift is not None:
            return
        with ExitStack() as stack:
            weights = self._weights  # they are there already, unless nothing but programs of torch is exported
            if weights is None:
                folder = stack.enter_context(tempfile.TemporaryDirectory())
                weights = stack.enter_context(WeightFile(Path(folder, "weights.bin")))

            def exact(role: Role) -> Graph:
                path = weights.path.with_name(f".{role}.float32.onnx")
                path.write_bytes(beside(self.onnx_graph(role, "fp32", weights)).SerializeToString())
                stack.callback(path.unlink)
                return open_graph(path)

            chosen = recordings[:RECORDINGS]
            self._drift = TokenDrift(exact, self.special, self.start(), lambda opener: self.windows(opener, chosen))

    def drift(self, role: Role, opened: Graph, recordings: Sequence[Waveform]) -> Drift:
        self.prepare_drift(recordings)
        assert self._drift is not None
        return self._drift.of(role, opened)
