"""`lattice.walk` as one GPU kernel, in the language Triton: each row of the batch is a program that walks all steps."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

NEVER = tl.constexpr(-1e30)


@triton.jit
def _walk(start, stay, arrive, scores, steps, rows, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    valid = columns < width
    place = row * width + columns
    here = tl.load(start + place, mask=valid, other=NEVER)
    tl.store(scores + place, here, mask=valid)
    for _ in range(steps):
        # A column reads what its neighbour's thread has just written.
        tl.debug_barrier()
        left = tl.load(scores + place - 1, mask=valid & (columns > 0), other=NEVER)
        stayed = here + tl.load(stay + place, mask=valid, other=NEVER)
        moved = left + tl.load(arrive + place, mask=valid, other=NEVER)
        larger = tl.maximum(stayed, moved)
        here = larger + tl.log(1.0 + tl.exp(tl.minimum(stayed, moved) - larger))
        stay += rows * width
        arrive += rows * width
        scores += rows * width
        tl.store(scores + place, here, mask=valid)


def walk_kernel(start: Tensor, stay: Tensor, arrive: Tensor) -> Tensor:
    """Contiguous float32 tensors on one GPU, shapes as in `lattice.walk`."""
    steps, rows, width = stay.shape
    scores = torch.empty(steps + 1, rows, width, device=stay.device)
    block = max(32, triton.next_power_of_2(width))
    _walk[(rows,)](
        start.contiguous(), stay.contiguous(), arrive.contiguous(), scores, steps, rows, width, BLOCK=block,
        num_warps=max(1, min(4, block // 64)),
    )  # fmt: skip
    return scores
