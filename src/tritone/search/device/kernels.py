"""The part of a step of a transducer's search that follows its joiner, as one kernel each: for GPUs, in Triton.

A step in torch operators is some forty small kernels, and launching each takes longer than it computes. These do the
same in one, a program for each row. `greedy.py`, `stateful.py` and `modified_beam.py` say what they compute.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tritone.search.device.stateful import Number

MAX_ITEMS = 4096  # logits of a program at once
MIX = tl.constexpr(0x9E3779B97F4A7C15 - 2**64)
SPREAD = tl.constexpr(0x2545F4914F6CDD1D)
_INF = tl.constexpr(float("inf"))


def spread(frames: Tensor, first: Tensor, vectors: Tensor, each: int) -> tuple[Tensor, Tensor]:
    """What the joiner takes for `each` frames of each row from `first` on: rows of `frames`, and `vectors` repeated."""
    rows, dim = vectors.shape
    chosen, repeated = (torch.empty(rows * each, dim, dtype=x.dtype, device=x.device) for x in (frames, vectors))
    _spread[(rows * each,)](frames, first, vectors, chosen, repeated, dim, each, triton.next_power_of_2(dim))
    return chosen, repeated


@triton.jit
def _spread(frames, first, vectors, chosen, repeated, dim, each: tl.constexpr, width: tl.constexpr):
    program = tl.program_id(0).to(tl.int64)
    row = program // each
    place = tl.load(first + row) + program % each
    at = tl.arange(0, width)
    inside = at < dim
    tl.store(chosen + program * dim + at, tl.load(frames + place * dim + at, inside), inside)
    tl.store(repeated + program * dim + at, tl.load(vectors + row * dim + at, inside), inside)


def spread_frame(frames: Tensor, frame: Tensor, vectors: Tensor, beam: int) -> tuple[Tensor, Tensor]:
    """What the joiner takes in a frame (1,): that of each row of (batch, frames, dim) `beam` times, and `vectors`."""
    chosen = torch.empty(vectors.shape, dtype=frames.dtype, device=frames.device)
    dim, room = frames.shape[2], frames.shape[1]
    _spread_frame[(len(vectors),)](frames, frame, chosen, dim, room, beam, triton.next_power_of_2(dim))
    return chosen, vectors


@triton.jit
def _spread_frame(frames, frame, chosen, dim, room, beam: tl.constexpr, width: tl.constexpr):
    program = tl.program_id(0).to(tl.int64)
    place = program // beam * room + tl.minimum(tl.load(frame), room - 1)
    at = tl.arange(0, width)
    inside = at < dim
    tl.store(chosen + program * dim + at, tl.load(frames + place * dim + at, inside), inside)


def greedy_step(
    logits: Tensor,
    state: tuple[Tensor, ...],
    *,
    blank_id: int,
    unk_id: int,
    max_symbols: int,
    look_ahead: int,
    token_bits: int,
) -> list[Tensor]:
    """The first token among the next frames of each row: new places, symbols, contexts and counts."""
    place, symbols, contexts, counts, tokens, log_probs, end, penalties = state
    vocab = logits.shape[1]
    new = [torch.empty_like(each) for each in (place, symbols, contexts, counts)]
    block = min(triton.next_power_of_2(vocab), max(64, MAX_ITEMS // triton.next_power_of_2(look_ahead)))
    _greedy[(len(place),)](
        *(logits, place, symbols, contexts, counts, tokens, log_probs, end, penalties, *new),
        *(vocab, contexts.shape[1], tokens.shape[1], blank_id, unk_id),
        *(max_symbols, look_ahead, token_bits, block, triton.next_power_of_2(contexts.shape[1])),
    )
    return new


@triton.jit
def _greedy(
    logits,
    place,
    symbols,
    contexts,
    counts,
    tokens,
    log_probs,
    end,
    penalties,
    new_place,
    new_symbols,
    new_contexts,
    new_counts,
    vocab,
    context_size,
    room,
    blank_id,
    unk_id,
    max_symbols: tl.constexpr,
    ahead: tl.constexpr,
    token_bits: tl.constexpr,
    block: tl.constexpr,
    context_block: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    frames = tl.arange(0, ahead)
    penalty = tl.load(penalties + row * ahead)
    best = tl.full((ahead,), -_INF, tl.float32)
    token = tl.zeros((ahead,), tl.int32)
    total = tl.zeros((ahead,), tl.float32)
    for start in range(0, vocab, block):
        ids = start + tl.arange(0, block)
        at = (row * ahead + frames).to(tl.int64)[:, None] * vocab + ids[None, :]
        x = tl.load(logits + at, (ids < vocab)[None, :], other=-_INF)
        x = tl.where((ids == blank_id)[None, :], x - penalty, x)
        x = tl.where((x == x) & (x < _INF), x, -_INF)
        largest = tl.max(x, 1)
        first = tl.min(tl.where(x == largest[:, None], ids[None, :], vocab), 1)
        token = tl.where(largest > best, first, token)
        higher = tl.maximum(best, largest)
        base = tl.where(higher > -_INF, higher, 0.0)
        total = total * tl.exp(best - base) + tl.sum(tl.exp(x - base[:, None]), 1)
        best = higher
    speaks = (token != blank_id) & (token != unk_id) & (best > -_INF)
    passed = tl.min(tl.where(speaks, frames, ahead), 0)
    chosen = frames == passed
    said = tl.sum(tl.where(chosen, token, 0), 0).to(tl.int64)
    log_prob = -tl.sum(tl.where(chosen, tl.log(total), 0.0), 0)
    last = tl.load(end + row)
    found = tl.minimum(tl.load(place + row) + passed, last)
    hit = (passed < ahead) & (found < last)
    count = tl.load(counts + row)
    tl.store(tokens + row * room + count, said + (found << token_bits), hit)
    tl.store(log_probs + row * room + count, log_prob, hit)
    tl.store(new_counts + row, count + hit.to(tl.int64))
    same = tl.load(symbols + row)
    same = tl.where(passed == 0, same, 0) + 1
    full = same >= max_symbols
    tl.store(new_place + row, found + (hit & full).to(tl.int64))
    tl.store(new_symbols + row, tl.where(hit & (same < max_symbols), same, 0))
    at = tl.arange(0, context_block)
    inside = at < context_size
    kept = tl.load(contexts + row * context_size + at, inside, other=0)
    moved = tl.load(contexts + row * context_size + at + 1, at + 1 < context_size, other=0)
    moved = tl.where(at == context_size - 1, said, moved)
    tl.store(new_contexts + row * context_size + at, tl.where(hit, moved, kept), inside)


def stateful_step(
    logits: Tensor,
    state: tuple[Tensor, ...],
    *,
    durations: Tensor | None,
    vocab_size: int,
    blank_id: int,
    idle_id: int,
    look_ahead: int,
) -> list[Tensor]:
    """The first token after the blanks of the next frames: new frames, symbols and counts; tokens, and who has one."""
    at, symbols, counts, block, numbers, penalties = state
    rows, width = len(at), logits.shape[1]
    new = [torch.empty_like(each) for each in (at, symbols, counts, at)]
    hit = torch.empty(rows, dtype=torch.bool, device=at.device)
    items = min(triton.next_power_of_2(vocab_size), max(64, MAX_ITEMS // look_ahead))
    spans = 0 if durations is None else len(durations)
    _stateful[(rows,)](
        *(logits, at, symbols, counts, block, numbers, penalties, at if durations is None else durations),
        *(*new, hit.view(torch.int8), width, block.shape[2], numbers.shape[1], vocab_size, blank_id, idle_id),
        *(look_ahead, items, spans, triton.next_power_of_2(max(1, spans))),
        *(int(Number.FRAMES), int(Number.MOST)),
    )
    return [*new, hit]


@triton.jit
def _stateful(
    logits,
    at,
    symbols,
    counts,
    block,
    numbers,
    penalties,
    durations,
    new_at,
    new_symbols,
    new_counts,
    tokens,
    hits,
    width,
    room,
    columns,
    vocab,
    blank_id,
    idle_id,
    ahead: tl.constexpr,
    items: tl.constexpr,
    num_spans: tl.constexpr,
    span_items: tl.constexpr,
    frames_column: tl.constexpr,
    most_column: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    frames = tl.arange(0, ahead)
    lines = logits + (row * ahead + frames).to(tl.int64)[:, None] * width
    penalty = tl.load(penalties + row * ahead)
    best = tl.full((ahead,), -_INF, tl.float32)
    token = tl.zeros((ahead,), tl.int32)
    total = tl.zeros((ahead,), tl.float32)
    for start in range(0, vocab, items):
        ids = start + tl.arange(0, items)
        x = tl.load(lines + ids[None, :], (ids < vocab)[None, :], other=-_INF)
        x = tl.where((ids == blank_id)[None, :], x - penalty, x)
        x = tl.where((x == x) & (x < _INF), x, -_INF)
        largest = tl.max(x, 1)
        first = tl.min(tl.where(x == largest[:, None], ids[None, :], vocab), 1)
        token = tl.where(largest > best, first, token)
        higher = tl.maximum(best, largest)
        base = tl.where(higher > -_INF, higher, 0.0)
        total = total * tl.exp(best - base) + tl.sum(tl.exp(x - base[:, None]), 1)
        best = higher
    speaks = (token != blank_id) & (best > -_INF)
    spans = tl.where(speaks, 0, 1).to(tl.int64)
    if num_spans > 0:
        ids = tl.arange(0, span_items)
        x = tl.load(lines + vocab + ids[None, :], (ids < num_spans)[None, :], other=-_INF)
        x = tl.where((x == x) & (x < _INF), x, -_INF)
        first = tl.min(tl.where(x == tl.max(x, 1)[:, None], ids[None, :], span_items), 1)
        lengths = tl.load(durations + ids, ids < num_spans, other=0)
        chosen_spans = tl.sum(tl.where(ids[None, :] == first[:, None], lengths[None, :], 0), 1)
        spans = tl.maximum(chosen_spans, spans)
    here = tl.load(at + row)
    end = tl.load(numbers + row * columns + frames_column)
    moves = tl.where(speaks | (here + frames >= end), 0, spans)
    passed = tl.zeros((), tl.int64)
    for place in tl.static_range(ahead):
        passed += tl.where(passed == place, tl.sum(tl.where(frames == place, moves, 0), 0), 0)
    chosen = frames == passed
    frame = here + passed
    hit = (passed < ahead) & (frame < end)
    span = tl.where(hit, tl.sum(tl.where(chosen, spans, 0), 0), 0)
    spoken = tl.sum(tl.where(chosen, token, 0), 0)
    log_prob = -tl.sum(tl.where(chosen, tl.log(total), 0.0), 0)
    count = tl.load(counts + row)
    into = block + row * 4 * room + count + 1
    tl.store(into, spoken, hit)
    tl.store(into + room, frame.to(tl.int32), hit)
    tl.store(into + 2 * room, tl.minimum(frame + tl.maximum(span, 1), end).to(tl.int32), hit)
    tl.store(into + 3 * room, log_prob.to(tl.int32, bitcast=True), hit)
    remains = hit & (span == 0)
    same = tl.where(passed == 0, tl.load(symbols + row), 0) + remains.to(tl.int64)
    full = remains & (same >= tl.load(numbers + row * columns + most_column))
    tl.store(new_at + row, frame + span + full.to(tl.int64))
    tl.store(new_symbols + row, tl.where(full | (hit & (span > 0)), 0, same))
    tl.store(new_counts + row, count + hit.to(tl.int64))
    tl.store(tokens + row, tl.where(hit, spoken.to(tl.int64), idle_id))
    tl.store(hits + row, hit.to(tl.int8))


def beam_step(
    logits: Tensor, state: tuple[Tensor, ...], *, blank_id: int, unk_id: int, source_bits: int
) -> list[Tensor]:
    """The best extensions of each row's hypotheses: new frame, totals, hashes and contexts; the rest is in place."""
    frame, totals, hashes, contexts, pointers, log_probs, num_frames, penalties, temperatures = state
    (batch, beam), vocab = totals.shape, logits.shape[1]
    new = [torch.empty_like(each) for each in (frame, totals, hashes, contexts)]
    width = triton.next_power_of_2(beam)
    block = min(triton.next_power_of_2(vocab), max(64, MAX_ITEMS // width))
    _beam[(batch,)](
        *(logits, frame, totals, hashes, contexts, pointers, log_probs, num_frames, penalties, temperatures, *new),
        *(vocab, contexts.shape[2], pointers.shape[1], blank_id, unk_id),
        *(beam, width, source_bits, block, triton.next_power_of_2(contexts.shape[2])),
        num_warps=8,
    )
    return new


@triton.jit
def _scores(
    logits,
    row,
    start,
    penalty,
    vocab,
    blank_id,
    beam: tl.constexpr,
    width: tl.constexpr,
    block: tl.constexpr,
):
    ids, sources = start + tl.arange(0, block), tl.arange(0, width)
    at = (row * beam + sources).to(tl.int64)[:, None] * vocab + ids[None, :]
    x = tl.load(logits + at, (ids < vocab)[None, :] & (sources < beam)[:, None], other=-_INF)
    x = tl.where((ids == blank_id)[None, :], x - penalty, x)
    return tl.where((x == x) & (x < _INF), x, -_INF)


@triton.jit
def _beam(
    logits,
    frame,
    totals,
    hashes,
    contexts,
    pointers,
    log_probs,
    num_frames,
    penalties,
    temperatures,
    new_frame,
    new_totals,
    new_hashes,
    new_contexts,
    vocab,
    context_size,
    room,
    blank_id,
    unk_id,
    beam: tl.constexpr,
    width: tl.constexpr,
    source_bits: tl.constexpr,
    block: tl.constexpr,
    context_block: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    now = tl.load(frame)
    tl.store(new_frame, now + 1, row == 0)
    ranks = tl.arange(0, width)
    alive = ranks < beam
    penalty, temperature = tl.load(penalties + row * beam), tl.load(temperatures + row)
    before = tl.load(totals + row * beam + ranks, alive, other=-_INF)
    # Of each hypothesis what is to be added to a logit over the temperature: its total less the logarithm of the sum.
    largest = tl.full((width,), -_INF, tl.float32)
    for start in range(0, vocab, block):
        x = _scores(logits, row, start, penalty, vocab, blank_id, beam, width, block)
        largest = tl.maximum(largest, tl.max(x, 1))
    base = tl.where(largest > -_INF, largest, 0.0)
    total = tl.zeros((width,), tl.float64)
    for start in range(0, vocab, block):
        x = _scores(logits, row, start, penalty, vocab, blank_id, beam, width, block)
        scaled = (x - base[:, None]) / temperature
        total += tl.sum(tl.exp(scaled.to(tl.float32)), 1).to(tl.float64)
    offset = tl.where(largest > -_INF, before - tl.log(total), -_INF)
    # The best one after another: each is the largest after the one before, of equal ones the first.
    best = tl.full((width,), -_INF, tl.float64)
    flat = tl.zeros((width,), tl.int64)
    bound = tl.full((), _INF, tl.float64)
    bound_at = tl.full((), -1, tl.int64)
    for rank in tl.static_range(beam):
        value = tl.full((), -_INF, tl.float64)
        place = tl.zeros((), tl.int64)
        for start in range(0, vocab, block):
            x = _scores(logits, row, start, penalty, vocab, blank_id, beam, width, block)
            scores = (x - base[:, None]) / temperature + offset[:, None]
            at = ranks.to(tl.int64)[:, None] * vocab + (start + tl.arange(0, block))[None, :]
            after = (scores < bound) | ((scores == bound) & (at > bound_at))
            scores = tl.where(after, scores, -_INF)
            top = tl.max(tl.max(scores, 1), 0)
            first = tl.min(tl.min(tl.where(scores == top, at, vocab * width), 1), 0)
            better = (top > value) | ((top == value) & (first < place) & (top > -_INF))
            place = tl.where(better, first, place)
            value = tl.where(better, top, value)
        best = tl.where(ranks == rank, value, best)
        flat = tl.where(ranks == rank, place, flat)
        bound, bound_at = value, place
    source, token = flat // vocab, flat % vocab
    goes_on = (now < tl.load(num_frames + row)) & (tl.max(best, 0) > -_INF)
    source = tl.where(goes_on & alive, source, tl.where(alive, ranks, 0).to(tl.int64))
    adds = (token != blank_id) & (token != unk_id) & goes_on
    from_total = tl.load(totals + row * beam + source, alive, other=-_INF)
    hashed = tl.load(hashes + row * beam + source, alive, other=0)
    mixed = (hashed ^ ((token + 1) * SPREAD)) * MIX
    hashed = tl.where(adds, mixed ^ (mixed >> 29), hashed)
    lives = best > -_INF
    same = (hashed[:, None] == hashed[None, :]) & lives[:, None] & lives[None, :]
    gained = tl.exp(tl.where(same, best[None, :], -_INF) - tl.where(lives, best, 0.0)[:, None])
    merged = best + tl.log(tl.sum(tl.where(same, gained, 0.0), 1))
    repeated = tl.sum((same & (ranks[None, :] < ranks[:, None])).to(tl.int32), 1)
    merged = tl.where(lives & (repeated == 0), merged, -_INF)
    tl.store(new_totals + row * beam + ranks, tl.where(goes_on, merged, before), alive)
    tl.store(new_hashes + row * beam + ranks, hashed, alive)
    at = tl.arange(0, context_block)
    inside = alive[:, None] & (at < context_size)[None, :]
    old = contexts + (row * beam + source)[:, None] * context_size + at[None, :]
    kept = tl.load(old, inside, other=0)
    moved = tl.load(old + 1, inside & (at + 1 < context_size)[None, :], other=0)
    moved = tl.where((at == context_size - 1)[None, :], token[:, None], moved)
    new_at = (row * beam + ranks)[:, None] * context_size + at[None, :]
    tl.store(new_contexts + new_at, tl.where(adds[:, None], moved, kept), inside)
    out = (row * room + now) * beam + ranks
    written = ranks < tl.where(now < room, beam, 0)
    tl.store(pointers + out, source + tl.where(adds, (token + 1) << source_bits, 0), written)
    tl.store(log_probs + out, (best - from_total).to(tl.float32), written)
