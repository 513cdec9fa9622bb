"""The graphs of a Whisper bundle at work: features of recordings, windows to be decoded, and the decoder's caches.

waveform                  ->  features (frames, bins)
features of some windows  ->  Heard, which makes decoders for any of them
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tritone.audio.waveform import Samples, widened
from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import Whisper
from tritone.pipelines.graphs.choice import open_chosen
from tritone.pipelines.graphs.placement import Placement
from tritone.runtime import Graph
from tritone.runtime.graph import Array


class Network:
    """The opened graphs of a bundle."""

    def __init__(self, bundle: Bundle, placement: Placement, special: Whisper) -> None:
        """Open them; errors as of `open_chosen`."""
        self.special = special
        # A CPU has enough to do with the 1,500 positions of one window, whose scores alone take 54 MB in tiny.en.
        self._together = 1 if placement.device == "cpu" else sys.maxsize
        self.num_bins = bundle.manifest.features.num_mel_bins
        self.features_graph = open_chosen(bundle, "features", placement)[1]
        self.encoder = open_chosen(bundle, "encoder", placement)[1]
        self.decoder = open_chosen(bundle, "decoder", placement)[1]

    def features(self, waveform: Samples) -> Array:
        """Log-mel features (frames, bins) of a recording, a frame for each whole 10 ms."""
        samples = np.ascontiguousarray(widened(waveform))[None]
        inputs = {"waveform": samples, "num_samples": np.array([samples.shape[1]])}
        features, num_frames = self.features_graph(inputs, ("features", "num_frames"))
        return features[0, : num_frames[0]]

    def hear(self, windows: Sequence[Array]) -> "Heard":
        """Encode windows of features (frames, bins), of at most `window_frames`; what is missing is zero."""
        names = self.special.cross_names
        found: dict[str, Array] = {}
        for start in range(0, len(windows), self._together):
            some = windows[start : start + self._together]
            batch = np.zeros((len(some), self.special.window_frames, self.num_bins), np.float32)
            for row, window in zip(batch, some, strict=True):
                row[: len(window)] = window
            for name, array in zip(names, self.encoder({"features": batch}, names), strict=True):
                if len(some) == len(windows):
                    found[name] = array
                else:
                    whole = found.setdefault(name, np.empty((len(windows), *array.shape[1:]), array.dtype))
                    whole[start : start + len(some)] = array
        return Heard(self.decoder, self.special, found)


@dataclass(frozen=True)
class Heard:
    """What the decoder attends to of some windows: keys and values of each layer, (windows, …)."""

    graph: Graph
    special: Whisper
    cross: Mapping[str, Array]

    def __getitem__(self, windows: Sequence[int]) -> "Heard":
        """Some of the windows, which are not copied where they are all."""
        chosen = list(windows)
        if chosen == list(range(len(next(iter(self.cross.values()))))):
            return self
        return Heard(self.graph, self.special, {name: array[chosen] for name, array in self.cross.items()})

    def decoder(self) -> "CachedDecoder":
        """A decoder of the windows, without a text yet."""
        return CachedDecoder(self)

    def logits(self, prompts: Sequence[Sequence[int]], places: Sequence[Sequence[int]]) -> npt.NDArray[np.float32]:
        """Logits (windows, places, vocab) after some tokens of a text for each window."""
        return self.decoder().begin(prompts, places)


class CachedDecoder:
    """Rows of text under way, with the keys and values of their tokens; see `search.whisper.decoding.Decoder`."""

    def __init__(self, heard: Heard) -> None:
        self._graph, self._special, self._cross = heard.graph, heard.special, heard.cross
        self._names = heard.special.self_names
        self._caches: dict[str, Array] = {}
        self._padding = np.zeros(0, np.int64)
        self._recordings = np.zeros(0, np.int64)  # of each row, as an index of `_cross`

    def begin(self, prompts: Sequence[Sequence[int]], places: Sequence[Sequence[int]]) -> npt.NDArray[np.float32]:
        """Read a prompt for each window, the shorter ones with padding before them."""
        tokens, self._padding = self._padded(prompts)
        self._recordings = np.arange(len(prompts))
        self._forget(len(prompts))
        [logits] = self._call(tokens, np.asarray(places, np.int64) + self._padding[:, None], ["logits"])
        return logits

    def step(self, tokens: Sequence[int], sources: Sequence[int]) -> npt.NDArray[np.float32]:
        """Read one more token for each row."""
        if list(sources) != list(range(len(self._padding))):
            chosen = list(sources)
            self._padding, recordings = self._padding[chosen], self._recordings[chosen]
            self._caches = {name: array[chosen] for name, array in self._caches.items()}
            kept = list(dict.fromkeys(recordings.tolist()))
            if len(kept) < len(next(iter(self._cross.values()))):
                self._cross = {name: array[kept] for name, array in self._cross.items()}
            self._recordings = np.array([kept.index(each) for each in recordings.tolist()])
        column = np.asarray(tokens, np.int64)[:, None]
        [logits] = self._call(column, np.zeros_like(column), ["logits"])
        return np.ascontiguousarray(logits[:, 0])

    def align(self, text: Sequence[int], places: Sequence[int]) -> tuple[Array, npt.NDArray[np.float32]]:
        """Read the whole text of the one window.

        Returns:
            Scores (heads, length, positions) of the heads that follow the audio, and logits (places, vocab).
        """
        tokens, self._padding = self._padded([text])
        self._forget(1)
        scores, logits = self._call(tokens, np.asarray([places], np.int64), ["alignment", "logits"])
        return scores[0], logits[0]

    def _forget(self, rows: int) -> None:
        empty = np.zeros((rows, self._special.heads, 0, self._special.head_dim), np.float32)
        self._caches = dict.fromkeys(self._names, empty)

    def _padded(self, prompts: Sequence[Sequence[int]]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        longest = max(map(len, prompts))
        padding = np.array([longest - len(prompt) for prompt in prompts], np.int64)
        tokens = np.full((len(prompts), longest), self._special.eot, np.int64)
        for row, prompt in zip(tokens, prompts, strict=True):
            row[longest - len(prompt) :] = prompt
        return tokens, padding

    def _call(
        self, tokens: npt.NDArray[np.int64], places: npt.NDArray[np.int64], outputs: list[str]
    ) -> list[npt.NDArray[np.float32]]:
        inputs = {"tokens": tokens, "padding": self._padding, "places": places, **self._cross, **self._caches}
        longer = [f"next_{name}" for name in self._names]
        found = self._graph(inputs, [*outputs, *longer])
        self._caches = dict(zip(self._names, found[len(outputs) :], strict=True))
        return found[: len(outputs)]
