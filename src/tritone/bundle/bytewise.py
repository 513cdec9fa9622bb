"""Tokens that stand for bytes of UTF-8 rather than for characters, and how the bytes of several become text.

There are two kinds: `<0xE4>`, which sentencepiece falls back to for a character that it has no piece for, and the
pieces of icefall's byte-level BPE, which write every byte as one printable character.
"""

import codecs
import re
import unicodedata
from collections.abc import Iterable, Mapping
from itertools import count

SPACE = "▁"  # U+2581
FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")
SPECIAL = re.compile(r"<[^<>]+>|#[0-9]+")  # <blk>, <sos/eos>, <unk>: no bytes


def _byte_characters() -> str:
    """The printable characters of the bytes 0 to 255.

    Printable ASCII stands for itself; all other bytes, in their order, for the characters from U+0100 on that a
    normalisation by NFKC leaves as they are, so that sentencepiece does.
    """
    others = (chr(code) for code in count(0x100) if unicodedata.normalize("NFKC", chr(code)) == chr(code))
    return "".join(chr(byte) if 32 <= byte < 127 else next(others) for byte in range(256))


BYTE_CHARACTERS = _byte_characters()
BYTE_OF: Mapping[str, int] = {
    **{character: byte for byte, character in enumerate(BYTE_CHARACTERS)},
    SPACE: 32,
    "\u2047": 32,  # what sentencepiece writes for an unknown piece
}


def fallback_byte(token: str) -> bytes | None:
    """The byte of `<0xNN>`, or None for any other token."""
    found = FALLBACK.fullmatch(token)
    return bytes([int(found[1], 16)]) if found else None


def byte_piece(token: str) -> bytes | None:
    """The bytes of a piece of byte-level BPE, or None for a token that is none."""
    if SPECIAL.fullmatch(token) or not all(character in BYTE_OF for character in token):
        return None
    return bytes(BYTE_OF[character] for character in token)


def is_byte_level(tokens: Iterable[str]) -> bool:
    """Is a token table one of byte-level BPE?

    Known by its content: all pieces are of byte characters alone, and among these are some that no other table of a
    language written with them has, from U+0180 on.
    """
    pieces = [token for token in tokens if not SPECIAL.fullmatch(token)]
    characters = set().union(*pieces) - {SPACE}
    return characters <= BYTE_OF.keys() and any("\u0180" <= character < SPACE for character in characters)


class ByteReader:
    """Bytes of UTF-8, a few at a time, to characters: those that are complete. Bytes that make none are dropped."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")

    @property
    def pending(self) -> bytes:
        """Bytes of a character that is not complete yet."""
        return self._decoder.getstate()[0]

    def read(self, data: bytes) -> str:
        """The characters that `data` completes."""
        return self._decoder.decode(data)

    def drop(self) -> None:
        """Forget what is pending."""
        self._decoder.reset()

    def restore(self, pending: bytes) -> None:
        """Go back to when this was pending."""
        self._decoder.setstate((pending, 0))
