"""CTC on the device: the greedy tokens of a batch, or the best tokens of each frame, as one small block.

    best_tokens, best_log_probs (batch, frames), num_frames (batch,)  ->  (batch, 4, frames + 1) int32  ->  TokenRow
    log_probs (batch, frames, vocab) float32                          ->  (batch, 2, frames, k) int32

Both do what `ctc/greedy.py` and `ctc/prefix_beam.top_tokens` do on the CPU, ties included.
"""

import torch
from torch import Tensor

BLOCK = 32  # tokens whose largest log-probability is looked at first
UNUSED = 2**31 - 1


def greedy_block(best_tokens: Tensor, best_log_probs: Tensor, num_frames: Tensor, blank_id: int) -> Tensor:
    """Merge repeats and drop blanks.

    Args:
        best_tokens, best_log_probs: (batch, frames); what lies at or beyond `num_frames` (batch,) is ignored.

    Returns:
        (batch, 4, frames + 1) int32: for each token, from the first column on, its id, its first frame, the negative of
        the frame after its last, and the bits of the negative of its best log-probability, float32 of at least 0.
        `UNUSED` follows the last token in the first of these rows; nothing behind it is read.
    """
    batch, frames = best_tokens.shape
    times = torch.arange(frames, dtype=torch.int32, device=best_tokens.device)
    ids = torch.where(times < num_frames.unsqueeze(1), best_tokens, blank_id).to(torch.int32)
    spoken = ids != blank_id
    begins = spoken.clone()
    begins[:, 1:] &= ids[:, 1:] != ids[:, :-1]
    # Frames of a token go to its column; all others to the last one, which is never read.
    column = torch.where(spoken, begins.cumsum(1) - 1, frames)
    cost = best_log_probs.to(torch.float32).clamp(max=0).abs().view(torch.int32)  # in the order of the floats
    fields = torch.stack([ids, times.expand_as(ids), -1 - times.expand_as(ids), cost], dim=1)
    block = torch.full((batch, 4, frames + 1), UNUSED, dtype=torch.int32, device=ids.device)
    # The least of a token's frames: its first, its last negated, the best log-probability negated.
    block.scatter_reduce_(2, column.unsqueeze(1).expand_as(fields), fields, "amin")
    block[:, 0, frames] = UNUSED
    return block


def top_block(log_probs: Tensor, k: int) -> Tensor:
    """Find the best tokens of each frame.

    Args:
        log_probs: (batch, frames, vocab) float32, without NaN.
        k: 1 to vocab.

    Returns:
        (batch, 2, frames, k) int32: ids, and the bits of their log-probabilities; best first, of equal ones the lower
        id.

    The vocabulary is cut into blocks. The k blocks with the largest maxima, of equal ones the first, hold the k best
    tokens: of any other block even the best token comes after k others.
    """
    vocab = log_probs.shape[-1]
    whole = vocab // BLOCK
    maxima = [log_probs[..., : whole * BLOCK].unflatten(-1, (whole, BLOCK)).amax(-1)] if whole else []
    if vocab % BLOCK:
        maxima.append(log_probs[..., whole * BLOCK :].amax(-1, keepdim=True))
    blocks = torch.cat(maxima, dim=-1)
    number = torch.arange(blocks.shape[-1], device=log_probs.device)
    best = (-_keys(blocks, number).topk(min(k, blocks.shape[-1]), dim=-1, sorted=False).values) & 0xFFFFFFFF
    ids = (best.unsqueeze(-1) * BLOCK + torch.arange(BLOCK, device=log_probs.device)).flatten(-2)
    values = log_probs.gather(-1, ids.clamp(max=vocab - 1))
    keys = torch.where(ids < vocab, _keys(values, ids), -(2**63))
    keys = keys.topk(k, dim=-1).values
    chosen = (-keys) & 0xFFFFFFFF
    return torch.stack([chosen.to(torch.int32), log_probs.gather(-1, chosen).view(torch.int32)], dim=1)


def _keys(values: Tensor, ids: Tensor) -> Tensor:
    """Integers in the order of the values, float32, and where these are equal in the opposite order of the ids."""
    bits = values.contiguous().view(torch.int32)
    ranks = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return ranks.to(torch.int64) * 2**32 - ids
