"""What `ctc.py` finds, as one kernel each: for GPUs, in Triton.

Greedy tokens have a program for each row, where torch launches some twenty small operators. The best tokens have one
for each frame: operators of torch read and sort keys of 64 bits several times; here a program keeps the ranks of its
frame in registers and takes the best one away k times.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tritone.search.device.ctc import UNUSED

PART = 256  # frames of a row that a program looks at together
MOST = 20  # tokens of a frame: with more of them, torch's radix sort gains
MAX_VOCAB = 2**14  # that fits into the registers of a program
_LOWEST = tl.constexpr(-(2**31))  # below the rank of any number
_UNUSED = tl.constexpr(UNUSED)


def greedy_block(best_tokens: Tensor, best_log_probs: Tensor, num_frames: Tensor, blank_id: int) -> Tensor:
    """As `ctc.greedy_block`; what nobody reads is left as it was."""
    batch, frames = best_tokens.shape
    found = torch.empty(batch, 4, frames + 1, dtype=torch.int32, device=best_tokens.device)
    given = best_tokens.contiguous(), best_log_probs.contiguous(), num_frames.contiguous()
    if batch:
        _greedy[(batch,)](*given, found, frames, blank_id, PART)
    return found


# One form for all numbers of frames and blanks: a request must not wait for a compiler.
@triton.jit(do_not_specialize=["frames", "blank_id"])
def _greedy(  # type: ignore[no-untyped-def]  # Triton reads what is written here
    best_tokens, best_log_probs, num_frames, found, frames, blank_id, part: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    count = tl.minimum(tl.load(num_frames + row), frames)
    out = found + row * 4 * (frames + 1)
    emitted = 0  # tokens that begin before this part
    before_part = 0  # the least cost of the token that goes on from the part before
    for first in range(0, frames, part):
        at = first + tl.arange(0, part)
        tokens = best_tokens + row * frames + at
        ids = tl.load(tokens, at < count, other=blank_id).to(tl.int32)
        before = tl.load(tokens - 1, (at > 0) & (at < count), other=blank_id).to(tl.int32)
        after = tl.load(tokens + 1, at + 1 < count, other=blank_id).to(tl.int32)
        begins = ((ids != blank_id) & (ids != before)).to(tl.int32)
        ends = (ids != blank_id) & (ids != after)
        log_probs = tl.load(best_log_probs + row * frames + at, at < count, other=0.0).to(tl.float32)
        cost = tl.abs(tl.minimum(log_probs, 0.0, propagate_nan=tl.PropagateNan.ALL)).to(tl.int32, bitcast=True)
        least, any_begin = tl.associative_scan((cost, begins), 0, _least_since)
        least = tl.where(any_begin != 0, least, tl.minimum(least, before_part))
        column = emitted + tl.cumsum(begins, 0) - 1
        tl.store(out + column, ids, begins != 0)
        tl.store(out + (frames + 1) + column, at, begins != 0)
        tl.store(out + 2 * (frames + 1) + column, -1 - at, ends)
        tl.store(out + 3 * (frames + 1) + column, least, ends)
        emitted += tl.sum(begins, 0)
        before_part = tl.sum(tl.where(at == first + part - 1, least, 0), 0)
    tl.store(out + emitted, _UNUSED)


@triton.jit
def _least_since(cost, begins, next_cost, next_begins):  # type: ignore[no-untyped-def]
    """The least cost since a token began."""
    return tl.where(next_begins != 0, next_cost, tl.minimum(cost, next_cost)), begins | next_begins


def takes(log_probs: Tensor, k: int) -> bool:
    """Whether the kernel is meant for so many tokens of these log-probabilities."""
    return k <= MOST and log_probs.shape[-1] <= MAX_VOCAB and log_probs.dtype == torch.float32


def top_block(log_probs: Tensor, k: int) -> Tensor:
    """As `ctc.top_block`, for what it `takes`."""
    batch, frames, vocab = log_probs.shape
    if log_probs.stride(2) != 1 or log_probs.stride(0) != frames * log_probs.stride(1):
        log_probs = log_probs.contiguous()
    found = torch.empty(batch, 2, frames, k, dtype=torch.int32, device=log_probs.device)
    width = triton.next_power_of_2(vocab)
    if found.numel():
        _top[(batch * frames,)](
            log_probs, found, log_probs.stride(1), frames, vocab, k, width, num_warps=8 if width > 1024 else 4
        )
    return found


@triton.jit
def _top(  # type: ignore[no-untyped-def]  # Triton reads what is written here
    log_probs, found, stride, frames, vocab, k, width: tl.constexpr
):
    program = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, width)
    inside = at < vocab
    bits = tl.load(log_probs + program * stride + at, inside, other=0.0).to(tl.int32, bitcast=True)
    # Integers in the order of the numbers; the same operation makes the bits of them again.
    ranks = tl.where(inside, bits ^ ((bits >> 31) & 0x7FFFFFFF), _LOWEST)
    out = found + (program // frames * 2 * frames + program % frames) * k
    for place in range(k):
        best = tl.max(ranks, 0)
        id = tl.min(tl.where(ranks == best, at, width), 0)  # of equal ones the first
        tl.store(out + place, id)
        tl.store(out + frames * k + place, best ^ ((best >> 31) & 0x7FFFFFFF))
        ranks = tl.where(at == id, _LOWEST, ranks)
