"""The device's side of the engine: weights of a bundle, caches, and steps that are recorded on a GPU.

bundle, placement  ->  OnDevice, or why its programs cannot be used so
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from tritone.audio.waveform import Samples
from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import Role
from tritone.errors import BundleError, OperatorError
from tritone.kinds.encoder_decoder.part import EncoderDecoderPart
from tritone.kinds.whisper.part import WhisperPart
from tritone.pipelines.graphs.choice import choose
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.whisper.driving import UNDER_WAY
from tritone.pipelines.whisper.network import features_of
from tritone.pipelines.whisper.options import special_of
from tritone.preparing import timed
from tritone.runtime import Graph
from tritone.runtime.cuda.held import Held
from tritone.runtime.cuda.steps import Late, Steps, read_weights
from tritone.runtime.files.program import read_program
from tritone.runtime.graph import HELD, Array
from tritone.search.device.attending import Caches, Network, Sizes
from tritone.search.device.choosing import Column, Specials
from tritone.search.device.kernels_for import attending_for, beams_for
from tritone.search.device.writing import Step, Writing

LOGGER = logging.getLogger(__name__)
LENGTHS = (32, 64, 128, 256)  # of what stands before texts
HELD_SAMPLES = 960_000  # one minute: what is longer would keep much of the device for long
PADDED_SAMPLES = 80_000
SHARE = 0.5  # of the free memory of a GPU that caches may take
MOST_WINDOWS, MOST_ROWS = 96, 128
LEAST_ROWS = 16  # the widest beam
ON_CPU_WINDOWS, ON_CPU_ROWS = 8, 24


ROLES: tuple[Role, ...] = ("encoder", "decoder")


def open_device(
    bundle: Bundle, placement: Placement, *, windows: int | None = None, rows: int | None = None
) -> "OnDevice":
    """The device's side of a bundle whose programs are for torch.

    Args:
        windows, rows: the most at once; None: as many as have room.

    Raises:
        BundleError: a program is damaged, or lacks a tensor of Whisper's.
        OperatorError: the device has too little memory.
    """
    special = special_of(bundle)
    assert special is not None
    steps = Steps(placement.device, threads=placement.threads, priority=-1)
    paths = [bundle.file(choose(bundle, role, placement).files[0]) for role in ROLES]
    encoder_function, encoder = None, dict[str, Any]()
    with timed(placement.preparing, "weights"):
        if isinstance(special, EncoderDecoderPart):
            encoder_function = read_program(paths[0], steps.device).function(special.encoder_names)
        else:
            encoder = read_weights(paths[0], placement.device)
        decoder = read_weights(paths[1], placement.device)
    with timed(placement.preparing, "kernels"):
        kernels = kernels_of(steps, special)
    sizes = sizes_of(special)
    try:
        network = Network(encoder, decoder, sizes, attending=kernels, encoder_function=encoder_function)
    except KeyError as error:
        raise BundleError(f"{bundle.path}: its programs have no tensor {error}. Export it again.") from error
    free = steps.free_bytes()
    features = bundle.manifest.features
    held = UNDER_WAY * (HELD_SAMPLES // features.frame_shift) * features.num_mel_bins * np.dtype(np.float32).itemsize
    usual = (ON_CPU_WINDOWS, ON_CPU_ROWS) if free is None else fitting(network, free, held)
    windows, rows = windows or usual[0], rows or usual[1]
    with timed(placement.preparing, "caches"):
        return OnDevice(
            network, special, steps, bundle.manifest.features.num_mel_bins, windows=windows, rows=rows, kernels=kernels
        )


def sizes_of(special: WhisperPart | EncoderDecoderPart) -> Sizes:
    """What the network needs beside its weights."""
    if isinstance(special, EncoderDecoderPart):
        return Sizes(encoder_heads=0, heads=special.heads, form=special.form, positions=special.max_positions)
    assert special.encoder_heads is not None
    return Sizes(encoder_heads=special.encoder_heads, heads=special.heads, alignment_heads=special.alignment_heads)


def kernels_of(steps: Steps, special: WhisperPart | EncoderDecoderPart) -> Any:
    """The kernels for steps of texts, where the device and the heads are such that they can be used."""
    if isinstance(special, EncoderDecoderPart):
        return None  # they know neither windows of any length nor rotary positions
    found = attending_for(str(steps.device))
    return found if found is not None and found.can_attend(special.head_dim) else None


def fitting(network: Network, free: int, held: int = 0) -> tuple[int, int]:
    """How many windows and rows have room in the free memory of a GPU.

    Args:
        free: bytes, of which they may take a share; the rest is for the encoder and for recorded calls.
        held: bytes of features that wait or are under way for each window.

    Raises:
        OperatorError: not even a few.
    """
    window, row = Caches.window_bytes(network) + held, Caches.row_bytes(network)
    share = SHARE * free / (MOST_WINDOWS * window + MOST_ROWS * row)
    windows, rows = (min(most, int(share * most)) for most in (MOST_WINDOWS, MOST_ROWS))
    if rows < LEAST_ROWS:
        raise OperatorError(
            f"{free >> 20} MiB of the GPU's memory are free; texts under way take {window >> 20} MiB a window and "
            f"{row >> 20} MiB a text, and {LEAST_ROWS} must have room in half of it. Free some, or take a smaller model"
        )
    return windows, rows


class OnDevice:
    """Caches, texts and recorded steps of one network."""

    def __init__(
        self,
        network: Network,
        special: WhisperPart | EncoderDecoderPart,
        steps: Steps,
        bins: int,
        *,
        windows: int = ON_CPU_WINDOWS,
        rows: int = ON_CPU_ROWS,
        kernels: Any = None,
    ) -> None:
        """Take the network, what runs it, the most windows and rows at once, and kernels if there are any."""
        self.windows, self.rows, self.context = windows, rows, network.context
        self.columns = len(Column)
        self._steps = steps
        self._encoding = steps.beside()
        self.ahead = steps.ahead
        # Of windows of features; samples are padded to one of a few lengths, up to the most.
        self._shape = (special.window_frames, bins) if isinstance(special, WhisperPart) else (special.max_samples,)
        specials = Specials(
            eot=special.eot,
            no_timestamps=special.no_timestamps,
            timestamp_begin=min(special.timestamp_begin, network.vocab - 1),
            no_speech=special.no_speech,
            suppress_first=special.suppress_first,
        )
        with steps.turn():
            self.writing = Writing(
                network,
                specials,
                windows=windows,
                rows=rows,
                aligned=network.context // 2 + 8,
                kernels=kernels,
                beam_kernels=None if kernels is None else beams_for(str(steps.device)),
            )
            self._places: dict[Any, Any] = {}
        steps.settle()

    def first_calls(
        self, windows: Sequence[int], rows: Sequence[int], read: Sequence[int]
    ) -> list[Callable[[], object]]:
        """What records calls for so many windows and rows, and texts to be read, but for beams.

        Each is to be called in a turn while nothing is under way; the first two record what any request needs.
        """

        def encode(size: int) -> None:
            blank = np.zeros((min(PADDED_SAMPLES, self._shape[0]), *self._shape[1:]), np.float32)
            self.encode([blank] * size, [self.windows] * size).array()

        def read_before(size: int, length: int) -> None:
            self.read(np.zeros((size, length), np.int64), [*range(size)], [self.windows] * size)

        def step(size: int, **form: bool) -> None:
            self.step(size, **form).array()

        encodings = [partial(encode, size) for size in windows if size <= self.windows]
        plain = [partial(step, size) for size in rows]
        before = [
            partial(read_before, size, length)
            for length in LENGTHS
            for size in read
            if size <= self.rows and length <= self.context
        ]
        rest = [partial(step, size, sampled=True) for size in rows]
        if self.writing.aligns:
            rest += [partial(step, size, scored=True) for size in rows]
        return [*encodings[:1], *plain, *encodings[1:], *before, *rest]

    def turn(self) -> AbstractContextManager[None]:
        """The time in which steps may be launched."""
        return self._steps.turn()

    def encode(self, windows: Sequence[Any], slots: Sequence[int]) -> Late:
        """Encode windows (frames, bins), or samples, into slots; beside the steps, on a GPU."""
        steps, writing = self._encoding, self.writing
        size, (longest, *bins) = len(windows), self._shape
        counts = np.array([len(window) for window in windows], np.int64)
        if not bins:
            longest = min(longest, -(-int(counts.max()) // PADDED_SAMPLES) * PADDED_SAMPLES)
        with steps.turn():
            block = self._place(steps, ("features", size, longest), (size, longest, *bins))
            for row, window in zip(block, windows, strict=True):
                if isinstance(window, HeldFeatures):
                    row[: len(window)].copy_(window.tensor())
                else:
                    steps.put(row[: len(window)], window)
                row[len(window) :].zero_()
            places = self._put(steps, ("slots", size), np.array(slots, np.int64))
            given = None if bins else self._put(steps, ("counts", size), counts)
            steps.run(("encode", size, longest), lambda: writing.network.encode(block, places, writing.caches, given))
            return steps.mark()

    def read(self, tokens: Array, rows: Sequence[int], windows: Sequence[int]) -> None:
        """Read what stands before texts, (texts, length) of tokens, into rows."""
        steps, writing = self._steps, self.writing
        texts, length = tokens.shape
        size = min(next((each for each in LENGTHS if each >= length), length), self.context)
        padded = np.zeros((texts, size), np.int64)
        padded[:, :length] = tokens
        key = "read", texts, size
        given, into, of = (
            self._put(steps, (*key, place), np.array(each, np.int64))
            for place, each in enumerate((padded, rows, windows))
        )
        steps.run(key, lambda: writing.network.read(given, into, of, writing.caches))

    def begin(self, rows: Sequence[int], numbers: Array, origin: Array) -> None:
        """Have rows begin other texts, see `Texts.begin`."""
        self.writing.texts.begin(*map(self._steps.send, (np.array(rows, np.int64), numbers, origin)))

    def forbid(self, rows: Sequence[int], tokens: Sequence[int]) -> None:
        """Have rows never write some tokens."""
        self.writing.texts.forbid(*(self._steps.send(np.array(each, np.int64)) for each in (rows, tokens)))

    def end(self, rows: Sequence[int]) -> None:
        """Have rows stand still."""
        self.writing.texts.end(self._steps.send(np.array(rows, np.int64)))

    def step(self, rows: int, *, sampled: bool = False, scored: bool = False, beam: int = 1) -> Late:
        """One more token of the first rows; see `Chooser.choose` for what is given."""
        form = Step(rows, sampled, scored, beam)
        return self._steps.fetch(self._steps.run(form, lambda: self.writing.step(form), self.writing.kept))

    def attention(self, rows: Sequence[int], positions: int) -> Late:
        """What tokens attended to, see `Writing.attention`."""
        return self._steps.fetch(self.writing.attention(self._steps.send(np.array(rows, np.int64)), positions))

    def _put(self, steps: Steps, key: Any, array: Array) -> Any:
        """An array in the place on the device that all of this key are put in."""
        return steps.put(self._place(steps, key, array.shape, array.dtype), array)

    def _place(self, steps: Steps, key: Any, shape: tuple[int, ...], dtype: npt.DTypeLike = np.float32) -> Any:
        if key not in self._places:
            self._places[key] = steps.send(np.zeros(shape, dtype)).clone()
        return self._places[key]


class HeldFeatures:
    """Features (frames, bins) of a recording, or of a part of it, that stay on the device."""

    def __init__(self, held: Held, start: int, stop: int) -> None:
        """Take those of one recording, (1, frames, bins), and which of its frames these are."""
        self._held, self._start, self._stop = held, start, stop

    def __len__(self) -> int:
        return self._stop - self._start

    def __getitem__(self, part: slice) -> "HeldFeatures":
        start, stop, _ = part.indices(len(self))
        return HeldFeatures(self._held, self._start + start, self._start + stop)

    def tensor(self) -> Any:
        """The frames, for work on the present stream."""
        return self._held.tensor()[0, self._start : self._stop]


def held_features(graph: Graph, frame_shift: int, waveform: Samples) -> "HeldFeatures | Array":
    """Features of a recording as `features_of` has them; on the device, if it is no longer than `HELD_SAMPLES`.

    It is padded to one of a few lengths, whose calls are recorded on a GPU.
    """
    count = len(waveform)
    if count > HELD_SAMPLES:
        return features_of(graph, waveform)
    padded = graph.empty((1, max(1, -(-count // PADDED_SAMPLES)) * PADDED_SAMPLES), waveform.dtype)
    padded[0, :count], padded[0, count:] = waveform, 0
    held: Any = graph({"waveform": padded, "num_samples": np.array([count])}, (f"{HELD}features",))[0]
    return HeldFeatures(held, 0, count // frame_shift)
