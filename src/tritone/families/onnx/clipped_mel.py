"""Log-mel features of `layers/clipped_mel.py` as nodes of an ONNX graph."""

from math import log

import numpy as np

from tritone.families.layers.clipped_mel import FRAME_LENGTH, FRAME_SHIFT, POWER_FLOOR, RANGE, matrices
from tritone.families.onnx.builder import Builder
from tritone.families.onnx.front_end import cut_frames

OPSET = 18


def log_mel(b: Builder, signal: str, frames: str, num_bins: int, output: str | None = None) -> str:
    """Nodes from a signal (batch, samples) to the features (batch, frames, bins) of its first `frames` (one number).

    Frame k begins at sample 160 · k.
    """
    dft, mel = matrices(num_bins)
    spectrum = b.op("MatMul", cut_frames(b, signal, frames, FRAME_LENGTH, FRAME_SHIFT), b.weight("dft", dft))
    # Squares of real and imaginary parts, which the filters, twice below each other, add.
    power = b.op("MatMul", b.op("Mul", spectrum, spectrum), b.weight("mel", np.concatenate([mel, mel])))
    log_power = b.op("Div", b.op("Log", b.op("Max", power, b.real(POWER_FLOOR))), b.real(log(10)))
    loudest = b.op("ReduceMax", log_power, b.constant([1, 2]), keepdims=1)
    kept = b.op("Max", log_power, b.op("Sub", loudest, b.real(RANGE)))
    return b.op("Div", b.op("Add", kept, b.real(4)), b.real(4), output=output)
