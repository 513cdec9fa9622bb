"""The graphs of a bundle, made of those of a folder: features before encoders, states with the batch first, our names.

Source  ->  onnx.ModelProto that keeps the contract of its role (docs/design.md)
"""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper

from tritone.bundle.manifest import Features, State
from tritone.families.onnx.builder import EMBEDDED, Builder
from tritone.families.onnx.front_end import utterance_features, window_features, window_samples
from tritone.families.onnx.source import Source
from tritone.families.ready_made.layouts import OfflineSizes, StreamLayout, UtteranceLayout

Spec = tuple[int, Sequence[int | str]]

FLOAT, INT64 = int(TensorProto.FLOAT), int(TensorProto.INT64)
STEPS = "steps"
"""The state that counts the steps of a stream: its first one mirrors the beginning of the signal."""

METADATA = {"producer": "tritone"}


def offline_encoder(
    source: Source,
    layout: UtteranceLayout,
    features: Features,
    sample_rate: int,
    sizes: OfflineSizes,
    *,
    output: str,
    dim: int,
    log_softmax: bool,
    rows: int | str = "batch",
) -> onnx.ModelProto:
    """Role `encoder`.

    Args:
        sizes: of the network, which never gets fewer feature frames than give one encoder frame.
        output, dim: `encoder_out` or `log_probs`, and the size of its last axis, which may be more than the network's;
            the rest is zeros.
        log_softmax: the network gives scores that are no log-probabilities yet.
        rows: of a call, if it takes no other number.
    """
    b = Builder()
    min_frames = sizes.min_frames
    x, valid = utterance_features(b, features, sample_rate, min_frames)
    lengths = b.op("Max", valid, b.constant(min_frames))
    frames, counts = source.inputs
    _turned(b, x, layout.bins_first, output=EMBEDDED + frames.name)
    b.op("Cast", lengths, output=EMBEDDED + counts.name, to=counts.dtype)
    b.embed(source.model)
    result = _widened(b, _turned(b, EMBEDDED + source.outputs[0].name, layout.dim_first), dim - sizes.dim, axes=3)
    _result(b, result, output, log_softmax)
    if layout.counts:
        counted = EMBEDDED + source.outputs[1].name
        found = b.op("Reshape", b.op("Cast", counted, to=INT64), b.constant([-1]))
    else:
        found = b.op("Div", b.op("Add", lengths, b.constant(sizes.extra)), b.constant(sizes.rate))
    enough = b.op("Less", b.constant(min_frames - 1), valid)
    b.op("Where", enough, found, b.constant(0), output="num_frames")
    inputs: dict[str, Spec] = {"waveform": (FLOAT, [rows, "samples"]), "num_samples": (INT64, [rows])}
    outputs: dict[str, Spec] = {output: (FLOAT, [rows, "frames", dim]), "num_frames": (INT64, [rows])}
    return b.model(inputs, outputs, METADATA)


def state_names(layout: StreamLayout) -> dict[str, str]:
    """What the states of a layout are called in a bundle: no name that the contract gives to something else."""
    taken = ("waveform", "num_samples", "num_frames", "encoder_out", "log_probs", STEPS)
    return {
        state.name: f"state.{state.name}" if state.name in taken or state.name.startswith("next_") else state.name
        for state in layout.states
    }


def manifest_states(layout: StreamLayout) -> tuple[State, ...]:
    """The states as a manifest lists them."""
    names = state_names(layout)
    own = (
        State(
            name=names[state.name],
            shape=state.per_stream,
            dtype="float32" if state.dtype == np.float32 else "int64",
        )
        for state in layout.states
    )
    return (State(name=STEPS, shape=(), dtype="int64"), *own)


def streaming_encoder(
    source: Source,
    layout: StreamLayout,
    features: Features,
    sample_rate: int,
    *,
    frames_per_step: int,
    given_dim: int,
    output: str,
    dim: int,
    log_softmax: bool,
) -> onnx.ModelProto:
    """Role `streaming_encoder`; every step gives all of its `frames_per_step` encoder frames.

    Args:
        given_dim: numbers of a frame that the network gives; `dim`, `output`, `log_softmax`: as of `offline_encoder`.
    """
    b = Builder()
    names = state_names(layout)
    begin = b.op("Mul", STEPS, b.constant(layout.shift_frames))
    x, _ = window_features(b, features, sample_rate, layout.window_frames, begin, layout.lead_frames)
    _turned(b, x, layout.bins_first, output=EMBEDDED + source.inputs[0].name)
    if layout.length is not None:
        rows = b.op("Add", b.op("Mul", STEPS, b.constant(0)), b.constant(layout.window_frames))
        b.op("Cast", rows, output=EMBEDDED + layout.length.name, to=layout.length.dtype)
    inputs: dict[str, Spec] = {
        "waveform": (FLOAT, ["batch", window_samples(features, layout.window_frames)]),
        "num_samples": (INT64, ["batch"]),
        STEPS: (INT64, ["batch"]),
    }
    for state in layout.states:
        ours, theirs, axis = names[state.name], EMBEDDED + state.name, state.batch_axis
        value = ours
        if axis:
            order = [*range(1, axis + 1), 0, *range(axis + 1, len(state.shape))]
            value = b.op("Transpose", value, perm=order)
        b.op("Cast", value, output=theirs, to=int(helper.np_dtype_to_tensor_dtype(state.dtype)))
        inputs[ours] = (FLOAT if state.dtype == np.float32 else INT64, ["batch", *state.per_stream])
    if layout.processed is not None:
        count = b.op("Mul", STEPS, b.constant(frames_per_step))
        b.op("Cast", count, output=EMBEDDED + layout.processed.name, to=layout.processed.dtype)
    b.embed(source.model)
    result = _turned(b, EMBEDDED + source.outputs[0].name, layout.dim_first)
    _result(b, _widened(b, result, dim - given_dim, axes=3), output, log_softmax)
    b.op("Add", b.op("Mul", STEPS, b.constant(0)), b.constant(frames_per_step), output="num_frames")
    b.op("Add", STEPS, b.constant(1), output=f"next_{STEPS}")
    for state in layout.states:
        value, axis = EMBEDDED + state.next_name, state.batch_axis
        if state.dtype == np.int32:
            value = b.op("Cast", value, to=INT64)
        order = [axis, *(each for each in range(len(state.shape)) if each != axis)]
        b.op("Transpose", value, output=f"next_{names[state.name]}", perm=order)
    outputs: dict[str, Spec] = {
        output: (FLOAT, ["batch", frames_per_step, dim]),
        "num_frames": (INT64, ["batch"]),
        **{f"next_{name}": spec for name, spec in inputs.items() if name not in ("waveform", "num_samples")},
    }
    return b.model(inputs, outputs, METADATA)


def stateful_predictor(
    source: Source, states: Sequence[State], blank_id: int, hidden: int, dim: int
) -> onnx.ModelProto:
    """Role `predictor` of an LSTM that takes tokens, how many of each row, and its states with the layers first.

    Args:
        states: as the manifest has them.
        blank_id: what a negative id, no token, stands for.
        hidden, dim: numbers that it gives, and of the joiner's inputs; the rest is zeros.
    """
    b = Builder()
    tokens, lengths, *before = source.inputs
    known = b.op("Where", b.op("Less", "context", b.constant(0)), b.constant(blank_id), "context")
    b.op("Cast", known, output=EMBEDDED + tokens.name, to=tokens.dtype)
    rows = b.slice(b.op("Shape", "context"), 0, 1, axis=0)
    b.op("Expand", b.constant(1, np.int32), rows, output=EMBEDDED + lengths.name)
    inputs: dict[str, Spec] = {"context": (INT64, ["rows", 1])}
    outputs: dict[str, Spec] = {"predictor_out": (FLOAT, ["rows", dim])}
    for state, tensor in zip(states, before, strict=True):
        b.op("Transpose", state.name, output=EMBEDDED + tensor.name, perm=[1, 0, 2])
        inputs[state.name] = (FLOAT, ["rows", *state.shape])
    b.embed(source.model)
    result = b.op("Reshape", EMBEDDED + source.outputs[0].name, b.constant([-1, hidden]))
    b.op("Identity", _widened(b, result, dim - hidden, axes=2), output="predictor_out")
    for state, tensor in zip(states, source.outputs[2:], strict=False):
        b.op("Transpose", EMBEDDED + tensor.name, output=f"next_{state.name}", perm=[1, 0, 2])
        outputs[f"next_{state.name}"] = inputs[state.name]
    return b.model(inputs, outputs, METADATA)


def predictor(source: Source, context_size: int, dim: int, *, has_mask: bool) -> onnx.ModelProto:
    """Role `predictor`. Without a mask for negative ids in the network, they stand for token 0."""
    b = Builder()
    context = "context" if has_mask else b.op("Max", "context", b.constant(0))
    b.op("Cast", context, output=EMBEDDED + source.inputs[0].name, to=source.inputs[0].dtype)
    b.embed(source.model)
    result = EMBEDDED + source.outputs[0].name
    b.op("Reshape", result, b.constant([-1, dim]), output="predictor_out")  # some have an axis of 1 in the middle
    return b.model({"context": (INT64, ["rows", context_size])}, {"predictor_out": (FLOAT, ["rows", dim])}, METADATA)


def joiner(source: Source, dim: int, outputs: int, sizes: tuple[int, int] | None = None) -> onnx.ModelProto:
    """Role `joiner`.

    Args:
        dim: numbers of either input.
        outputs: scores that it gives.
        sizes: of a network that takes (rows, size, 1): so many numbers of the encoder's and of the predictor's vector.
    """
    b = Builder()
    for index, (ours, theirs) in enumerate(zip(("encoder_out", "predictor_out"), source.inputs, strict=True)):
        if sizes is None:
            b.op("Identity", ours, output=EMBEDDED + theirs.name)
        else:
            taken = b.slice(ours, 0, sizes[index], axis=1)
            b.op("Unsqueeze", taken, b.constant([2]), output=EMBEDDED + theirs.name)
    b.embed(source.model)
    b.op("Reshape", EMBEDDED + source.outputs[0].name, b.constant([-1, outputs]), output="logits")
    vector: Spec = (FLOAT, ["rows", dim])
    inputs: Mapping[str, Spec] = {"encoder_out": vector, "predictor_out": vector}
    return b.model(inputs, {"logits": (FLOAT, ["rows", outputs])}, METADATA)


def _turned(b: Builder, x: str, turned: bool, output: str | None = None) -> str:
    """A tensor (batch, frames, numbers), with its last two axes in the other order where `turned`."""
    return b.op("Transpose", x, perm=[0, 2, 1], output=output) if turned else b.op("Identity", x, output=output)


def _widened(b: Builder, x: str, more: int, axes: int) -> str:
    """A tensor of so many axes with `more` zeros at the end of its last one."""
    if not more:
        return x
    return b.op("Pad", x, b.constant([0] * (2 * axes - 1) + [more]), b.real(0))


def _result(b: Builder, value: str, output: str, log_softmax: bool) -> None:
    if log_softmax:
        b.op("LogSoftmax", value, output=output, axis=-1)
    else:
        b.op("Identity", value, output=output)
