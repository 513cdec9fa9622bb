"""What graphs do when they run: sizes that no file states, dependence on padding, and whether ours compute the same.

Graphs of a folder take features; ours take waveforms.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tritone.bundle.manifest import Features
from tritone.errors import ExportError
from tritone.families.onnx.front_end import LEAD, PADDING, is_log_mel, least_samples, stream_lead, window_samples
from tritone.families.onnx.source import Source
from tritone.families.onnx.trial import FLOAT_NOISE, Floats, features_of, largest_difference, run, signal, typical_size
from tritone.families.ready_made.compose import STEPS, state_names
from tritone.families.ready_made.layouts import OfflineSizes, StreamLayout, UtteranceLayout
from tritone.runtime import Graph

MAX_FIRST_FRAME = 40  # feature frames; networks with frames of 40 ms need 7 to 15 for their first one
LONG, SHORT = 440, 200  # feature frames whose encoder frames are counted
CHECKED_FRAMES = (128, 97, 86, 75, 64, 53, 47)
"""Lengths in feature frames: every remainder by 4, odd ones, and one that is a power of two."""


@dataclass(frozen=True)
class Leak:
    """How much an utterance's result changes, as a share of the size of results.

    `padding`: when it is padded beside longer ones. `mates`: when it is beside others of its own length, as where
    levels of 8 bits are those of all numbers of a call.
    """

    padding: float
    mates: float

    @property
    def depends_on_mates(self) -> bool:
        """Beyond what comes of float arithmetic."""
        return self.mates > FLOAT_NOISE

    @property
    def depends_on_padding(self) -> bool:
        """And not on other utterances anyway."""
        return self.padding > FLOAT_NOISE and not self.depends_on_mates

    def __str__(self) -> str:
        if self.depends_on_mates:
            return f"utterances change each other's results by up to {self.mates:.2g} of their size: each is a call"
        if self.depends_on_padding:
            return f"padding changes results by up to {self.padding:.2g} of their size: equal lengths are batched only"
        return "results do not depend on padding"


def offline_sizes(graph: Graph, source: Source, layout: UtteranceLayout, bins: int) -> OfflineSizes:
    """Find the sizes of a graph (features, lengths) -> (encoded, lengths).

    Raises:
        ExportError: it fails, or its lengths are none.
    """
    extra = 0 if layout.counts else _uncounted(graph, source, layout, bins)
    rate = 0 if layout.counts else source.integer("subsampling_factor")
    feed = _feeder(graph, source, layout, lambda lengths: (lengths + extra) // rate)
    lengths = np.arange(1, MAX_FIRST_FRAME + 1)
    _, found = feed(np.zeros((MAX_FIRST_FRAME, MAX_FIRST_FRAME, bins), np.float32), lengths)
    enough = lengths[found >= 1]
    encoded, long = feed(np.zeros((1, LONG, bins), np.float32), np.array([LONG]))
    _, short = feed(np.zeros((1, SHORT, bins), np.float32), np.array([SHORT]))
    more = int(long[0] - short[0])
    if not len(enough) or more < 1 or (LONG - SHORT) % more or encoded.ndim != 3:
        raise ExportError(
            f"{source.path}: {LONG} feature frames gave {long[0]} encoder frames and {SHORT} gave {short[0]}, in an "
            f"output of shape {encoded.shape}. An encoder frame should stand for a whole number of feature frames."
        )
    if int(long[0]) > encoded.shape[1]:
        raise ExportError(f"{source.path} counts {long[0]} encoder frames, but gives {encoded.shape[1]}")
    return OfflineSizes(int(enough[0]), (LONG - SHORT) // more, encoded.shape[2], extra)


def _uncounted(graph: Graph, source: Source, layout: UtteranceLayout, bins: int) -> int:
    """`OfflineSizes.extra` of a graph that does not count its frames."""
    rate = source.integer("subsampling_factor")
    if rate > MAX_FIRST_FRAME:
        raise ExportError(f"{source.path}: subsampling_factor is {rate}; at most {MAX_FIRST_FRAME} can be")
    feed = _feeder(graph, source, layout, np.zeros_like)
    lengths = [*range(rate, 2 * rate), SHORT, LONG]
    frames = [feed(np.zeros((1, each, bins), np.float32), np.array([each]))[0].shape[1] for each in lengths]
    extra = max(rate * count - length for length, count in zip(lengths, frames, strict=True))
    if any(count != (length + extra) // rate for length, count in zip(lengths, frames, strict=True)):
        raise ExportError(
            f"{source.path} gives {frames[-1]} frames of {LONG} feature frames and {frames[-2]} of {SHORT}; by its "
            f"subsampling_factor {rate} feature frames make one"
        )
    return extra


def padding_leak(graph: Graph, features: Features, sample_rate: int, min_frames: int, output: str, name: str) -> Leak:
    """Compare utterances alone with the same ones in batches; of one of our offline graphs.

    Raises:
        ExportError: it counts other frames or gives no numbers.
    """
    frames = [max(each, min_frames + index) for index, each in enumerate(CHECKED_FRAMES)]
    waveforms = [signal(least_samples(features, count) + 7, sample_rate, seed) for seed, count in enumerate(frames)]
    alone = [_encode(graph, [each], output, name)[0] for each in waveforms]
    size = typical_size(np.concatenate(alone))
    middle = len(waveforms) // 2
    length = len(waveforms[middle])
    mates = [signal(length, sample_rate, seed + 50) for seed in range(3)]
    beside = _encode(graph, [mates[0], waveforms[middle], *mates[1:]], output, name)[1]
    together = _encode(graph, waveforms, output, name)
    padding = max(largest_difference(a, b, name) for a, b in zip(alone, together, strict=True))
    return Leak(padding / size, largest_difference(alone[middle], beside, name) / size)


def offline_difference(
    ours: Graph,
    theirs: Graph,
    source: Source,
    layout: UtteranceLayout,
    features: Features,
    sample_rate: int,
    min_frames: int,
    output: str,
) -> float:
    """The largest difference between our offline graph and the folder's, as a share of the size of results."""
    feed = _feeder(theirs, source, layout, lambda lengths: lengths)
    worst = 0.0
    for seed, count in enumerate(CHECKED_FRAMES[:3]):
        waveform = signal(least_samples(features, max(count, min_frames)) + 31 * seed, sample_rate, seed)
        feats = features_of(waveform, features, sample_rate)
        encoded, lengths = feed(feats[None], np.array([len(feats)]))
        expected = encoded[0, : lengths[0]]
        found = _encode(ours, [waveform], output, source.path.name)[0][:, : expected.shape[1]]
        worst = max(worst, _share(found, expected, source))
    return worst


def stream_sizes(graph: Graph, source: Source, layout: StreamLayout, bins: int) -> tuple[int, int]:
    """Encoder frames of a step, and the size of a frame."""
    x = np.zeros((2, layout.window_frames, bins), np.float32)
    encoded, *nexts = _step(graph, source, layout, x, _zeros(layout, 2), 0)
    for state, value in zip(layout.states, nexts, strict=True):
        if value.shape != (wanted := (*state.shape[: state.batch_axis], 2, *state.shape[state.batch_axis + 1 :])):
            raise ExportError(f"{source.path}: {state.next_name} has the shape {value.shape}, {state.name} {wanted}")
    if encoded.ndim != 3 or not encoded.shape[1] or layout.shift_frames % encoded.shape[1]:
        raise ExportError(
            f"{source.path}: a step of {layout.shift_frames} feature frames gives {encoded.shape}; an encoder frame "
            "should stand for a whole number of feature frames"
        )
    return encoded.shape[1], encoded.shape[2]


def stream_difference(
    ours: Graph,
    theirs: Graph,
    source: Source,
    layout: StreamLayout,
    features: Features,
    sample_rate: int,
    output: str,
    frames_per_step: int,
) -> float:
    """The largest difference between our streaming graph and the folder's over two whole streams in one batch."""
    window, shift = window_samples(features, layout.window_frames), features.frame_shift * layout.shift_frames
    lengths = (3 * shift + 1234, 2 * shift + 77)
    waveforms = [signal(length, sample_rate, seed) for seed, length in enumerate(lengths)]
    expected = [
        _stream_alone(theirs, source, layout, *_whole_stream(each, features, sample_rate, layout), frames_per_step)
        for each in waveforms
    ]
    steps = max(map(len, expected))
    lead = stream_lead(features, layout.lead_frames)
    block = np.zeros((2, lead + steps * shift + window), np.float32)
    for row, waveform in zip(block, waveforms, strict=True):
        row[lead : lead + len(waveform)] = waveform
    names = state_names(layout)
    states: dict[str, npt.NDArray[Any]] = {STEPS: np.zeros(2, np.int64)}
    for state in layout.states:
        dtype = np.float32 if state.dtype == np.float32 else np.int64
        states[names[state.name]] = np.zeros((2, *state.per_stream), dtype)
    worst = 0.0
    for step in range(steps):
        start = step * shift
        valid = np.clip(lead + np.array(lengths) - start, 0, window)
        feed = {"waveform": block[:, start : start + window], "num_samples": valid, **states}
        encoded, *nexts = run(ours, source, feed, [output, *(f"next_{name}" for name in states)])
        states = dict(zip(states, nexts, strict=True))
        for row, stream in enumerate(expected):
            if step < len(stream):
                worst = max(worst, _share(encoded[row][:, : stream[step].shape[1]], stream[step], source))
    return worst


def keeps_no_token(graph: Graph, source: Source, context_size: int, vocab_size: int) -> bool:
    """Does a context id of -1 have no vector? Without a mask, an embedding gives it that of the last token."""
    contexts = np.zeros((3, context_size), np.int64)
    contexts[0, 0], contexts[1, 0] = -1, vocab_size - 1
    tensor = source.inputs[0]
    feed = {tensor.name: contexts.astype(graph.inputs[tensor.name].dtype)}
    (found,) = run(graph, source, feed, [source.outputs[0].name])
    none, last, blank = found.reshape(3, -1)
    size = float(np.abs(found).max())
    return min(float(np.abs(none - other).max()) for other in (last, blank)) > 1e-4 * size


def is_log_softmax(scores: Floats) -> bool:
    """Are these log-probabilities along the last axis?"""
    return bool(np.allclose(np.logaddexp.reduce(scores.astype(np.float64), axis=-1), 0, atol=1e-2))


def example_scores(graph: Graph, source: Source, layout: StreamLayout | UtteranceLayout, bins: int) -> Floats:
    """What a CTC model makes of something like speech."""
    frames = layout.window_frames if isinstance(layout, StreamLayout) else SHORT
    x = np.random.default_rng(0).normal(-6, 3, (1, frames, bins)).astype(np.float32)
    if isinstance(layout, StreamLayout):
        return _step(graph, source, layout, x, _zeros(layout, 1), 0)[0]
    scores, lengths = _feeder(graph, source, layout, lambda lengths: lengths)(x, np.array([SHORT]))
    return scores[:, : lengths[0]]


Lengths = npt.NDArray[Any]


def _feeder(
    graph: Graph, source: Source, layout: UtteranceLayout, count: Callable[[Lengths], Lengths]
) -> Callable[[Floats, Lengths], tuple[Floats, Lengths]]:
    """A call of the folder's graph: (batch, frames, bins) and lengths to (batch, frames, dim) and lengths.

    Args:
        count: of a graph that gives no lengths, those of the frames that it makes of so many feature frames.
    """
    frames, counts = source.inputs
    outputs = [tensor.name for tensor in source.outputs[: 2 if layout.counts else 1]]

    def feed(x: Floats, lengths: Lengths) -> tuple[Floats, Lengths]:
        given = x.transpose(0, 2, 1) if layout.bins_first else x
        inputs = {frames.name: given, counts.name: lengths.astype(graph.inputs[counts.name].dtype)}
        encoded, *found = run(graph, source, inputs, outputs)
        if layout.dim_first and encoded.ndim == 3:
            encoded = encoded.transpose(0, 2, 1)
        return encoded, found[0].reshape(-1) if found else count(lengths)

    return feed


def _encode(graph: Graph, waveforms: Sequence[Floats], output: str, name: str) -> list[Floats]:
    """The valid frames of each row of one call of an offline graph of ours."""
    block = np.zeros((len(waveforms), max(map(len, waveforms))), np.float32)
    for row, waveform in zip(block, waveforms, strict=True):
        row[: len(waveform)] = waveform
    lengths = np.array([len(each) for each in waveforms])
    try:
        encoded, counts = graph({"waveform": block, "num_samples": lengths}, [output, "num_frames"])
    except Exception as error:
        raise ExportError(f"{name} cannot take {len(waveforms)} utterances at once: {str(error)[:300]}") from error
    return [row[:count] for row, count in zip(encoded, counts.tolist(), strict=True)]


def _zeros(layout: StreamLayout, batch: int) -> list[npt.NDArray[Any]]:
    shapes = ((*s.shape[: s.batch_axis], batch, *s.shape[s.batch_axis + 1 :]) for s in layout.states)
    return [np.zeros(shape, state.dtype) for shape, state in zip(shapes, layout.states, strict=True)]


def _step(
    graph: Graph, source: Source, layout: StreamLayout, x: Floats, states: Sequence[npt.NDArray[Any]], processed: int
) -> list[npt.NDArray[Any]]:
    feed: dict[str, Any] = {source.inputs[0].name: x.transpose(0, 2, 1) if layout.bins_first else x}
    if layout.length is not None:
        feed[layout.length.name] = np.full(len(x), layout.window_frames, graph.inputs[layout.length.name].dtype)
    feed |= {state.name: value for state, value in zip(layout.states, states, strict=True)}
    if layout.processed is not None:
        name = layout.processed.name
        feed[name] = np.full(len(x), processed, graph.inputs[name].dtype)
    encoded, *nexts = run(graph, source, feed, [source.outputs[0].name, *(s.next_name for s in layout.states)])
    return [encoded.transpose(0, 2, 1) if layout.dim_first and encoded.ndim == 3 else encoded, *nexts]


def _whole_stream(waveform: Floats, features: Features, sample_rate: int, layout: StreamLayout) -> tuple[Floats, int]:
    """The features of a stream with what comes before and after it, and before which of them steps begin.

    After a stream comes as much padding as a window has beyond its shift; in NeMo's it is followed by silence.
    """
    more = layout.pad_frames + layout.window_frames
    if is_log_mel(features):
        feats = features_of(np.pad(waveform, (0, more * features.frame_shift)), features, sample_rate)
        feats = np.pad(feats, ((layout.lead_frames, 0), (0, 0)), constant_values=LEAD)
        return feats, -(-len(waveform) // features.frame_shift)
    feats = features_of(waveform, features, sample_rate)
    return np.pad(feats, ((0, more), (0, 0)), constant_values=PADDING), len(feats) + layout.pad_frames


def _stream_alone(
    graph: Graph, source: Source, layout: StreamLayout, feats: Floats, end: int, frames_per_step: int
) -> list[Floats]:
    """The encoder frames of each step of a stream."""
    states = _zeros(layout, 1)
    found = []
    for step, start in enumerate(range(0, end, layout.shift_frames)):
        x = feats[None, start : start + layout.window_frames]
        encoded, *states = _step(graph, source, layout, x, states, step * frames_per_step)
        found.append(encoded[0])
    return found


def _share(found: Floats, wanted: Floats, source: Source) -> float:
    return largest_difference(found, wanted, source.path.name) / typical_size(wanted)
