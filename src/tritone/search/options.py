"""What one request may ask of the search.

    {"search": "rescoring", "beam": "20", "hotwords": "{\\"anna\\": 8}"}  ->  SearchOptions

A model has defaults, a request changes some of them, and requests with different options share a batch.
"""

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from tritone.errors import InputError

SearchMode = Literal["greedy", "prefix-beam", "rescoring", "modified-beam", "fast-beam"]
LmUnit = Literal["auto", "word", "token"]  # what the words of a language model are

DEFAULT_BEAMS: Mapping[SearchMode, int] = {
    "greedy": 10,
    "prefix-beam": 10,
    "rescoring": 10,
    "modified-beam": 4,
    "fast-beam": 20,
}
MAX_BEAM = 128  # of a request: the work grows with it, and everybody's requests wait for it
MAX_HOTWORDS = 1000
MAX_HOTWORD_LENGTH = 100  # characters
MAX_WEIGHT = 100.0
MAX_SYMBOLS = 10  # of one frame: with a large blank penalty every frame says so many, and each takes a call
MAX_STATES = 1024  # of a fast beam search
MAX_CONTEXTS = 64  # of it: the joiner is asked for each in every frame, and the scorer for each of its tokens


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How to search; scores and weights are in natural-log units.

    `mode`: the best label of each frame; of a CTC model prefix beam search, or that with its n-best scored by the
    attention decoder; of a transducer modified beam search (a symbol a frame, alignments added up), or fast beam search
    (the best path in a graph). `beam`: hypotheses kept after each frame, and for CTC tokens looked at in each; of fast
    beam search how far below the best one a state may be, natural-log units; 0 takes what is usual for the mode.
    `nbest`: alternatives in the result.
    `ctc_weight`, `reverse_weight`: of the CTC score and of the right-to-left decoder in rescoring; None takes the
    model's. `lm_weight`: factor of the language model's log-probability; None takes 0.5 where there is one, 0 leaves it
    out. `word_bonus`: added for each word that the language model scores. `hotwords`: phrases and what each adds to a
    hypothesis that holds it; negative weights make it rarer. `timestamps`: whether details tell tokens and words with
    their times.

    Of transducers: `blank_penalty` is subtracted from the blank's logit. `temperature` divides the logits of a beam.
    `max_symbols`: the most symbols of one frame in greedy search. `max_states`, `max_contexts`: states, and
    different last tokens, that fast beam search keeps after a frame.

    The language model and hotwords need a beam: greedy search does not know them.
    """

    mode: SearchMode = "greedy"
    beam: int = 0
    nbest: int = 1
    ctc_weight: float | None = None
    reverse_weight: float | None = None
    lm_weight: float | None = None
    word_bonus: float = 0.0
    hotwords: tuple[tuple[str, float], ...] = ()
    timestamps: bool = True
    blank_penalty: float = 0.0
    temperature: float = 1.0
    max_symbols: int = 1
    max_states: int = 64
    max_contexts: int = 8

    def __post_init__(self) -> None:
        if self.mode not in get_args(SearchMode):
            raise InputError(f"search must be one of {', '.join(get_args(SearchMode))}, got {self.mode!r}")
        if self.beam == 0:
            object.__setattr__(self, "beam", DEFAULT_BEAMS[self.mode])
        if not 1 <= self.beam <= MAX_BEAM:
            raise InputError(f"beam must be 1 to {MAX_BEAM}, got {self.beam}")
        if not 1 <= self.nbest <= (most := self.max_nbest):
            raise InputError(f"nbest must be 1 to {most}, as many as the search keeps, got {self.nbest}")
        for name, most in (("max_symbols", MAX_SYMBOLS), ("max_states", MAX_STATES), ("max_contexts", MAX_CONTEXTS)):
            if not 1 <= getattr(self, name) <= most:
                raise InputError(f"{name} must be 1 to {most}, got {getattr(self, name)}")
        if not 0.01 <= self.temperature <= MAX_WEIGHT:
            raise InputError(f"temperature must be 0.01 to {MAX_WEIGHT:g}, got {self.temperature}")
        for name in ("ctc_weight", "lm_weight", "word_bonus", "blank_penalty"):
            value = getattr(self, name)
            if value is not None and not abs(value) <= MAX_WEIGHT:  # NaN fails too
                raise InputError(f"{name} must be a number within ±{MAX_WEIGHT:g}, got {value}")
        if self.reverse_weight is not None and not 0 <= self.reverse_weight <= 1:
            raise InputError(f"reverse_weight must be 0 to 1, got {self.reverse_weight}")
        if len(self.hotwords) > MAX_HOTWORDS:
            raise InputError(f"at most {MAX_HOTWORDS} hotwords are allowed, got {len(self.hotwords)}")
        for phrase, weight in self.hotwords:
            if not phrase.strip() or len(phrase) > MAX_HOTWORD_LENGTH:
                raise InputError(f"a hotword has 1 to {MAX_HOTWORD_LENGTH} characters, got {phrase[:120]!r}")
            if not abs(weight) <= MAX_WEIGHT:
                raise InputError(f"the weight of hotword {phrase!r} must be within ±{MAX_WEIGHT:g}, got {weight}")

    @property
    def max_nbest(self) -> int:
        """How many hypotheses the search keeps at most."""
        return self.max_states if self.mode == "fast-beam" else self.beam

    @property
    def num_hypotheses(self) -> int:
        """How many hypotheses a beam has to tell: one if nobody chooses among more."""
        if self.mode == "fast-beam":
            return self.nbest
        return self.beam if self.mode == "rescoring" or self.nbest > 1 else 1

    def changed(self, parameters: Mapping[str, Any]) -> "SearchOptions":
        """These options with some of them replaced, as a request's parameters ask for.

        Args:
            parameters: by the names in `PARAMETERS`; numbers and booleans may be text, hotwords are text: JSON
                `{"phrase": weight}` or `phrase:weight, phrase:weight`. Other names are refused.

        Raises:
            InputError: a name is unknown, or a value unfit; says which and what would do.
        """
        if not parameters:
            return self
        values: dict[str, Any] = {}
        for name, value in parameters.items():
            if name not in PARAMETERS:
                raise InputError(f"unknown request parameter {name!r}; known are {', '.join(PARAMETERS)}")
            field, read = PARAMETERS[name]
            try:
                values[field] = read(value)
            except (ValueError, TypeError, OverflowError) as error:
                raise InputError(f"request parameter {name}: {error}") from error
        mode, nbest, beam = values.get("mode", self.mode), values.get("nbest", self.nbest), values.get("beam")
        counts = mode != "fast-beam"  # the beam counts hypotheses
        # Another way of searching has another usual beam.
        if beam is None and mode != self.mode:
            is_usual = self.beam == DEFAULT_BEAMS[self.mode] or counts != (self.mode != "fast-beam")
            beam = 0 if is_usual else self.beam
        if beam == 0:
            beam = max(DEFAULT_BEAMS[mode], nbest) if counts else DEFAULT_BEAMS[mode]
        # Who changes one of the two alone means the other to fit.
        if counts and "nbest" in values and "beam" not in values:
            beam = max(self.beam if beam is None else beam, nbest)
        if counts and "beam" in values and "nbest" not in values:
            values["nbest"] = max(1, min(nbest, beam))
        if beam is not None:
            values["beam"] = beam
        changed = replace(self, **values)
        if idle := idle_options(parameters, changed.mode):
            raise InputError(
                f"request parameter {', '.join(idle)} has no effect with search {changed.mode}; add the parameter "
                f"search={used_by(idle)}, or leave it out"
            )
        return changed


# Parameters, and options of those who load a model, that only some ways of searching look at.
CTC_MODES: tuple[SearchMode, ...] = ("greedy", "prefix-beam", "rescoring")
TRANSDUCER_MODES: tuple[SearchMode, ...] = ("greedy", "modified-beam", "fast-beam")
BEAM_MODES: tuple[SearchMode, ...] = ("prefix-beam", "rescoring", "modified-beam", "fast-beam")
USED_BY: Mapping[str, tuple[SearchMode, ...]] = {
    **dict.fromkeys(("beam", "nbest", "lm", "lm_unit", "lm_weight", "word_bonus", "hotwords"), BEAM_MODES),
    **dict.fromkeys(("ctc_weight", "reverse_weight"), ("rescoring",)),
    **dict.fromkeys(("blank_penalty",), TRANSDUCER_MODES),
    **dict.fromkeys(("temperature",), ("modified-beam", "fast-beam")),
    **dict.fromkeys(("max_symbols",), ("greedy",)),
    **dict.fromkeys(("max_states", "max_contexts"), ("fast-beam",)),
}


TRANSDUCER_OPTIONS = ("blank_penalty", "temperature", "max_symbols", "max_states", "max_contexts")


def given_to_transducers(options: SearchOptions) -> list[str]:
    """Those of the options that only transducers look at and that are not as by default."""
    usual = SearchOptions()
    return [name for name in TRANSDUCER_OPTIONS if getattr(options, name) != getattr(usual, name)]


def idle_options(names: Iterable[str], mode: str) -> list[str]:
    """Those of some options that have no effect on a search of this mode, in alphabetic order."""
    return sorted(name for name in names if mode not in USED_BY.get(name, get_args(SearchMode)))


def used_by(names: Sequence[str]) -> str:
    """The ways of searching that look at the first of some options and at as many others as possible, as a list."""
    modes = list(USED_BY[names[0]])
    for name in names[1:]:
        modes = [mode for mode in modes if mode in USED_BY[name]] or modes
    return " or ".join(filter(None, (", ".join(modes[:-1]), modes[-1])))


def read_hotwords(text: str) -> tuple[tuple[str, float], ...]:
    """Read hotwords: JSON `{"phrase": weight, ...}`, or `phrase:weight, phrase:weight`.

    Raises:
        ValueError: it is neither; the message shows the forms.
    """
    text = text.strip()
    if not text:
        return ()
    pairs: list[tuple[str, Any]] = []
    if text.startswith("{"):
        try:
            pairs = list(json.loads(text).items())
        except (ValueError, RecursionError) as error:
            raise ValueError(f"hotwords are not valid JSON: {error}") from error
    else:
        for part in filter(None, (each.strip() for each in text.split(","))):
            phrase, colon, weight = part.rpartition(":")
            if not colon:
                raise ValueError(
                    f'expected phrase:weight, phrase:weight or {{"phrase": weight}}, but {part[:80]!r} has no weight'
                )
            pairs.append((phrase, weight))
    return tuple((phrase.strip(), read_number(weight)) for phrase, weight in pairs)


def load_hotwords(given: str | os.PathLike[str] | Mapping[str, float] | None) -> tuple[tuple[str, float], ...]:
    """Hotwords in any form that a caller may have them: a file, text as in `read_hotwords`, a mapping, nothing.

    Raises:
        InputError: the file or the text cannot be read.
    """
    if given is None:
        return ()
    if isinstance(given, Mapping):
        try:
            return tuple((str(phrase).strip(), float(weight)) for phrase, weight in given.items())
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(f"hotwords must have numbers as weights: {error}") from error
    if not isinstance(given, str) or os.path.isfile(given):
        from tritone.search.hotwords import read_hotwords_file

        return read_hotwords_file(Path(given))
    try:
        return read_hotwords(given)
    except ValueError as error:
        raise InputError(f"there is no file {given[:200]!r}, and as text: {error}") from error


def read_number(value: Any) -> float:
    """A parameter's value as a number; it may be text.

    Raises:
        ValueError: it is none, or not finite.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"expected a number, got {value!r}")
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise ValueError(f"expected a number, got {str(value)[:80]!r}") from None
    if not math.isfinite(number):
        raise ValueError(f"expected a finite number, got {value!r}")
    return number


def _count(value: Any) -> int:
    number = read_number(value)
    if number != int(number):
        raise ValueError(f"expected a whole number, got {value!r}")
    return int(number)


def _switch(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    known = {"true": True, "1": True, "false": False, "0": False}
    if str(value).lower() not in known:
        raise ValueError(f"expected true or false, got {str(value)[:80]!r}")
    return known[str(value).lower()]


def _mode(value: Any) -> str:
    if value not in get_args(SearchMode):
        raise ValueError(f"expected one of {', '.join(get_args(SearchMode))}, got {str(value)[:80]!r}")
    return str(value)


def _hotwords(value: Any) -> tuple[tuple[str, float], ...]:
    if not isinstance(value, str):
        raise ValueError(f'expected text like {{"phrase": 5}} or phrase:5, got {value!r}')
    return read_hotwords(value)


# The names on the wire, the field that each sets and how it is read.
PARAMETERS: Mapping[str, tuple[str, Any]] = {
    "search": ("mode", _mode),
    "beam": ("beam", _count),
    "nbest": ("nbest", _count),
    "ctc_weight": ("ctc_weight", read_number),
    "reverse_weight": ("reverse_weight", read_number),
    "lm_weight": ("lm_weight", read_number),
    "word_bonus": ("word_bonus", read_number),
    "hotwords": ("hotwords", _hotwords),
    "timestamps": ("timestamps", _switch),
    "blank_penalty": ("blank_penalty", read_number),
    "temperature": ("temperature", read_number),
    "max_symbols": ("max_symbols", _count),
    "max_states": ("max_states", _count),
    "max_contexts": ("max_contexts", _count),
}
