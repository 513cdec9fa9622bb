"""Frames of signals, for feature modules of every kind: how many, cut how, and what lies beyond a signal's ends.

All of it exports to plain slices and small gathers.
"""

import math

import torch
import torch.nn.functional as F
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


def between_mirrors(signal: Tensor, length: Tensor, before: int, after: int) -> Tensor:
    """Signals between mirror images that stand on their first and last samples, each row's at its own end.

    Args:
        signal: (batch, ..., samples).
        length: (batch,) int64, where the signal of each row ends; samples from there on may be anything, and those
            that are further behind stay.
        before, after: how many samples are mirrored there.

    Returns:
        (batch, ..., before + samples + after).
    """
    ends = length.unsqueeze(1)

    def along(places: Tensor) -> Tensor:
        return places.view(-1, *[1] * (signal.dim() - 2), places.shape[1]).expand(*signal.shape[:-1], -1)

    first = mirror_image(torch.arange(before, 0, -1, device=signal.device).unsqueeze(0), ends, edge_twice=False)
    behind = ends + torch.arange(after, device=signal.device)
    last = signal.gather(-1, along(mirror_image(behind, ends, edge_twice=False)))
    padded = torch.cat([signal.gather(-1, along(first)), F.pad(signal, (0, after))], dim=-1)
    return padded.scatter(-1, along(before + behind), last)
