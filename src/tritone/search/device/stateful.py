"""Greedy search on the device with a predictor that has a state, such as an LSTM; of TDT models with durations.

    encoder_out (batch, frames, dim), where each row's search stands  ->  tokens with frames, ends and log-probabilities

Each step joins the next `look_ahead` frames of every row with the vector of its last token, follows its blanks through
them, and goes on after its first token, or after them all. The predictor takes a step in all rows, and those with a
token keep what it finds. It is what `transducer/stateful.py` does; the result is the same.
"""

from collections import deque
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tritone.search.device.greedy import LOOK_AHEAD, usable

NOBODY, FIRST = 0, 1  # rows that nobody owns: what is written there is lost; how all searches start
LEAST_ROWS, MOST_ROWS, USUAL_BYTES = 16, 1024, 2**24  # of `StateRows` at first

Join = Callable[[Tensor, Tensor], Tensor]
Step = Callable[..., Sequence[Tensor]]


class Number(IntEnum):
    """What stands for a row in each column of `StatefulLoop.start`'s numbers."""

    FRAMES = 0
    AHEAD = 1  # frames to skip
    SYMBOLS = 2  # tokens of the frame that it is in
    MOST = 3  # tokens that a frame may have
    READS = 4  # row of `StateRows` that it starts with
    WRITES = 5  # row of `StateRows` that keeps where it ends


def idle_token(vocab_size: int, blank_id: int) -> int:
    """What rows without a new token give the predictor in vain; the blank may have no vector."""
    return 0 if blank_id else min(1, vocab_size - 1)


class StateRows:
    """The predictor's states in searches that go on, in rows of tensors on the device.

    `tensors`: (rows, …) each, first the vectors that frames are joined with, then the states. `free`: rows that nobody
    owns; whoever takes one appends it again.
    """

    def __init__(self, first: Sequence[np.ndarray[Any, Any]], device: torch.device | str = "cpu") -> None:
        """Take what a search starts with, (1, …) each; there are no rows before `grow`."""
        self._first, self._device = [torch.from_numpy(np.array(each)) for each in first], device
        self.tensors: list[Tensor] = []
        self.free: deque[int] = deque()

    def grow(self) -> None:
        """Make twice as many rows; those that there are keep what they have, in other memory."""
        before = len(self.tensors[0]) if self.tensors else 0
        usual = USUAL_BYTES // sum(each.nbytes for each in self._first)
        rows = 2 * before or 2 + min(MOST_ROWS, max(LEAST_ROWS, usual))
        grown = [each.to(self._device).expand(rows, *each.shape[1:]).clone() for each in self._first]
        for into, tensor in zip(grown, self.tensors, strict=False):
            into[:before] = tensor
        self.tensors = grown
        self.free.extend(range(max(before, FIRST + 1), rows))


class StatefulLoop:
    """The search as a loop of steps over its state, tensors of sizes that do not change.

    The state: the frame that each row is in, or beyond its end (batch,), tokens found in that frame (batch,), how many
    tokens there are (batch,), vectors of the last tokens (batch, dim) and the predictor's states (batch, …), the
    block of `finish`, written in place; then what never changes: frames (places, dim), the place of each row's first,
    the numbers of `start`, and blank penalties (batch · look_ahead,).
    """

    def __init__(
        self,
        predict: Step,
        join: Join,
        rows: StateRows,
        *,
        vocab_size: int,
        blank_id: int,
        durations: Sequence[int] = (),
        max_symbols: int = 1,
        penalised: bool = False,
        look_ahead: int = LOOK_AHEAD,
        device: torch.device | str = "cpu",
        kernels: Any = None,
    ) -> None:
        """Take the network.

        Args:
            predict, join: `step` and `join` of a `StatefulNetwork`, of tensors; the first takes and gives the states
                one by one.
            rows: there are some.
            max_symbols: the most that any row may have tokens of one frame.
            penalised: whether any row has a blank penalty.
            kernels: the module of that name, where its kernels can run, to take fewer of them.
        """
        self._kernels = kernels
        self._predict, self._join, self._rows = predict, join, rows
        self._vocab_size, self._blank_id = vocab_size, blank_id
        self._max_symbols, self._penalised, self._look_ahead = max_symbols, penalised, look_ahead
        self._idle = idle_token(vocab_size, blank_id)
        self._durations = torch.tensor(durations, dtype=torch.int64, device=device) if len(durations) else None
        self._ahead = torch.arange(look_ahead, device=device)
        self._beyond = torch.arange(look_ahead, look_ahead + max(1, *durations, 1), device=device)

    def start(self, encoder_out: Tensor, numbers: Tensor, penalties: Tensor) -> list[Tensor]:
        """The state before the first step.

        Args:
            encoder_out: (batch, frames, dim); what lies at or beyond a row's frames is ignored.
            numbers: (batch, 6) int64, see `Number`.
            penalties: (batch,) float32, subtracted from the blank's logit.
        """
        batch, frames, dim = encoder_out.shape
        width, reads = frames + self._look_ahead, numbers[:, Number.READS]
        padded = torch.nn.functional.pad(encoder_out, (0, 0, 0, self._look_ahead)).reshape(-1, dim)
        room = frames * self._max_symbols + 1
        return [
            *(numbers[:, Number.AHEAD].clone(), numbers[:, Number.SYMBOLS].clone(), torch.zeros_like(reads)),
            *(each.index_select(0, reads) for each in self._rows.tensors),
            torch.zeros(batch, 4, 1 + room, dtype=torch.int32, device=numbers.device),
            *(padded, torch.arange(batch, device=numbers.device) * width, numbers),
            penalties.unsqueeze(1).repeat(1, self._look_ahead).reshape(-1),
        ]

    def step(self, *state: Tensor) -> list[Tensor]:
        """Search the next frames of each row; the tokens are written in place."""
        at, symbols, counts, vectors, *states, block, frames, first, numbers, penalties = state
        batch, ahead = len(at), self._look_ahead
        first_places = first + torch.minimum(at, numbers[:, Number.FRAMES])
        if self._kernels is not None:
            at, symbols, counts, token, hit = self._kernels.stateful_step(
                self._join(*self._kernels.spread(frames, first_places, vectors, ahead)),
                (at, symbols, counts, block, numbers, penalties),
                durations=self._durations,
                vocab_size=self._vocab_size,
                blank_id=self._blank_id,
                idle_id=self._idle,
                look_ahead=ahead,
            )
        else:
            places = (first_places.unsqueeze(1) + self._ahead).reshape(-1)
            repeated = vectors.unsqueeze(1).expand(batch, ahead, -1).reshape(batch * ahead, -1)
            logits = self._join(frames.index_select(0, places), repeated)
            at, symbols, counts, token, hit = self._advanced(logits, at, symbols, counts, block, numbers, penalties)
        found = self._predict(token.unsqueeze(1), *states)
        kept = (
            torch.where(hit.view(-1, *[1] * (old.dim() - 1)), new, old)
            for new, old in zip(found, (vectors, *states), strict=True)
        )
        return [at, symbols, counts, *kept, block, frames, first, numbers, penalties]

    def _advanced(
        self, logits: Tensor, at: Tensor, symbols: Tensor, counts: Tensor, block: Tensor, *more: Tensor
    ) -> Any:
        """What `kernels.stateful_step` gives, by torch's operators."""
        numbers, penalties = more
        batch, ahead = len(at), self._look_ahead
        ends = numbers[:, Number.FRAMES]
        logits = usable(logits, penalties if self._penalised else None, self._blank_id)
        scores = logits[:, : self._vocab_size]
        best = scores.max(1)
        speaks = (best.indices != self._blank_id) & (best.values > -torch.inf)
        # By how many frames each goes on; a blank by one at least.
        spans = 1 - speaks.to(torch.int64)
        if self._durations is not None:
            spans = torch.maximum(self._durations[logits[:, self._vocab_size :].max(1).indices], spans)
        # From each frame the one where its blanks lead: a frame with a token, or beyond the last of these, or the end.
        stays = speaks.view(batch, ahead) | (at.unsqueeze(1) + self._ahead >= ends.unsqueeze(1))
        leads = self._ahead + torch.where(stays, 0, spans.view(batch, ahead))
        leads = torch.cat([leads, self._beyond.expand(batch, -1)], 1)
        for _ in range((ahead - 1).bit_length()):  # each time twice as many blanks are followed
            leads = leads.gather(1, leads)
        passed = leads[:, 0]
        frame = at + passed
        row = torch.arange(batch, device=at.device) * ahead + passed.clamp(max=ahead - 1)
        hit = (passed < ahead) & (frame < ends)  # of those no blank is left
        token, span = best.indices[row], torch.where(hit, spans[row], 0)
        log_prob = scores.index_select(0, row).log_softmax(1).gather(1, token.unsqueeze(1))
        end = torch.minimum(frame + span.clamp(min=1), ends)
        fields = torch.cat([torch.stack([token, frame, end], 1).to(torch.int32), log_prob.view(torch.int32)], 1)
        # Where there is no token, the next one is written over it.
        block.scatter_(2, (counts + 1).view(batch, 1, 1).expand(-1, 4, 1), fields.unsqueeze(2))
        remains = hit & (span == 0)
        symbols = torch.where(passed == 0, symbols, 0) + remains
        full = remains & (symbols >= numbers[:, Number.MOST])
        symbols = torch.where(full | (hit & ~remains), 0, symbols)
        return frame + span + full, symbols, counts + hit, torch.where(hit, token, self._idle), hit

    def left(self, *state: Tensor) -> Tensor:
        """How many frames there are to search, of all rows."""
        return (state[-2][:, Number.FRAMES] - state[0]).clamp(min=0).sum()

    def finish(self, *state: Tensor) -> list[Tensor]:
        """Keep the predictor's states, and give one block (batch, 4, 1 + tokens) int32.

        Its first column is how many tokens there are, frames to skip of those that follow, and tokens of the frame that
        the row is in; each other one a token: id, frame, end, and the bits of its log-probability, float32.
        """
        at, symbols, counts, *kept, block, _, _, numbers, _ = state
        for into, values in zip(self._rows.tensors, kept, strict=True):
            into.index_copy_(0, numbers[:, Number.WRITES], values)
        block[:, :3, 0] = torch.stack([counts, at - numbers[:, Number.FRAMES], symbols], 1).to(torch.int32)
        return [block]
