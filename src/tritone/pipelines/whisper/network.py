"""The graphs of a Whisper bundle, or of another encoder-decoder, at work: features, windows, the decoder's caches.

waveform                  ->  features (frames, bins)
features of some windows  ->  keys and values  ->  Windows, which decoders of any of them attend to
"""

import sys
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tritone.audio.waveform import Samples, widened
from tritone.bundle.attending import AttendingPart
from tritone.bundle.bundle import Bundle
from tritone.kinds.encoder_decoder.part import EncoderDecoderPart
from tritone.kinds.whisper.part import WhisperPart
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

    def __init__(self, bundle: Bundle, placement: Placement, special: WhisperPart | EncoderDecoderPart) -> None:
        """Open them; errors as of `open_chosen`."""
        self.special = special
        # A CPU has enough to do with the 1,500 positions of one window, whose scores alone take 54 MB in tiny.en.
        self.together = 1 if placement.device == "cpu" else sys.maxsize
        self.num_bins = bundle.manifest.features.num_mel_bins
        self.encoder = open_chosen(bundle, "encoder", placement)[1]
        self.decoder = open_chosen(bundle, "decoder", placement)[1]

    def encode(self, windows: Sequence[Array]) -> dict[str, Array]:
        """Encode windows: features (frames, bins) of at most `window_frames`, the rest of which is zero; or samples.

        Returns:
            What the decoder takes of them, (windows, …).
        """
        names = self.special.encoder_names
        return dict(zip(names, self.encoder(self._inputs(windows), names), strict=True))

    def decoder_of(self, windows: "Windows") -> "CachedDecoder":
        """A decoder without rows, for windows that are or come there."""
        return CachedDecoder(self.decoder, self.special, windows)

    def _inputs(self, windows: Sequence[Array]) -> dict[str, Array]:
        """What the encoder takes of some windows."""
        counts = np.array([len(window) for window in windows])
        if isinstance(self.special, WhisperPart):
            batch = np.zeros((len(windows), self.special.window_frames, self.num_bins), np.float32)
        else:
            batch = np.zeros((len(windows), counts.max()), np.float32)
        for row, window in zip(batch, windows, strict=True):
            row[: len(window)] = window
        return (
            {"features": batch} if isinstance(self.special, WhisperPart) else {"waveform": batch, "num_samples": counts}
        )


class Windows:
    """What the decoder attends to, keys and values of each layer, of windows that come and go: a row for each.

    Rows are large, so they are moved only where the windows of a call do not lie side by side.
    """

    def __init__(self, most: int) -> None:
        """Take for how many windows there is room once there are several."""
        self._most = most
        self._arrays: dict[str, Array] = {}
        self._row_of: dict[int, int] = {}
        self._window_of: list[int | None] = []  # of each row

    def __len__(self) -> int:
        return len(self._row_of)

    def __contains__(self, window: int) -> bool:
        return window in self._row_of

    def put(self, windows: Sequence[int], memory: Mapping[str, Array]) -> None:
        """Add windows, which are new, and what the encoder has found of them, (windows, …); it may be kept."""
        if not self._row_of:
            self._arrays, self._window_of = dict(memory), [*windows]
            self._row_of = {window: row for row, window in enumerate(windows)}
            return
        count = len(self._row_of) + len(windows)
        rows = max(self._most, count) if count > len(self._window_of) else len(self._window_of)
        self._window_of += [None] * (rows - len(self._window_of))
        free = [row for row, window in enumerate(self._window_of) if window is None][: len(windows)]
        for name, found in memory.items():
            array = self._arrays[name]
            shape = rows, *map(max, array.shape[1:], found.shape[1:])
            if array.shape != shape:  # more windows, or longer ones
                self._arrays[name] = np.zeros(shape, array.dtype)
                self._arrays[name][tuple(map(slice, array.shape))] = array
                array = self._arrays[name]
            for row, each in zip(free, found, strict=True):
                if each.shape != shape[1:]:
                    array[row] = 0
                array[(row, *map(slice, each.shape))] = each
        for row, window in zip(free, windows, strict=True):
            self._window_of[row], self._row_of[window] = window, row

    def drop(self, window: int) -> None:
        """Forget a window."""
        self._window_of[self._row_of.pop(window)] = None
        if not self._row_of:
            self._arrays = {}

    def beside(self, windows: Collection[int]) -> tuple[list[int], dict[str, Array]]:
        """Some windows in the order in which they lie side by side, and what belongs to them, without a copy."""
        count, rows = len(windows), [self._row_of[window] for window in windows]
        first = min(rows)
        if max(rows) - first >= count:
            first = self._place(windows)
            outside = [row for row in rows if not first <= row < first + count]
            for row in range(first, first + count):
                if self._window_of[row] not in windows:
                    self._exchange(outside.pop(), row)
        order = [window for window in self._window_of[first : first + count] if window is not None]
        return order, {name: array[first : first + count] for name, array in self._arrays.items()}

    def _place(self, windows: Collection[int]) -> int:
        """The first of as many rows as there are windows, where most of them and fewest others lie."""
        count = len(windows)

        def others(first: int) -> tuple[int, int]:
            there = self._window_of[first : first + count]
            return -sum(window in windows for window in there), sum(window is not None for window in there)

        return min(range(len(self._window_of) - count + 1), key=others)

    def _exchange(self, row: int, other: int) -> None:
        window, gone = self._window_of[row], self._window_of[other]
        for array in self._arrays.values():
            if gone is None:
                array[other] = array[row]
            else:
                array[[row, other]] = array[[other, row]]
        self._window_of[row], self._window_of[other] = gone, window
        for each, place in ((window, other), (gone, row)):
            if each is not None:
                self._row_of[each] = place


class Block(NamedTuple):
    """The caches of a call, each (rows, heads, places, head_dim), and how many places before each row are no tokens."""

    caches: Mapping[str, Array]
    padding: npt.NDArray[np.int64]


class Row(NamedTuple):
    """A row of the decoder as its callers know it: where its cache is, how many tokens it has, and its window."""

    block: int
    place: int
    length: int
    window: int


class CachedDecoder:
    """Rows of text under way, with the keys and values of their tokens; see `search.whisper.decoding.Decoder`.

    In a call rows lie as their windows do, so they are in another order there than in the caller's.
    """

    def __init__(self, graph: Graph, special: AttendingPart, windows: Windows) -> None:
        self._graph, self._special, self._windows = graph, special, windows
        self._blocks: list[Block] = []
        self._rows: list[Row] = []

    def begin(
        self, windows: Sequence[int], prompts: Sequence[Sequence[int]], places: Sequence[Sequence[int]]
    ) -> npt.NDArray[np.float32]:
        """Read a prompt for each window, the shorter ones with padding before them."""
        order, cross = self._windows.beside(windows)
        rows = [order.index(window) for window in windows]
        callers = np.argsort(rows)
        tokens, padding = self._padded([prompts[caller] for caller in callers])
        chosen = np.asarray(places, np.int64)[callers] + padding[:, None]
        logits, block = self._call(tokens, chosen, Block(self._empty(len(rows)), padding), cross)
        self._rows += [
            Row(len(self._blocks), row, len(prompt), window)
            for row, prompt, window in zip(rows, prompts, windows, strict=True)
        ]
        self._blocks.append(block)
        return logits[rows]

    def step(
        self, tokens: Sequence[Sequence[int]], sources: Sequence[int], undone: Sequence[int] | None = None
    ) -> npt.NDArray[np.float32]:
        """Read some more tokens for each row."""
        continued = [
            row._replace(length=row.length - wrong)
            for row, wrong in zip([self._rows[source] for source in sources], undone or [0] * len(sources), strict=True)
        ]
        order, cross = self._windows.beside({row.window for row in continued})
        row_of = {window: row for row, window in enumerate(order)}
        callers = sorted(range(len(continued)), key=lambda caller: row_of[continued[caller].window])
        before = self._gathered([continued[caller] for caller in callers])
        most = max(map(len, tokens))
        new = np.full((len(callers), most), self._special.eot, np.int64)
        for row, caller in zip(new, callers, strict=True):
            row[: len(tokens[caller])] = tokens[caller]
        logits, block = self._call(new, np.tile(np.arange(most), (len(new), 1)), before, cross)
        rows = np.argsort(callers)
        self._blocks = [block]
        self._rows = [
            Row(0, place, row.length + len(own), row.window)
            for place, row, own in zip(rows.tolist(), continued, tokens, strict=True)
        ]
        return logits if callers == sorted(callers) else logits[rows]

    def align(self, window: int, text: Sequence[int], places: Sequence[int]) -> tuple[Array, npt.NDArray[np.float32]]:
        """Read the whole text of a window, which becomes no row.

        Returns:
            Scores (heads, length, positions) of the heads that follow the audio, and logits (places, vocab).
        """
        tokens, padding = self._padded([text])
        inputs = {"tokens": tokens, "padding": padding, "places": np.asarray([places], np.int64)}
        _, cross = self._windows.beside([window])
        scores, logits = self._graph({**inputs, **cross, **self._empty(1)}, ["alignment", "logits"])
        return scores[0], logits[0]

    def _empty(self, rows: int) -> dict[str, Array]:
        empty = np.zeros((rows, self._special.heads, 0, self._special.head_dim), np.float32)
        return dict.fromkeys(self._special.self_names, empty)

    def _gathered(self, rows: Sequence[Row]) -> Block:
        """The caches of rows as one block, in which they end together."""
        lengths = np.array([row.length for row in rows])
        longest = int(lengths.max())
        first = self._blocks[rows[0].block]
        places = next(iter(first.caches.values())).shape[2]
        chosen = [row.place for row in rows]
        if len(self._blocks) == 1 and (first.padding[chosen] + lengths == longest).all() and longest == places:
            if chosen == list(range(len(first.padding))):
                return first
            return Block({name: array[chosen] for name, array in first.caches.items()}, first.padding[chosen])
        caches: dict[str, Array] = {}
        for name, array in first.caches.items():
            caches[name] = np.zeros((len(rows), array.shape[1], longest, array.shape[3]), array.dtype)
            for found, row in zip(caches[name], rows, strict=True):
                block = self._blocks[row.block]
                start = block.padding[row.place]
                found[:, longest - row.length :] = block.caches[name][row.place, :, start : start + row.length]
        return Block(caches, longest - lengths)

    def _padded(self, prompts: Sequence[Sequence[int]]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        longest = max(map(len, prompts))
        padding = np.array([longest - len(prompt) for prompt in prompts], np.int64)
        tokens = np.full((len(prompts), longest), self._special.eot, np.int64)
        for row, prompt in zip(tokens, prompts, strict=True):
            row[longest - len(prompt) :] = prompt
        return tokens, padding

    def _call(
        self,
        tokens: npt.NDArray[np.int64],
        places: npt.NDArray[np.int64],
        before: Block,
        cross: Mapping[str, Array],
    ) -> tuple[Array, Block]:
        inputs = {"tokens": tokens, "padding": before.padding, "places": places, **cross, **before.caches}
        names = self._special.self_names
        logits, *longer = self._graph(inputs, ["logits", *(f"next_{name}" for name in names)])
        return logits, Block(dict(zip(names, longer, strict=True)), before.padding)
