"""silero-vad as ONNX graphs over many frames of many recordings.

    waveform (batch, samples), num_samples  ->  probabilities (batch, frames), num_frames

Upstream's graph takes one frame a call. Here what does not depend on earlier frames (spectrum, convolutions) is
computed for all frames at once, and an LSTM goes over them. The graph for streams has the LSTM's states as inputs and
outputs, and its waveform begins with the samples before the first frame; the graph for recordings puts silence there.
"""

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tritone.families.onnx.builder import Builder
from tritone.families.silero.weights import HIDDEN, STRIDES, Weights

OPSET = 17
STATES = ("h", "c")
TORCH_TO_ONNX = (0, 3, 1, 2)  # gates of an LSTM: input, forget, cell, output there; input, output, forget, cell here


def recording_graph(weights: Weights) -> onnx.ModelProto:
    """Role `encoder`: whole recordings."""
    b, frame, context = Builder(OPSET), weights.frame, weights.context
    length = b.slice(b.op("Shape", "waveform"), 1, 2, axis=0)
    missing = b.op("Mod", b.op("Neg", length), b.constant([frame]))
    pads = b.op("Concat", b.constant([0, context, 0]), missing, axis=0)
    signal = b.op("Pad", "waveform", pads, b.real(0))
    _probabilities(b, weights, signal)
    return _model(b, weights, "num_samples", {})


def stream_graph(weights: Weights) -> onnx.ModelProto:
    """Role `streaming_encoder`: windows of streams, which begin with the `context` samples before their first frame."""
    b = Builder(OPSET)
    states = [b.op("Unsqueeze", name, b.constant([0])) for name in STATES]
    found = _probabilities(b, weights, "waveform", states)
    for name, state in zip(STATES, found, strict=True):
        b.op("Squeeze", state, b.constant([0]), output=f"next_{name}")
    framed = b.op("Sub", "num_samples", b.constant(weights.context))
    return _model(b, weights, framed, {name: (TensorProto.FLOAT, ["batch", HIDDEN]) for name in STATES})


def _probabilities(b: Builder, weights: Weights, signal: str, states: list[str] | None = None) -> list[str]:
    """Nodes from `signal`, some frames and the context before them, to `probabilities`; the LSTM's last states."""
    frame, context, bins = weights.frame, weights.context, weights.bins
    own = b.op("Reshape", b.slice(signal, context, 2**62, axis=1), b.constant([0, -1, frame]))
    earlier = b.op("Reshape", b.slice(signal, 0, -context, axis=1), b.constant([0, -1, frame]))
    cut = b.op("Concat", b.slice(earlier, 0, context, axis=2), own, axis=2)
    rows = b.op("Reshape", cut, b.constant([-1, 1, context + frame]))
    mirrored = b.op("Pad", rows, b.constant([0, 0, 0, 0, 0, context]), mode="reflect")
    waves = b.op("Conv", mirrored, b.real(weights.basis), strides=[weights.window // 2])
    squares = b.op("Mul", waves, waves)
    power = b.op("Add", b.slice(squares, 0, bins, axis=1), b.slice(squares, bins, 2 * bins, axis=1))
    x = b.op("Sqrt", power)
    for (weight, bias), stride in zip(weights.convolutions, STRIDES, strict=True):
        x = b.op("Relu", b.op("Conv", x, b.real(weight), b.real(bias), strides=[stride], pads=[1, 1]))
    batch = b.slice(b.op("Shape", signal), 0, 1, axis=0)
    x = b.op("Reshape", x, b.op("Concat", batch, b.constant([-1, HIDDEN]), axis=0))
    x = b.op("Transpose", x, perm=[1, 0, 2])  # (frames, batch, hidden)
    hidden, *last = ("hidden", "last_h", "last_c")
    bias = np.concatenate((_gates(weights.bias_ih), _gates(weights.bias_hh)))
    matrices = [b.real(_gates(each)[None]) for each in (weights.weight_ih, weights.weight_hh)]
    inputs = [x, *matrices, b.real(bias[None]), "", *(states or ())]
    b.nodes.append(helper.make_node("LSTM", inputs, [hidden, *last], hidden_size=HIDDEN))
    x = b.op("Relu", b.op("Squeeze", hidden, b.constant([1])))
    logits = b.op("Add", b.op("MatMul", x, b.real(weights.head[0])), b.real(weights.head_bias))
    sigmoid = b.op("Sigmoid", b.op("Squeeze", logits, b.constant([2])))
    b.op("Transpose", sigmoid, perm=[1, 0], output="probabilities")
    return last


def _gates(array: Any) -> Any:
    """The gates of torch's LSTM in ONNX's order."""
    return np.concatenate([np.split(array, 4)[gate] for gate in TORCH_TO_ONNX])


def _model(b: Builder, weights: Weights, framed: str, states: dict[str, Any]) -> onnx.ModelProto:
    """The whole graph; `framed`: name of the samples of each row that are frames."""
    up = b.op("Add", framed, b.constant(weights.frame - 1))
    b.op("Div", up, b.constant(weights.frame), output="num_frames")
    inputs = {"waveform": (TensorProto.FLOAT, ["batch", "samples"]), "num_samples": (TensorProto.INT64, ["batch"])}
    outputs = {"probabilities": (TensorProto.FLOAT, ["batch", "frames"]), "num_frames": (TensorProto.INT64, ["batch"])}
    outputs |= {f"next_{name}": spec for name, spec in states.items()}
    return b.model({**inputs, **states}, outputs, {})
