"""Poolings: (batch, channels, frames) and the rows' lengths to one vector each.

    TAP   mean                          TSTP  mean and deviation          TSDP  deviation
    ASTP  attention over frames for each channel, weighted mean and deviation
    MHASTP, MQMHASTP  the same for heads of channels; for several queries of such heads

Deviations of TSTP, TSDP and of ASTP's context are unbiased, with 1e-7 under the root; weighted ones are not below
sqrt(1e-7). All are made of centred values: what upstream takes as a difference of squares has lost digits in float32.
Names are upstream's.
"""

from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn

from tritone.families.export.precision import as_dtype
from tritone.families.layers.rows import Rows, mean_and_deviation, weighted, wide, wide_rows
from tritone.families.wespeaker.config import POOLING_HEADS, VARIANCE_GUARD, Pooling

BOTTLENECK = 128  # of ASTP
HEAD_BOTTLENECK = 64
HEAD_LAYERS = 2
QUERIES = 2


class Pool(nn.Module):
    """Base of all. `out_dim`: of what it gives; `min_frames`: what it needs for a finite result."""

    min_frames: int = 1

    def __init__(self, in_dim: int, vectors: int) -> None:
        super().__init__()
        self.out_dim = in_dim * vectors

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        """(batch, channels, frames) -> (batch, out_dim), in the type of `x`."""
        raise NotImplementedError


class Statistics(Pool):
    """TAP, TSDP and TSTP."""

    PARTS: ClassVar[dict[str, tuple[bool, bool]]] = {"TAP": (True, False), "TSDP": (False, True), "TSTP": (True, True)}

    def __init__(self, kind: Pooling, in_dim: int, guard: float) -> None:
        self.guard = guard
        self.mean, self.deviation = self.PARTS[kind]
        super().__init__(in_dim, self.mean + self.deviation)
        self.min_frames = 2 if self.deviation else 1

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        values, rows = wide_rows(x, rows)
        if not self.deviation:
            pooled = rows.mean(values)
        else:
            mean, deviation = mean_and_deviation(values, rows, self.guard)
            pooled = torch.cat([mean, deviation], dim=1) if self.mean else deviation
        return as_dtype(pooled.squeeze(2), x.dtype)


class Attentive(Pool):
    """ASTP; with `context`, attention sees mean and deviation of the row beside each frame."""

    def __init__(self, in_dim: int, *, context: bool = False) -> None:
        super().__init__(in_dim, 2)
        self.context = context
        self.min_frames = 2 if context else 1
        self.linear1 = nn.Conv1d(in_dim * 3 if context else in_dim, BOTTLENECK, 1)
        self.linear2 = nn.Conv1d(BOTTLENECK, in_dim, 1)

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        values, wider = wide_rows(x, rows)
        if self.context:
            # Mean and deviation are the same for all frames: their part of the product is made once.
            frame, row = self.linear1.weight.split([x.shape[1], 2 * x.shape[1]], dim=1)
            statistics = as_dtype(torch.cat(mean_and_deviation(values, wider), dim=1), x.dtype)
            hidden = torch.conv1d(x, frame) + torch.conv1d(statistics, row, self.linear1.bias)
        else:
            hidden = self.linear1(x)
        return as_dtype(weighted(values, wide(self.linear2(torch.tanh(hidden))), wider), x.dtype)


class MultiHead(Pool):
    """MHASTP: each of some chunks of channels has a small network of its own for its scores.

    `scores_for_each`: a score for each channel of a chunk, otherwise one for all of it.
    """

    def __init__(self, in_dim: int, *, heads: int = POOLING_HEADS["MHASTP"], scores_for_each: bool = False) -> None:
        super().__init__(in_dim, 2)
        width = in_dim // heads
        sizes = [width, *[HEAD_BOTTLENECK] * (HEAD_LAYERS - 1), width if scores_for_each else 1]
        self.heads_att_trans = nn.ModuleList(_head(sizes) for _ in range(heads))

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        values, wider = wide_rows(x, rows)
        count = len(self.heads_att_trans)
        parts = [
            weighted(chunk, wide(head(narrow)), wider)
            for head, chunk, narrow in zip(
                self.heads_att_trans, values.chunk(count, dim=1), x.chunk(count, dim=1), strict=True
            )
        ]
        return as_dtype(torch.cat(parts, dim=1), x.dtype)


def _head(sizes: list[int]) -> nn.Sequential:
    head = nn.Sequential()
    for place, (before, after) in enumerate(pairwise(sizes)):
        if place:
            head.add_module(f"tanh{place - 1}", nn.Tanh())
        head.add_module(f"att_{place}", nn.Conv1d(before, after, 1))
    return head


class MultiQuery(Pool):
    """MQMHASTP: several of MHASTP side by side."""

    def __init__(self, in_dim: int) -> None:
        super().__init__(in_dim, 2 * QUERIES)
        heads = POOLING_HEADS["MQMHASTP"]
        self.n_query = nn.ModuleList(MultiHead(in_dim, heads=heads, scores_for_each=True) for _ in range(QUERIES))

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        return torch.cat([query(x, rows) for query in self.n_query], dim=1)


def pooling(kind: Pooling, in_dim: int, *, context: bool = False, guard: float = VARIANCE_GUARD) -> Pool:
    """The pooling of a name; `context` matters to ASTP alone, as upstream, `guard` to unweighted deviations."""
    if kind == "ASTP":
        return Attentive(in_dim, context=context)
    if kind == "MHASTP":
        return MultiHead(in_dim)
    if kind == "MQMHASTP":
        return MultiQuery(in_dim)
    return Statistics(kind, in_dim, guard)
