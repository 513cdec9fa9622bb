"""The part of a step of a transducer's search that follows its joiner, as one kernel each: for GPUs, in Triton.

A step in torch operators is some forty small kernels, and launching each takes longer than it computes. These do the
same in one, a program for each row. `greedy.py`, `stateful.py` and `modified_beam.py` say what they compute.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tritone.search.device.stateful import Number
from tritone.search.device.stateful_beam import Number as BeamNumber

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


def spread_frame(
    frames: Tensor, frame: Tensor, vectors: Tensor, beam: int, numbers: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """What the joiner takes in a frame (1,): that of each row of (batch, frames, dim) `beam` times, and `vectors`.

    Args:
        numbers: (batch, n) of `StatefulBeamLoop`, where rows do not begin with their first frame.
    """
    chosen = torch.empty(vectors.shape, dtype=frames.dtype, device=frames.device)
    dim, room = frames.shape[2], frames.shape[1]
    first, columns = (frame, 0) if numbers is None else (numbers, numbers.shape[1])
    _spread_frame[(len(vectors),)](
        *(frames, frame, first, chosen, dim, room, columns, beam, triton.next_power_of_2(dim)),
        *(numbers is not None, int(BeamNumber.FIRST)),
    )
    return chosen, vectors


@triton.jit
def _spread_frame(
    frames,
    frame,
    numbers,
    chosen,
    dim,
    room,
    columns,
    beam: tl.constexpr,
    width: tl.constexpr,
    has_first: tl.constexpr,
    first_column: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    now = tl.load(frame)
    if has_first:
        now += tl.load(numbers + program // beam * columns + first_column)
    place = program // beam * room + tl.minimum(now, room - 1)
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
    columns,
    vocab,
    blank_id,
    beam: tl.constexpr,
    width: tl.constexpr,
    block: tl.constexpr,
):
    ids, sources = start + tl.arange(0, block), tl.arange(0, width)
    at = (row * beam + sources).to(tl.int64)[:, None] * columns + ids[None, :]
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
        x = _scores(logits, row, start, penalty, vocab, vocab, blank_id, beam, width, block)
        largest = tl.maximum(largest, tl.max(x, 1))
    base = tl.where(largest > -_INF, largest, 0.0)
    total = tl.zeros((width,), tl.float64)
    for start in range(0, vocab, block):
        x = _scores(logits, row, start, penalty, vocab, vocab, blank_id, beam, width, block)
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
            x = _scores(logits, row, start, penalty, vocab, vocab, blank_id, beam, width, block)
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


def stateful_beam_step(
    logits: Tensor,
    state: tuple[Tensor, ...],
    *,
    steps: Tensor,
    tables: tuple[Tensor, Tensor] | None,
    vocab_size: int,
    blank_id: int,
    idle_id: int,
    source_bits: int,
) -> list[Tensor]:
    """The best extensions of each row's hypotheses; what they are is written to `found`.

    Args:
        state: frame, scores, bonuses, hashes, places, entries, found, numbers, penalties, temperatures of
            `StatefulBeamLoop`.
        steps: (durations,) frames that each takes, of which the logits are behind those of the tokens, if they are.
        tables: what hotwords add, and the entries after them.

    Returns:
        The first six of the state; for each hypothesis (batch · beam,) the row that it comes from, what the predictor
        is given, and whether that is its token.
    """
    frame, scores, bonuses, hashes, places, entries, found, numbers, penalties, temperatures = state
    (batch, beam), columns = scores.shape, logits.shape[1]
    new = [torch.empty_like(each) for each in (frame, scores, bonuses, hashes, places, entries)]
    rows, tokens = (torch.empty(batch * beam, dtype=torch.int64, device=frame.device) for _ in range(2))
    adds = torch.empty(batch * beam, dtype=torch.bool, device=frame.device)
    width, spans = triton.next_power_of_2(beam), len(steps) if columns > vocab_size else 0
    block = min(triton.next_power_of_2(vocab_size), max(64, MAX_ITEMS // width))
    gains, following = (bonuses, entries) if tables is None else tables
    _stateful_beam[(batch,)](
        *(logits, frame, scores, bonuses, hashes, places, entries, found, numbers, penalties, temperatures, steps),
        *(gains, following, *new, rows, tokens, adds.view(torch.int8)),
        *(columns, vocab_size, found.shape[2], numbers.shape[1], blank_id, idle_id, tables is not None),
        *(beam, width, source_bits, block, spans, triton.next_power_of_2(max(1, spans))),
        int(BeamNumber.FRAMES),
        num_warps=8,
    )
    return [*new, rows, tokens, adds]


@triton.jit
def _stateful_beam(
    logits,
    frame,
    scores,
    bonuses,
    hashes,
    places,
    entries,
    found,
    numbers,
    penalties,
    temperatures,
    steps,
    gains,
    following,
    new_frame,
    new_scores,
    new_bonuses,
    new_hashes,
    new_places,
    new_entries,
    rows,
    tokens,
    hits,
    columns,
    vocab,
    room,
    number_columns,
    blank_id,
    idle_id,
    scored: tl.constexpr,
    beam: tl.constexpr,
    width: tl.constexpr,
    source_bits: tl.constexpr,
    block: tl.constexpr,
    num_spans: tl.constexpr,
    span_items: tl.constexpr,
    frames_column: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    now = tl.load(frame)
    tl.store(new_frame, now + 1, row == 0)
    ranks = tl.arange(0, width)
    alive = ranks < beam
    at_rank = row * beam + ranks
    penalty, temperature = tl.load(penalties + row * beam), tl.load(temperatures + row)
    before = tl.load(scores + at_rank, alive, other=-_INF)
    bonus = tl.load(bonuses + at_rank, alive, other=0.0)
    waits = tl.load(places + at_rank, alive, other=0) > now
    entry = tl.load(entries + at_rank, alive, other=0)
    largest = tl.full((width,), -_INF, tl.float32)
    for start in range(0, vocab, block):
        x = _scores(logits, row, start, penalty, columns, vocab, blank_id, beam, width, block)
        largest = tl.maximum(largest, tl.max(x, 1))
    base = tl.where(largest > -_INF, largest, 0.0)
    total = tl.zeros((width,), tl.float64)
    for start in range(0, vocab, block):
        x = _scores(logits, row, start, penalty, columns, vocab, blank_id, beam, width, block)
        scaled = (x - base[:, None]) / temperature
        total += tl.sum(tl.exp(scaled.to(tl.float32)), 1).to(tl.float64)
    normal = tl.log(tl.where(largest > -_INF, total, 1.0))
    speaks = tl.max(((before > -_INF) & (largest > -_INF) & (waits == 0)).to(tl.int32), 0) > 0
    stays = waits | (speaks == 0)
    # Log-probabilities of the durations; the first is sure where there are none, or none is possible.
    span_ids = tl.arange(0, span_items)
    is_first = (span_ids == 0)[None, :] & alive[:, None]
    spans = tl.where(is_first, 0.0, -_INF).to(tl.float64)
    if num_spans > 0:
        of_spans = logits + at_rank[:, None] * columns + vocab + span_ids[None, :]
        raw = tl.load(of_spans, (span_ids < num_spans)[None, :] & alive[:, None], other=-_INF)
        raw = tl.where((raw == raw) & (raw < _INF), raw, -_INF)
        most = tl.max(raw, 1)
        warm = (raw - tl.where(most > -_INF, most, 0.0)[:, None]) / temperature
        summed = tl.sum(tl.exp(warm.to(tl.float32)), 1).to(tl.float64)
        likely = warm - tl.log(tl.where(most > -_INF, summed, 1.0))[:, None]
        spans = tl.where((stays | (most == -_INF))[:, None], spans, likely)
    # The best tokens of each hypothesis, one after another: of equal ones the first.
    values = tl.full((width, width), -_INF, tl.float64)
    parts = tl.full((width, width), -_INF, tl.float64)
    chosen = tl.zeros((width, width), tl.int64)
    bound = tl.full((width,), _INF, tl.float64)
    bound_at = tl.full((width,), -1, tl.int64)
    for rank in range(beam):  # not unrolled: with a beam of 16 that takes minutes to compile
        value = tl.full((width,), -_INF, tl.float64)
        part = tl.full((width,), -_INF, tl.float64)
        place = tl.zeros((width,), tl.int64)
        for start in range(0, vocab, block):
            ids = (start + tl.arange(0, block)).to(tl.int64)
            x = _scores(logits, row, start, penalty, columns, vocab, blank_id, beam, width, block)
            said = (x - base[:, None]) / temperature - normal[:, None]
            silence = tl.where((ids == blank_id)[None, :] & alive[:, None], 0.0, -_INF)
            said = tl.where(stays[:, None], silence, said)
            score = said + (before + bonus)[:, None]
            if scored:
                lent = tl.load(gains + entry[:, None] * vocab + ids[None, :], (ids < vocab)[None, :], other=0.0)
                score += lent.to(tl.float64)
            after = (score < bound[:, None]) | ((score == bound[:, None]) & (ids[None, :] > bound_at[:, None]))
            score = tl.where(after, score, -_INF)
            top = tl.max(score, 1)
            first = tl.min(tl.where(score == top[:, None], ids[None, :], vocab), 1)
            of_first = tl.sum(tl.where(ids[None, :] == first[:, None], tl.where(said > -_INF, said, 0.0), 0.0), 1)
            better = top > value
            place, part = tl.where(better, first, place), tl.where(better, of_first, part)
            value = tl.where(better, top, value)
        here = (ranks == rank)[None, :]
        values = tl.where(here, value[:, None], values)
        parts = tl.where(here, part[:, None], parts)
        chosen = tl.where(here, place[:, None], chosen)
        bound, bound_at = value, place
    # The best of all, with their durations.
    totals = values[:, :, None] + spans[:, None, :]
    flat = (ranks[:, None] * width + ranks[None, :])[:, :, None] * span_items + span_ids[None, None, :]
    best = tl.full((width,), -_INF, tl.float64)
    source = tl.zeros((width,), tl.int64)
    token = tl.zeros((width,), tl.int64)
    span = tl.zeros((width,), tl.int64)
    log_prob = tl.zeros((width,), tl.float64)
    gained = tl.zeros((width,), tl.float64)
    for rank in range(beam):
        value = tl.max(tl.max(tl.max(totals, 2), 1), 0)
        place = tl.min(tl.min(tl.min(tl.where(totals == value, flat, width * width * span_items), 2), 1), 0)
        totals = tl.where(flat == place, -_INF, totals)
        here = ranks == rank
        pair = tl.where(value > -_INF, place // span_items, -1)  # nobody's, if there are no more
        of, at_span = tl.where(value > -_INF, pair // width, -1), place % span_items
        is_pair = ranks[:, None] * width + ranks[None, :] == pair
        is_span = (ranks[:, None] == of) & (span_ids[None, :] == at_span)
        one = tl.sum(tl.sum(tl.where(is_pair, parts, 0.0), 1), 0)
        other = tl.sum(tl.sum(tl.where(is_span, spans, 0.0), 1), 0)
        best = tl.where(here, value, best)
        source = tl.where(here, tl.maximum(of, 0).to(tl.int64), source)
        token = tl.where(here, tl.sum(tl.sum(tl.where(is_pair, chosen, 0), 1), 0), token)
        span = tl.where(here, at_span.to(tl.int64), span)
        log_prob = tl.where(here, one, log_prob)
        gained = tl.where(here, one + other, gained)
    on = now < tl.load(numbers + row * number_columns + frames_column)
    lives = best > -_INF
    source = tl.where(on, source, tl.where(alive, ranks, 0).to(tl.int64))
    adds = (token != blank_id) & lives & on & alive
    from_source = row * beam + source
    waited = tl.load(places + from_source, alive, other=0)
    goes = tl.where(speaks, tl.load(steps + span), 1)
    place = tl.where(waited > now, waited, now + goes)
    hashed = tl.load(hashes + from_source, alive, other=0)
    mixed = (hashed ^ ((token + 1) * SPREAD)) * MIX
    hashed = tl.where(adds, mixed ^ (mixed >> 29), hashed)
    score = tl.where(lives & alive, tl.load(scores + from_source, alive, other=-_INF) + gained, -_INF)
    lives = score > -_INF
    same = (hashed[:, None] == hashed[None, :]) & (place[:, None] == place[None, :]) & lives[:, None] & lives[None, :]
    shares = tl.exp(tl.where(same, score[None, :], -_INF) - tl.where(lives, score, 0.0)[:, None])
    merged = score + tl.log(tl.where(lives, tl.sum(tl.where(same, shares, 0.0), 1), 1.0))
    repeated = tl.sum((same & (ranks[None, :] < ranks[:, None])).to(tl.int32), 1)
    merged = tl.where(lives & (repeated == 0), merged, -_INF)
    added = tl.load(bonuses + from_source, alive, other=0.0)
    after_entry = tl.load(entries + from_source, alive, other=0)
    if scored:
        at = after_entry * vocab + token
        added += tl.where(adds, tl.load(gains + at, alive, other=0.0).to(tl.float64), 0.0)
        after_entry = tl.where(adds, tl.load(following + at, alive, other=0).to(tl.int64), after_entry)
    tl.store(new_scores + at_rank, tl.where(on, merged, before), alive)
    tl.store(new_bonuses + at_rank, added, alive)
    tl.store(new_hashes + at_rank, hashed, alive)
    tl.store(new_places + at_rank, tl.where(on, place, tl.load(places + at_rank, alive, other=0)), alive)
    tl.store(new_entries + at_rank, after_entry, alive)
    tl.store(rows + at_rank, from_source, alive)
    tl.store(tokens + at_rank, tl.where(adds, token, idle_id), alive)
    tl.store(hits + at_rank, adds.to(tl.int8), alive)
    into = found + (row * 3 * room + tl.minimum(now, room - 1)) * beam + ranks
    tl.store(into, (source + tl.where(adds, (token + 1) << source_bits, 0)).to(tl.int32), alive)
    tl.store(into + room * beam, (place - now).to(tl.int32), alive)
    tl.store(into + 2 * room * beam, log_prob.to(tl.float32).to(tl.int32, bitcast=True), alive)
