"""What the models of sherpa-onnx's folders look like: axes, and of streams windows and the states that they hand on.

    encoder graph with its metadata  ->  UtteranceLayout or StreamLayout, checked against the graph

State shapes are as sherpa-onnx makes them of the metadata (its online-*-model.cc); a graph that has others is refused.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import TensorProto

from tritone.bundle.part import MAX_STATE_BYTES
from tritone.errors import ExportError
from tritone.families.onnx.source import Source, Tensor

BATCH = -1  # in a shape
UNKNOWN = 0  # an axis that the metadata does not state
MAX_STATES = 1024
MAX_WINDOW = 6000  # feature frames, a minute
NUMPY: Mapping[int, Any] = {
    TensorProto.FLOAT: np.dtype(np.float32),
    TensorProto.INT64: np.dtype(np.int64),
    TensorProto.INT32: np.dtype(np.int32),
}


@dataclass(frozen=True)
class UtteranceLayout:
    """How an encoder for whole utterances is fed, and what it gives.

    `bins_first`: features are (batch, bins, frames), and not (batch, frames, bins); `dim_first`: its output likewise.
    `counts`: whether it gives the number of frames.
    """

    bins_first: bool = False
    dim_first: bool = False
    counts: bool = True


@dataclass(frozen=True)
class OfflineSizes:
    """Sizes of an encoder for whole utterances, which running it shows.

    `min_frames`: feature frames that give one encoder frame. `rate`: feature frames of an encoder frame. `extra`: of
    an encoder that does not count its frames, which are (feature frames + extra) // rate.
    """

    min_frames: int
    rate: int
    dim: int
    extra: int = 0


@dataclass(frozen=True)
class StateTensor:
    """An input that is a state, with the output that is its next value; `batch_axis` is where the streams are."""

    name: str
    next_name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    batch_axis: int

    @property
    def per_stream(self) -> tuple[int, ...]:
        """The shape without the batch."""
        return self.shape[: self.batch_axis] + self.shape[self.batch_axis + 1 :]


@dataclass(frozen=True)
class StreamLayout:
    """How a streaming encoder is fed.

    `window_frames`, `shift_frames`: feature frames of a step and of how far it moves on. `left_frames`: the past that a
    step sees, in feature frames. `processed`: the input that is given how many encoder frames came before, if there is
    one. `length`: the input that is given the frames of a window, if there is one. `lead_frames`: of the first window
    that come before the stream. `bins_first`, `dim_first`: as of `UtteranceLayout`.
    """

    model_type: str
    window_frames: int
    shift_frames: int
    left_frames: int
    states: tuple[StateTensor, ...]
    processed: Tensor | None = None
    length: Tensor | None = None
    lead_frames: int = 0
    bins_first: bool = False
    dim_first: bool = False

    @property
    def pad_frames(self) -> int:
        """What a window has beyond its shift and its lead; a stream is followed by as much padding, as icefall does."""
        return self.window_frames - self.shift_frames - self.lead_frames


def stream_layout(source: Source) -> StreamLayout:
    """Read the layout of a streaming encoder and hold its graph against it.

    Raises:
        ExportError: the model is of an unknown type, lacks metadata, or is not what its metadata says.
    """
    kind = source.metadata.get("model_type", "")
    if kind not in LAYOUTS:
        raise ExportError(
            f"{source.path} is a streaming model of type {kind[:40]!r}; those that can be imported are "
            f"{', '.join(LAYOUTS)}"
        )
    window, shift = source.integer("T"), source.integer("decode_chunk_len")
    if window > MAX_WINDOW or source.inputs[0].shape[1] not in (None, window):
        raise ExportError(f"{source.path}: T is {window} by the metadata, the graph takes {source.inputs[0]}")
    if shift > window:
        raise ExportError(f"{source.path}: decode_chunk_len is {shift}, more than the window T of {window} frames")
    expected, left_frames = LAYOUTS[kind](source)
    inputs = list(source.inputs[1:])
    processed = inputs.pop() if kind == "conformer" and inputs else None
    if processed is not None and (
        processed.dtype not in (TensorProto.INT64, TensorProto.INT32) or processed.shape != (None,)
    ):
        raise ExportError(f"{source.path}: its last input should count processed frames, it is {processed}")
    nexts = source.outputs[1:]
    if len(inputs) != len(expected) or len(nexts) != len(expected) or len(inputs) > MAX_STATES:
        raise ExportError(
            f"{source.path} hands on {len(inputs)} states and gives back {len(nexts)}; by its metadata a {kind} has "
            f"{len(expected)}"
        )
    return StreamLayout(kind, window, shift, left_frames, states_of(source, inputs, nexts, expected), processed)


def states_of(
    source: Source, inputs: Sequence[Tensor], nexts: Sequence[Tensor], expected: Sequence[tuple[int, tuple[int, ...]]]
) -> tuple[StateTensor, ...]:
    """The states of a graph, held against types and shapes of the metadata.

    Raises:
        ExportError: they are others, or take too much memory.
    """
    states = tuple(
        _state(source, given, after.name, *wanted) for given, after, wanted in zip(inputs, nexts, expected, strict=True)
    )
    size = sum(math.prod(state.per_stream) * state.dtype.itemsize for state in states)
    if size > MAX_STATE_BYTES:
        raise ExportError(
            f"{source.path}: a stream would keep {size} bytes of states; at most {MAX_STATE_BYTES} can be"
        )
    return states


def _state(source: Source, given: Tensor, next_name: str, dtype: int, shape: tuple[int, ...]) -> StateTensor:
    dtypes = (TensorProto.INT64, TensorProto.INT32) if dtype == TensorProto.INT64 else (dtype,)
    axis = shape.index(BATCH)
    fits = given.dtype in dtypes and len(given.shape) == len(shape)
    if fits and given.shape[axis] is not None:
        raise ExportError(
            f"{source.path} is for {given.shape[axis]} streams at once alone; export it with a free batch"
        )
    if not fits or any(
        (want == UNKNOWN and have is None) or want not in (UNKNOWN, have or want)
        for place, (have, want) in enumerate(zip(given.shape, shape, strict=True))
        if place != axis
    ):
        wanted = Tensor("", dtype, tuple(None if size in (BATCH, UNKNOWN) else size for size in shape))
        raise ExportError(f"{source.path}: the state {given} should be{str(wanted)[1:]} by the metadata")
    sizes = tuple(1 if want == BATCH else have or want for have, want in zip(given.shape, shape, strict=True))
    return StateTensor(given.name, next_name, NUMPY[given.dtype], sizes, axis)


Expected = tuple[list[tuple[int, tuple[int, ...]]], int]


def _zipformer2(source: Source) -> Expected:
    dims = source.vector("encoder_dims")
    stacks = len(dims)
    keys = ("query_head_dims", "value_head_dims", "num_heads", "num_encoder_layers", "cnn_module_kernels")
    queries, values, heads, layers, kernels = (source.vector(key, stacks) for key in keys)
    lefts = source.vector("left_context_len", stacks)
    shapes: list[tuple[int, ...]] = []
    _limit(source, 6 * sum(layers))
    for dim, query, value, head, count, kernel, left in zip(
        dims, queries, values, heads, layers, kernels, lefts, strict=True
    ):
        shapes += count * [
            (left, BATCH, query * head),
            (1, BATCH, left, 3 * dim // 4),
            (left, BATCH, value * head),
            (left, BATCH, value * head),
            (BATCH, dim, kernel // 2),
            (BATCH, dim, kernel // 2),
        ]
    shapes.append((BATCH, UNKNOWN, UNKNOWN, UNKNOWN))
    floats = [(int(TensorProto.FLOAT), shape) for shape in shapes]
    # The first stack works on frames of 20 ms.
    return [*floats, (int(TensorProto.INT64), (BATCH,))], 2 * max(lefts)


def _zipformer(source: Source) -> Expected:
    dims = source.vector("encoder_dims")
    stacks = len(dims)
    keys = ("attention_dims", "num_encoder_layers", "cnn_module_kernels", "left_context_len")
    attention, layers, kernels, lefts = (source.vector(key, stacks) for key in keys)
    _limit(source, 7 * stacks)
    each = range(stacks)
    shapes = [
        *((layers[i], BATCH, dims[i]) for i in each),
        *((layers[i], lefts[i], BATCH, attention[i]) for i in each),
        *((layers[i], lefts[i], BATCH, attention[i] // 2) for i in each),
        *((layers[i], lefts[i], BATCH, attention[i] // 2) for i in each),
        *((layers[i], BATCH, dims[i], kernels[i] - 1) for i in each),
        *((layers[i], BATCH, dims[i], kernels[i] - 1) for i in each),
    ]
    lengths = [(int(TensorProto.INT64), (layers[i], BATCH)) for i in each]
    return [*lengths, *((int(TensorProto.FLOAT), shape) for shape in shapes)], 2 * max(lefts)


def _conformer(source: Source) -> Expected:
    keys = ("num_encoder_layers", "left_context", "encoder_dim", "cnn_module_kernel")
    layers, left, dim, kernel = map(source.integer, keys)
    source.integer("pad_length")
    shapes = ((layers, left, BATCH, dim), (layers, kernel - 1, BATCH, dim))
    return [(int(TensorProto.FLOAT), shape) for shape in shapes], 4 * left


def _lstm(source: Source) -> Expected:
    layers, hidden, dim = map(source.integer, ("num_encoder_layers", "rnn_hidden_size", "d_model"))
    return [(int(TensorProto.FLOAT), (layers, BATCH, size)) for size in (dim, hidden)], 0


LAYOUTS: Mapping[str, Callable[[Source], Expected]] = {
    "zipformer2": _zipformer2,
    "zipformer": _zipformer,
    "conformer": _conformer,
    "lstm": _lstm,
}
"""By the model type in the metadata: types and shapes of the states, and the past that they hold in feature frames."""


def _limit(source: Source, states: int) -> None:
    if states > MAX_STATES:
        raise ExportError(f"{source.path}: by its metadata the model has {states} states; at most {MAX_STATES} can be")
