"""Searches of transducers as one kernel each, for GPUs, in Triton: a program for each row goes through all its frames.

    encoder_out (rows, frames, dim), num_frames, ..., StatelessWeights  ->  what `greedy.py` and `modified_beam.py` find

A search in steps launches some fifteen small kernels a step, one after the other, for as many steps as the longest row
has; a GPU idles in most of that time. Here a row waits for nobody but itself. Each step multiplies the next `AHEAD`
frames (or the hypotheses of one frame) with all of the joiner's weights, which come from the GPU's second-level cache.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tritone.search.device.greedy import TOKEN_BITS
from tritone.search.device.kernels import MIX, SPREAD
from tritone.search.device.modified_beam import SOURCE_BITS
from tritone.search.device.stateless import StatelessWeights

AHEAD = 16  # frames of a step: the least rows of a product of matrices
LOGITS = 512  # of a frame, and the width of what is joined: with more, every row reads too many weights at every step
DEPTH = 64  # of a product at once
_INF = tl.constexpr(float("inf"))


def can_search(weights: StatelessWeights) -> bool:
    """Whether the kernels take a network of these sizes."""
    width, dim = weights.projection.shape
    return width % DEPTH == 0 and dim % DEPTH == 0 and max(dim, weights.output.shape[1]) <= LOGITS


class _Over:
    """The part of a loop (`runtime.cuda.loop.Loop`) that a search has which is over when it has started."""

    def step(self, *state: Tensor) -> list[Tensor]:
        """The same state: there is nothing left to do."""
        return list(state)

    def left(self, *state: Tensor) -> Tensor:
        """0."""
        return torch.zeros((), dtype=torch.int64, device=state[0].device)


class WholeGreedy(_Over):
    """Greedy search as a loop that is over when it has started; otherwise as `greedy.GreedyLoop`."""

    def __init__(
        self, weights: StatelessWeights, *, blank_id: int, unk_id: int | None, max_symbols: int = 1, warps: int = 8
    ) -> None:
        """Take the network; `max_symbols`: the most tokens of one frame."""
        self._weights = weights
        self._blank_id, self._unk_id = blank_id, -1 if unk_id is None else unk_id
        self._max_symbols, self._warps = max_symbols, warps

    def start(self, encoder_out: Tensor, num_frames: Tensor, contexts: Tensor, penalties: Tensor) -> list[Tensor]:
        """Search everything.

        Returns:
            How many tokens (batch,), tokens with the indices of their frames (batch, tokens), their log-probabilities,
            the last contexts (batch, context).
        """
        batch, frames, dim = encoder_out.shape
        of = self._weights
        width, vocab = of.projection.shape[0], of.output.shape[1]
        device = encoder_out.device
        room = frames * self._max_symbols + 1
        counts = torch.zeros_like(num_frames)
        tokens = torch.zeros(batch, room, dtype=torch.int64, device=device)
        log_probs = torch.zeros(batch, room, dtype=torch.float32, device=device)
        last = contexts.clone()
        vectors = torch.empty(batch, dim, dtype=torch.float32, device=device)
        _greedy[(batch,)](
            *(encoder_out, num_frames, penalties, of.tables, of.projection, of.projection_bias),
            *(of.output, of.output_bias, last, vectors, counts, tokens, log_probs),
            *(frames, room, self._blank_id, self._unk_id),
            *(self._max_symbols, vocab, dim, width, contexts.shape[1], triton.next_power_of_2(contexts.shape[1])),
            *(AHEAD, min(LOGITS, triton.next_power_of_2(vocab)), triton.next_power_of_2(dim), DEPTH, TOKEN_BITS),
            num_warps=self._warps,
        )
        return [counts, tokens, log_probs, last]

    def finish(self, *state: Tensor) -> list[Tensor]:
        """How many tokens (batch,), ids and frames (2, batch, tokens) int32, log-probabilities, last contexts."""
        counts, tokens, log_probs, last = state
        fields = torch.stack([tokens & (2**TOKEN_BITS - 1), tokens >> TOKEN_BITS]).to(torch.int32)
        return [counts, fields, log_probs, last]


class WholeBeam(_Over):
    """Modified beam search as a loop that is over when it has started; otherwise as `ModifiedBeamLoop`."""

    def __init__(
        self,
        weights: StatelessWeights,
        *,
        beam: int,
        start: tuple[int, ...],
        blank_id: int,
        unk_id: int | None,
        warps: int = 8,
    ) -> None:
        """Take the network; `beam`: hypotheses kept after each frame; `start`: the context before the first token."""
        self._weights, self._beam, self._warps = weights, beam, warps
        self._blank_id, self._unk_id = blank_id, -1 if unk_id is None else unk_id
        self._context = torch.tensor(start, dtype=torch.int64, device=weights.output.device)

    def start(self, encoder_out: Tensor, num_frames: Tensor, penalties: Tensor, temperatures: Tensor) -> list[Tensor]:
        """Search everything.

        Returns:
            Log-probabilities of the hypotheses (batch, beam), back-pointers and log-probabilities of the added tokens
            (batch, frames, beam).
        """
        (batch, frames, dim), beam, device = encoder_out.shape, self._beam, encoder_out.device
        of = self._weights
        width, vocab = of.projection.shape[0], of.output.shape[1]
        totals = torch.full((batch, beam), -torch.inf, dtype=torch.float64, device=device)
        totals[:, 0] = 0.0
        hashes = torch.zeros(batch, beam, dtype=torch.int64, device=device)
        contexts = self._context.expand(batch, beam, -1).contiguous()
        vectors = torch.empty(batch, AHEAD, dim, dtype=torch.float32, device=device)
        pointers = torch.zeros(batch, frames, beam, dtype=torch.int64, device=device)
        log_probs = torch.zeros(pointers.shape, dtype=torch.float32, device=device)
        context_size = contexts.shape[2]
        _beam[(batch,)](
            *(encoder_out, num_frames, penalties, temperatures.to(torch.float64)),
            *(of.tables, of.projection, of.projection_bias, of.output, of.output_bias),
            *(totals, hashes, contexts, vectors, pointers, log_probs),
            *(frames, self._blank_id, self._unk_id),
            *(vocab, dim, width, context_size, triton.next_power_of_2(context_size)),
            *(beam, AHEAD, triton.next_power_of_2(vocab), triton.next_power_of_2(dim), DEPTH, SOURCE_BITS),
            num_warps=self._warps,
        )
        return [totals, pointers, log_probs]

    def finish(self, *state: Tensor) -> list[Tensor]:
        """Log-probabilities of the hypotheses, back-pointers int32, and log-probabilities of the added tokens."""
        totals, pointers, log_probs = state
        return [totals, pointers.to(torch.int32), log_probs]


@triton.jit
def _tanh(x):
    small = tl.exp(-2.0 * tl.abs(x))
    value = (1.0 - small) / (1.0 + small)
    return tl.where(x < 0, -value, value)


@triton.jit
def _greedy(
    frames,
    num_frames,
    penalties,
    tables,
    projection,
    projection_bias,
    output,
    output_bias,
    contexts,
    vectors,
    counts,
    tokens,
    log_probs,
    frame_room,
    room,
    blank_id,
    unk_id,
    max_symbols: tl.constexpr,
    vocab: tl.constexpr,
    dim: tl.constexpr,
    width: tl.constexpr,
    context_size: tl.constexpr,
    context_block: tl.constexpr,
    ahead: tl.constexpr,
    block: tl.constexpr,
    dim_block: tl.constexpr,
    depth: tl.constexpr,
    token_bits: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    frames += row * frame_room * dim
    contexts += row * context_size
    vectors += row * dim
    last = tl.load(num_frames + row)
    penalty = tl.load(penalties + row)
    half = output.dtype.element_ty
    steps = tl.arange(0, ahead)
    deep = tl.arange(0, depth)
    place = tl.zeros((), tl.int64)
    symbols = tl.zeros((), tl.int64)
    count = tl.zeros((), tl.int64)
    changed = tl.full((), 1, tl.int32)
    while place < last:
        if changed != 0:
            to = tl.arange(0, dim_block)
            summed = tl.zeros((ahead, dim_block), tl.float32)
            for start in range(0, width, depth):
                at = start + deep
                hidden = tl.zeros((depth,), tl.float32)
                for position in tl.static_range(context_size):
                    previous = tl.load(contexts + position)
                    entry = tables + (position * vocab + tl.maximum(previous, 0)) * width + at
                    hidden += tl.load(entry, at >= tl.where(previous >= 0, 0, width), other=0.0)
                hidden = tl.maximum(hidden.to(half).to(tl.float32), 0.0)
                spread = tl.where(steps[:, None] == 0, hidden[None, :], 0.0).to(half)
                weights = tl.load(projection + at[:, None] * dim + to[None, :], (to < dim)[None, :], other=0.0)
                summed = tl.dot(spread, weights, summed)
            vector = tl.sum(summed, 0) + tl.load(projection_bias + to, to < dim, other=0.0).to(tl.float32)
            tl.store(vectors + to, vector.to(half).to(tl.float32), to < dim)
            tl.debug_barrier()
        best = tl.full((ahead,), -_INF, tl.float32)
        token = tl.zeros((ahead,), tl.int32)
        total = tl.zeros((ahead,), tl.float32)
        inside = place + steps < last
        for first in tl.static_range(0, vocab, block):
            ids = first + tl.arange(0, block)
            logits = tl.zeros((ahead, block), tl.float32)
            for start in range(0, dim, depth):
                at = start + deep
                frame = tl.load(frames + (place + steps)[:, None] * dim + at[None, :], inside[:, None], other=0.0)
                joined = _tanh(frame + tl.load(vectors + at)[None, :]).to(half)
                weights = tl.load(output + at[:, None] * vocab + ids[None, :], (ids < vocab)[None, :], other=0.0)
                logits = tl.dot(joined, weights, logits)
            logits += tl.load(output_bias + ids, ids < vocab, other=0.0).to(tl.float32)[None, :]
            x = logits.to(half).to(tl.float32)
            x = tl.where((ids == blank_id)[None, :], x - penalty, x)
            x = tl.where((x == x) & (x < _INF) & (ids < vocab)[None, :], x, -_INF)
            largest = tl.max(x, 1)
            lowest = tl.min(tl.where(x == largest[:, None], ids[None, :], vocab), 1)
            token = tl.where(largest > best, lowest, token)
            higher = tl.maximum(best, largest)
            base = tl.where(higher > -_INF, higher, 0.0)
            total = total * tl.exp(best - base) + tl.sum(tl.exp(x - base[:, None]), 1)
            best = higher
        speaks = (token != blank_id) & (token != unk_id) & (best > -_INF)
        passed = tl.min(tl.where(speaks, steps, ahead), 0)
        chosen = steps == passed
        symbol = tl.sum(tl.where(chosen, token, 0), 0).to(tl.int64)
        log_prob = -tl.sum(tl.where(chosen, tl.log(total), 0.0), 0)
        found = tl.minimum(place + passed, last)
        hit = (passed < ahead) & (found < last)
        tl.store(tokens + row * room + count, symbol + (found << token_bits), hit)
        tl.store(log_probs + row * room + count, log_prob, hit)
        count += hit.to(tl.int64)
        symbols = tl.where(passed == 0, symbols, 0) + 1
        full = symbols >= max_symbols
        place = found + (hit & full).to(tl.int64)
        symbols = tl.where(hit & (symbols < max_symbols), symbols, 0)
        changed = hit.to(tl.int32)
        at_context = tl.arange(0, context_block)
        moved = tl.load(contexts + at_context + 1, at_context + 1 < context_size, other=0)
        moved = tl.where(at_context == context_size - 1, symbol, moved)
        tl.debug_barrier()  # all have read before anything is written, and the other way round
        tl.store(contexts + at_context, moved, (at_context < context_size) & hit)
        tl.debug_barrier()
    tl.store(counts + row, count)


@triton.jit
def _beam(
    frames,
    num_frames,
    penalties,
    temperatures,
    tables,
    projection,
    projection_bias,
    output,
    output_bias,
    totals,
    hashes,
    contexts,
    vectors,
    pointers,
    log_probs,
    frame_room,
    blank_id,
    unk_id,
    vocab: tl.constexpr,
    dim: tl.constexpr,
    width: tl.constexpr,
    context_size: tl.constexpr,
    context_block: tl.constexpr,
    beam: tl.constexpr,
    rows: tl.constexpr,
    block: tl.constexpr,
    dim_block: tl.constexpr,
    depth: tl.constexpr,
    source_bits: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    frames += row * frame_room * dim
    totals += row * beam
    hashes += row * beam
    contexts += row * beam * context_size
    vectors += row * rows * dim
    pointers += row * frame_room * beam
    log_probs += row * frame_room * beam
    last = tl.load(num_frames + row)
    penalty, temperature = tl.load(penalties + row), tl.load(temperatures + row)
    half = output.dtype.element_ty
    ranks = tl.arange(0, rows)
    alive = ranks < beam
    deep = tl.arange(0, depth)
    ids = tl.arange(0, block)
    columns = tl.arange(0, rows)
    changed = tl.full((), 1, tl.int32)
    for now in range(0, last):
        if changed != 0:
            to = tl.arange(0, dim_block)
            summed = tl.zeros((rows, dim_block), tl.float32)
            for start in range(0, width, depth):
                at = start + deep
                hidden = tl.zeros((rows, depth), tl.float32)
                for position in tl.static_range(context_size):
                    before_it = tl.load(contexts + ranks * context_size + position, alive, other=-1)
                    entry = (position * vocab + tl.maximum(before_it, 0))[:, None] * width + at[None, :]
                    hidden += tl.load(tables + entry, (before_it >= 0)[:, None], other=0.0)
                hidden = tl.maximum(hidden.to(half).to(tl.float32), 0.0).to(half)
                weights = tl.load(projection + at[:, None] * dim + to[None, :], (to < dim)[None, :], other=0.0)
                summed = tl.dot(hidden, weights, summed)
            summed += tl.load(projection_bias + to, to < dim, other=0.0).to(tl.float32)[None, :]
            into = vectors + ranks[:, None] * dim + to[None, :]
            tl.store(into, summed.to(half).to(tl.float32), (to < dim)[None, :])
            tl.debug_barrier()
        x = tl.zeros((rows, block), tl.float32)
        for start in range(0, dim, depth):
            at = start + deep
            frame = tl.load(frames + now * dim + at)
            joined = _tanh(frame[None, :] + tl.load(vectors + ranks[:, None] * dim + at[None, :])).to(half)
            weights = tl.load(output + at[:, None] * vocab + ids[None, :], (ids < vocab)[None, :], other=0.0)
            x = tl.dot(joined, weights, x)
        x += tl.load(output_bias + ids, ids < vocab, other=0.0).to(tl.float32)[None, :]
        x = x.to(half).to(tl.float32)
        x = tl.where((ids == blank_id)[None, :], x - penalty, x)
        x = tl.where((x == x) & (x < _INF) & (ids < vocab)[None, :] & alive[:, None], x, -_INF)
        largest = tl.max(x, 1)
        base = tl.where(largest > -_INF, largest, 0.0)
        scaled = (x - base[:, None]) / temperature
        total = tl.sum(tl.exp(scaled.to(tl.float32)), 1).to(tl.float64)
        before = tl.load(totals + ranks, alive, other=-_INF)
        offset = tl.where(largest > -_INF, before - tl.log(total), -_INF)
        # The best extensions are among the best of each hypothesis; of equal ones the first counts.
        scores = tl.full((rows, rows), -_INF, tl.float64)
        places = tl.zeros((rows, rows), tl.int64)
        for rank in tl.static_range(beam):
            top = tl.max(x, 1)
            lowest = tl.min(tl.where(x == top[:, None], ids[None, :], block), 1)
            score = tl.where(top > -_INF, (top - base) / temperature + offset, -_INF)
            here = columns[None, :] == rank
            scores = tl.where(here, score[:, None], scores)
            places = tl.where(here, (ranks.to(tl.int64) * vocab + lowest)[:, None], places)
            x = tl.where(ids[None, :] == lowest[:, None], -_INF, x)
        best = tl.full((rows,), -_INF, tl.float64)
        flat = tl.zeros((rows,), tl.int64)
        for rank in tl.static_range(beam):
            value = tl.max(tl.max(scores, 1), 0)
            place = tl.min(tl.min(tl.where(scores == value, places, vocab * rows), 1), 0)
            best = tl.where(ranks == rank, value, best)
            flat = tl.where(ranks == rank, tl.where(value > -_INF, place, 0), flat)
            scores = tl.where((places == place) & (scores == value), -_INF, scores)
        source, token = flat // vocab, flat % vocab
        goes_on = tl.max((best > -_INF).to(tl.int32), 0) > 0
        source = tl.where(goes_on & alive, source, tl.where(alive, ranks, 0).to(tl.int64))
        adds = (token != blank_id) & (token != unk_id) & goes_on & alive
        from_total = tl.load(totals + source, alive, other=-_INF)
        hashed = tl.load(hashes + source, alive, other=0)
        mixed = (hashed ^ ((token + 1) * SPREAD)) * MIX
        hashed = tl.where(adds, mixed ^ (mixed >> 29), hashed)
        lives = best > -_INF
        same = (hashed[:, None] == hashed[None, :]) & lives[:, None] & lives[None, :]
        gained = tl.exp(tl.where(same, best[None, :], -_INF) - tl.where(lives, best, 0.0)[:, None])
        merged = best + tl.log(tl.sum(tl.where(same, gained, 0.0), 1))
        repeated = tl.sum((same & (ranks[None, :] < ranks[:, None])).to(tl.int32), 1)
        merged = tl.where(lives & (repeated == 0), merged, -_INF)
        at_context = tl.arange(0, context_block)
        inside = alive[:, None] & (at_context < context_size)[None, :]
        old = contexts + source[:, None] * context_size + at_context[None, :]
        kept = tl.load(old, inside, other=0)
        moved = tl.load(old + 1, inside & (at_context + 1 < context_size)[None, :], other=0)
        moved = tl.where((at_context == context_size - 1)[None, :], token[:, None], moved)
        changed = tl.max((adds | (source != ranks)).to(tl.int32) * alive.to(tl.int32), 0)
        tl.debug_barrier()  # all have read before anything is written, and the other way round
        tl.store(totals + ranks, tl.where(goes_on, merged, before), alive)
        tl.store(hashes + ranks, hashed, alive)
        into_context = contexts + ranks[:, None] * context_size + at_context[None, :]
        tl.store(into_context, tl.where(adds[:, None], moved, kept), inside)
        out = now * beam + ranks
        tl.store(pointers + out, source + tl.where(adds, (token + 1) << source_bits, 0), alive)
        tl.store(log_probs + out, (best - from_total).to(tl.float32), alive)
        tl.debug_barrier()
