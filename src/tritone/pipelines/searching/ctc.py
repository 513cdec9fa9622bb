"""The search of CTC models: greedy, prefix beam, and prefix beam whose hypotheses the attention decoder ranks.

log_probs or best tokens, encoder_out of some utterances or streams  ->  hypotheses
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import Role
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.searching.base import Searching, SearchSettings
from tritone.pipelines.searching.rescoring import Candidate, Rescorer
from tritone.pipelines.searching.search import BeamSearch, GreedySearch, Search, of_rows
from tritone.runtime.graph import Array
from tritone.search.beam.beam import HISTORY
from tritone.search.ctc.greedy import CtcGreedy, ctc_greedy, ctc_greedy_best
from tritone.search.hypothesis import Hypothesis, TokenRow
from tritone.search.options import CTC_MODES, SearchMode, SearchOptions

if TYPE_CHECKING:
    from typing_extensions import Self

    from tritone.search.ctc.prefix_beam import PrefixBeam

BEST = ("best_tokens", "best_log_probs")


class Says(Protocol):
    """Something with outputs, by name."""

    @property
    def outputs(self) -> Iterable[str]: ...


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
        found = greedy(outputs, rows, searches[0]._blank_id)
        for search, tokens, row in zip(searches, found, rows, strict=True):
            search.add(*search._chunks.join(tokens, int(outputs["num_frames"][row])))


class PrefixBeamSearch(BeamSearch):
    """Prefix beam search of one stream; for rescoring it keeps the outputs of the encoder."""

    def __init__(self, options: SearchOptions, beam: "PrefixBeam", threads: int | None) -> None:
        """Start with a new beam; `threads` may look for the best tokens of each frame."""
        super().__init__(options, beam)
        self._prefixes = beam
        self._threads = threads
        self._encoder_out: list[Array] = []

    @classmethod
    def advance_all(cls, searches: "Sequence[Self]", outputs: Mapping[str, Array], rows: Sequence[int]) -> None:
        from tritone.search.ctc.prefix_beam import top_tokens

        most = max(search.options.beam for search in searches)
        ids, log_probs = top_tokens(of_rows(outputs["log_probs"], rows), most, threads=searches[0]._threads)
        for index, (search, row) in enumerate(zip(searches, rows, strict=True)):
            count, beam = int(outputs["num_frames"][row]), search.options.beam
            search._prefixes.advance(ids[index, :count, :beam], log_probs[index, :count, :beam])
            if search.options.mode == "rescoring":  # a copy: a view would keep the whole batch
                search._encoder_out.append(outputs["encoder_out"][row, :count].copy())

    def encoder_out(self) -> Array:
        return np.concatenate(self._encoder_out) if self._encoder_out else super().encoder_out()


def greedy(outputs: Mapping[str, Array], rows: Sequence[int], blank_id: int) -> list[TokenRow]:
    """The greedy tokens of some rows of a batch; frames count from the start of the row."""
    num_frames = of_rows(outputs["num_frames"], rows)
    if BEST[0] in outputs:
        ids, scores = (of_rows(outputs[name], rows) for name in BEST)
        return ctc_greedy_best(ids, scores, num_frames, blank_id)
    return ctc_greedy(of_rows(outputs["log_probs"], rows), num_frames, blank_id)


class CtcSearching(Searching):
    """Searches outputs of CTC models."""

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
        graph: Says,
        settings: SearchSettings | None = None,
        *,
        threads: int | None = None,
        open_rescorer: Callable[[], Rescorer] | None = None,
    ) -> None:
        """Prepare for a bundle's encoder.

        Args:
            graph: the encoder, or whatever else has the names of its outputs.
            settings, threads: as of `Searching`, errors too.
            open_rescorer: opens the decoder; None takes the bundle's on the CPU.
        """
        super().__init__(bundle, settings, threads=threads)
        self._has_best = set(BEST) <= set(graph.outputs)
        self._open_rescorer = open_rescorer or (lambda: Rescorer(bundle, Placement(threads=threads)))
        self._opened_rescorer: Rescorer | None = None
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
        return ctc_outputs((each.mode for each in options), has_best=self._has_best)

    def start(self, options: SearchOptions, *, history: int | None = HISTORY) -> Search:
        if options.mode == "greedy":
            return CtcGreedySearch(options, self._blank_id)
        from tritone.search.ctc.prefix_beam import PrefixBeam

        beam = PrefixBeam(beam=options.beam, blank_id=self._blank_id, scorer=self._scorer(options), history=history)
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
        utterances = zip(outputs["encoder_out"], outputs["num_frames"], found, options, strict=True)
        return self._rescore([Candidate(frames[:count], nbest, each) for frames, count, nbest, each in utterances])

    def finish(self, searches: Sequence[Search]) -> list[list[Hypothesis]]:
        return self._rescore([Candidate(each.encoder_out(), each.hypotheses(), each.options) for each in searches])

    def warm_up(self) -> None:
        mode = self.options.mode
        if mode == "greedy":
            return
        from tritone.search.ctc.prefix_beam import compile_search

        compile_search()
        if mode == "rescoring":
            self._rescorer.warm_up(self._bundle.manifest.encoder.output_dim)

    def _rescore(self, candidates: Sequence[Candidate]) -> list[list[Hypothesis]]:
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
    def _rescorer(self) -> Rescorer:
        with self._lock:
            if self._opened_rescorer is None:
                self._opened_rescorer = self._open_rescorer()
            return self._opened_rescorer

    def _prefix_beam(
        self, outputs: Mapping[str, Array], rows: Sequence[int], options: Sequence[SearchOptions], beam: int
    ) -> list[list[Hypothesis]]:
        from tritone.search.ctc.prefix_beam import prefix_beam_search

        return prefix_beam_search(
            of_rows(outputs["log_probs"], rows),
            of_rows(outputs["num_frames"], rows),
            blank_id=self._blank_id,
            beam=beam,
            nbest=max(options[row].num_hypotheses for row in rows),
            scorer=[self._scorer(options[row]) for row in rows],
            threads=self._threads,
        )
