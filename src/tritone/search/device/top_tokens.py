"""The best tokens of each frame as one kernel, a program for each frame: for GPUs, in Triton.

`ctc.top_block` says what it computes. Operators of torch read and sort keys of 64 bits several times; here a program
keeps the ranks of its frame in registers and takes the best one away k times.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

MOST = 20  # tokens of a frame: with more of them, torch's radix sort gains
MAX_VOCAB = 2**14  # that fits into the registers of a program
_LOWEST = tl.constexpr(-(2**31))  # below the rank of any number


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
