"""Texts of windows under way on one device: the network, its caches, and the rules by which tokens are chosen.

windows  ->  slots  ->  rows that begin  ->  steps  ->  for each step the newest tokens of all rows

Everything that a step reads or writes is always in the same place, so that steps can be recorded.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tritone.search.device.attending import Caches, Network, Rows
from tritone.search.device.choosing import Chooser, Column, Specials, Texts

MEDIAN_WIDTH = 7  # positions; as in `search/whisper/alignment.py`


class Step(NamedTuple):
    """The form of a step: how many rows it has, and what is computed for them; see `Chooser.choose`."""

    rows: int
    sampled: bool = False
    scored: bool = False
    beam: int = 1


class Writing:
    """The device's side of texts under way."""

    def __init__(
        self,
        network: Network,
        specials: Specials,
        *,
        windows: int,
        rows: int,
        aligned: int = 0,
        kernels: Any = None,
        beam_kernels: Any = None,
    ) -> None:
        """Take the memory of so many windows and rows, and for times of words that of `aligned` tokens of each row.

        Args:
            kernels, beam_kernels: the module `attending_kernels`, where it can be used, and where it can with beams.
        """
        self.network = network
        self.windows, self.rows, self.context = windows, rows, network.context
        self.caches = Caches(network, windows, rows)
        self.texts = Texts(rows, network.context, network.vocab, network.device)
        self._chooser = Chooser(specials, network.vocab, network.device)
        self._kernels, self._beam_kernels = kernels, beam_kernels
        heads = len(network.sizes.alignment_heads)
        narrow = torch.float16 if network.token_table.element_size() == 2 else torch.float32
        # The last token takes what prompts attend to.
        shape = (rows, aligned + 1, heads, network.positions) if aligned and heads else (0, 0, 0, 0)
        self._attention = torch.zeros(shape, dtype=narrow, device=network.device)

    @property
    def aligns(self) -> bool:
        """Whether there is room for times of words."""
        return bool(self._attention.numel())

    @property
    def kept(self) -> Sequence[Tensor]:
        """What a step changes beside its caches, where it writes the same again if it is taken again."""
        return self.texts.table, self.texts.origin, self.texts.total

    def step(self, form: Step) -> Tensor:
        """Have the first rows read one more token each; returns what `Chooser.choose` does."""
        rows, texts = form.rows, self.texts
        position = texts.column(rows, Column.POSITION).contiguous()
        reads = Rows(
            texts.column(rows, Column.TOKEN),
            position,
            texts.column(rows, Column.WINDOW).contiguous(),
            texts.origin[:rows],
        )
        scores = None
        if form.scored:
            scores = torch.empty(rows, *self._attention.shape[2:], dtype=self._attention.dtype, device=position.device)
        logits = self.network.write(reads, self.caches, scores)
        if scores is not None:
            last = self._attention.shape[1] - 1
            place = position - texts.column(rows, Column.QUIET)
            place = torch.where(place < 0, last, place.clamp(max=last))
            self._attention[torch.arange(rows, device=place.device), place] = scores
        kernels = self._kernels if form.beam == 1 else self._beam_kernels
        if kernels is not None:
            found: Tensor = kernels.choose(self._chooser, logits, texts, sampled=form.sampled, beam=form.beam)
            return found
        return self._chooser.choose(logits, texts, sampled=form.sampled, scored=form.scored, beam=form.beam)

    def attention(self, rows: Tensor, positions: int) -> Tensor:
        """How much each token of a text attended to each position, (tokens, positions) float32.

        Args:
            rows: (tokens,) int64, in which row each token from the start token on was read.
            positions: those of the recording alone.

        See `search.whisper.alignment` for what becomes of the heads' scores.
        """
        each = torch.arange(len(rows), device=rows.device)
        weights = self._attention[rows, each, :, :positions].float().softmax(-1).transpose(0, 1)
        deviation = weights.std(dim=1, keepdim=True, correction=0)
        weights = (weights - weights.mean(dim=1, keepdim=True)) / torch.where(deviation > 0, deviation, 1.0)
        pad = MEDIAN_WIDTH // 2
        if positions > pad:
            around = torch.nn.functional.pad(weights, (pad, pad), mode="reflect").unfold(-1, MEDIAN_WIDTH, 1)
            weights = around.median(-1).values
        return weights.mean(0)
