"""Modified beam search on the device with a predictor that has a state, such as an LSTM; of TDT models with durations.

    encoder_out (batch, frames, dim), where each row's search stands  ->  back-pointers, and scores of the hypotheses

It is what `transducer/modified_beam.py` does with such a predictor, a frame a step: hypotheses, states, scores and
what hotwords add are in the device's memory; `transducer/traced.py` reads the tokens. Hypotheses with the same tokens
are known by a hash of 64 bits. Scores are float64.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tritone.search.device.bonuses import BonusTables
from tritone.search.device.greedy import usable
from tritone.search.device.modified_beam import SOURCE_BITS, best_of, hashed, merged, normalised
from tritone.search.device.stateful import Join, StateRows, Step, idle_token

SCORE, BONUS, ENDING = range(3)  # of hypotheses, in what `finish` gives
POINTER, SPAN, SAID = range(3)  # of extensions, likewise


class Number(IntEnum):
    """What stands for a row in each column of `StatefulBeamLoop.start`'s numbers."""

    FIRST = 0  # of its frames that is searched,
    FRAMES = 1  # and how many are
    READS = 2  # row of the memory that it starts with
    WRITES = 3  # row of the memory that keeps where it ends
    ENTRY = 4  # of a search that begins, its row in the tables of what hotwords add; -1 for where it stands
    KEPT = 5  # bits of the hypotheses that are not dropped


def beam_rows(vector: np.ndarray[Any, Any], states: Sequence[Any], beam: int, device: str | torch.device) -> StateRows:
    """The memory of searches: scores, bonuses, hashes, frames ahead, rows of `BonusTables`, vectors, states.

    Args:
        vector, states: (1, …) what the first token is joined with, and the states that it is given.
        beam: hypotheses of each search.
    """
    alone = np.full((1, beam), -np.inf)
    alone[:, 0] = 0.0
    none = np.zeros((1, beam), np.int64)
    each = (np.repeat(np.array(part)[:, None], beam, 1) for part in (vector, *states))
    return StateRows([alone, np.zeros((1, beam)), none, none, none, *each], device)


class StatefulBeamLoop:
    """The search as a loop of steps over its state, tensors of sizes that do not change.

    The state: the number of the frame (1,), the `beam_rows` of the batch (batch, beam), vectors and states as rows
    (batch · beam, …), `found` (batch, 3, frames + 1, beam) int32 of extensions, written in place; then what never
    changes: frames (batch, frames, dim), the numbers of `start`, blank penalties (batch · beam,) and temperatures.
    """

    def __init__(
        self,
        predict: Step,
        join: Join,
        rows: StateRows,
        tables: BonusTables | None,
        *,
        beam: int,
        vocab_size: int,
        blank_id: int,
        durations: Sequence[int] = (),
        penalised: bool = False,
        device: torch.device | str = "cpu",
        kernels: Any = None,
    ) -> None:
        """Take the network.

        Args:
            predict, join, kernels: as of `StatefulLoop`.
            rows: `beam_rows`; there are some.
            tables: what hotwords add, None if no row has any.
            beam: hypotheses kept after each frame.
            penalised: whether any row has a blank penalty.
        """
        self._predict, self._join, self._rows, self._tables, self._kernels = predict, join, rows, tables, kernels
        self._beam, self._vocab_size, self._blank_id, self._penalised = beam, vocab_size, blank_id, penalised
        self._idle = idle_token(vocab_size, blank_id)
        self._steps = torch.tensor(durations or [1], dtype=torch.int64, device=device).clamp(min=1)
        self._has_spans = bool(len(durations))
        # What stands for a hypothesis that stays what it is: the blank, for certain.
        self._silence = torch.full((vocab_size,), -torch.inf, dtype=torch.float64, device=device)
        self._silence[blank_id] = 0.0
        self._first_span = torch.full((len(self._steps),), -torch.inf, dtype=torch.float64, device=device)
        self._first_span[0] = 0.0
        self._ranks = torch.arange(beam, device=device)

    def start(self, encoder_out: Tensor, numbers: Tensor, penalties: Tensor, temperatures: Tensor) -> list[Tensor]:
        """The state before the first frame.

        Args:
            encoder_out: (batch, frames, dim); what lies at or beyond a row's frames is ignored.
            numbers: (batch, 6) int64, see `Number`.
            penalties: (batch,) float32, subtracted from the blank's logit.
            temperatures: (batch,) float64, divide the logits.
        """
        (batch, frames, _), beam = encoder_out.shape, self._beam
        reads = numbers[:, Number.READS]
        scores, bonuses, hashes, places, entries, *kept = (each.index_select(0, reads) for each in self._rows.tensors)
        lives = (numbers[:, Number.KEPT :] >> self._ranks) & 1 > 0
        entry = numbers[:, Number.ENTRY].unsqueeze(1)
        return [
            torch.zeros(1, dtype=torch.int64, device=numbers.device),
            torch.where(lives, scores, -torch.inf),
            *(bonuses, hashes, places, torch.where(entry < 0, entries, entry)),
            *(each.flatten(0, 1) for each in kept),
            torch.zeros(batch, 3, frames + 1, beam, dtype=torch.int32, device=numbers.device),
            *(encoder_out, numbers, penalties.repeat_interleave(beam), temperatures.to(torch.float64).view(-1, 1, 1)),
        ]

    def step(self, *state: Tensor) -> list[Tensor]:
        """Search the next frame of each row; rows without one stay as they are."""
        frame, *beam, vectors = state[:7]
        *states, found, frames, numbers, penalties, temperatures = state[7:]
        if self._kernels is not None:
            logits = self._join(*self._kernels.spread_frame(frames, frame, vectors, self._beam, numbers))
            *new, rows, given, adds = self._kernels.stateful_beam_step(
                logits,
                (frame, *beam, found, numbers, penalties, temperatures),
                steps=self._steps,
                tables=None if self._tables is None else (self._tables.gains, self._tables.following),
                vocab_size=self._vocab_size,
                blank_id=self._blank_id,
                idle_id=self._idle,
                source_bits=SOURCE_BITS,
            )
        else:
            *new, rows, given, adds = self._extended(
                frame, beam, vectors, found, frames, numbers, penalties, temperatures
            )
        before = [each.index_select(0, rows) for each in (vectors, *states)]
        after = (
            torch.where(adds.view(-1, *[1] * (old.dim() - 1)), new, old)
            for new, old in zip(self._predict(given.unsqueeze(1), *before[1:]), before, strict=True)
        )
        return [*new, *after, found, frames, numbers, penalties, temperatures]

    def _extended(self, frame: Tensor, state: Sequence[Tensor], vectors: Tensor, found: Tensor, *more: Tensor) -> Any:
        """What `kernels.stateful_beam_step` gives, by torch's operators."""
        scores, bonuses, hashes, places, entries = state
        frames, numbers, penalties, temperatures = more
        (batch, beam), vocab, ranks = scores.shape, self._vocab_size, self._ranks
        row = torch.arange(batch, device=frame.device)
        now = frames[row, (numbers[:, Number.FIRST] + frame).clamp(max=frames.shape[1] - 1)].unsqueeze(1)
        logits = self._join(now.expand(-1, beam, -1).reshape(batch * beam, -1), vectors)
        logits = usable(logits, penalties if self._penalised else None, self._blank_id).view(batch, beam, -1)
        said, spans = normalised(logits[..., :vocab], temperatures), self._spans(logits[..., vocab:], temperatures)
        lives, waits = scores > -torch.inf, places > frame
        # Where a frame rules out everything for all hypotheses in it, they stay what they are.
        speaks = (lives & ~waits & (said.amax(2) > -torch.inf)).any(1, keepdim=True)
        stays = (waits | ~speaks).unsqueeze(2)
        said, spans = torch.where(stays, self._silence, said), torch.where(stays, self._first_span, spans)
        best, source, token, span = self._best(scores + bonuses, said, spans, entries)
        on = (frame < numbers[:, Number.FRAMES]).unsqueeze(1)
        source, lives = torch.where(on, source, ranks), best > -torch.inf
        adds = (token != self._blank_id) & lives & on
        place = self._place(frame, waits.gather(1, source), speaks, places.gather(1, source), span)
        log_prob = said.flatten(1).gather(1, source * vocab + token)
        gained = log_prob + spans.flatten(1).gather(1, source * spans.shape[2] + span)
        hashes = hashes.gather(1, source)
        hashes = torch.where(adds, hashed(hashes, token), hashes)
        new = torch.where(lives, scores.gather(1, source) + gained, -torch.inf)
        # Those with the same tokens at the same place are one.
        new = merged(new, (hashes.unsqueeze(2) == hashes.unsqueeze(1)) & (place.unsqueeze(2) == place.unsqueeze(1)))
        scores, places = torch.where(on, new, scores), torch.where(on, place, places)
        bonuses, entries = bonuses.gather(1, source), entries.gather(1, source)
        if self._tables is not None:
            at = entries * vocab + token
            bonuses = bonuses + torch.where(adds, self._tables.gains.flatten()[at], 0.0)
            entries = torch.where(adds, self._tables.following.flatten()[at].to(torch.int64), entries)
        pointer = source + torch.where(adds, (token + 1) << SOURCE_BITS, 0)
        fields = [
            pointer.to(torch.int32),
            (place - frame).to(torch.int32),
            log_prob.to(torch.float32).view(torch.int32),
        ]
        # What steps beyond the last frame write is never read.
        found.index_copy_(2, frame.clamp(max=frames.shape[1]), torch.stack(fields, 1).unsqueeze(2))
        rows, given = row.unsqueeze(1) * beam + source, torch.where(adds, token, self._idle)
        return frame + 1, scores, bonuses, hashes, places, entries, rows.flatten(), given.flatten(), adds.flatten()

    def left(self, *state: Tensor) -> Tensor:
        """How many frames there are to search."""
        return (state[-3][:, Number.FRAMES].max() - state[0]).clamp(min=0).sum()

    def finish(self, *state: Tensor) -> list[Tensor]:
        """Keep the hypotheses' states, and give what is to be known of them.

        Returns:
            (batch, 3, beam) float64: log-probabilities, bonuses, and what the end of the text would add to these;
            (batch, beam) int64, hashes of their tokens; (batch, 3, frames, beam) int32: back-pointers, frames that each
            extension takes, and the bits of its token's log-probability, float32.
        """
        _, scores, bonuses, hashes, places, entries, *kept, found, _, numbers, _, _ = state
        (batch, beam), writes = scores.shape, numbers[:, Number.WRITES]
        ahead = (places - numbers[:, Number.FRAMES].unsqueeze(1)).clamp(min=0)
        after = (scores, bonuses, hashes, ahead, entries, *(each.unflatten(0, (batch, beam)) for each in kept))
        for into, values in zip(self._rows.tensors, after, strict=True):
            into.index_copy_(0, writes, values)
        endings = torch.zeros_like(bonuses) if self._tables is None else self._tables.endings[entries]
        return [torch.stack([scores, bonuses, endings], 1), hashes.clone(), found[:, :, :-1].contiguous()]

    def _spans(self, logits: Tensor, temperatures: Tensor) -> Tensor:
        """Log-probabilities of the durations (batch, beam, durations); if all are ruled out the first is sure."""
        if not self._has_spans:
            return self._first_span.expand(*logits.shape[:2], 1)
        found = normalised(logits, temperatures)
        return torch.where(found.amax(2, keepdim=True) > -torch.inf, found, self._first_span)

    def _best(
        self, totals: Tensor, said: Tensor, spans: Tensor, entries: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The best extensions (batch, beam), best first: their totals, hypotheses, tokens and numbers of durations."""
        scores = totals.unsqueeze(2) + said
        if self._tables is not None:
            scores = scores + self._tables.gains[entries]
        # None of a hypothesis' extensions is among the best whose token is not among its own best.
        values, tokens = best_of(scores, min(self._beam, self._vocab_size))
        count = spans.shape[2]
        best, at = best_of((values.unsqueeze(3) + spans.unsqueeze(2)).flatten(1), self._beam)
        pair = at // count
        return best, pair // tokens.shape[2], tokens.flatten(1).gather(1, pair), at % count

    def _place(self, frame: Tensor, waits: Tensor, speaks: Tensor, places: Tensor, span: Tensor) -> Tensor:
        """The frames that extensions go on with (batch, beam)."""
        if not self._has_spans:
            return (frame + 1).expand(places.shape)
        return torch.where(waits, places, frame + torch.where(speaks, self._steps[span], 1))
