"""Texts to the units that errors are counted in: one explicit normalisation for references and hypotheses.

    "Don't panic, it's 5%!"  ->  "don't panic it's 5 %"  ->  don't · panic · it's · 5 · %
    "我用 GPU 训练。"         ->  "我用 gpu 训练"          ->  我 · 用 · gpu · 训 · 练

A score compares texts after this and after nothing else: numbers are not spelled out unless that is asked for,
contractions and spellings not unified. Normalising twice changes nothing more.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

from tritone.evaluate.spelling import spell_out
from tritone.options.fields import option

Case = Literal["lower", "upper", "keep"]
Punctuation = Literal["remove", "keep"]
Units = Literal["auto", "words", "characters", "mixed"]
Unicode = Literal["nfkc", "keep"]
Tags = Literal["keep", "remove"]
Spelling = Literal["keep", "english"]

APOSTROPHES = "'\u2019\u2018\u02bc\uff07\u00b4`\u2032\u201b"  # what people and models type for one
SPOKEN = "%&@#+=°§×÷"  # signs that are read aloud; so are the currencies, Unicode category Sc
TAG = re.compile(r"(</?[A-Za-z][\w:.-]*>|<\|[\w:.-]+\|>)", re.ASCII)  # <unk>, </s>, <|en|>, <|0.00|>

# Scripts that put no space between words, as ranges of code points.
UNSPACED = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Burmese
    (0x1780, 0x17FF),  # Khmer
    (0x2E80, 0x2FDF),  # Han radicals
    (0x3005, 0x3007),  # 々〆〇
    (0x3021, 0x3029),  # Suzhou numerals
    (0x3031, 0x312F),  # Kana, Bopomofo
    (0x31A0, 0x31FF),  # Bopomofo, strokes, Kana
    (0x3400, 0x4DBF),  # Han
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0xFF66, 0xFF9F),  # Kana of half width
    (0x1AFF0, 0x1B16F),  # Kana
    (0x20000, 0x3FFFF),  # Han
)
HANGUL = ((0x1100, 0x11FF), (0x3130, 0x318F), (0xA960, 0xA97F), (0xAC00, 0xD7FF), (0xFFA0, 0xFFDC))

LONGEST_KEPT = 64  # characters of a token; a longer one is hardly a word that comes again
MOST_KEPT = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Normalization:
    """What to make equal before errors are counted.

    Attributes:
        case: `lower`, `upper` by Unicode's rules (ß stays ß in lower case), or `keep`.
        punctuation: `remove` puts a space in its place, in that of hyphens, dashes and slashes too, and in that of
            emoji and other symbols. It keeps apostrophes inside words (don't, l'homme), points and commas between
            digits (3.14), and, as words of their own, the signs that are read aloud (`SPOKEN`, currencies): without
            them "5 %" would be right for "5". Invisible characters (joiners, byte order marks, variation selectors)
            go without a trace.
        units: what the word error rate counts.
            `words`: what spaces separate.
            `characters`: every character, without spaces.
            `mixed`: Han, Kana, Hangul and Thai, Lao, Khmer, Burmese by character, other scripts by word: the "mixed
            error rate" of code-switching.
            `auto`: by character where a script puts no space between words, by word elsewhere: `mixed`, but Korean,
            which is written with spaces, by word. It is decided for each character, not for a text or a set, so
            reference and hypothesis never disagree, and for a text without such scripts it is `words`.
        unicode: `nfkc` (full width to half width, ligatures, composed accents), or `keep`.
        tags: what to do with tags such as <unk>, <noise> or </s>: `keep` each as one unit, whatever happens to
            punctuation, or `remove`. An <unk> in a hypothesis is an error that removal may hide.
        spelling: `english` writes numbers, the signs & + % $ £ and some abbreviations ("Dr.") as English words, and
            takes accents off Latin letters, see `spelling.py`; `keep` does not.
        count_spaces: whether the character error rate counts the spaces between words, as some tools do.
    """

    case: Case = option("lower", "Treatment of letter case.")
    punctuation: Punctuation = option("remove", "Treatment of punctuation.")
    units: Units = option("auto", "Units of the WER; auto: Han, Kana, Thai by character, others by word.")
    unicode: Unicode = option("nfkc", "Unicode normalisation.")
    tags: Tags = option("keep", "Treatment of tags like <unk>.")
    spelling: Spelling = option("keep", "english: numbers, signs and abbreviations as English words, accents off.")
    count_spaces: bool = option(False, "Count spaces in the CER.")

    def __post_init__(self) -> None:
        choices = {
            "case": Case,
            "punctuation": Punctuation,
            "units": Units,
            "unicode": Unicode,
            "tags": Tags,
            "spelling": Spelling,
        }
        for name, choice in choices.items():
            value, allowed = getattr(self, name), get_args(choice)
            if value not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")

    def summary(self) -> str:
        """One line for tables and reports."""
        return ", ".join(
            [
                "case kept" if self.case == "keep" else f"{self.case} case",
                "punctuation kept" if self.punctuation == "keep" else "punctuation removed",
                "Unicode as it is" if self.unicode == "keep" else "NFKC",
                f"units: {self.units}",
                *(["spelled out in English"] if self.spelling == "english" else []),
                *(["tags removed"] if self.tags == "remove" else []),
                *(["spaces counted as characters"] if self.count_spaces else []),
            ]
        )


class Normalizer:
    """Applies one `Normalization`."""

    def __init__(self, normalization: Normalization = Normalization()) -> None:
        self.normalization = normalization
        self._tokens = _Memory(self._normalize)
        self._units = _Memory(self._split)

    def text(self, text: str) -> str:
        """The normalised text, single spaces between words. Idempotent."""
        return " ".join(word for token in text.split() for word in self._tokens[token])

    def words(self, text: str) -> list[str]:
        """The units of the word error rate, see `Normalization.units`."""
        return [unit for token in text.split() for unit in self._units[token]]

    def characters(self, text: str) -> list[str]:
        """The units of the character error rate: code points of the normalised text; a tag is one."""
        units: list[str] = []
        for token in text.split():
            for word in self._tokens[token]:
                if units and self.normalization.count_spaces:
                    units.append(" ")
                units += _characters(word)
        return units

    def _normalize(self, token: str) -> tuple[str, ...]:
        how = self.normalization
        remove = how.punctuation == "remove"
        if remove:
            # First: NFKC makes a space and an accent of ´, and what is invisible keeps accents from composing.
            token = "".join("'" if each in APOSTROPHES else each for each in token if not _is_invisible(each))
        if how.unicode == "nfkc":
            token = unicodedata.normalize("NFKC", token)
        if how.spelling == "english":
            parts = enumerate(TAG.split(token))
            token = "".join(part if number % 2 else spell_out(part) for number, part in parts)
        if how.case != "keep":
            token = token.lower() if how.case == "lower" else token.upper()
            if how.unicode == "nfkc":
                token = unicodedata.normalize("NFKC", token)
        words: list[str] = []
        for number, part in enumerate(TAG.split(token)):
            if number % 2:  # the group of the pattern
                words += [part] if how.tags == "keep" else []
            else:
                words += (_without_punctuation(part) if remove else part).split()
        return tuple(words)

    def _split(self, token: str) -> tuple[str, ...]:
        words, units = self._tokens[token], self.normalization.units
        if units == "words":
            return words
        if units == "characters":
            return tuple(unit for word in words for unit in _characters(word))
        scripts = UNSPACED if units == "auto" else UNSPACED + HANGUL
        return tuple(unit for word in words for unit in _split_unspaced(word, scripts))


class _Memory(dict[str, tuple[str, ...]]):
    """What becomes of a token between spaces. Nothing looks across a space, and words come again and again."""

    def __init__(self, function: Callable[[str], tuple[str, ...]]) -> None:
        super().__init__()
        self._function = function

    def __missing__(self, token: str) -> tuple[str, ...]:
        found = self._function(token)
        if len(token) <= LONGEST_KEPT:
            if len(self) >= MOST_KEPT:
                self.clear()
            self[token] = found
        return found


def _without_punctuation(text: str) -> str:
    out = [" "]
    for index, each in enumerate(text):
        kind, before = _kind(each), out[-1]
        after = text[index + 1] if index + 1 < len(text) else " "
        if kind == "letter" or kind == "digit":
            out.append(each)
        elif kind == "mark":
            out += [each] if before != " " else []  # an accent of what was removed goes with it
        elif kind == "spoken":
            out += [" ", each, " "]
        elif (kind == "apostrophe" and _joins(before) and _joins(after)) or (
            each in ".," and _kind(before) == _kind(after) == "digit"
        ):
            out.append(each if kind != "apostrophe" else "'")
        else:
            out.append(" ")
    return "".join(out)


def _joins(character: str) -> bool:
    """Whether an apostrophe beside it can be part of a word; beside 你 it is a quotation mark."""
    return _kind(character) in ("letter", "digit", "mark") and not _is_in(character, UNSPACED)


@lru_cache(maxsize=1 << 16)
def _kind(character: str) -> str:
    category = unicodedata.category(character)
    if character in APOSTROPHES:
        return "apostrophe"
    if character in SPOKEN or category == "Sc":
        return "spoken"
    if category == "Nd":
        return "digit"
    if category in ("Mn", "Mc"):
        return "mark"
    # Not assigned and private characters may be letters that this Python does not know yet.
    return "letter" if category[0] in "LN" or category in ("Cn", "Co", "Cs") else "other"


@lru_cache(maxsize=1 << 16)
def _is_invisible(character: str) -> bool:
    code = ord(character)
    selector = 0xFE00 <= code <= 0xFE0F or 0xE0100 <= code <= 0xE01EF
    return selector or unicodedata.category(character) in ("Cf", "Me")


def _characters(token: str) -> list[str]:
    return [token] if TAG.fullmatch(token) else list(token)


def _split_unspaced(token: str, scripts: tuple[tuple[int, int], ...]) -> Iterator[str]:
    """Characters of these scripts, each with its accents, and what stands between them."""
    if token.isascii():
        yield token
        return
    unit, alone = "", False  # `alone`: nothing but an accent may join this unit
    for each in token:
        unspaced = _is_in(each, scripts)
        joins = unit and (_kind(each) == "mark" or not (unspaced or alone))
        if joins:
            unit += each
            continue
        if unit:
            yield unit
        unit, alone = each, unspaced
    yield unit


@lru_cache(maxsize=1 << 16)
def _is_in(character: str, ranges: tuple[tuple[int, int], ...]) -> bool:
    code = ord(character)
    return any(first <= code <= last for first, last in ranges)
