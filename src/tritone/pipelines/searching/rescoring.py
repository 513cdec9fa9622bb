"""Attention rescoring: the decoder of a model scores whole hypotheses, and the best one may change.

    encoder frames and n-best hypotheses of some utterances  ->  the same hypotheses with new scores, best first

    attention = (1 - reverse_weight) * left + reverse_weight * right
    score     = attention + ctc_weight * log_prob + bonus

Source: wenet/transformer/search.py, `attention_rescoring`; the bonus of the language model and hotwords keeps its
weight here, whatever the weight of CTC.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from tritone.bundle.bundle import Bundle
from tritone.errors import BundleError, InputError, OperatorError
from tritone.kinds.ctc.part import DecoderPart
from tritone.pipelines.graphs.choice import open_chosen
from tritone.pipelines.graphs.placement import ON_CPU, Placement
from tritone.pipelines.searching.decoder_sizes import DecoderSize, plan_calls
from tritone.runtime.graph import Array, ShapedGraph
from tritone.search.hypothesis import Hypothesis, id_array
from tritone.search.options import SearchOptions

MAX_LOGITS = 2**25  # of one graph call, hypotheses * tokens * vocabulary: 128 MB in float32
GPU_CALLS = 8  # a GPU takes so many times the logits and scores of a CPU, so that calls keep it busy
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
        settings = bundle.manifest.find(DecoderPart)
        self.artifact, self._graph = open_chosen(bundle, "decoder", placement)
        if settings is None:
            raise BundleError(f"{bundle.path} has a decoder graph, but `decoder` in its manifest is empty")
        self._settings: DecoderPart = settings
        self._vocab_size = bundle.manifest.tokens.size
        # An engine has limits of its own; calls with more rows it cuts itself.
        most = self._graph.inputs["encoder_out"].most, self._graph.inputs["hypotheses"].most
        self.max_frames = most[0][1] if most[0] else sys.maxsize
        self._max_hypotheses = most[1][1] if most[1] else sys.maxsize
        self._is_on_gpu: bool = getattr(self._graph, "is_on_gpu", False)
        self._larger = GPU_CALLS if self._is_on_gpu else 1
        self._find_compiled()

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
        for batch, size in self._sized(candidates) if self._is_on_gpu else self._plan(candidates):
            parts = [
                replace(candidates[part.index], hypotheses=candidates[part.index].hypotheses[part.first : part.end])
                for part in batch
            ]
            scores = zip(batch, *self._scores(parts, size), strict=True)
            for part, left_scores, right_scores in scores:
                place, count = slice(part.first, part.end), part.end - part.first
                left[part.index][place] = left_scores[:count].tolist()
                right[part.index][place] = right_scores[:count].tolist()
        return [self._ranked(*each) for each in zip(candidates, left, right, strict=True)]

    def compile(
        self,
        sizes: Sequence[DecoderSize],
        options: SearchOptions,
        output_dim: int,
        done: Callable[[Any], None] = lambda call: None,
    ) -> None:
        """Compile the decoder for calls of some sizes, as far as this machine has not done so before.

        Args:
            options: of the search, whose weights decide which decoders are asked.
            output_dim: of the encoder.
            done: as of `CompilableGraph.compile`.

        Raises:
            OperatorError: this decoder cannot be compiled; says why.
        """
        if not isinstance(self._graph, ShapedGraph):
            raise OperatorError(f"decoders of runtime {self.artifact.runtime} are not compiled; those of torch are")
        self._graph.compile_shapes([each.shapes(output_dim) for each in sizes], self._wanted([options]), done=done)
        self._find_compiled()

    def warm_up(self, output_dim: int, options: SearchOptions) -> None:
        """Make a call of every compiled size, or one of a short hypothesis, so that real ones find everything ready."""
        for size in self._compiled:
            shapes = size.shapes(output_dim)
            inputs = {name: np.zeros(shape, self._graph.inputs[name].dtype) for name, shape in shapes.items()}
            inputs["num_frames"] += 1
            self._graph(inputs, self._wanted([options]))
        frames = np.zeros((8, output_dim), dtype=np.float32)
        self([Candidate(frames, [Hypothesis((), 0.0)], options)])

    def _find_compiled(self) -> None:
        shapes = self._graph.compiled_shapes if self._is_on_gpu and isinstance(self._graph, ShapedGraph) else ()
        self._compiled = [DecoderSize.of(each) for each in shapes]

    def _sized(self, candidates: Sequence[Candidate]) -> "list[tuple[list[_Part], DecoderSize | None]]":
        """Group hypotheses for calls on a GPU, which have few sizes, longest first."""
        rest = sorted(
            (part for index, each in enumerate(candidates) for part in self._parts(index, each)),
            key=lambda part: (part.size[0], part.size[2], part.index, part.first),
            reverse=True,
        )
        held = bool(candidates) and isinstance(candidates[0].encoder_out, HeldFrames)
        taken = iter(rest)
        calls = plan_calls([part.size for part in rest], self._compiled, self._fits, held=held)
        return [([*islice(taken, count)], size) for count, size in calls]

    def _fits(self, size: DecoderSize) -> bool:
        count = size.rows * size.hypotheses * size.places
        return (
            count * self._vocab_size <= MAX_LOGITS * self._larger
            and count * max(size.frames, size.places) <= MAX_SCORES * self._larger
        )

    def _plan(self, candidates: Sequence[Candidate]) -> "list[tuple[list[_Part], DecoderSize | None]]":
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
        return [(batch, None) for batch in batches]

    def _parts(self, index: int, candidate: Candidate) -> "list[_Part]":
        """The hypotheses of an utterance, in as many parts as the limits ask for."""
        given, hypotheses = candidate.encoder_out, candidate.hypotheses
        frames = given.held.shape[1] if isinstance(given, HeldFrames) and self._is_on_gpu else len(given)
        tokens = max((len(each.tokens) for each in hypotheses), default=0) + 1
        most = min(
            (MAX_LOGITS * self._larger) // (tokens * self._vocab_size),
            (MAX_SCORES * self._larger) // (tokens * max(frames, tokens)),
        )
        most = min(max(1, most), self._max_hypotheses)
        cuts = [(first, min(first + most, len(hypotheses))) for first in range(0, len(hypotheses), most)]
        return [_Part(index, first, end, (frames, end - first, tokens)) for first, end in cuts]

    def _scores(self, candidates: Sequence[Candidate], size: DecoderSize | None) -> tuple[Array, Array]:
        """Scores (utterances, hypotheses) by the left decoder, and by the right one if any options need it, else 0.

        Args:
            size: of the call; None is just large enough. Rows that are added have a frame and no tokens.
        """
        ids = [[id_array(each.tokens) for each in row.hypotheses] for row in candidates]
        counts = [len(each.encoder_out) for each in candidates]
        if size is None:
            longest = max((len(each) for row in ids for each in row), default=0)
            size = DecoderSize(len(ids), max(1, *counts), max(map(len, ids)), max(1, longest) + 1)
        num_frames = np.ones(size.rows, dtype=np.int64)
        num_frames[: len(candidates)] = counts
        num_tokens = np.zeros((size.rows, size.hypotheses), dtype=np.int64)
        for row, each in enumerate(ids):
            num_tokens[row, : len(each)] = [len(tokens) for tokens in each]
        tokens = np.zeros((*num_tokens.shape, size.places - 1), dtype=np.int64)
        # In the order of rows, hypotheses and tokens, as the ids are.
        tokens[np.arange(size.places - 1) < num_tokens[:, :, None]] = np.concatenate([id for row in ids for id in row])
        wanted = self._wanted([each.options for each in candidates])
        inputs: dict[str, Any] = {
            "encoder_out": self._frames(candidates, size.rows, size.frames),
            "num_frames": num_frames,
            "hypotheses": tokens,
            "num_tokens": num_tokens,
        }
        left, *right = (scores[: len(candidates)] for scores in self._graph(inputs, wanted))
        return left, right[0] if right else np.zeros_like(left)

    def _wanted(self, options: Sequence[SearchOptions]) -> list[str]:
        """The outputs of the decoder that searches with these options need."""
        right = any(self._reverse_weight(each) > 0 for each in options)
        return ["left_scores", "right_scores"] if right else ["left_scores"]

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
        for each, left_score, right_score in zip(candidate.hypotheses, left, right, strict=True):
            # A weight of zero leaves a score out, also one of -inf.
            attention = (1 - reverse) * left_score if reverse < 1 else 0.0
            if reverse > 0:
                attention += reverse * right_score
            ctc = ctc_weight * each.log_prob if ctc_weight else 0.0
            scored.append(Hypothesis(each.tokens, each.log_prob, each.bonus, attention, attention + ctc + each.bonus))
        return sorted(scored, key=lambda hypothesis: -hypothesis.score)

    def _reverse_weight(self, options: SearchOptions) -> float:
        if not self._settings.bidirectional:
            return 0.0
        given = options.reverse_weight
        return self._settings.reverse_weight if given is None else given
