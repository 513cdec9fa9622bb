"""Greedy search of transducers on the device: all utterances of a batch at once, in steps that can be recorded.

    encoder_out (batch, frames, dim), num_frames, contexts, blank penalties  ->  tokens with frames and confidences

Each step joins the next `LOOK_AHEAD` frames of every row with its present context, and each row goes on after its first
token, or after them all. It is what `transducer/greedy.py` does, with blocks of one size; the result is the same.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

LOOK_AHEAD = 8  # frames, at most
FEW_FRAMES, FEW_AHEAD = 16, 4  # of a chunk of a stream, and what is enough to look ahead there
TOKEN_BITS = 24

Network = Callable[..., Tensor]


def look_ahead(frames: int) -> int:
    """How many frames a step joins where each row has so many.

    The row with the most tokens takes a step for each, so in a short chunk there are next to no blanks to save steps
    at: with five tokens a second and frames of 80 ms, 256 chunks of 14 frames take 27, 18, 15, 15 and 14 steps with 1,
    2, 4, 8 and 16 frames, and of 28 frames 50, 31, 24, 23 and 23 (simulated).
    """
    most = LOOK_AHEAD if frames > FEW_FRAMES else FEW_AHEAD
    return min(LOOK_AHEAD, most, 1 << max(0, frames - 1).bit_length())


class GreedyLoop:
    """The search as a loop of steps over its state, tensors of sizes that do not change.

    The state: where each row is among all frames (batch,), tokens found in that frame (batch,), contexts (batch,
    context_size), their vectors (batch, dim), how many tokens there are (batch,), the tokens, each with the place of
    its frame (batch, tokens + 1), their log-probabilities likewise; then what never changes: frames (places, dim), the
    place after each row's last frame, and blank penalties (batch,).
    """

    def __init__(
        self,
        predict: Network,
        join: Network,
        *,
        vocab_size: int,
        blank_id: int,
        unk_id: int | None,
        max_symbols: int = 1,
        penalised: bool = False,
        look_ahead: int = LOOK_AHEAD,
        device: torch.device | str = "cpu",
        kernels: Any = None,
    ) -> None:
        """Take the network.

        Args:
            predict, join: as of `Network`, of tensors.
            max_symbols: the most tokens of one frame.
            penalised: whether any row has a blank penalty.
            kernels: the module of that name, where its kernels can run, to take fewer of them.
        """
        self._kernels, self._unk_id = kernels, -1 if unk_id is None else unk_id
        self._predict, self._join = predict, join
        self._blank_id = blank_id
        self._max_symbols, self._penalised, self._look_ahead = max_symbols, penalised, look_ahead
        self._speaks = torch.ones(vocab_size, dtype=torch.int64, device=device)  # 0 for what counts as blank
        self._speaks[blank_id] = 0
        if unk_id is not None:
            self._speaks[unk_id] = 0
        self._ahead = torch.arange(look_ahead, device=device)
        self._worth = (look_ahead - self._ahead) << TOKEN_BITS  # the first token is worth most

    def start(self, encoder_out: Tensor, num_frames: Tensor, contexts: Tensor, penalties: Tensor) -> list[Tensor]:
        """The state before the first step.

        Args:
            encoder_out: (batch, frames, dim); what lies at or beyond `num_frames` (batch,) is ignored.
        """
        batch, frames, dim = encoder_out.shape
        width = frames + self._look_ahead
        first = torch.arange(batch, device=encoder_out.device) * width
        padded = torch.nn.functional.pad(encoder_out, (0, 0, 0, self._look_ahead)).reshape(-1, dim)
        counts = torch.zeros_like(num_frames)
        tokens = torch.zeros(batch, frames * self._max_symbols + 1, dtype=torch.int64, device=encoder_out.device)
        log_probs = torch.zeros(tokens.shape, dtype=torch.float32, device=encoder_out.device)
        state = [first, counts, contexts.clone(), self._predict(contexts), counts.clone(), tokens, log_probs]
        return [*state, padded, first + num_frames, penalties.unsqueeze(1).repeat(1, self._look_ahead).reshape(-1)]

    def step(self, *state: Tensor) -> list[Tensor]:
        """Search the next frames of each row; the tokens are written in place."""
        place, symbols, contexts, vectors, counts, tokens, log_probs, frames, end, penalties = state
        batch, ahead = len(place), self._look_ahead
        if self._kernels is not None:
            logits = self._join(*self._kernels.spread(frames, place, vectors, ahead))
            place, symbols, contexts, counts = self._kernels.greedy_step(
                logits,
                (place, symbols, contexts, counts, tokens, log_probs, end, penalties),
                blank_id=self._blank_id,
                unk_id=self._unk_id,
                max_symbols=self._max_symbols,
                look_ahead=ahead,
                token_bits=TOKEN_BITS,
            )
            return [
                *(place, symbols, contexts, self._predict(contexts), counts, tokens, log_probs),
                *(frames, end, penalties),
            ]
        places = place.unsqueeze(1) + self._ahead
        joined = frames.index_select(0, places.reshape(-1))
        logits = self._join(joined, vectors.unsqueeze(1).expand(batch, ahead, -1).reshape(batch * ahead, -1))
        logits = usable(logits, penalties if self._penalised else None, self._blank_id)
        best = logits.max(1)
        # Of the frames with a token the first has the largest number, which holds the token too.
        worth = (self._speaks[best.indices] * (best.values > -torch.inf)).view(batch, ahead)
        worth = (worth * (best.indices.view(batch, ahead) + self._worth)).amax(1)
        token, passed = worth & (2**TOKEN_BITS - 1), ahead - (worth >> TOKEN_BITS)
        found = torch.minimum(place + passed, end)
        hit = (passed < ahead) & (found < end)
        row = torch.arange(batch, device=place.device) * ahead + passed.clamp(max=ahead - 1)
        log_prob = logits.index_select(0, row).log_softmax(1).gather(1, token.unsqueeze(1))
        column = counts.unsqueeze(1)  # where there is no token, the next one is written over it
        tokens.scatter_(1, column, (token + (found << TOKEN_BITS)).unsqueeze(1))
        log_probs.scatter_(1, column, log_prob)
        said = hit.unsqueeze(1)
        contexts = torch.where(said, torch.cat([contexts[:, 1:], token.unsqueeze(1)], dim=1), contexts)
        if self._max_symbols == 1:
            place = found + hit
        else:
            symbols = torch.where(passed == 0, symbols, 0) + 1
            full = symbols >= self._max_symbols
            place, symbols = found + (hit & full), torch.where(hit & ~full, symbols, 0)
        return [
            *(place, symbols, contexts, self._predict(contexts), counts + hit, tokens, log_probs),
            *(frames, end, penalties),
        ]

    def left(self, *state: Tensor) -> Tensor:
        """How many frames there are to search, of all rows."""
        return (state[8] - state[0]).sum()

    def finish(self, *state: Tensor) -> list[Tensor]:
        """How many tokens (batch,), ids and frames (2, batch, tokens) int32, log-probabilities, last contexts."""
        _, _, contexts, _, counts, tokens, log_probs, frames, *_ = state
        batch = len(counts)
        ids, places = tokens & (2**TOKEN_BITS - 1), tokens >> TOKEN_BITS
        first = torch.arange(batch, device=tokens.device).unsqueeze(1) * (len(frames) // batch)
        return [counts, torch.stack([ids, places - first]).to(torch.int32), log_probs, contexts]


def usable(logits: Tensor, penalties: Tensor | None, blank_id: int) -> Tensor:
    """Logits with the blank's penalty, and -inf in place of what is not finite."""
    if penalties is not None:
        logits = logits.clone()
        logits[:, blank_id] -= penalties
    return logits.nan_to_num(-torch.inf, -torch.inf, -torch.inf)
