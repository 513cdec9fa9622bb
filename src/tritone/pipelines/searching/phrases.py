"""Hotwords as a network is told them that has a part for them: phrases as ids of tokens.

"hello \u6211\u7684"  ->  (8, 9, 7, 6)

Words are written as a file of the bundle says (FunASR's `seg_dict`); without a line in it, a word or one of its Chinese
characters and digits is the token of that name.
"""

import re
from bisect import bisect_left
from functools import cached_property

from tritone.bundle.bundle import Bundle
from tritone.errors import BundleError, InputError
from tritone.kinds.paraformer.part import HotwordsPart
from tritone.paths import open_file, plain_text

MAX_TOKENS = 16  # of a phrase; graphs take so many, since an LSTM cannot be traced for any number of them
MAX_BYTES = 64 * 2**20
PARTS = re.compile(r"[\u4e00-\u9fff\d]|[^\u4e00-\u9fff\d]+")


class Phrases:
    """What divides the phrases for one bundle; the file of words is read when a phrase first needs it."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._ids = {token: id for id, token in enumerate(bundle.vocabulary.tokens)}

    def ids(self, hotwords: tuple[tuple[str, float], ...]) -> tuple[tuple[int, ...], ...]:
        """The tokens of each phrase.

        Raises:
            BundleError: the file of words cannot be read, or is damaged.
            InputError: there are too many, one has a weight that is not above 0, or it cannot be written.
        """
        part = self._bundle.manifest.part(HotwordsPart)
        if part.max_phrases is not None and len(hotwords) > part.max_phrases:
            raise InputError(f"this model takes at most {part.max_phrases} hotwords, got {len(hotwords)}; send fewer")
        if rarer := [phrase for phrase, weight in hotwords if weight <= 0]:
            raise InputError(
                f"hotword {rarer[0]!r} has a weight that is not above 0: this model can only favour phrases, all of "
                "them alike; leave it out"
            )
        return tuple(self._of_phrase(phrase) for phrase, _ in hotwords)

    def _of_phrase(self, phrase: str) -> tuple[int, ...]:
        found: list[int] = []
        for word in phrase.lower().split():
            written = self._of_word(word)
            for part in PARTS.findall(word) if written is None else ():
                if (more := self._of_word(part)) is None:
                    raise InputError(
                        f"hotword {phrase!r} cannot occur: this model has no tokens for {part!r}. Spell it as the "
                        "model does, or leave it out."
                    )
                found += more
            found += written or ()
        if len(found) > MAX_TOKENS:
            raise InputError(f"hotword {phrase!r} has {len(found)} tokens, the limit is {MAX_TOKENS}; shorten it")
        return tuple(found)

    def _of_word(self, word: str) -> list[int] | None:
        """The tokens of a word; None if it is not known, or written with tokens that the model does not have."""
        place = bisect_left(self._lines, f"{word} ")
        line = self._lines[place] if place < len(self._lines) else ""
        pieces = line.split(" ")[1:] if line.startswith(f"{word} ") else [word]
        found = [self._ids[piece] for piece in pieces if piece in self._ids]
        return found if len(found) == len(pieces) else None

    @cached_property
    def _lines(self) -> list[str]:
        """The lines of the file in order, each with one space between words; of equal words the last one's."""
        if (name := self._bundle.manifest.part(HotwordsPart).words) is None:
            return []
        path = self._bundle.file(name)
        with open_file(path) as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise BundleError(f"{path} has more than {MAX_BYTES} bytes; is it a list of words and their tokens?")
        try:
            lines = plain_text(content).splitlines()
        except UnicodeDecodeError as error:
            raise BundleError(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from error
        return sorted({parts[0]: " ".join(parts) for line in lines if (parts := line.split())}.values())
