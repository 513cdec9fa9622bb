"""The transducer's loss: minus the logarithm of the summed probability of every alignment of a text to its frames.

    logits (batch, frames, tokens + 1, vocab), targets (batch, tokens)  ->  loss (batch,)

logits[b, t, u] says what follows at frame t after u tokens. An alignment walks from (0, 0) to (frames, tokens). A blank
goes on to the next frame; a token says the next one and stays on its frame, or goes on to the next frame as well where
each frame says one symbol at most (`one_per_frame`).

Both kinds are the same recursion over steps k, with a_k[u] the log-probability of having said u tokens:

    a_{k+1}[u] = log(exp(a_k[u] + stay_k[u]) + exp(a_k[u-1] + arrive_k[u]))

With one symbol a frame, step k is frame k. Otherwise it is the k-th anti-diagonal, whose places (k - u, u) do not
depend on each other. Backward probabilities are the same recursion on the lattice turned round; both run as one batch.

Source: Graves, Sequence Transduction with Recurrent Neural Networks, 2012 (section 2.4, and the gradient in 2.5).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

NEVER = -1e30  # log-probability of what cannot be; finite, so that sums and differences of it stay numbers
IMPOSSIBLE = -1e29  # totals below it have no alignment


def transducer_loss(
    logits: Tensor,
    targets: Tensor,
    num_frames: Tensor,
    num_tokens: Tensor,
    *,
    blank_id: int = 0,
    one_per_frame: bool = False,
) -> Tensor:
    """Negative log-likelihood of each row's target.

    Args:
        logits: (batch, frames, tokens + 1, vocab), not normalised, any floating type; computed in float32.
        targets: (batch, tokens) int64; what lies behind a row's tokens is ignored but must be valid ids.
        num_frames, num_tokens: (batch,) valid frames and tokens of each row, on the device of `logits`.
        one_per_frame: a token takes its frame with it, so that at most one is said a frame.

    Returns:
        (batch,) float32. A row without any alignment (more tokens than frames where each frame says one at most, or no
        frames) is 0 and has no gradient, as `zero_infinity` makes it in CTC.
    """
    norm = logits.float().logsumexp(dim=-1)
    blank = logits[..., blank_id].float() - norm
    wanted = targets[:, None, :, None].expand(-1, logits.shape[1], -1, -1)
    said = logits[:, :, :-1].gather(3, wanted).squeeze(3).float() - norm[:, :, :-1]
    return lattice_loss(blank, said, num_frames, num_tokens, one_per_frame=one_per_frame)


def lattice_loss(
    blank: Tensor, said: Tensor, num_frames: Tensor, num_tokens: Tensor, *, one_per_frame: bool = False
) -> Tensor:
    """The same from log-probabilities: blank (batch, frames, tokens + 1), next token (batch, frames, tokens)."""
    move = F.pad(said, (0, 1), value=NEVER)
    if one_per_frame:
        stay, move = blank.transpose(0, 1), move.transpose(0, 1)  # (steps, batch, tokens + 1)
        over = torch.arange(len(stay), device=stay.device).unsqueeze(1) >= num_frames  # (steps, batch)
        # After its last frame a row waits for the longest one, at no cost.
        stay = stay.masked_fill(over.unsqueeze(2), 0.0)
        move = move.masked_fill(over.unsqueeze(2), NEVER)
    else:
        stay, move = _diagonals(blank, num_frames), _diagonals(move, num_frames)
        places = torch.arange(stay.shape[2], device=stay.device)
        steps = torch.arange(len(stay), device=stay.device)
        arrived = (steps.unsqueeze(1) >= num_frames + num_tokens).unsqueeze(2) & (places == num_tokens.unsqueeze(1))
        stay = stay.masked_fill(arrived, 0.0)
    total = _Lattice.apply(stay.contiguous(), move.contiguous(), num_tokens)
    return torch.where(total > IMPOSSIBLE, -total, 0.0)


def _diagonals(values: Tensor, num_frames: Tensor) -> Tensor:
    """Read (batch, frames, width) along t + u = k: (frames + width - 1, batch, width), `NEVER` outside of the rows."""
    batch, frames, width = values.shape
    steps = torch.arange(frames + width - 1, device=values.device)
    frame = steps.unsqueeze(1) - torch.arange(width, device=values.device)  # (steps, width)
    inside = (frame >= 0) & (frame < num_frames.view(-1, 1, 1))  # (batch, steps, width)
    read = values.gather(1, frame.clamp(0, frames - 1).expand(batch, -1, -1))
    return torch.where(inside, read, NEVER).transpose(0, 1)


class _Lattice(torch.autograd.Function):
    """(stay, move) (steps, batch, width) and final columns (batch,) -> log-probability of arriving there (batch,)."""

    @staticmethod
    def forward(ctx: Any, stay: Tensor, move: Tensor, ends: Tensor) -> Tensor:
        steps, batch, width = stay.shape
        never = stay.new_full((steps, batch, 1), NEVER)
        arrive = torch.cat([never, move[..., :-1]], dim=2)
        columns = torch.arange(width, device=stay.device)
        start = torch.where(columns == torch.zeros_like(ends).unsqueeze(1), 0.0, NEVER)
        finish = torch.where(columns == (width - 1 - ends).unsqueeze(1), 0.0, NEVER)
        scores = walk(
            torch.cat([start, finish]),
            torch.cat([stay, stay.flip(0, 2)], dim=1),
            torch.cat([arrive, move.flip(0, 2)], dim=1),
        )
        forward, backward = scores[:, :batch], scores[:, batch:].flip(0, 2)
        total = forward[-1].gather(1, ends.unsqueeze(1)).squeeze(1)
        possible = (total > IMPOSSIBLE).view(1, -1, 1)
        before = forward[:-1] - total.view(1, -1, 1)
        stayed = torch.exp(before + stay + backward[1:])
        moved = torch.exp(before[..., :-1] + move[..., :-1] + backward[1:, :, 1:])
        ctx.save_for_backward(
            torch.where(possible, stayed, 0.0), F.pad(torch.where(possible, moved, 0.0), (0, 1), value=0.0)
        )
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        stayed, moved = ctx.saved_tensors
        grad = grads[0].view(1, -1, 1)
        return grad * stayed, grad * moved, None


def walk(start: Tensor, stay: Tensor, arrive: Tensor) -> Tensor:
    """Run the recursion: start (rows, width), stay and arrive (steps, rows, width) -> (steps + 1, rows, width).

    On a GPU one kernel walks all steps; the loop here would be bound by kernel launches, several hundred a batch.
    """
    if stay.is_cuda:
        from training.lattice_kernel import walk_kernel

        return walk_kernel(start, stay, arrive)
    steps, rows, width = stay.shape
    scores = stay.new_empty(steps + 1, rows, width + 1)
    scores[..., 0] = NEVER
    scores[0, :, 1:] = start
    for step in range(steps):
        before, after = scores[step], scores[step + 1]
        torch.logaddexp(before[:, 1:] + stay[step], before[:, :-1] + arrive[step], out=after[:, 1:])
    return scores[..., 1:]
