"""The search of CTC models: greedy, prefix beam, and prefix beam whose hypotheses the attention decoder ranks.

log_probs or best tokens, encoder_out of some utterances or streams  ->  hypotheses
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import Role
from tritone.later import later
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.searching.base import HasOutputs, Searching, SearchSettings
from tritone.pipelines.searching.search import BeamSearch, GreedySearch, Search, of_rows
from tritone.runtime.graph import HELD, Array, Bucket
from tritone.search.ctc.greedy import CtcGreedy, ctc_greedy, ctc_greedy_best, tokens_of_block
from tritone.search.hypothesis import Hypothesis, TokenRow
from tritone.search.options import CTC_MODES, HISTORY, MAX_BEAM, SearchMode, SearchOptions

if TYPE_CHECKING:
    from typing import Self

    from tritone.pipelines.searching import decoder_sizes, rescoring
    from tritone.search.ctc import prefix_beam
else:
    decoder_sizes, rescoring, prefix_beam = later("decoder_sizes"), later("rescoring"), later("prefix_beam")

BEST = ("best_tokens", "best_log_probs")
# Outputs of a graph on a GPU, computed there and no larger than the search needs; see `search/device/ctc.py`.
GREEDY_BLOCK = "greedy_block"
TOP_BLOCK = "top_tokens_"  # and how many of each frame
TOP_SIZES = (4, 10, 20, 40, 80, MAX_BEAM)  # few, since each is recorded for itself


def ctc_outputs(modes: Iterable[SearchMode], *, has_best: bool) -> tuple[str, ...]:
    """Names of the outputs that these modes need; `has_best`: whether the network has those of `BEST`."""
    chosen = set(modes)
    wanted = ["num_frames"]
    if chosen - {"greedy"} or not has_best:
        wanted.append("log_probs")
    if "greedy" in chosen and has_best:
        wanted += BEST
    if "rescoring" in chosen:
        wanted.append("encoder_out")
    return tuple(wanted)


class CtcGreedySearch(GreedySearch):
    """Greedy search of one stream."""

    def __init__(self, options: SearchOptions, blank_id: int) -> None:
        """Start a search of a model with this blank."""
        super().__init__(options)
        self._blank_id = blank_id
        self._chunks = CtcGreedy()

    @classmethod
    def advance_all(cls, searches: "Sequence[Self]", outputs: Mapping[str, Array], rows: Sequence[int]) -> None:
        found, num_frames = greedy(outputs, rows, searches[0]._blank_id), outputs["num_frames"].tolist()
        for search, tokens, row in zip(searches, found, rows, strict=True):
            placed, replaces_last = search._chunks.join(tokens, num_frames[row])
            if placed:
                search.add(placed, replaces_last)


class PrefixBeamSearch(BeamSearch):
    """Prefix beam search of one stream; for rescoring it keeps the outputs of the encoder."""

    def __init__(self, options: SearchOptions, beam: "prefix_beam.PrefixBeam", threads: int | None) -> None:
        """Start with a new beam; `threads` may look for the best tokens of each frame."""
        super().__init__(options, beam)
        self._prefixes = beam
        self._threads = threads
        self._encoder_out: list[Array] = []

    @classmethod
    def advance_all(cls, searches: "Sequence[Self]", outputs: Mapping[str, Array], rows: Sequence[int]) -> None:
        tops = _top_tokens(outputs)
        if tops is None:
            most = max(search.options.beam for search in searches)
            ids, log_probs = prefix_beam.top_tokens(
                of_rows(outputs["log_probs"], rows), most, threads=searches[0]._threads
            )
        else:
            ids, log_probs = (of_rows(each, rows) for each in tops)
        encoder_out = _on_host(outputs) if any(each.options.mode == "rescoring" for each in searches) else None
        for index, (search, row) in enumerate(zip(searches, rows, strict=True)):
            count, beam = int(outputs["num_frames"][row]), search.options.beam
            search._prefixes.advance(ids[index, :count, :beam], log_probs[index, :count, :beam])
            if search.options.mode == "rescoring":  # a copy: a view would keep the whole batch
                assert encoder_out is not None
                search._encoder_out.append(encoder_out[row, :count].copy())

    def encoder_out(self) -> Array:
        return np.concatenate(self._encoder_out) if self._encoder_out else super().encoder_out()


def greedy(outputs: Mapping[str, Array], rows: Sequence[int], blank_id: int) -> list[TokenRow]:
    """The greedy tokens of some rows of a batch; frames count from the start of the row."""
    if GREEDY_BLOCK in outputs:
        return tokens_of_block(of_rows(outputs[GREEDY_BLOCK], rows))
    num_frames = of_rows(outputs["num_frames"], rows)
    if BEST[0] in outputs:
        ids, scores = (of_rows(outputs[name], rows) for name in BEST)
        return ctc_greedy_best(ids, scores, num_frames, blank_id)
    return ctc_greedy(of_rows(outputs["log_probs"], rows), num_frames, blank_id)


def _top_tokens(outputs: Mapping[str, Array]) -> tuple[Array, Array] | None:
    """The best tokens of each frame and their log-probabilities, where the graph has looked for them."""
    found = [outputs[name] for name in outputs if name.startswith(TOP_BLOCK)]
    return (found[0][:, 0], np.ascontiguousarray(found[0][:, 1]).view(np.float32)) if found else None


def _on_host(outputs: Mapping[str, Any]) -> Array:
    found: Array = outputs[f"{HELD}encoder_out"].numpy() if f"{HELD}encoder_out" in outputs else outputs["encoder_out"]
    return found


def derive_searched(graph: Any, blank_id: int, vocab_size: int, *, has_best: bool) -> None:
    """Have a graph on a GPU reduce its outputs there to what searches need: `GREEDY_BLOCK`, `TOP_BLOCK`."""
    from tritone.search.device.kernels_for import greedy_block, greedy_block_of, top_block

    if has_best:
        graph.derive(GREEDY_BLOCK, (*BEST, "num_frames"), partial(greedy_block, blank_id=blank_id))
    else:
        graph.derive(GREEDY_BLOCK, ("log_probs", "num_frames"), partial(greedy_block_of, blank_id=blank_id))
    for size in TOP_SIZES:
        graph.derive(f"{TOP_BLOCK}{size}", ("log_probs",), partial(top_block, k=min(size, vocab_size)))


class CtcSearching(Searching):
    """Searches outputs of CTC models.

    Of a graph on a GPU only what the search needs comes to the host, and for rescoring `encoder_out` stays there.
    """

    modes = CTC_MODES

    @classmethod
    def obstacle(cls, bundle: Bundle, mode: str) -> str | None:
        if mode == "rescoring" and not bundle.has("decoder"):
            return (
                "this model has no attention decoder, so it cannot search with rescoring. Use greedy or prefix-beam, "
                "or export the checkpoint again: a model with an attention decoder gets one"
            )
        return super().obstacle(bundle, mode)

    @classmethod
    def roles(cls, mode: str) -> tuple[Role, ...]:
        return ("decoder",) if mode == "rescoring" else ()

    def __init__(
        self,
        bundle: Bundle,
        graph: HasOutputs,
        settings: SearchSettings | None = None,
        *,
        threads: int | None = None,
        open_rescorer: "Callable[[], rescoring.Rescorer] | None" = None,
    ) -> None:
        """Prepare for a bundle's encoder.

        Args:
            graph: the encoder, or whatever else has the names of its outputs.
            settings, threads: as of `Searching`, errors too.
            open_rescorer: opens the decoder; None takes the bundle's on the CPU.
        """
        super().__init__(bundle, settings, threads=threads)
        self._has_best = set(BEST) <= set(graph.outputs)
        self._is_on_gpu: bool = getattr(graph, "is_on_gpu", False)
        if self._is_on_gpu:
            derive_searched(graph, self._blank_id, bundle.manifest.tokens.size, has_best=self._has_best)
        self._open_rescorer = open_rescorer or (lambda: rescoring.Rescorer(bundle, Placement(threads=threads)))
        self._opened_rescorer: rescoring.Rescorer | None = None
        self._lock = threading.Lock()
        self.options = self.check(self._settings.options)

    def check(self, options: SearchOptions | None) -> SearchOptions:
        if options is None:
            return self.options
        checked = super().check(options)
        if checked.mode == "rescoring":
            _ = self._rescorer
        return checked

    @property
    def max_rescored_s(self) -> float:
        return self._rescorer.max_frames * self._bundle.manifest.frame_s

    def outputs(self, options: Iterable[SearchOptions]) -> tuple[str, ...]:
        if not self._is_on_gpu:
            return ctc_outputs((each.mode for each in options), has_best=self._has_best)
        wanted, asked = ["num_frames"], list(options)
        if any(each.mode == "greedy" for each in asked):
            wanted.append(GREEDY_BLOCK)
        if beams := [each.beam for each in asked if each.mode != "greedy"]:
            wanted.append(f"{TOP_BLOCK}{min(size for size in TOP_SIZES if size >= max(beams))}")
        if any(each.mode == "rescoring" for each in asked):
            wanted.append(f"{HELD}encoder_out")
        return tuple(wanted)

    def start(self, options: SearchOptions, *, history: int | None = HISTORY) -> Search:
        if options.mode == "greedy":
            return CtcGreedySearch(options, self._blank_id)
        scorer = self._scorer(options)
        beam = prefix_beam.PrefixBeam(beam=options.beam, blank_id=self._blank_id, scorer=scorer, history=history)
        return PrefixBeamSearch(options, beam, self._threads)

    def search(self, outputs: Mapping[str, Array], options: Sequence[SearchOptions]) -> list[list[Hypothesis]]:
        # Threads share the rows of a beam here; searches that go on step by step would take turns.
        found: list[list[Hypothesis]] = [[] for _ in options]
        if rows := [row for row, each in enumerate(options) if each.mode == "greedy"]:
            for row, tokens in zip(rows, greedy(outputs, rows, self._blank_id), strict=True):
                found[row] = [Hypothesis(tokens, 0.0)]
        for beam in sorted({each.beam for each in options if each.mode != "greedy"}):
            rows = [row for row, each in enumerate(options) if each.mode != "greedy" and each.beam == beam]
            for row, hypotheses in zip(rows, self._prefix_beam(outputs, rows, options, beam), strict=True):
                found[row] = hypotheses
        if all(each.mode != "rescoring" for each in options):
            return found
        frames: Sequence[Any]
        if (held := outputs.get(f"{HELD}encoder_out")) is not None:
            frames = [
                rescoring.HeldFrames(held, row, count) for row, count in enumerate(outputs["num_frames"].tolist())
            ]
        else:
            pairs = zip(outputs["encoder_out"], outputs["num_frames"], strict=True)
            frames = [encoder_out[:count] for encoder_out, count in pairs]
        return self._rescore([rescoring.Candidate(*each) for each in zip(frames, found, options, strict=True)])

    def finish(self, searches: Sequence[Search]) -> list[list[Hypothesis]]:
        if all(each.options.mode != "rescoring" for each in searches):
            return [each.hypotheses() for each in searches]
        return self._rescore(
            [rescoring.Candidate(each.encoder_out(), each.hypotheses(), each.options) for each in searches]
        )

    def warm_up(self) -> None:
        mode = self.options.mode
        if mode == "greedy":
            return
        prefix_beam.compile_search()
        if mode == "rescoring":
            self._rescorer.warm_up(self._bundle.manifest.encoder.output_dim, self.options)

    def compile(
        self, buckets: Sequence[Bucket], compute: Callable[[int], Mapping[str, Any]], done: Callable[[Any], None]
    ) -> None:
        if self.options.mode != "rescoring" or not self._is_on_gpu:
            return
        manifest, rows = self._bundle.manifest, dict.fromkeys((each.samples for each in buckets), 0)
        for bucket in buckets:
            rows[bucket.samples] = max(rows[bucket.samples], bucket.rows)
        sizes = []
        for samples, most in rows.items():
            frames = compute(samples)[f"{HELD}encoder_out"].shape[1]
            sizes += decoder_sizes.usual_sizes(most, frames, samples / manifest.sample_rate, self.options.beam)
        self._rescorer.compile(sizes, self.options, manifest.encoder.output_dim, done)

    def _rescore(self, candidates: "Sequence[rescoring.Candidate]") -> list[list[Hypothesis]]:
        """The hypotheses of some utterances, ranked by the decoder where options ask for it and there are frames."""
        found = [list(each.hypotheses) for each in candidates]
        chosen = [
            index for index, each in enumerate(candidates) if each.options.mode == "rescoring" and len(each.encoder_out)
        ]
        if chosen:
            ranked = self._rescorer([candidates[index] for index in chosen])
            for index, hypotheses in zip(chosen, ranked, strict=True):
                found[index] = hypotheses
        return found

    @property
    def _rescorer(self) -> "rescoring.Rescorer":
        with self._lock:
            if self._opened_rescorer is None:
                self._opened_rescorer = self._open_rescorer()
            return self._opened_rescorer

    def _prefix_beam(
        self, outputs: Mapping[str, Array], rows: Sequence[int], options: Sequence[SearchOptions], beam: int
    ) -> list[list[Hypothesis]]:
        num_frames = of_rows(outputs["num_frames"], rows)
        how: dict[str, Any] = {
            "blank_id": self._blank_id,
            "beam": beam,
            "nbest": max(options[row].num_hypotheses for row in rows),
            "scorer": [self._scorer(options[row]) for row in rows],
            "threads": self._threads,
        }
        tops = _top_tokens(outputs)
        if tops is None:
            return prefix_beam.prefix_beam_search(of_rows(outputs["log_probs"], rows), num_frames, **how)
        ids, log_probs = tops

        def top(place: int) -> tuple[Array, Array]:
            chosen = rows[place], slice(max(0, int(num_frames[place]))), slice(beam)
            return ids[chosen], log_probs[chosen]

        return prefix_beam.search_tops(top, num_frames, **how)
