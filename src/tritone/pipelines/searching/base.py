"""The search of a pipeline: outputs of the network for a batch to hypotheses, each row with its own options.

    outputs of the network, SearchOptions of each row  ->  n-best hypotheses of each row

`Searching` is what all kinds of models have in common; `ctc.py` and `transducer.py` are the two that there are. The
package's docstring has all roles of a search together.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import Role
from tritone.errors import BundleError, InputError
from tritone.later import later
from tritone.pipelines.searching.search import News, Search, advance
from tritone.runtime.graph import Array, Bucket
from tritone.search.hypothesis import Hypothesis
from tritone.search.options import HISTORY, PARAMETERS, LmUnit, SearchMode, SearchOptions, foreign_options

if TYPE_CHECKING:
    from tritone.search.ngram import model as ngram
    from tritone.search.scoring import scorer
else:
    ngram, scorer = later("ngram"), later("scorer")

DEFAULT_LM_WEIGHT = 0.5
DEFAULTS = SearchOptions()
MAX_SCORERS = 64  # kept for further requests with the same weights and hotwords


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """How a model searches where a request has no options of its own, and what it searches with."""

    options: SearchOptions = DEFAULTS  # what they leave open is filled in with the bundle's numbers
    lm: Path | None = None  # a language model, ARPA or KenLM binary
    lm_unit: LmUnit = "auto"  # what its words are, see `Scorer.build`


class HasOutputs(Protocol):
    """A graph, or whatever else has the names of a graph's outputs, as the decoder of an ensemble's stages has."""

    @property
    def outputs(self) -> Collection[str]: ...


class Searching(ABC):
    """Turns outputs of a network into hypotheses. May be called from several threads.

    `options`: of requests that ask for nothing else, checked. `waits_for_all`: whether it is best to search the calls
    of a batch together once the network has computed all, rather than each while it computes the next. `admit`: where
    it is set, it is given the options of each request, and raises where they cannot be searched now.
    """

    modes: ClassVar[tuple[SearchMode, ...]]
    options: SearchOptions
    waits_for_all = False
    admit: Callable[[SearchOptions], None] | None = None

    @classmethod
    def obstacle(cls, bundle: Bundle, mode: str) -> str | None:
        """Why a model cannot search in a mode, with the way out; None if it can."""
        if mode in cls.modes:
            return None
        kind = bundle.manifest.kind
        return f"this is a model of kind {kind}, which searches with {', '.join(cls.modes)}, not with {mode}"

    @classmethod
    @abstractmethod
    def roles(cls, mode: str) -> tuple[Role, ...]:
        """The graphs beside the encoder that searching in a mode needs."""

    def __init__(self, bundle: Bundle, settings: SearchSettings | None = None, *, threads: int | None = None) -> None:
        """Prepare for a bundle.

        Args:
            settings: by default greedy search without anything else.
            threads: that one call may use.

        Raises:
            BundleError: the model has no such search.
            InputError: a hotword cannot be made of the bundle's tokens.
            LanguageModelError: the language model cannot be read or does not fit the vocabulary.
        """
        settings = settings or SearchSettings()
        self._bundle = bundle
        self._threads = threads
        self._blank_id = bundle.manifest.tokens.blank_id
        self._spellings = bundle.vocabulary.spellings
        self._settings = settings
        self._lm = None if settings.lm is None else ngram.NgramModel.read(settings.lm)
        if reason := self.obstacle(bundle, settings.options.mode):
            raise BundleError(f"{bundle.path}: {reason}.")
        self._scorer_of = lru_cache(MAX_SCORERS)(self._build_scorer)
        self._filled_of = lru_cache(MAX_SCORERS)(self._filled)

    @abstractmethod
    def outputs(self, options: Iterable[SearchOptions]) -> tuple[str, ...]:
        """Names of the network's outputs that searching rows with these options needs."""

    @abstractmethod
    def start(self, options: SearchOptions, *, history: int | None = HISTORY) -> Search:
        """Start a search.

        Args:
            options: checked.
            history: for how many frames alternatives may go on differing, see `PrefixTree`; None is for ever.
        """

    @abstractmethod
    def warm_up(self) -> None:
        """Compile and open all that the default options need, so that no request waits for it.

        What only other options need comes with the first request that has them: a greedy model should not carry a
        compiler and a decoder that nobody asks for.
        """

    def runs_compiled(self, options: SearchOptions, *, in_steps: bool) -> bool:
        """Whether searching with these options needs code that is compiled for the CPU, if their mode has any.

        Args:
            options: checked, or as a request gives them.
            in_steps: whether streams are searched, or else whole utterances.
        """
        return True

    def compile(  # noqa: B027  # most searches have no graphs of their own
        self, buckets: Sequence[Bucket], compute: Callable[[int], Mapping[str, Any]], done: Callable[[Any], None]
    ) -> None:
        """Compile the search's own graphs for what the network returns in calls of some sizes.

        Args:
            buckets: the sizes that the network is compiled for.
            compute: runs the network on so many samples of silence, for the outputs that the default options need.
            done: as of `CompilableGraph.compile`.

        Raises:
            OperatorError: a graph cannot be compiled; says why.
        """

    def compile_steps(self, rows: int, done: Callable[[Any], None]) -> None:  # noqa: B027  # as `compile`
        """Compile the search's own graphs for the steps of up to so many rows, whatever the network returns.

        Args:
            done: as of `CompilableGraph.compile`.

        Raises:
            OperatorError: a graph cannot be compiled; says why.
        """

    def search(self, outputs: Mapping[str, Array], options: Sequence[SearchOptions]) -> list[list[Hypothesis]]:
        """Search a batch of whole utterances.

        Args:
            outputs: those of the network that `outputs(options)` names.
            options: one for each row, checked.

        Returns:
            For each row its hypotheses, best first, at least one; if `nbest` is more than one, all that the beam holds,
            because some of them may be written alike.
        """
        searches = [self.start(each, history=None) for each in options]
        advance(searches, outputs)
        return self.finish(searches)

    def advance(self, searches: Sequence[Search], outputs: Mapping[str, Array]) -> list[News]:
        """Search the next frames of some streams.

        Args:
            searches: one for each row, all different.
            outputs: those of the network that `outputs` names for their options.
        """
        advance(searches, outputs)
        return [each.news() for each in searches]

    def finish(self, searches: Sequence[Search]) -> list[list[Hypothesis]]:
        """The hypotheses of searches that have heard all of their audio, as of `search`."""
        return [each.hypotheses() for each in searches]

    @property
    def max_rescored_s(self) -> float:
        """The longest utterance that can be rescored, in seconds; only TensorRT engines of decoders have a limit."""
        return math.inf

    def check(self, options: SearchOptions | None) -> SearchOptions:
        """The options to search with; None takes the model's own.

        Whatever they need is made here, so that it cannot fail later, in a batch with other requests.

        Raises:
            InputError: they ask for what this model does not have, or a hotword cannot be made of its tokens.
            OperatorError: the model has the decoder or language model that they need, but it cannot be used.
            ServerBusyError: what they need is still being compiled (`admit`).
        """
        if options is None:
            return self.options
        checked = self._filled_of(options)
        if self.admit is not None:
            self.admit(checked)
        if checked.mode != "greedy":
            self._scorer(checked)
        return checked

    def _filled(self, options: SearchOptions) -> SearchOptions:
        """Options with the model's numbers for those left open."""
        if reason := self.obstacle(self._bundle, options.mode):
            raise InputError(reason)
        kind = self._bundle.manifest.kind
        if foreign := foreign_options(options, kind):
            kinds = " or ".join(PARAMETERS[foreign[0]].kinds)
            raise InputError(
                f"{', '.join(foreign)} is for models of kind {kinds}, and this one is of kind {kind}; leave it out"
            )
        languages = self._bundle.manifest.encoder.languages
        if options.language and options.language not in languages:
            known = f"knows {', '.join(languages)}" if languages else "is takes no language"
            raise InputError(f"language is {options.language!r}, and this model {known}; leave it out, or send another")
        if options.use_itn and self._bundle.manifest.encoder.text_forms is None:
            raise InputError("this model writes in one form alone, so it cannot take use_itn; leave it out")
        if options.word_bonus and self._lm is None and options.mode != "greedy":
            raise InputError("this model has no language model, so it cannot take word_bonus; leave it out")
        if options.lm_weight is None:
            return replace(options, lm_weight=DEFAULT_LM_WEIGHT if self._lm is not None else 0.0)
        if options.lm_weight and self._lm is None:
            raise InputError(
                "this model has no language model, so it cannot take lm_weight; leave it out, or set it to 0"
            )
        return options

    def _is_scored(self, options: SearchOptions) -> bool:
        return bool(options.hotwords or (self._lm is not None and (options.lm_weight or options.word_bonus)))

    def _scorer(self, options: SearchOptions) -> "scorer.Scorer | None":
        if not self._is_scored(options):
            return None
        return self._scorer_of(options.lm_weight, options.word_bonus, options.hotwords)

    def _build_scorer(
        self, lm_weight: float | None, word_bonus: float, hotwords: tuple[tuple[str, float], ...]
    ) -> "scorer.Scorer | None":
        return scorer.Scorer.build(
            self._spellings,
            lm=self._lm,
            lm_weight=lm_weight or 0.0,
            word_bonus=word_bonus,
            lm_unit=self._settings.lm_unit,
            hotwords=hotwords,
        )
