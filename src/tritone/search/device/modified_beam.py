"""Modified beam search of transducers on the device: all hypotheses of a batch at once, a frame a step.

    encoder_out (batch, frames, dim), num_frames, blank penalties, temperatures  ->  back-pointers and scores

It is what `transducer/modified_beam.py` does without a scorer and without ever deciding early; `hypotheses` there reads
the result. Hypotheses with the same tokens are known by a hash of 64 bits. Scores are float64.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tritone.search.device.greedy import usable

SOURCE_BITS = 8  # of a back-pointer: the hypothesis before; above them is the token, counted from 1, or 0 for none
FEW = 8  # hypotheses that are found one after the other
_MIX, _SPREAD = 0x9E3779B97F4A7C15 - 2**64, 0x2545F4914F6CDD1D

Network = Callable[..., Tensor]


class ModifiedBeamLoop:
    """The search as a loop of steps over its state, tensors of sizes that do not change.

    The state: the number of the frame (1,), log-probabilities of the hypotheses (batch, beam), -inf where there is
    none, hashes of their tokens (batch, beam), contexts (batch, beam, context_size), their vectors (batch · beam, dim),
    back-pointers and log-probabilities of the tokens of each frame (batch, frames, beam); then what never changes:
    frames (batch, frames, dim), their number (batch,), blank penalties (batch · beam,), temperatures (batch, 1, 1).
    """

    def __init__(
        self,
        predict: Network,
        join: Network,
        *,
        beam: int,
        start: tuple[int, ...],
        vocab_size: int,
        blank_id: int,
        unk_id: int | None,
        penalised: bool = False,
        device: torch.device | str = "cpu",
        kernels: Any = None,
    ) -> None:
        """Take the network.

        Args:
            predict, join: as of `Network`, of tensors.
            beam: hypotheses kept after each frame.
            start: the context before the first token.
            penalised: whether any row has a blank penalty.
            kernels: the module of that name, where its kernels can run, to take fewer of them.
        """
        self._kernels, self._unk_id = kernels, -1 if unk_id is None else unk_id
        self._predict, self._join = predict, join
        self._beam, self._vocab_size, self._blank_id, self._penalised = beam, vocab_size, blank_id, penalised
        self._context = torch.tensor(start, dtype=torch.int64, device=device)
        self._speaks = torch.ones(vocab_size, dtype=torch.bool, device=device)
        self._speaks[blank_id] = False
        if unk_id is not None:
            self._speaks[unk_id] = False
        self._ranks = torch.arange(beam, device=device)

    def start(self, encoder_out: Tensor, num_frames: Tensor, penalties: Tensor, temperatures: Tensor) -> list[Tensor]:
        """The state before the first frame.

        Args:
            encoder_out: (batch, frames, dim); what lies at or beyond `num_frames` (batch,) is ignored.
        """
        (batch, frames, _), beam, device = encoder_out.shape, self._beam, encoder_out.device
        totals = torch.full((batch, beam), -torch.inf, dtype=torch.float64, device=device)
        totals[:, 0] = 0.0
        contexts = self._context.expand(batch, beam, -1).contiguous()
        pointers = torch.zeros(batch, frames, beam, dtype=torch.int64, device=device)
        return [
            torch.zeros(1, dtype=torch.int64, device=device),
            totals,
            torch.zeros(batch, beam, dtype=torch.int64, device=device),
            contexts,
            self._predict(contexts.flatten(0, 1)),
            pointers,
            torch.zeros(pointers.shape, dtype=torch.float32, device=device),
            encoder_out,
            num_frames,
            penalties.repeat_interleave(beam),
            temperatures.to(torch.float64).view(-1, 1, 1),
        ]

    def step(self, *state: Tensor) -> list[Tensor]:
        """Search the next frame of each row; rows without one stay as they are."""
        frame, totals, hashes, contexts, vectors, pointers, log_probs, frames, num_frames, penalties, temperatures = (
            state
        )
        batch, beam = totals.shape
        if self._kernels is not None:
            logits = self._join(*self._kernels.spread_frame(frames, frame, vectors, beam))
            frame, totals, hashes, contexts = self._kernels.beam_step(
                logits,
                (frame, totals, hashes, contexts, pointers, log_probs, num_frames, penalties, temperatures),
                blank_id=self._blank_id,
                unk_id=self._unk_id,
                source_bits=SOURCE_BITS,
            )
            vectors = self._predict(contexts.flatten(0, 1))
            return [
                *(frame, totals, hashes, contexts, vectors, pointers, log_probs),
                *(frames, num_frames, penalties, temperatures),
            ]
        now = frames.index_select(1, frame.clamp(max=frames.shape[1] - 1))
        logits = self._join(now.expand(-1, beam, -1).reshape(batch * beam, -1), vectors)
        logits = usable(logits, penalties if self._penalised else None, self._blank_id)
        scores = normalised(logits.view(batch, beam, -1), temperatures)
        best, at = best_of((totals.unsqueeze(2) + scores).flatten(1), beam)
        source, token = at // self._vocab_size, at % self._vocab_size
        # A row that has ended, or whose frame rules out everything, is passed over.
        goes_on = ((frame < num_frames) & (best[:, 0] > -torch.inf)).unsqueeze(1)
        source = torch.where(goes_on, source, self._ranks)
        adds = self._speaks[token] & goes_on
        before = totals.gather(1, source)
        hashes = hashes.gather(1, source)
        hashes = torch.where(adds, hashed(hashes, token), hashes)
        summed = merged(best, hashes.unsqueeze(2) == hashes.unsqueeze(1))
        contexts = contexts.gather(1, source.unsqueeze(2).expand_as(contexts))
        longer = torch.cat([contexts[:, :, 1:], token.unsqueeze(2)], dim=2)
        contexts = torch.where(adds.unsqueeze(2), longer, contexts)
        place = frame.clamp(max=frames.shape[1] - 1)
        pointer = source + torch.where(adds, (token + 1) << SOURCE_BITS, 0)
        # Steps beyond the last frame write what is there.
        beyond = frame >= frames.shape[1]
        pointers.index_copy_(1, place, torch.where(beyond, pointers[:, -1], pointer).unsqueeze(1))
        gains = torch.where(beyond, log_probs[:, -1], (best - before).to(torch.float32))
        log_probs.index_copy_(1, place, gains.unsqueeze(1))
        return [
            *(frame + 1, torch.where(goes_on, summed, totals), hashes, contexts),
            *(self._predict(contexts.flatten(0, 1)), pointers, log_probs, frames, num_frames, penalties, temperatures),
        ]

    def left(self, *state: Tensor) -> Tensor:
        """How many frames there are to search."""
        return (state[8].max() - state[0]).clamp(min=0).sum()

    def finish(self, *state: Tensor) -> list[Tensor]:
        """Log-probabilities of the hypotheses, back-pointers int32, and log-probabilities of the added tokens."""
        return [state[1].clone(), state[5].to(torch.int32), state[6].clone()]


def normalised(logits: Tensor, temperatures: Tensor) -> Tensor:
    """Log-probabilities float64 of logits (batch, beam, n) over temperatures (batch, 1, 1); -inf where all are."""
    return (logits / temperatures).log_softmax(-1).nan_to_num(-torch.inf, neginf=-torch.inf)


def best_of(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of the last axis, best first and of equal ones the first: values and places."""
    if count > FEW:
        values, places = scores.sort(dim=-1, descending=True, stable=True)
        return values[..., :count], places[..., :count]
    found = []
    for _ in range(count):
        found.append(scores.max(-1, keepdim=True))
        scores = scores.scatter(-1, found[-1].indices, -torch.inf)
    return torch.cat([each.values for each in found], -1), torch.cat([each.indices for each in found], -1)


def hashed(hashes: Tensor, tokens: Tensor) -> Tensor:
    """Hashes of token sequences, each a token longer."""
    mixed = (hashes ^ ((tokens + 1) * _SPREAD)) * _MIX
    return mixed ^ (mixed >> 29)


def merged(scores: Tensor, same: Tensor) -> Tensor:
    """Have the first of the hypotheses that are the same, (batch, beam, beam), the sum of all, and the others -inf."""
    same = same & (scores > -torch.inf).unsqueeze(1)
    summed = torch.where(same, scores.unsqueeze(1), -torch.inf).logsumexp(2)
    return torch.where(same.tril(-1).any(2), -torch.inf, summed)
