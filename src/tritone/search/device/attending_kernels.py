"""Attention of single tokens for GPUs, in Triton: caches are read where they are, once, and nothing of them is copied.

Each program attends for one row and one head; it goes through the keys and values once, with the softmax on the way.
Few rows are too few programs for a GPU, so there each takes a part of the audio, and a second kernel joins the parts.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 64  # keys looked at together
PROGRAMS = 1024  # that keep a GPU busy
MOST_PARTS = 8


def can_attend(dim: int) -> bool:
    """Whether the kernels take heads of this width."""
    return 8 <= dim <= 256 and dim & (dim - 1) == 0


def attend_text(qkv: Tensor, keys: Tensor, values: Tensor, origin: Tensor, position: Tensor) -> Tensor:
    """See `attending.Plain`."""
    rows, (_, heads, context, dim) = len(qkv), keys.shape
    found = torch.empty(rows, heads * dim, dtype=qkv.dtype, device=qkv.device)
    _text[(rows, heads)](
        *(qkv, keys, values, origin, position, found, dim**-0.5, origin.stride(0)),
        *(keys.stride(0), context, heads, dim, BLOCK),
        num_warps=4,
    )
    return found


def attend_audio(query: Tensor, keys: Tensor, values: Tensor, window: Tensor) -> Tensor:
    """See `attending.Plain`."""
    rows, (_, heads, positions, dim) = len(query), keys.shape
    found = torch.empty_like(query)
    parts = 1
    while parts < MOST_PARTS and 2 * parts * rows * heads <= PROGRAMS:
        parts *= 2
    size = triton.cdiv(triton.cdiv(positions, BLOCK), parts) * BLOCK
    mixed = torch.empty(parts, rows, heads, dim, dtype=torch.float32, device=query.device) if parts > 1 else found
    sums = torch.empty(2, parts, rows, heads, dtype=torch.float32, device=query.device) if parts > 1 else found
    _audio[(rows, heads, parts)](
        *(query, keys, values, window, mixed, sums, dim**-0.5, positions, size),
        *(keys.stride(0), rows, heads, parts, dim, BLOCK),
        num_warps=4,
    )
    if parts > 1:
        _join[(rows, heads)](mixed, sums, found, rows, heads, parts, dim, num_warps=1)
    return found


@triton.jit
def _text(  # type: ignore[no-untyped-def]
    qkv,
    keys,
    values,
    origin,
    position,
    found,
    scale,
    origin_stride,
    row_stride,
    context,
    heads,
    dim: tl.constexpr,
    block: tl.constexpr,
):
    row, head = tl.program_id(0), tl.program_id(1)
    inside = tl.arange(0, dim)
    last = tl.load(position + row)
    own = qkv + row * 3 * heads * dim + head * dim + inside
    query = tl.load(own).to(tl.float32) * scale
    key = tl.load(own + heads * dim)
    value = tl.load(own + 2 * heads * dim)
    lane = head * context * dim
    place = row.to(tl.int64) * row_stride + lane + last * dim + inside
    tl.store(keys + place, key)
    tl.store(values + place, value)
    most = tl.sum(query * key.to(tl.float32), 0)
    total = tl.full((), 1.0, tl.float32)
    mixed = value.to(tl.float32)
    for start in range(0, last, block):
        there = start + tl.arange(0, block)
        known = there < last
        source = tl.load(origin + row * origin_stride + there, mask=known, other=0)
        places = (source * row_stride + lane + there * dim)[:, None] + inside[None, :]
        some_keys = tl.load(keys + places, mask=known[:, None], other=0.0).to(tl.float32)
        some_values = tl.load(values + places, mask=known[:, None], other=0.0).to(tl.float32)
        scores = tl.where(known, tl.sum(some_keys * query[None, :], 1), float("-inf"))
        higher = tl.maximum(most, tl.max(scores, 0))
        weights = tl.exp(scores - higher)
        fade = tl.exp(most - higher)
        mixed = mixed * fade + tl.sum(weights[:, None] * some_values, 0)
        total = total * fade + tl.sum(weights, 0)
        most = higher
    tl.store(found + row * heads * dim + head * dim + inside, (mixed / total).to(found.dtype.element_ty))


@triton.jit
def _audio(  # type: ignore[no-untyped-def]
    query,
    keys,
    values,
    window,
    mixed_of,
    sums,
    scale,
    positions,
    size,
    slot_stride,
    rows,
    heads,
    parts: tl.constexpr,
    dim: tl.constexpr,
    block: tl.constexpr,
):
    row, head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    inside = tl.arange(0, dim)
    wanted = tl.load(query + row * heads * dim + head * dim + inside).to(tl.float32) * scale
    base = tl.load(window + row) * slot_stride + head * positions * dim
    most = tl.full((), float("-inf"), tl.float32)
    total = tl.full((), 0.0, tl.float32)
    mixed = tl.zeros((dim,), tl.float32)
    end = tl.minimum(positions, (part + 1) * size)
    for start in range(part * size, end, block):
        there = start + tl.arange(0, block)
        known = there < end
        places = (base + there * dim)[:, None] + inside[None, :]
        some_keys = tl.load(keys + places, mask=known[:, None], other=0.0).to(tl.float32)
        some_values = tl.load(values + places, mask=known[:, None], other=0.0).to(tl.float32)
        scores = tl.where(known, tl.sum(some_keys * wanted[None, :], 1), float("-inf"))
        higher = tl.maximum(most, tl.max(scores, 0))
        weights = tl.exp(scores - higher)
        fade = tl.exp(most - higher)
        mixed = mixed * fade + tl.sum(weights[:, None] * some_values, 0)
        total = total * fade + tl.sum(weights, 0)
        most = higher
    if parts == 1:
        place = row * heads * dim + head * dim + inside
        tl.store(mixed_of + place, (mixed / total).to(mixed_of.dtype.element_ty))
    else:  # a part may be empty: its numbers weigh nothing
        each = (part * rows + row) * heads + head
        tl.store(mixed_of + each * dim + inside, mixed)
        tl.store(sums + each, most)
        tl.store(sums + parts * rows * heads + each, total)


@triton.jit
def _join(mixed_of, sums, found, rows, heads, parts: tl.constexpr, dim: tl.constexpr):  # type: ignore[no-untyped-def]
    row, head = tl.program_id(0), tl.program_id(1)
    inside, part = tl.arange(0, dim), tl.arange(0, parts)
    each = (part * rows + row) * heads + head
    most = tl.load(sums + each)
    weights = tl.exp(most - tl.max(most, 0))
    total = tl.sum(weights * tl.load(sums + parts * rows * heads + each), 0)
    mixed = tl.load(mixed_of + each[:, None] * dim + inside[None, :])
    joined = tl.sum(weights[:, None] * mixed, 0) / total
    tl.store(found + row * heads * dim + head * dim + inside, joined.to(found.dtype.element_ty))
