"""Byte-level BPE of GPT-2, which Whisper's vocabularies are: pieces as bytes, and text as token ids.

    token table  ->  ByteLevelBpe  ->  bytes of an id, text of ids, ids of a text

A table writes each byte as one printable character: those that print stand for themselves, all others, the space among
them, for the characters from U+0100 on. Pieces are merged in the order of their ids, as in every vocabulary of this
kind, so the table is all that encoding needs.
Source: openai/gpt-2 src/encoder.py, openai/tiktoken.
"""

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import count, pairwise

PRINTED = (*range(33, 127), *range(161, 173), *range(174, 256))  # bytes that stand for themselves
CONTRACTIONS = ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d")
NO_SPACES = "\x1c\x1d\x1e\x1f"  # white space for Python, but not for Unicode


def _characters() -> str:
    others = count(256)
    return "".join(chr(byte if byte in PRINTED else next(others)) for byte in range(256))


CHARACTERS = _characters()
BYTE_OF = {character: byte for byte, character in enumerate(CHARACTERS)}


def piece_bytes(token: str) -> bytes | None:
    """The bytes of a piece, or None for what is none, such as `<|endoftext|>`."""
    if token.startswith("<|") and token.endswith("|>"):
        return None
    if not all(character in BYTE_OF for character in token):
        return None
    return bytes(BYTE_OF[character] for character in token)


def piece_of(data: bytes) -> str:
    """How a table writes some bytes."""
    return "".join(CHARACTERS[byte] for byte in data)


class ByteLevelBpe:
    """A token table with the rules to read and write text. Special tokens, `<|…|>`, have no text."""

    def __init__(self, tokens: Sequence[str]) -> None:
        """Take the tokens in the order of their ids."""
        self._bytes = tuple(map(piece_bytes, tokens))

    def bytes_of(self, id: int) -> bytes:
        """The bytes of a token, empty for a special one."""
        return self._bytes[id] or b""

    def decode(self, ids: Iterable[int]) -> str:
        """The text of tokens; bytes that are no UTF-8 become U+FFFD."""
        return b"".join(self.bytes_of(id) for id in ids).decode(errors="replace")

    def encode(self, text: str) -> list[int]:
        """The tokens of a text; what stands for a special token in it is read as plain text.

        Raises:
            ValueError: the table lacks a byte of the text.
        """
        return [id for part in split(text) for id in self._merged(part.encode())]

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        found: dict[bytes, int] = {}
        for id, data in enumerate(self._bytes):
            if data:
                found.setdefault(data, id)
        return found

    def _merged(self, data: bytes) -> list[int]:
        """Merge neighbours as long as both together are a piece, that with the lowest id first."""
        parts = [bytes([byte]) for byte in data]
        while len(parts) > 1:
            ranks = [self._ids.get(left + right) for left, right in pairwise(parts)]
            possible = [(rank, place) for place, rank in enumerate(ranks) if rank is not None]
            if not possible:
                break
            best, _ = min(possible)
            merged: list[bytes] = []
            place = 0
            while place < len(parts):
                if place < len(ranks) and ranks[place] == best:
                    merged.append(parts[place] + parts[place + 1])
                    place += 2
                else:
                    merged.append(parts[place])
                    place += 1
            parts = merged
        try:
            return [self._ids[part] for part in parts]
        except KeyError as error:
            raise ValueError(f"the vocabulary has no token for the bytes {error.args[0]!r}") from error


def split(text: str) -> Iterator[str]:
    """Cut text where no piece reaches across: before words, numbers and punctuation, each with the space before it.

    The same parts as those of the pattern
    `'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+`, whose classes Python's `re`
    does not have.
    """
    kinds = [_kind(character) for character in text]
    place = 0
    while place < len(text):
        start = place
        if contraction := next((each for each in CONTRACTIONS if text.startswith(each, place)), None):
            place += len(contraction)
        elif kinds[place] != "space" or (text[place] == " " and kinds[place + 1 : place + 2] not in ([], ["space"])):
            place += kinds[place] == "space"
            kind = kinds[place]
            while place < len(text) and kinds[place] == kind:
                place += 1
        else:
            while place < len(text) and kinds[place] == "space":
                place += 1
            if place < len(text) and place - start > 1:
                place -= 1  # the last space goes with what follows, or stands alone
        yield text[start:place]


def _kind(character: str) -> str:
    if character.isspace() and character not in NO_SPACES:
        return "space"
    return {"L": "letter", "N": "number"}.get(unicodedata.category(character)[0], "other")
