"""The search of CTC models: greedy, prefix beam, and that rescored by the attention decoder.

log_probs or best tokens, encoder_out of some utterances or streams  ->  hypotheses
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from tritone.bundle.bundle import Bundle
from tritone.errors import InputError
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.searching.assembly import ReadingBuilder
from tritone.pipelines.searching.base import Searching, SearchSettings
from tritone.pipelines.searching.rescoring import Candidate, Rescorer
from tritone.pipelines.searching.segment import Segment
from tritone.runtime.graph import Array
from tritone.search.ctc.greedy import CtcGreedy, ctc_greedy, ctc_greedy_best
from tritone.search.hypothesis import Hypothesis
from tritone.search.options import SearchMode, SearchOptions, given_to_transducers

if TYPE_CHECKING:
    from tritone.search.ctc.prefix_beam import PrefixBeam

BEST = ("best_tokens", "best_log_probs")


class Says(Protocol):
    """Something with outputs, by name."""

    @property
    def outputs(self) -> Iterable[str]: ...


def ctc_outputs(modes: Iterable[SearchMode], *, has_best: bool) -> tuple[str, ...]:
    """What an encoder is asked for to search in these ways; `has_best`: whether it gives the best tokens by itself."""
    chosen = set(modes)
    wanted = ["num_frames"]
    if chosen - {"greedy"} or not has_best:
        wanted.append("log_probs")
    if "greedy" in chosen and has_best:
        wanted += BEST
    if "rescoring" in chosen:
        wanted.append("encoder_out")
    return tuple(wanted)


class CtcSearching(Searching):
    """See `Searching`."""

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
            graph: the encoder, or whatever else tells what there is of its outputs.
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
        """See `Searching.check`."""
        if options is None:
            return self.options
        checked = super().check(options)
        if idle := given_to_transducers(checked):
            raise InputError(f"{', '.join(idle)} is for transducers, and this is a CTC model; leave it out")
        if checked.mode == "rescoring":
            _ = self._rescorer
        return checked

    @property
    def max_rescored_s(self) -> float:
        """See `Searching.max_rescored_s`."""
        return self._rescorer.max_frames * self._bundle.manifest.frame_s

    def outputs(self, options: Iterable[SearchOptions]) -> tuple[str, ...]:
        """See `Searching.outputs`."""
        return ctc_outputs((each.mode for each in options), has_best=self._has_best)

    def search(self, results: Mapping[str, Array], options: Sequence[SearchOptions]) -> list[list[Hypothesis]]:
        """See `Searching.search`."""
        found: list[list[Hypothesis]] = [[] for _ in options]
        greedy = [row for row, each in enumerate(options) if each.mode == "greedy"]
        for row, hypothesis in zip(greedy, self._greedy(results, greedy), strict=True):
            found[row] = [hypothesis]
        for beam in sorted({each.beam for each in options if each.mode != "greedy"}):
            rows = [row for row, each in enumerate(options) if each.mode != "greedy" and each.beam == beam]
            for row, hypotheses in zip(rows, self._beam(results, rows, options, beam), strict=True):
                found[row] = hypotheses
        if all(each.mode != "rescoring" for each in options):
            return found
        heard = zip(results["encoder_out"], results["num_frames"], found, options, strict=True)
        return self._rescore([Candidate(frames[:count], nbest, each) for frames, count, nbest, each in heard])

    def start_segment(self, builder: ReadingBuilder, options: SearchOptions, first_frame: int = 0) -> Segment:
        """See `Searching.start_segment`."""
        if options.mode == "greedy":
            return Segment(builder, options, CtcGreedy(), first_frame, is_beam=False)
        return Segment(builder, options, self._start_beam(options), first_frame, is_beam=True)

    def take_step(self, segments: Sequence[Segment], results: Mapping[str, Array]) -> None:
        """See `Searching.take_step`."""
        num_frames = results["num_frames"].tolist()
        greedy = [row for row, segment in enumerate(segments) if segment.options.mode == "greedy"]
        for row, hypothesis in zip(greedy, self._greedy(results, greedy), strict=True):
            tokens, continues = segments[row].search.join(hypothesis.tokens, num_frames[row])
            segments[row].add_tokens(tokens, num_frames[row], continues=continues)
        rows = [row for row, segment in enumerate(segments) if segment.options.mode != "greedy"]
        if not rows:
            return
        ids, log_probs = self._top_tokens(results, rows, max(segments[row].options.beam for row in rows))
        for position, row in enumerate(rows):
            segment, count = segments[row], num_frames[row]
            beam = segment.options.beam
            segment.search.advance(ids[position, :count, :beam], log_probs[position, :count, :beam])
            keeps = segment.options.mode == "rescoring"
            segment.read_beam(count, results["encoder_out"][row, :count] if keeps else None)

    def finish(self, segments: Sequence[Segment]) -> list[list[Hypothesis]]:
        """See `Searching.finish`; segments to be rescored share graph calls."""
        return self._rescore([Candidate(each.encoder_out(), each.hypotheses(), each.options) for each in segments])

    def warm_up(self) -> None:
        """See `Searching.warm_up`."""
        mode = self.options.mode
        if mode == "greedy":
            return
        from tritone.search.ctc.prefix_beam import compile_search

        compile_search()
        if mode == "rescoring":
            self._rescorer.warm_up(self._bundle.manifest.encoder.output_dim)

    def _greedy(self, results: Mapping[str, Array], rows: Sequence[int]) -> list[Hypothesis]:
        """The greedy hypotheses of some rows."""
        if not rows:
            return []
        num_frames = results["num_frames"]
        everything = len(rows) == len(num_frames)

        def chosen(array: Array) -> Array:
            return array if everything else array[rows]

        if self._has_best:
            ids, scores = (chosen(results[name]) for name in BEST)
            tokens = ctc_greedy_best(ids, scores, chosen(num_frames), self._blank_id)
        else:
            tokens = ctc_greedy(chosen(results["log_probs"]), chosen(num_frames), self._blank_id)
        return [Hypothesis(each, 0.0) for each in tokens]

    def _top_tokens(self, results: Mapping[str, Array], rows: Sequence[int], count: int) -> tuple[Array, Array]:
        """The `count` best tokens of each frame of some rows and their log-probabilities, (rows, frames, count)."""
        from tritone.search.ctc.prefix_beam import top_tokens

        log_probs = results["log_probs"]
        chosen = log_probs if len(rows) == len(log_probs) else log_probs[rows]
        return top_tokens(chosen, count, threads=self._threads)

    def _rescore(self, candidates: Sequence[Candidate]) -> list[list[Hypothesis]]:
        """The hypotheses of some utterances, ranked by the decoder where options ask for it and there is audio."""
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

    def _start_beam(self, options: SearchOptions) -> "PrefixBeam":
        from tritone.search.ctc.prefix_beam import PrefixBeam

        return PrefixBeam(beam=options.beam, blank_id=self._blank_id, scorer=self._scorer(options))

    def _beam(
        self, results: Mapping[str, Array], rows: Sequence[int], options: Sequence[SearchOptions], beam: int
    ) -> list[list[Hypothesis]]:
        from tritone.search.ctc.prefix_beam import prefix_beam_search

        everything = len(rows) == len(options)
        log_probs, num_frames = results["log_probs"], results["num_frames"]
        nbest = max(options[row].num_hypotheses for row in rows)
        return prefix_beam_search(
            log_probs if everything else log_probs[rows],
            num_frames if everything else num_frames[rows],
            blank_id=self._blank_id,
            beam=beam,
            nbest=nbest,
            scorer=[self._scorer(options[row]) for row in rows],
            threads=self._threads,
        )
