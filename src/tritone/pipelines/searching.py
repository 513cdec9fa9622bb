"""The search of one pipeline: what a graph says about a batch, and what each row's request asks for, to hypotheses.

    log_probs or best tokens, encoder_out; SearchOptions of each row  ->  n-best hypotheses of each row

Rows of one batch may search in different ways. A stream is searched segment by segment, see `segment.py`.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tritone.bundle.bundle import Bundle
from tritone.errors import BundleError, InputError
from tritone.pipelines.rescoring import Candidate, Rescorer
from tritone.runtime.graph import Array, Graph
from tritone.search.ctc import ctc_greedy, ctc_greedy_best
from tritone.search.hypothesis import Hypothesis
from tritone.search.options import LmUnit, SearchOptions

if TYPE_CHECKING:
    from tritone.search.prefix_beam import PrefixBeam
    from tritone.search.scorer import Scorer

BEST = ("best_tokens", "best_log_probs")
DEFAULT_LM_WEIGHT = 0.5
DEFAULTS = SearchOptions()
MAX_SCORERS = 64  # of different requests, kept for the next ones like them


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """How a model searches; what `options` has left open is filled in with the bundle's numbers.

    `options`: of requests that ask for nothing else. `lm`: a language model, ARPA or KenLM binary; `lm_unit`: what its
    words are, see `Scorer.build`.
    """

    options: SearchOptions = DEFAULTS
    lm: Path | None = None
    lm_unit: LmUnit = "auto"


class Searching:
    """Turns graph results into hypotheses. May be called from several threads."""

    def __init__(
        self,
        bundle: Bundle,
        graph: Graph,
        settings: SearchSettings | None = None,
        *,
        threads: int | None = None,
        open_rescorer: Callable[[], Rescorer] | None = None,
    ) -> None:
        """Prepare for a bundle's graph.

        Args:
            settings: by default greedy search without anything else.
            threads: that one call may use.
            open_rescorer: opens the decoder; None takes the bundle's on the CPU.

        Raises:
            BundleError: rescoring is the default, but the bundle has no decoder.
            InputError: a hotword cannot be made of the bundle's tokens.
            LanguageModelError: the language model cannot be read or does not fit the vocabulary.
        """
        settings = settings or SearchSettings()
        self._bundle = bundle
        self._threads = threads
        self._blank_id = bundle.manifest.vocabulary.blank_id
        self._spellings = bundle.vocabulary.spellings
        self._has_best = set(BEST) <= set(graph.outputs)
        self._settings = settings
        self._lm: Any = None
        if settings.lm is not None:
            from tritone.search.ngram import NgramModel

            self._lm = NgramModel.read(settings.lm)
        self._open_rescorer = open_rescorer or partial(Rescorer, bundle, threads=threads)
        self._opened_rescorer: Rescorer | None = None
        self._lock = threading.Lock()
        if settings.options.mode == "rescoring" and not bundle.has("decoder"):
            raise BundleError(
                f"{bundle.path} has no decoder, so it cannot search with rescoring. Export the checkpoint again "
                "(a model with an attention decoder gets one), or choose greedy or prefix-beam."
            )
        self._scorer_of = lru_cache(MAX_SCORERS)(self._build_scorer)
        self.options = self.check(settings.options)

    def check(self, options: SearchOptions | None) -> SearchOptions:
        """The options to search with; None takes the model's own.

        What they need is made here, so that nothing of it can fail in the midst of other people's batches.

        Raises:
            InputError: they ask for what this model does not have, or a hotword cannot be made of its tokens.
            OperatorError: the decoder or the language model is there, but cannot be used.
        """
        if options is None:
            return self.options
        checked = self._filled(options)
        if checked.mode != "greedy":
            self._scorer(checked)
        if checked.mode == "rescoring":
            _ = self._rescorer
        return checked

    def _filled(self, options: SearchOptions) -> SearchOptions:
        """Options with the model's numbers for those left open."""
        if options.mode == "rescoring" and not self._bundle.has("decoder"):
            raise InputError("this model has no attention decoder, so it cannot search with rescoring; use prefix-beam")
        if options.word_bonus and self._lm is None and options.mode != "greedy":
            raise InputError("this model has no language model, so it cannot take word_bonus; leave it out")
        if options.lm_weight is None:
            return replace(options, lm_weight=DEFAULT_LM_WEIGHT if self._lm is not None else 0.0)
        if options.lm_weight and self._lm is None:
            raise InputError(
                "this model has no language model, so it cannot take lm_weight; leave it out, or set it to 0"
            )
        return options

    def outputs(self, options: Iterable[SearchOptions]) -> tuple[str, ...]:
        """What the graph shall be asked for, so that rows can be searched in these ways."""
        modes = {each.mode for each in options}
        wanted = ["num_frames"]
        if modes - {"greedy"} or not self._has_best:
            wanted.append("log_probs")
        if "greedy" in modes and self._has_best:
            wanted += BEST
        if "rescoring" in modes:
            wanted.append("encoder_out")
        return tuple(wanted)

    def search(self, results: Mapping[str, Array], options: Sequence[SearchOptions]) -> list[list[Hypothesis]]:
        """Search in a batch of whole utterances.

        Args:
            results: `outputs(options)` of the graph.
            options: one for each row, checked.

        Returns:
            For each row hypotheses, best first, at least one; if `nbest` is more than one, all that the beam holds,
            because some of them may be written alike.
        """
        found: list[list[Hypothesis]] = [[] for _ in options]
        greedy = [row for row, each in enumerate(options) if each.mode == "greedy"]
        for row, hypothesis in zip(greedy, self.greedy(results, greedy), strict=True):
            found[row] = [hypothesis]
        for beam in sorted({each.beam for each in options if each.mode != "greedy"}):
            rows = [row for row, each in enumerate(options) if each.mode != "greedy" and each.beam == beam]
            for row, hypotheses in zip(rows, self._beam(results, rows, options, beam), strict=True):
                found[row] = hypotheses
        if all(each.mode != "rescoring" for each in options):
            return found
        heard = zip(results["encoder_out"], results["num_frames"], found, options, strict=True)
        return self.rescore([Candidate(frames[:count], nbest, each) for frames, count, nbest, each in heard])

    def greedy(self, results: Mapping[str, Array], rows: Sequence[int]) -> list[Hypothesis]:
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

    def top_tokens(self, results: Mapping[str, Array], rows: Sequence[int], count: int) -> tuple[Array, Array]:
        """The `count` best tokens of each frame of some rows and their log-probabilities, (rows, frames, count)."""
        from tritone.search.prefix_beam import top_tokens

        log_probs = results["log_probs"]
        chosen = log_probs if len(rows) == len(log_probs) else log_probs[rows]
        return top_tokens(chosen, count, threads=self._threads)

    def rescore(self, candidates: Sequence[Candidate]) -> list[list[Hypothesis]]:
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

    def beam_of(self, options: SearchOptions) -> "PrefixBeam":
        """A prefix beam search that starts."""
        from tritone.search.prefix_beam import PrefixBeam

        return PrefixBeam(beam=options.beam, blank_id=self._blank_id, scorer=self._scorer(options))

    def warm_up(self) -> None:
        """Have everything compiled and opened that the default options need, so that no request waits for it.

        What only other options need comes with the first request that has them: a greedy model shall not carry a
        compiler and a decoder that nobody asks for.
        """
        if self.options.mode == "greedy":
            return
        from tritone.search.prefix_beam import compile_search

        compile_search()
        if self.options.mode == "rescoring":
            self._rescorer.warm_up(self._bundle.manifest.encoder.output_dim)

    @property
    def _rescorer(self) -> Rescorer:
        with self._lock:
            if self._opened_rescorer is None:
                self._opened_rescorer = self._open_rescorer()
            return self._opened_rescorer

    def _beam(
        self, results: Mapping[str, Array], rows: Sequence[int], options: Sequence[SearchOptions], beam: int
    ) -> list[list[Hypothesis]]:
        from tritone.search.prefix_beam import prefix_beam_search

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

    def _scorer(self, options: SearchOptions) -> "Scorer | None":
        if not options.hotwords and (self._lm is None or not (options.lm_weight or options.word_bonus)):
            return None
        return self._scorer_of(options.lm_weight, options.word_bonus, options.hotwords)

    def _build_scorer(
        self, lm_weight: float | None, word_bonus: float, hotwords: tuple[tuple[str, float], ...]
    ) -> "Scorer | None":
        from tritone.search.scorer import Scorer

        return Scorer.build(
            self._spellings,
            lm=self._lm,
            lm_weight=lm_weight or 0.0,
            word_bonus=word_bonus,
            lm_unit=self._settings.lm_unit,
            hotwords=hotwords,
        )
