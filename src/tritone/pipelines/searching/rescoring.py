"""Attention rescoring: the decoder of a model scores whole hypotheses, and the best one may change.

    encoder frames and n-best hypotheses of some utterances  ->  the same hypotheses with new scores, best first

    attention = (1 - reverse_weight) * left + reverse_weight * right
    score     = attention + ctc_weight * log_prob + bonus

Source: wenet/transformer/search.py, `attention_rescoring`; the bonus of the language model and hotwords keeps its
weight here, whatever the weight of CTC.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import Decoder
from tritone.errors import BundleError, InputError
from tritone.pipelines.graphs.choice import open_chosen
from tritone.pipelines.graphs.placement import ON_CPU, Placement
from tritone.runtime.graph import Array
from tritone.search.hypothesis import Hypothesis, ids_of
from tritone.search.options import SearchOptions

TOKEN_STEP = 8  # on a GPU hypotheses are padded to a multiple, so that calls have few shapes and are recorded
MAX_LOGITS = 2**25  # of one graph call, hypotheses * tokens * vocabulary: 128 MB in float32
GPU_CALLS = 4  # a GPU takes so many times the logits and scores of a CPU, so that calls keep it busy
MAX_SCORES = 2**23  # of one graph call, hypotheses * tokens * frames (or tokens): 32 MB for each head of attention


@dataclass(frozen=True)
class HeldFrames:
    """The frames of an utterance that are still on the device: the first ones of a row of what is held there."""

    held: Any  # (rows, frames, output_dim) float32
    row: int
    count: int

    def __len__(self) -> int:
        return self.count


@dataclass(frozen=True)
class Candidate:
    """An utterance whose hypotheses are to be ranked."""

    encoder_out: (
        Array | HeldFrames
    )  # (frames, output_dim) float32; of candidates ranked together all held as one, or none
    hypotheses: Sequence[Hypothesis]  # best first
    options: SearchOptions


@dataclass(frozen=True)
class _Part:
    """Hypotheses `first` to `end` of utterance `index`; `size`: its frames, their number, the longest with its end."""

    index: int
    first: int
    end: int
    size: tuple[int, int, int]


class Rescorer:
    """The decoder graph of a bundle. May be called from several threads."""

    def __init__(self, bundle: Bundle, placement: Placement = ON_CPU) -> None:
        """Open the decoder; arguments and errors as of `open_chosen`."""
        settings = bundle.manifest.decoder
        self.artifact, self._graph = open_chosen(bundle, "decoder", placement)
        if settings is None:
            raise BundleError(f"{bundle.path} has a decoder graph, but `decoder` in its manifest is empty")
        self._settings: Decoder = settings
        self._vocab_size = bundle.manifest.tokens.size
        # An engine has limits of its own; calls with more rows it cuts itself.
        most = self._graph.inputs["encoder_out"].most, self._graph.inputs["hypotheses"].most
        self.max_frames = most[0][1] if most[0] else sys.maxsize
        self._max_hypotheses = most[1][1] if most[1] else sys.maxsize
        self._is_on_gpu: bool = getattr(self._graph, "is_on_gpu", False)
        self._larger = GPU_CALLS if self._is_on_gpu else 1

    def __call__(self, candidates: Sequence[Candidate]) -> list[list[Hypothesis]]:
        """Rank the hypotheses of some utterances by the decoder.

        Returns:
            For each utterance its hypotheses, best first; equal scores keep their order.

        Raises:
            InputError: an utterance is longer than the decoder takes; only TensorRT engines have such a limit.
        """
        if (longest := max((len(each.encoder_out) for each in candidates), default=0)) > self.max_frames:
            raise InputError(
                f"an utterance has {longest} encoder frames, and the engine of the decoder was built for up to "
                f"{self.max_frames}. Cut the audio; or build the engine for more (`tritone engine --max`), or choose "
                "another search or runtime."
            )
        left: list[list[float]] = [[0.0] * len(each.hypotheses) for each in candidates]
        right = [list(row) for row in left]
        for batch in self._plan(candidates):
            parts = [
                replace(candidates[part.index], hypotheses=candidates[part.index].hypotheses[part.first : part.end])
                for part in batch
            ]
            scores = zip(batch, *self._scores(parts), strict=True)
            for part, left_scores, right_scores in scores:
                place, count = slice(part.first, part.end), part.end - part.first
                left[part.index][place] = left_scores[:count].tolist()
                right[part.index][place] = right_scores[:count].tolist()
        return [self._ranked(*each) for each in zip(candidates, left, right, strict=True)]

    def warm_up(self, output_dim: int) -> None:
        """Score a short hypothesis, so that the first real one finds everything ready."""
        frames = np.zeros((8, output_dim), dtype=np.float32)
        self([Candidate(frames, [Hypothesis((), 0.0)], SearchOptions())])

    def _plan(self, candidates: Sequence[Candidate]) -> "list[list[_Part]]":
        """Group hypotheses for graph calls, longest utterances first, within the limits.

        An utterance with too many hypotheses is cut into parts, for each of which the decoder looks at its frames anew.
        A single hypothesis beyond the limits goes alone.
        """
        parts = [part for index, each in enumerate(candidates) for part in self._parts(index, each)]
        batches: list[list[_Part]] = []
        widest = (0, 0, 0)
        for part in sorted(parts, key=lambda part: (part.size, part.index, part.first), reverse=True):
            grown = max(widest[0], part.size[0]), max(widest[1], part.size[1]), max(widest[2], part.size[2])
            frames, hypotheses, tokens = grown
            count = (len(batches[-1]) + 1 if batches else 1) * hypotheses * tokens
            if (
                batches
                and count * self._vocab_size <= MAX_LOGITS * self._larger
                and count * max(frames, tokens) <= MAX_SCORES * self._larger
            ):
                batches[-1].append(part)
                widest = grown
            else:
                batches.append([part])
                widest = part.size
        return batches

    def _parts(self, index: int, candidate: Candidate) -> "list[_Part]":
        """The hypotheses of an utterance, in as many parts as the limits ask for."""
        frames, hypotheses = len(candidate.encoder_out), candidate.hypotheses
        tokens = max((len(each.tokens) for each in hypotheses), default=0) + 1
        most = min(
            (MAX_LOGITS * self._larger) // (tokens * self._vocab_size),
            (MAX_SCORES * self._larger) // (tokens * max(frames, tokens)),
        )
        most = min(max(1, most), self._max_hypotheses)
        cuts = [(first, min(first + most, len(hypotheses))) for first in range(0, len(hypotheses), most)]
        return [_Part(index, first, end, (frames, end - first, tokens)) for first, end in cuts]

    def _scores(self, candidates: Sequence[Candidate]) -> tuple[Array, Array]:
        """Scores (utterances, hypotheses) by the left decoder, and by the right one if any options need it, else 0."""
        batch, longest = (
            len(candidates),
            max((len(each.tokens) for row in candidates for each in row.hypotheses), default=0),
        )
        if self._is_on_gpu:  # rows that are added have a frame and no tokens
            batch, longest = 1 << (batch - 1).bit_length(), -(-longest // TOKEN_STEP) * TOKEN_STEP
        num_frames = np.ones(batch, dtype=np.int64)
        num_frames[: len(candidates)] = [len(each.encoder_out) for each in candidates]
        width = max(len(each.hypotheses) for each in candidates)
        num_tokens = np.zeros((batch, width), dtype=np.int64)
        tokens = np.zeros((batch, width, max(1, longest)), dtype=np.int64)
        for row, each in enumerate(candidates):
            for column, hypothesis in enumerate(each.hypotheses):
                num_tokens[row, column] = len(hypothesis.tokens)
                tokens[row, column, : len(hypothesis.tokens)] = ids_of(hypothesis.tokens)
        wanted = ["left_scores"]
        if any(self._reverse_weight(each.options) > 0 for each in candidates):
            wanted.append("right_scores")
        inputs: dict[str, Any] = {
            "encoder_out": self._frames(candidates, batch, max(1, int(num_frames.max()))),
            "num_frames": num_frames,
            "hypotheses": tokens,
            "num_tokens": num_tokens,
        }
        left, *right = (scores[: len(candidates)] for scores in self._graph(inputs, wanted))
        return left, right[0] if right else np.zeros_like(left)

    def _frames(self, candidates: Sequence[Candidate], batch: int, longest: int) -> Any:
        """The frames of some utterances and of further rows, (batch, frames, output_dim)."""
        first = candidates[0].encoder_out
        if isinstance(first, HeldFrames):
            rows = [each.encoder_out.row for each in candidates if isinstance(each.encoder_out, HeldFrames)]
            held = first.held.rows([*rows, *[rows[0]] * (batch - len(rows))])
            return held if self._is_on_gpu else held.numpy()
        encoder_out = np.zeros((batch, longest, first.shape[1]), dtype=np.float32)
        for row, each in zip(encoder_out, candidates, strict=False):
            row[: len(each.encoder_out)] = each.encoder_out
        return encoder_out

    def _ranked(self, candidate: Candidate, left: Sequence[float], right: Sequence[float]) -> list[Hypothesis]:
        reverse = self._reverse_weight(candidate.options)
        given = candidate.options.ctc_weight
        ctc_weight = self._settings.ctc_weight if given is None else given
        scored = []
        for column, hypothesis in enumerate(candidate.hypotheses):
            # A weight of zero leaves a score out, also one of -inf.
            attention = (1 - reverse) * left[column] if reverse < 1 else 0.0
            if reverse > 0:
                attention += reverse * right[column]
            ctc = ctc_weight * hypothesis.log_prob if ctc_weight else 0.0
            score = attention + ctc + hypothesis.bonus
            scored.append(replace(hypothesis, attention_score=attention, score=score))
        return sorted(scored, key=lambda hypothesis: -hypothesis.score)

    def _reverse_weight(self, options: SearchOptions) -> float:
        if not self._settings.bidirectional:
            return 0.0
        given = options.reverse_weight
        return self._settings.reverse_weight if given is None else given
