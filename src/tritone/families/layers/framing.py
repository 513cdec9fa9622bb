"""Frames of signals, for feature modules of every kind: how many, cut how, and what lies beyond a signal's ends.

All of it exports to plain slices and small gathers.
"""

import math

import torch
from torch import Tensor


def count_windows(length: Tensor, width: int, step: int) -> Tensor:
    """Whole windows of `width` that fit into `length` (int64) when moved by `step`; 0 when none does.

    Never divides a negative number, and never in floating point: ONNX truncates where torch floors, and float32
    miscounts audio of more than ten minutes.
    """
    return torch.clamp(length - (width - step), min=0) // step


def cut_frames(signal: Tensor, length: int, shift: int) -> Tensor:
    """Cut (batch, samples) into frames (batch, frames, length) that begin `shift` samples apart.

    Frames are put together from hops of the greatest common divisor, which export as plain slices: onnxruntime runs
    them several times faster than a gather or a convolution with an identity kernel.
    """
    hop = math.gcd(length, shift)
    step, width = shift // hop, length // hop
    count = (signal.shape[1] - length) // shift + 1
    used = (count - 1) * shift + length
    hops = signal[:, :used].reshape(signal.shape[0], (count - 1) * step + width, hop)
    parts = [hops[:, i : i + (count - 1) * step + 1 : step] for i in range(width)]
    return torch.cat(parts, dim=2)


def mirror_image(place: Tensor, length: Tensor, *, edge_twice: bool) -> Tensor:
    """Where the sample comes from that a mirrored signal has at `place` >= 0, before or after its end.

    Args:
        place: int64; what lies before the start is what is as far behind it, so that negative places need no words.
        length: of the signal, at least 1 for a result that means anything; broadcasts with `place`.
        edge_twice: whether the last sample is mirrored too (… b a a b …) or the mirror stands on it (… b a b …). Short
            signals are mirrored again at their other end.
    """
    period = torch.clamp(2 * length if edge_twice else 2 * length - 2, min=1)
    within = place % period
    return torch.minimum(within, period - (1 if edge_twice else 0) - within)
