"""The search of one pipeline: what a graph says about a batch, and what each row's request asks for, to hypotheses.

    results of the encoder; SearchOptions of each row  ->  n-best hypotheses of each row

Rows of one batch may search in different ways. `Searching` is what all kinds of models have in common; each kind adds
how it searches (`ctc.py`, `transducer.py`). A stream is searched segment by segment, see `segment.py`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import Role
from tritone.errors import BundleError, InputError
from tritone.pipelines.searching.assembly import ReadingBuilder
from tritone.pipelines.searching.segment import Segment
from tritone.runtime.graph import Array
from tritone.search.hypothesis import Hypothesis
from tritone.search.options import CTC_MODES, TRANSDUCER_MODES, LmUnit, SearchMode, SearchOptions

if TYPE_CHECKING:
    from tritone.search.scoring.scorer import Scorer

DEFAULT_LM_WEIGHT = 0.5
DEFAULTS = SearchOptions()
MAX_SCORERS = 64  # of different requests, kept for the next ones like them
MODES: Mapping[str, tuple[SearchMode, ...]] = {"ctc": CTC_MODES, "transducer": TRANSDUCER_MODES}


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """How a model searches; what `options` has left open is filled in with the bundle's numbers.

    `options`: of requests that ask for nothing else. `lm`: a language model, ARPA or KenLM binary; `lm_unit`: what its
    words are, see `Scorer.build`.
    """

    options: SearchOptions = DEFAULTS
    lm: Path | None = None
    lm_unit: LmUnit = "auto"


def obstacle(bundle: Bundle, mode: str) -> str | None:
    """Why a model cannot search in this way, with the way out; None if it can."""
    kind = bundle.manifest.kind
    if mode not in MODES[kind]:
        return f"this is a model of kind {kind}, which searches with {', '.join(MODES[kind])}, not with {mode}"
    if mode == "rescoring" and not bundle.has("decoder"):
        return (
            "this model has no attention decoder, so it cannot search with rescoring. Use greedy or prefix-beam, or "
            "export the checkpoint again: a model with an attention decoder gets one"
        )
    return None


def roles_for(bundle: Bundle, mode: str) -> tuple[Role, ...]:
    """The graphs beside the encoder that searching in this way takes."""
    if bundle.manifest.kind == "transducer":
        return "predictor", "joiner"
    return ("decoder",) if mode == "rescoring" else ()


class Searching(ABC):
    """Turns graph results into hypotheses. May be called from several threads.

    `options`: how requests are searched that ask for nothing else, checked.
    """

    options: SearchOptions

    def __init__(self, bundle: Bundle, settings: SearchSettings | None = None, *, threads: int | None = None) -> None:
        """Prepare for a bundle.

        Args:
            settings: by default greedy search without anything else.
            threads: that one call may use.

        Raises:
            BundleError: the bundle cannot be searched in the way that shall be the default.
            InputError: a hotword cannot be made of the bundle's tokens.
            LanguageModelError: the language model cannot be read or does not fit the vocabulary.
        """
        settings = settings or SearchSettings()
        self._bundle = bundle
        self._threads = threads
        self._blank_id = bundle.manifest.tokens.blank_id
        self._spellings = bundle.vocabulary.spellings
        self._settings = settings
        self._lm: Any = None
        if settings.lm is not None:
            from tritone.search.ngram.model import NgramModel

            self._lm = NgramModel.read(settings.lm)
        if reason := obstacle(bundle, settings.options.mode):
            raise BundleError(f"{bundle.path}: {reason}.")
        self._scorer_of = lru_cache(MAX_SCORERS)(self._build_scorer)

    @abstractmethod
    def outputs(self, options: Iterable[SearchOptions]) -> tuple[str, ...]:
        """What the encoder shall be asked for, so that rows can be searched in these ways."""

    @abstractmethod
    def search(self, results: Mapping[str, Array], options: Sequence[SearchOptions]) -> list[list[Hypothesis]]:
        """Search in a batch of whole utterances.

        Args:
            results: `outputs(options)` of the encoder.
            options: one for each row, checked.

        Returns:
            For each row hypotheses, best first, at least one; if `nbest` is more than one, all that the beam holds,
            because some of them may be written alike.
        """

    @abstractmethod
    def start_segment(self, builder: ReadingBuilder, options: SearchOptions, first_frame: int = 0) -> Segment:
        """Start a segment at a frame of its stream; `builder` is new, `options` are checked."""

    @abstractmethod
    def take_step(self, segments: Sequence[Segment], results: Mapping[str, Array]) -> None:
        """Let the segments of some streams take what the encoder says of their next frames.

        Args:
            segments: one for each row, all different.
            results: `outputs` for their options.
        """

    @abstractmethod
    def finish(self, segments: Sequence[Segment]) -> list[list[Hypothesis]]:
        """The hypotheses of segments that have ended, best first."""

    @abstractmethod
    def warm_up(self) -> None:
        """Have everything compiled and opened that the default options need, so that no request waits for it.

        What only other options need comes with the first request that has them: a greedy model shall not carry a
        compiler and a decoder that nobody asks for.
        """

    @property
    def max_rescored_s(self) -> float:
        """The longest utterance that can be rescored, in seconds; only engines of decoders have a limit."""
        return math.inf

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
        return checked

    def _filled(self, options: SearchOptions) -> SearchOptions:
        """Options with the model's numbers for those left open."""
        if reason := obstacle(self._bundle, options.mode):
            raise InputError(reason)
        if options.word_bonus and self._lm is None and options.mode != "greedy":
            raise InputError("this model has no language model, so it cannot take word_bonus; leave it out")
        if options.lm_weight is None:
            return replace(options, lm_weight=DEFAULT_LM_WEIGHT if self._lm is not None else 0.0)
        if options.lm_weight and self._lm is None:
            raise InputError(
                "this model has no language model, so it cannot take lm_weight; leave it out, or set it to 0"
            )
        return options

    def _scorer(self, options: SearchOptions) -> "Scorer | None":
        if not options.hotwords and (self._lm is None or not (options.lm_weight or options.word_bonus)):
            return None
        return self._scorer_of(options.lm_weight, options.word_bonus, options.hotwords)

    def _build_scorer(
        self, lm_weight: float | None, word_bonus: float, hotwords: tuple[tuple[str, float], ...]
    ) -> "Scorer | None":
        from tritone.search.scoring.scorer import Scorer

        return Scorer.build(
            self._spellings,
            lm=self._lm,
            lm_weight=lm_weight or 0.0,
            word_bonus=word_bonus,
            lm_unit=self._settings.lm_unit,
            hotwords=hotwords,
        )
