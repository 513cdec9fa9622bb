"""The graphs of a Whisper bundle, or of another encoder-decoder, at work: features, windows, the decoder's caches.

waveform                  ->  features (frames, bins)
features of some windows  ->  Heard, which makes decoders for any of them
"""

import sys
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tritone.audio.waveform import Samples, widened
from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import Attending, EncoderDecoder, Whisper
from tritone.pipelines.graphs.choice import open_chosen
from tritone.pipelines.graphs.placement import Placement
from tritone.runtime import Graph
from tritone.runtime.graph import Array


def features_of(graph: Graph, waveform: Samples) -> Array:
    """Log-mel features (frames, bins) of a recording, a frame for each whole 10 ms."""
    samples = np.ascontiguousarray(widened(waveform))[None]
    inputs = {"waveform": samples, "num_samples": np.array([samples.shape[1]])}
    features, num_frames = graph(inputs, ("features", "num_frames"))
    return features[0, : num_frames[0]]


class Network:
    """The opened graphs of a bundle."""

    def __init__(self, bundle: Bundle, placement: Placement, special: Whisper | EncoderDecoder) -> None:
        """Open them; errors as of `open_chosen`."""
        self.special = special
        # A CPU has enough to do with the 1,500 positions of one window, whose scores alone take 54 MB in tiny.en.
        self._together = 1 if placement.device == "cpu" else sys.maxsize
        self.num_bins = bundle.manifest.features.num_mel_bins
        self.encoder = open_chosen(bundle, "encoder", placement)[1]
        self.decoder = open_chosen(bundle, "decoder", placement)[1]

    def hear(self, windows: Sequence[Array]) -> "Heard":
        """Encode windows: features (frames, bins) of at most `window_frames`, the rest of which is zero; or samples."""
        names, count = self.special.heard_names, len(windows)
        found: dict[str, Array] = {}
        for start in range(0, count, self._together):
            some = windows[start : start + self._together]
            for name, array in zip(names, self.encoder(self._inputs(some), names), strict=True):
                if len(some) == count:
                    found[name] = array
                    continue
                shape = count, *array.shape[1:]
                whole = found.get(name)
                if whole is None or any(have < need for have, need in zip(whole.shape, shape, strict=True)):
                    found[name] = np.zeros(shape, array.dtype)  # longer than those before
                    if whole is not None:
                        found[name][tuple(map(slice, whole.shape))] = whole
                    whole = found[name]
                whole[start : start + len(some)][tuple(map(slice, array.shape))] = array
        return Heard(self.decoder, self.special, found)

    def _inputs(self, windows: Sequence[Array]) -> dict[str, Array]:
        """What the encoder takes of some windows."""
        counts = np.array([len(window) for window in windows])
        if isinstance(self.special, Whisper):
            batch = np.zeros((len(windows), self.special.window_frames, self.num_bins), np.float32)
        else:
            batch = np.zeros((len(windows), counts.max()), np.float32)
        for row, window in zip(batch, windows, strict=True):
            row[: len(window)] = window
        return {"features": batch} if isinstance(self.special, Whisper) else {"waveform": batch, "num_samples": counts}


class Heard:
    """What the decoder attends to of some windows: keys and values of each layer, (windows, …), and perhaps how many.

    They are large, so rows are moved rather than copied: decoders of the same windows are used one after the other.
    """

    def __init__(self, graph: Graph, special: Attending, cross: Mapping[str, Array]) -> None:
        """`cross` is kept, and its rows are moved."""
        self.graph, self.special, self._cross = graph, special, cross
        self._windows = list(range(len(next(iter(cross.values())))))  # of each row

    def __len__(self) -> int:
        return len(self._windows)

    def decoder(self, windows: Sequence[int] | None = None) -> "CachedDecoder":
        """A decoder of some of the windows, by default of all, without a text yet."""
        return CachedDecoder(self, range(len(self)) if windows is None else windows)

    def front(self, windows: Sequence[int]) -> dict[str, Array]:
        """What belongs to some windows, in their order, without a copy: their rows change places with the first."""
        rows = self._windows
        for row, window in enumerate(windows):
            if (other := rows.index(window)) != row:
                rows[row], rows[other] = rows[other], rows[row]
                for array in self._cross.values():
                    array[[row, other]] = array[[other, row]]
        return {name: array[: len(windows)] for name, array in self._cross.items()}


class CachedDecoder:
    """Rows of text under way, with the keys and values of their tokens; see `search.whisper.decoding.Decoder`.

    Windows that are left fill the places of those that ended, so rows are in another order here than in the caller's.
    """

    def __init__(self, heard: Heard, windows: Sequence[int]) -> None:
        self._heard, self._windows = heard, list(windows)  # in the order of `_cross`
        self._graph, self._special, self._cross = heard.graph, heard.special, heard.front(self._windows)
        self._names = heard.special.self_names
        self._caches: dict[str, Array] = {}
        self._padding = np.zeros(0, np.int64)
        self._of_row: list[int] = []  # the window of each row
        self._row_of: list[int] = []  # the row of each of the caller's

    def begin(self, prompts: Sequence[Sequence[int]], places: Sequence[Sequence[int]]) -> npt.NDArray[np.float32]:
        """Read a prompt for each window, the shorter ones with padding before them."""
        tokens, self._padding = self._padded(prompts)
        self._of_row, self._row_of = list(self._windows), list(range(len(prompts)))
        self._forget(len(prompts))
        [logits] = self._call(tokens, np.asarray(places, np.int64) + self._padding[:, None], ["logits"])
        return logits

    def step(self, tokens: Sequence[int], sources: Sequence[int]) -> npt.NDArray[np.float32]:
        """Read one more token for each row."""
        continued = [self._row_of[source] for source in sources]
        windows = [self._of_row[row] for row in continued]
        if len(kept := set(windows)) < len(self._windows):
            first, later = self._windows[: len(kept)], self._windows[len(kept) :]
            fill = (each for each in later if each in kept)
            self._windows = [each if each in kept else next(fill) for each in first]
            self._cross = self._heard.front(self._windows)
        order = sorted(range(len(windows)), key=lambda each: self._windows.index(windows[each]))
        chosen = [continued[each] for each in order]
        if chosen != list(range(len(self._padding))):
            self._padding = self._padding[chosen]
            self._caches = {name: array[chosen] for name, array in self._caches.items()}
        self._of_row = [windows[each] for each in order]
        self._row_of = np.argsort(order).tolist()
        column = np.asarray(tokens, np.int64)[order, None]
        [logits] = self._call(column, np.zeros_like(column), ["logits"])
        return np.ascontiguousarray(logits[self._row_of, 0] if order != sorted(order) else logits[:, 0])

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
