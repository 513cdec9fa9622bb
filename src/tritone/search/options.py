"""What one request may ask of the search.

    {"search": "rescoring", "beam": "20", "hotwords": "{\\"anna\\": 8}"}  ->  SearchOptions

A model has defaults, a request changes some of them, and requests with different options share a batch.
"""

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from tritone.errors import InputError

SearchMode = Literal["greedy", "prefix-beam", "rescoring"]
LmUnit = Literal["auto", "word", "token"]  # what the words of a language model are

MAX_BEAM = 128  # of a request: the work grows with it, and everybody's requests wait for it
MAX_HOTWORDS = 1000
MAX_HOTWORD_LENGTH = 100  # characters
MAX_WEIGHT = 100.0


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How to search; scores and weights are in natural-log units.

    `mode`: the best label of each frame, prefix beam search, or that with its n-best scored by the attention decoder.
    `beam`: prefixes kept after each frame, and tokens looked at in each frame. `nbest`: alternatives in the result.
    `ctc_weight`, `reverse_weight`: of the CTC score and of the right-to-left decoder in rescoring; None takes the
    model's. `lm_weight`: factor of the language model's log-probability; None takes 0.5 where there is one, 0 leaves it
    out. `word_bonus`: added for each word that the language model scores. `hotwords`: phrases and what each adds to a
    hypothesis that holds it; negative weights make it rarer. `timestamps`: whether details tell tokens and words with
    their times.

    The language model and hotwords need a beam: greedy search does not know them.
    """

    mode: SearchMode = "greedy"
    beam: int = 10
    nbest: int = 1
    ctc_weight: float | None = None
    reverse_weight: float | None = None
    lm_weight: float | None = None
    word_bonus: float = 0.0
    hotwords: tuple[tuple[str, float], ...] = ()
    timestamps: bool = True

    def __post_init__(self) -> None:
        if self.mode not in get_args(SearchMode):
            raise InputError(f"search must be one of {', '.join(get_args(SearchMode))}, got {self.mode!r}")
        if not 1 <= self.beam <= MAX_BEAM:
            raise InputError(f"beam must be 1 to {MAX_BEAM}, got {self.beam}")
        if not 1 <= self.nbest <= self.beam:
            raise InputError(f"nbest must be 1 to the beam ({self.beam}), got {self.nbest}")
        for name in ("ctc_weight", "lm_weight", "word_bonus"):
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
    def num_hypotheses(self) -> int:
        """How many hypotheses a beam has to tell: one if nobody chooses among more."""
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
        # Who changes one of the two alone means the other to fit.
        if "beam" in values and "nbest" not in values:
            values["nbest"] = max(1, min(self.nbest, values["beam"]))
        if "nbest" in values and "beam" not in values:
            values["beam"] = max(self.beam, values["nbest"])
        changed = replace(self, **values)
        if idle := idle_options(parameters, changed.mode):
            raise InputError(
                f"request parameter {', '.join(idle)} has no effect with search {changed.mode}; add the parameter "
                f"search={USED_BY[idle[0]][0]}, or leave it out"
            )
        return changed


# Parameters, and options of those who load a model, that only some ways of searching look at.
BEAM_MODES: tuple[SearchMode, ...] = ("prefix-beam", "rescoring")
USED_BY: Mapping[str, tuple[SearchMode, ...]] = {
    **dict.fromkeys(("beam", "nbest", "lm", "lm_unit", "lm_weight", "word_bonus", "hotwords"), BEAM_MODES),
    **dict.fromkeys(("ctc_weight", "reverse_weight"), ("rescoring",)),
}


def idle_options(names: Iterable[str], mode: str) -> list[str]:
    """Those of some options that have no effect on a search of this mode, in alphabetic order."""
    return sorted(name for name in names if mode not in USED_BY.get(name, get_args(SearchMode)))


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
    return tuple((phrase.strip(), _number(weight)) for phrase, weight in pairs)


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


def _number(value: Any) -> float:
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
    number = _number(value)
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
    "ctc_weight": ("ctc_weight", _number),
    "reverse_weight": ("reverse_weight", _number),
    "lm_weight": ("lm_weight", _number),
    "word_bonus": ("word_bonus", _number),
    "hotwords": ("hotwords", _hotwords),
    "timestamps": ("timestamps", _switch),
}
