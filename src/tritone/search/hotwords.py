"""Hotwords, phrases with weights, from files, from text in a request, or from a mapping.

    hotwords.yaml ("phrase: weight" a line, as WeNet has it), or text ("phrase weight" a line)  ->  phrases, weights
    '{"anna": 8}' or 'anna:8, new york:5'                                                      ->  phrases, weights

What phrases do to a search is described in `scoring/automaton.py`.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tritone.errors import InputError, LanguageModelError
from tritone.options.fields import read_number
from tritone.paths import open_file, plain_text

MAX_HOTWORDS = 1000
MAX_HOTWORD_LENGTH = 100  # characters
MAX_WEIGHT = 100.0  # of any score that a request may weigh, natural-log units

MAX_FILE_BYTES = 2**20
MAX_TEXT = 2**20  # characters: a thousand of the longest phrases as JSON that escapes all characters take 0.7 million
NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")  # nothing matches in two ways, which takes long to find
MAX_NUMBER = 40  # characters
FOREIGN = re.compile(r"hotword .* cannot occur: no token of this model writes '(.)'", re.DOTALL)
"""What `foreign` says, with the character."""
YAML_NAMES = (".yaml", ".yml")


def foreign(phrase: str, character: str) -> InputError:
    """The error about a phrase with a character that no token of the model writes; `FOREIGN` reads it."""
    return InputError(
        f"hotword {phrase!r} cannot occur: no token of this model writes '{character}'. "
        "Spell it as the model does, or leave it out."
    )


def check_hotwords(hotwords: tuple[tuple[str, float], ...]) -> None:
    """Raise `InputError` if there are too many hotwords, or one is too long or has too large a weight."""
    if len(hotwords) > MAX_HOTWORDS:
        raise InputError(f"at most {MAX_HOTWORDS} hotwords are allowed, got {len(hotwords)}")
    for phrase, weight in hotwords:
        if not phrase.strip() or len(phrase) > MAX_HOTWORD_LENGTH:
            raise InputError(f"a hotword has 1 to {MAX_HOTWORD_LENGTH} characters, got {phrase[:120]!r}")
        if not abs(weight) <= MAX_WEIGHT:
            raise InputError(f"the weight of hotword {phrase!r} must be within ±{MAX_WEIGHT:g}, got {weight}")


def load_hotwords(given: str | os.PathLike[str] | Mapping[str, float] | None) -> tuple[tuple[str, float], ...]:
    """Hotwords in any form that a caller may have: a file, text as in `read_hotwords`, a mapping, or None.

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
        return read_hotwords_file(Path(given))
    try:
        return read_hotwords(given)
    except ValueError as error:
        raise InputError(f"there is no file {given[:200]!r}, and as text: {error}") from error


def read_hotwords(text: Any) -> tuple[tuple[str, float], ...]:
    """Read hotwords: JSON `{"phrase": weight, ...}`, or `phrase:weight, phrase:weight`.

    Raises:
        ValueError: it is neither; the message shows the forms.
    """
    if not isinstance(text, str):
        raise ValueError(f'expected text like {{"phrase": 5}} or phrase:5, got {repr(text)[:80]}')
    if len(text) > MAX_TEXT:
        raise ValueError(
            f"the hotwords have {len(text):,} characters, the limit is {MAX_TEXT:,}; {MAX_HOTWORDS} phrases of "
            f"{MAX_HOTWORD_LENGTH} characters take less"
        )
    text = text.strip()
    if not text:
        return ()
    pairs: list[tuple[str, Any]] = []
    if text.startswith("{"):
        try:
            pairs = list(json.loads(text).items())
        except (ValueError, RecursionError) as error:
            raise ValueError(f"hotwords are not valid JSON: {str(error)[:200]}") from error
    else:
        for part in filter(None, (each.strip() for each in text.split(","))):
            phrase, colon, weight = part.rpartition(":")
            if not colon:
                raise ValueError(
                    f'expected phrase:weight, phrase:weight or {{"phrase": weight}}, but {part[:80]!r} has no weight'
                )
            pairs.append((phrase, weight))
    if len(pairs) > MAX_HOTWORDS:
        raise ValueError(f"at most {MAX_HOTWORDS} hotwords are allowed, got {len(pairs)}")
    return tuple((phrase.strip(), read_number(weight)) for phrase, weight in pairs)


def read_hotwords_file(path: Path) -> tuple[tuple[str, float], ...]:
    """Read the hotwords of a file.

    Args:
        path: `*.yaml`, `*.yml`: a map from phrases to weights. Any other name: lines of a phrase, blanks and a weight;
            empty lines and those that begin with `#` are skipped.

    Raises:
        LanguageModelError: the file cannot be read or is malformed, with the line; a phrase is there twice, there are
            too many, or one is longer or has a larger weight than requests may have.
    """
    try:
        with open_file(path) as file:
            content = file.read(MAX_FILE_BYTES + 1)
        text = plain_text(content)
    except OSError as error:
        raise LanguageModelError(f"cannot read the hotwords file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise LanguageModelError(f"hotwords file {path} is not UTF-8: {error.reason} at byte {error.start}") from error
    if len(content) > MAX_FILE_BYTES:
        raise LanguageModelError(f"hotwords file {path} has more than {MAX_FILE_BYTES} bytes; is it the right file?")
    hotwords: dict[str, float] = {}
    for number, phrase, weight in _yaml_pairs(text, path) if path.suffix.lower() in YAML_NAMES else _lines(text, path):
        value = float(weight) if len(weight) <= MAX_NUMBER and NUMBER.fullmatch(weight) else None
        if not phrase or len(phrase) > MAX_HOTWORD_LENGTH:
            problem = f"a phrase has 1 to {MAX_HOTWORD_LENGTH} characters, got {phrase[:120]!r}"
        elif value is None or not abs(value) <= MAX_WEIGHT:
            problem = f"the weight of {phrase!r} must be a number within ±{MAX_WEIGHT:g}, got {weight[:80]!r}"
        elif phrase in hotwords:
            problem = f"{phrase!r} is there twice"
        elif len(hotwords) == MAX_HOTWORDS:
            problem = f"at most {MAX_HOTWORDS} hotwords are allowed"
        else:
            hotwords[phrase] = value
            continue
        raise LanguageModelError(f"{path}, line {number}: {problem}")
    return tuple(hotwords.items())


def _lines(text: str, path: Path) -> Iterator[tuple[int, str, str]]:
    for number, line in enumerate(text.split("\n"), start=1):
        parts = line.strip().rsplit(None, 1)
        if not parts or line.lstrip().startswith("#"):
            continue
        if len(parts) < 2:
            raise LanguageModelError(f"{path}, line {number}: expected a phrase and its weight, got {line[:80]!r}")
        yield number, parts[0], parts[1]


def _yaml_pairs(text: str, path: Path) -> Iterator[tuple[int, str, str]]:
    """The pairs as they are read: there may be more in a megabyte than anybody wants to wait for."""
    import yaml  # not before there is such a file

    def line(event: Any) -> int:
        return int(event.start_mark.line) + 1

    try:
        # Events, not objects made of them: they know lines, and take `no` and `1` for the words that they are.
        events = (
            each for each in yaml.parse(text, Loader=yaml.SafeLoader) if not isinstance(each, yaml.StreamStartEvent)
        )
        if isinstance(next(events), yaml.StreamEndEvent):
            return
        if not isinstance(root := next(events), yaml.MappingStartEvent):
            if isinstance(root, yaml.ScalarEvent) and not root.value and root.implicit[0]:
                return  # comments between "---" and "..."
            raise LanguageModelError(f"{path}, line {line(root)}: expected a map from phrases to weights")
        while not isinstance(key := next(events), yaml.MappingEndEvent):
            value = next(events)
            if not isinstance(key, yaml.ScalarEvent) or not isinstance(value, yaml.ScalarEvent):
                raise LanguageModelError(f"{path}, line {line(key)}: expected `phrase: weight`")
            yield line(key), " ".join(key.value.split()), value.value.strip()
        next(events)  # the end of the document
        if not isinstance(more := next(events), yaml.StreamEndEvent):
            raise LanguageModelError(f"{path}, line {line(more)}: expected a single document")
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        raise LanguageModelError(f"{path}{where}: {getattr(error, 'problem', None) or error}") from error
