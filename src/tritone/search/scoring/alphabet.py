"""Tokens as sequences of symbols: what language model and hotwords see of a token table.

    spellings ("", " he", "llo", "你")  ->  symbols: characters by number, and 0 for a border between words

Words are those of the text: a run of characters without spaces, and every Chinese or Japanese character by itself.
"""

import re
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from tritone import transcript

BORDER = 0  # what parts words
IDEOGRAPH = re.compile(transcript.IDEOGRAPH)  # characters that are words of their own
# What a token does to words: nothing; adds letters to a word; ends one and may begin the next, borders first; the same
# by one ideograph, which ends at once; anything else.
SILENT, LETTERS, BREAK, ALONE, MIXED = range(5)
NUM_KINDS = 5
MARK = re.compile("<[^<>]+>")  # tokens such as <unk> and <noise>: nobody's letters


class Alphabet:
    """The characters of a token table, numbered from 1 in the order of their code points."""

    def __init__(self, spellings: Sequence[str]) -> None:
        self.spellings = tuple(spellings)
        characters = sorted({char for spelling in self.spellings for char in spelling if not char.isspace()})
        self._symbol_of = {char: number for number, char in enumerate(characters, start=1)}
        # For each symbol, whether it is a word by itself.
        self.ideographs = np.array([0, *(bool(IDEOGRAPH.match(char)) for char in characters)], dtype=np.int32)
        parts = [[self._symbol_of.get(char, BORDER) for char in spelling] for spelling in self.spellings]
        # The symbols of token t are symbols[first[t]:first[t + 1]].
        self.symbols = np.array([symbol for part in parts for symbol in part], dtype=np.int32)
        self.first = np.zeros(len(parts) + 1, dtype=np.int64)
        np.cumsum([len(part) for part in parts], out=self.first[1:])

    def __len__(self) -> int:
        return len(self.ideographs)

    @cached_property
    def letters(self) -> frozenset[str]:
        """The characters that ordinary tokens are made of."""
        return frozenset(
            char for spelling in self.spellings if not MARK.fullmatch(spelling.strip()) for char in spelling
        ) - {" "}

    @cached_property
    def most_words(self) -> int:
        """How many words one token can complete, at most."""
        borders = np.concatenate(([0], np.cumsum((self.symbols == BORDER) + 2 * self.ideographs[self.symbols])))
        return int((borders[self.first[1:]] - borders[self.first[:-1]]).max(initial=0))

    @cached_property
    def kinds(self) -> npt.NDArray[np.int32]:
        """For each token SILENT, LETTERS, BREAK, ALONE or MIXED."""
        kinds = np.full(len(self.spellings), MIXED, dtype=np.int32)
        for token, spelling in enumerate(self.spellings):
            letters = spelling.lstrip()
            if len(letters) == 1 and IDEOGRAPH.match(letters):
                kinds[token] = ALONE
            elif not any(char.isspace() for char in letters) and not IDEOGRAPH.search(letters):
                kinds[token] = BREAK if letters != spelling else LETTERS if letters else SILENT
        return kinds

    @cached_property
    def _cases(self) -> tuple[bool, bool]:
        return any(char.islower() for char in self.letters), any(char.isupper() for char in self.letters)

    def in_case(self, text: str) -> str:
        """Text in the case of the table, if that has only one."""
        lower, upper = self._cases
        if lower == upper:
            return text
        return text.lower() if lower else text.upper()

    def words(self, text: str) -> list[list[int]]:
        """The words of a text as symbols.

        Raises:
            ValueError: no token has one of its characters; the message is that character.
        """
        words: list[list[int]] = []
        for part in text.split():
            for word in filter(None, re.split(f"({IDEOGRAPH.pattern})", part)):
                missing = next((char for char in word if char not in self._symbol_of), None)
                if missing is not None:
                    raise ValueError(missing)
                words.append([self._symbol_of[char] for char in word])
        return words

    def encode(
        self, words: Sequence[str]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Many words at once.

        Returns:
            Symbols one word after the other, where each word begins (one more at the end), and whether each can be
            written with the letters, as one word.
        """
        lengths = np.fromiter((len(word) for word in words), dtype=np.int64, count=len(words))
        first = np.concatenate(([0], np.cumsum(lengths)))
        codes = np.frombuffer("".join(words).encode("utf-32-le", "surrogatepass"), dtype="<u4")
        letters = sorted(self.letters)
        known = np.array([ord(char) for char in letters] or [0], dtype=np.uint32)
        numbers = np.array([self._symbol_of.get(char, BORDER) for char in letters] or [BORDER], dtype=np.int32)
        at = np.minimum(np.searchsorted(known, codes), len(known) - 1)
        symbols = np.where(known[at] == codes, numbers[at], BORDER).astype(np.int32)
        # A word has no border in it, and none of several characters has an ideograph.
        wrong = (symbols == BORDER) | (self.ideographs[symbols].astype(bool) & (np.repeat(lengths, lengths) > 1))
        before = np.concatenate(([0], np.cumsum(wrong)))
        return symbols, first, (before[first[1:]] == before[first[:-1]]) & (lengths > 0)


@lru_cache(maxsize=8)
def _alphabet(spellings: tuple[str, ...]) -> Alphabet:
    return Alphabet(spellings)


def alphabet_of(spellings: Iterable[str]) -> Alphabet:
    """The alphabet of a token table, kept for the next call with the same table."""
    return _alphabet(tuple(spellings))
