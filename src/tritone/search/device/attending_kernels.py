"""Steps of texts for GPUs, in Triton: attention of single tokens, and the choice of the next ones.

Caches are read where they are, once, and nothing of them is copied. Each program attends for one row and one head; it
goes through the keys and values once, with the softmax on the way. Few rows are too few programs for a GPU, so there
each takes a part of the audio, and a second kernel joins the parts. The choice goes through the logits once, where
torch launches a hundred operators.
"""

from functools import cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from tritone.search.device.choosing import HEAT, MIX, Column
from tritone.search.device.forms import Forms

VOCAB_BLOCK = 4096  # of a vocabulary, looked at together
SPAN = 128  # of these; the largest scores lie in the spans with the largest maxima
BLOCK = 64  # keys looked at together
ELEMENTS = 2048  # of a program that does the same with each number
MOST_PARTS = 8
TURNS = 5  # of a kernel whose forms are compared


class Form(NamedTuple):
    """A form of the kernel for audio: keys looked at together, warps, blocks read ahead, programs that are enough."""

    block: int
    warps: int
    ahead: int
    programs: int


FORMS = (
    Form(64, 4, 1, 1024),
    Form(64, 4, 1, 8192),
    Form(64, 4, 3, 1024),
    Form(64, 4, 3, 8192),
    Form(128, 4, 3, 4096),
    Form(128, 8, 2, 4096),
    Form(32, 2, 4, 8192),
)


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
    size, forms = f"{len(query)} {tuple(keys.shape[1:])} {keys.dtype}", _forms()
    if (form := forms.get(size)) is None:
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return _attended(query, keys, values, window, FORMS[0])
        form = _fastest(query, keys, values, window)
        forms.keep(size, form)
    return _attended(query, keys, values, window, form)


@cache
def _forms() -> Forms[Form]:
    """The forms that were found to be the fastest on this machine, beside the code of the kernels."""
    return Forms.beside_kernels(FORMS)


def _fastest(query: Tensor, keys: Tensor, values: Tensor, window: Tensor) -> Form:
    """The form of the kernel that takes least for so many rows, each with a window of its own."""
    if not query.is_cuda:
        return FORMS[0]
    apart = torch.arange(len(query), device=query.device) % len(keys)
    times = []
    for form in FORMS:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        for turn in range(2 * TURNS):
            if turn == TURNS:
                start.record()
            _attended(query, keys, values, apart, form)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return FORMS[times.index(min(times))]


def _attended(query: Tensor, keys: Tensor, values: Tensor, window: Tensor, form: Form) -> Tensor:
    rows, (_, heads, positions, dim) = len(query), keys.shape
    found = torch.empty_like(query)
    parts = 1
    while parts < MOST_PARTS and 2 * parts * rows * heads <= form.programs:
        parts *= 2
    size = triton.cdiv(triton.cdiv(positions, form.block), parts) * form.block
    mixed = torch.empty(parts, rows, heads, dim, dtype=torch.float32, device=query.device) if parts > 1 else found
    sums = torch.empty(2, parts, rows, heads, dtype=torch.float32, device=query.device) if parts > 1 else found
    _audio[(rows, heads, parts)](
        *(query, keys, values, window, mixed, sums, dim**-0.5, positions, size),
        *(keys.stride(0), rows, heads, parts, dim, form.block, form.ahead),
        num_warps=form.warps,
    )
    if parts > 1:
        _join[(rows, heads)](mixed, sums, found, rows, heads, parts, dim, num_warps=1)
    return found


def added_norm(x: Tensor, more: Tensor, by: Any) -> tuple[Tensor, Tensor]:
    """See `attending.Plain`; a program for each row of the last axis."""
    total, normal = torch.empty_like(x), torch.empty_like(x)
    width = x.shape[-1]
    _add_norm[(x.numel() // width,)](
        *(x, more, by.weight, by.bias, total, normal, width, triton.next_power_of_2(width)), num_warps=4
    )
    return total, normal


def activation(x: Tensor) -> Tensor:
    """See `attending.Plain`; in place of `x`, which nobody else needs."""
    count = x.numel()
    _gelu[(triton.cdiv(count, ELEMENTS),)](x, count, ELEMENTS, num_warps=4)
    return x


@triton.jit
def _gelu(x, count, block: tl.constexpr):  # type: ignore[no-untyped-def]
    place = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    value = tl.load(x + place, mask=place < count).to(tl.float32)
    tl.store(
        x + place, (0.5 * value * (1.0 + tl.erf(value * 0.7071067811865476))).to(x.dtype.element_ty), place < count
    )


@triton.jit
def _add_norm(  # type: ignore[no-untyped-def]
    x, more, weight, bias, total_of, normal_of, width, block: tl.constexpr
):
    start = tl.program_id(0).to(tl.int64) * width
    inside = tl.arange(0, block)
    known = inside < width
    total = tl.load(x + start + inside, mask=known, other=0.0)
    total = total.to(tl.float32) + tl.load(more + start + inside, mask=known, other=0.0).to(tl.float32)
    rounded = total.to(total_of.dtype.element_ty)
    tl.store(total_of + start + inside, rounded, mask=known)
    total = rounded.to(tl.float32)
    mean = tl.sum(total, 0) / width
    apart = tl.where(known, total - mean, 0.0)
    scale = tl.rsqrt(tl.sum(apart * apart, 0) / width + 1e-5)
    gain = tl.load(weight + inside, mask=known, other=0.0).to(tl.float32)
    shift = tl.load(bias + inside, mask=known, other=0.0).to(tl.float32)
    normal = apart * scale * gain + shift
    tl.store(normal_of + start + inside, normal.to(normal_of.dtype.element_ty), mask=known)


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
    ahead: tl.constexpr,
):
    row, head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    inside = tl.arange(0, dim)
    wanted = tl.load(query + row * heads * dim + head * dim + inside).to(tl.float32) * scale
    base = tl.load(window + row) * slot_stride + head * positions * dim
    most = tl.full((), float("-inf"), tl.float32)
    total = tl.full((), 0.0, tl.float32)
    mixed = tl.zeros((dim,), tl.float32)
    end = tl.minimum(positions, (part + 1) * size)
    for start in tl.range(part * size, end, block, num_stages=ahead):
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


def choose(chooser: Any, logits: Tensor, texts: Any, *, sampled: bool, beam: int = 1) -> Tensor:
    """As `choosing.Chooser.choose`: a program for each row goes through the vocabulary once.

    Probabilities among plain tokens are always there. With beams the kernel leaves the scores and their largest in each
    span, where the likeliest tokens are looked for, and moves the rows of no beam.
    """
    of, rows, (vocab, device) = chooser.specials, len(logits), (logits.shape[1], logits.device)
    found = torch.empty(6, rows, dtype=torch.float32, device=device)
    room = triton.cdiv(vocab, VOCAB_BLOCK) * VOCAB_BLOCK if beam > 1 else 1
    scores = torch.empty(rows, room, dtype=torch.float32, device=device)
    largest = torch.empty(rows, triton.cdiv(room, SPAN), dtype=torch.float32, device=device)
    in_beam = chooser.in_beams(texts, rows) if beam > 1 else None
    _choose[(rows,)](
        *(logits, texts.table, texts.forbidden, chooser.is_not_first, found, scores, largest, rows, vocab),
        *(texts.table.stride(0), logits.stride(0), scores.stride(0), largest.stride(0)),
        *(of.eot, of.no_timestamps, of.timestamp_begin, -1 if of.no_speech is None else of.no_speech),
        *(sampled, beam > 1, HEAT, *MIX, len(Column), VOCAB_BLOCK, SPAN),
        num_warps=16,
    )
    if in_beam is None:
        return found[:5]
    spans = largest.topk(min(2 * beam, largest.shape[1]), dim=1).indices
    places = (spans.unsqueeze(2) * SPAN + torch.arange(SPAN, device=device)).flatten(1)
    likeliest = scores.gather(1, places).topk(2 * beam, dim=1)
    tokens = places.gather(1, likeliest.indices)
    scored = chooser.follow(likeliest.values, tokens, found[5], texts, in_beam, beam)
    return torch.cat([found[:5], scored])


@triton.jit
def _choose(  # type: ignore[no-untyped-def]
    logits,
    table,
    forbidden,
    not_first,
    found,
    kept,
    largest,
    rows,
    vocab,
    stride,
    line,
    kept_line,
    largest_line,
    eot,
    no_timestamps,
    begin,
    no_speech,
    sampled: tl.constexpr,
    beams: tl.constexpr,
    heat_one: tl.constexpr,
    mix_0: tl.constexpr,
    mix_1: tl.constexpr,
    columns: tl.constexpr,
    block: tl.constexpr,
    span: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    numbers = table + row * stride
    # In the order of `choosing.Column`.
    token = tl.load(numbers)
    position = tl.load(numbers + 1)
    start = tl.load(numbers + 2)
    quiet = tl.load(numbers + 3)
    going = tl.load(numbers + 4) != 0
    most = tl.load(numbers + 5)
    times = tl.load(numbers + 7) != 0
    early = tl.load(numbers + 8)
    last = tl.load(numbers + 9)
    after = tl.load(numbers + 10) != 0
    before = tl.load(numbers + 11) != 0
    heat = tl.load(numbers + 12)
    seed = tl.load(numbers + 13) + (position << 32)
    written = position + 1 - start
    first = written <= 0
    opened = after & ~(before | (written < 2))
    since = tl.where(last >= 0, tl.where(opened, last, last + 1), begin)  # times before it are over
    hot = heat > 0
    cooling = tl.where(hot, heat.to(tl.float32) / heat_one, 1.0)
    low = float("-inf")
    # Of times, other tokens, all without rules, plain ones without rules: the largest logit and the sum of exponents.
    time_top = tl.full((), low, tl.float32)
    time_sum = tl.full((), 0.0, tl.float32)
    word_top = tl.full((), low, tl.float32)
    word_sum = tl.full((), 0.0, tl.float32)
    raw_top = tl.full((), low, tl.float32)
    raw_sum = tl.full((), 0.0, tl.float32)
    plain_top = tl.full((), low, tl.float32)
    plain_sum = tl.full((), 0.0, tl.float32)
    # The best of times and of other tokens, by logits or, where it is hot, by those with noise.
    time_best = tl.full((), low, tl.float32)
    time_token = tl.full((), 0, tl.int64)
    word_best = tl.full((), low, tl.float32)
    word_token = tl.full((), 0, tl.int64)
    for offset in range(0, vocab, block):
        ids = offset + tl.arange(0, block).to(tl.int64)
        known = ids < vocab
        raw = tl.load(logits + row * line + ids, mask=known, other=low).to(tl.float32)
        is_time = ids >= begin
        barred = tl.load(forbidden + row * vocab + ids, mask=known, other=1) != 0
        barred = barred | (first & (tl.load(not_first + ids, mask=known, other=1) != 0))
        by_times = (ids == no_timestamps) | (first & (~is_time | (ids > begin + early)))
        later = (opened & (ids < eot)) | (after & ~opened & is_time) | (is_time & (ids < since))
        barred = barred | (times & (by_times | (~first & later)))
        scores = tl.where(barred, low, raw)
        if beams:
            _keep(kept + row * kept_line, largest + row * largest_line, scores, offset, block, span)
        ranks = scores
        if sampled:
            hashed = seed + ids
            hashed = (hashed ^ ((hashed >> 30) & 0x3FFFFFFFF)) * mix_0
            hashed = (hashed ^ ((hashed >> 30) & 0x3FFFFFFFF)) * mix_1
            hashed = ((hashed ^ ((hashed >> 31) & 0x1FFFFFFFF)) >> 11) & 0x1FFFFFFFFFFFFF
            uniform = hashed.to(tl.float64) * 1.1102230246251565e-16 + 5.551115123125783e-17
            noise = -tl.log(-tl.log(uniform))
            ranks = tl.where(hot, scores / cooling + noise.to(tl.float32), scores)
        of_times = tl.where(is_time, scores, low)
        of_words = tl.where(is_time, low, scores)
        time_top, time_sum = _added(time_top, time_sum, of_times)
        word_top, word_sum = _added(word_top, word_sum, of_words)
        raw_top, raw_sum = _added(raw_top, raw_sum, raw)
        plain_top, plain_sum = _added(plain_top, plain_sum, tl.where(ids < eot, raw, low))
        time_best, time_token = _better(time_best, time_token, tl.where(is_time, ranks, low), offset)
        word_best, word_token = _better(word_best, word_token, tl.where(is_time, low, ranks), offset)
    whole = time_top + tl.log(time_sum)
    alone = times & (time_top > low) & (whole > word_top)
    # The first of equals has the smaller id, and times have the largest.
    takes_time = alone | (time_best > word_best)
    chosen = tl.where(takes_time, time_token, word_token)
    top = tl.where(alone, time_top, tl.maximum(time_top, word_top))
    total = tl.where(time_top > low, time_sum * tl.exp(time_top - top), 0.0)
    total += tl.where(alone | (word_top <= low), 0.0, word_sum * tl.exp(word_top - top))
    of_chosen = tl.load(logits + row * line + chosen).to(tl.float32)
    reading = written < 0
    ended = ~reading & ((chosen == eot) | (written + 1 >= most))
    silent = tl.full((), 0.0, tl.float32)
    if no_speech >= 0:
        likely = tl.exp(tl.load(logits + row * line + no_speech).to(tl.float32) - raw_top - tl.log(raw_sum))
        silent = tl.where(position == quiet, likely, 0.0)
    tl.store(found + row, tl.where(reading | ~going, -1.0, chosen.to(tl.float32)))
    tl.store(found + rows + row, of_chosen - top - tl.log(total))
    tl.store(found + 2 * rows + row, silent)
    tl.store(found + 3 * rows + row, (ended & going).to(tl.float32))
    tl.store(found + 4 * rows + row, of_chosen - plain_top - tl.log(plain_sum))
    tl.store(found + 5 * rows + row, raw_top + tl.log(raw_sum))
    going = going & ~ended
    moves = going
    if beams:
        if alone:
            for offset in range(0, vocab, block):
                ids = offset + tl.arange(0, block).to(tl.int64)
                scores = tl.load(kept + row * kept_line + ids)
                scores = tl.where(ids >= begin, scores, low)
                _keep(kept + row * kept_line, largest + row * largest_line, scores, offset, block, span)
        in_beam = (tl.load(numbers + 15) > 1) & ~reading
        going = tl.where(in_beam, tl.load(numbers + 4) != 0, going)
        moves = moves & ~in_beam
    if moves:
        forced = tl.load(numbers + columns + position + 1, mask=reading, other=0)
        token = tl.where(reading, forced, chosen)
        wrote_time = ~reading & (token >= begin)
        tl.store(numbers, token)
        tl.store(numbers + 1, position + 1)
        tl.store(numbers + 9, tl.where(wrote_time, token, last))
        tl.store(numbers + 10, wrote_time.to(tl.int64))
        tl.store(numbers + 11, (after & ~reading).to(tl.int64))
    tl.store(numbers + 4, going.to(tl.int64))


@triton.jit
def _keep(kept, largest, scores, offset, block: tl.constexpr, span: tl.constexpr):  # type: ignore[no-untyped-def]
    """Leave scores, and the largest of each span of them."""
    tl.store(kept + offset + tl.arange(0, block), scores)
    tops = tl.max(tl.reshape(scores, (block // span, span)), 1)
    tl.store(largest + offset // span + tl.arange(0, block // span), tops)


@triton.jit
def _added(top, total, scores):  # type: ignore[no-untyped-def]
    """The largest number so far, and the sum of exponents up to it, with more numbers."""
    higher = tl.maximum(top, tl.max(scores, 0))
    by = tl.where(higher > float("-inf"), higher, 0.0)
    return higher, total * tl.exp(top - by) + tl.sum(tl.exp(scores - by), 0)


@triton.jit
def _better(best, token, ranks, offset):  # type: ignore[no-untyped-def]
    """The best so far and its id, with more ranks that begin with id `offset`; of equals the first."""
    value, place = tl.max(ranks, 0, return_indices=True)
    better = value > best
    return tl.where(better, value, best), tl.where(better, offset + place.to(tl.int64), token)
