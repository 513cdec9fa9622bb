"""Whether a text of a server quotes its key, whole or in part, plain or encoded.

    quotes("bad key: s k - A B C ...", "sk-ABC...")   ->  True

A text that quotes it is not mended but left out: there is always one more way to write a key. Looked for are parts of
the key among the letters and digits of every reading of the text, whatever stands between them, from both ends, and
pieces that look like a secret and that nothing here can read.
"""

import base64
import codecs
import html
import re
import unicodedata
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from urllib.parse import unquote

MAX_CHARS = 4096  # of a text that is looked through; a longer one counts as a quotation
PART = 4  # characters of a part of the key
PARTS = 3  # of which so many are a quotation: six characters in a row, or four in three places
NESTED = 2  # encodings one in the other
ESCAPE = re.compile(r"\\u\{?([0-9a-f]{1,6})\}?|\\x([0-9a-f]{2})|\\([0-7]{3})|%u([0-9a-f]{4})", re.IGNORECASE)
CODES = re.compile(r"(?<!\d)(?:([01]{7,8})|(\d{2,3}))(?!\d)")
SECRET = re.compile(r"\S{20,}")  # a long word, of which one looks whether it is of chance
LEGIBLE = re.compile(rb"[ -~]{8,}")  # of what was decoded: the rest was none of that code
NO_WORD = r"[\W_]+"
HEX = re.compile(r"[0-9a-fA-F-]+")  # of ids; what it says can be read

_DECODERS: tuple[tuple[str, int, Callable[[str], bytes]], ...] = (
    (r"[^A-Za-z0-9+/_-]+", 4, base64.urlsafe_b64decode),
    (r"[^A-Za-z2-7]+", 8, partial(base64.b32decode, casefold=True)),
    (r"(?:0x|\\x|[^0-9A-Fa-f])+", 2, bytes.fromhex),
)  # what is no sign of it, and how many signs make whole bytes


def quotes(text: str, key: str) -> bool:
    """Whether a text quotes a key, or cannot be told not to; a short key counts as quoted wherever its signs stand."""
    if len(text) > MAX_CHARS:
        return True
    others = NO_WORD if len(_plain(key, NO_WORD)) >= PART else r"\s+"
    wanted = _plain(key, others)
    parts = {wanted[start : start + PART] for start in range(max(1, len(wanted) - PART + 1))}
    parts_needed = min(PARTS, len(parts))
    sides = (parts, {codecs.encode(each, "rot13") for each in parts})
    for reading in (*_readings(text, NESTED), *_readings(text[::-1], NESTED)):
        found = _plain(reading, others)
        if any(sum(each in seen for each in side) >= parts_needed for seen in (found, found[::-1]) for side in sides):
            return True
    return any(_is_of_chance(each) for each in SECRET.findall(text))


def _readings(text: str, nested: int) -> Iterator[str]:
    """A text as it is and by all decoders, those of what they yield included."""
    text = _unescaped(text)
    yield text
    yield "".join(chr(int(bits, 2) if bits else int(number)) for bits, number in CODES.findall(text))
    if not nested:
        return
    for others, size, decode in _DECODERS:
        signs = re.sub(others, "", text)
        for start in range(min(size, len(signs))):  # words before it may have shifted it
            decoded = decode(signs[start : len(signs) - (len(signs) - start) % size])
            yield decoded.decode("latin-1")
            if found := b" ".join(LEGIBLE.findall(decoded)):
                yield from _readings(found.decode("ascii"), nested - 1)


def _unescaped(text: str) -> str:
    """A text without the escapes of addresses, of HTML and of strings in programs, in one another as they may be."""
    for _ in range(4):
        before, text = text, unquote(html.unescape(ESCAPE.sub(_sign, text)))
        if text == before:
            break
    return text


def _sign(escape: re.Match[str]) -> str:
    number = int(escape[3], 8) if escape[3] else int(escape[1] or escape[2] or escape[4], 16)
    return chr(number) if number <= 0x10FFFF else ""


def _plain(text: str, others: str) -> str:
    """A text in the signs of ASCII where they look alike, without what cannot be seen and `others`."""
    if not text.isascii():
        text = unicodedata.normalize("NFKD", text)
        text = "".join(each for each in text if unicodedata.category(each) not in ("Cf", "Cc", "Mn"))
    return re.sub(others, "", text).lower()


def _is_of_chance(word: str) -> bool:
    """Whether a long word is letters and digits in no order, as keys are in codes that are not known here."""
    kinds = ["0" if each.isdigit() else "a" if each.islower() else "A" if each.isupper() else "" for each in word]
    changes = sum(one != other for one, other in pairwise(kinds) if one and other)
    return not HEX.fullmatch(word) and kinds.count("0") >= 2 and changes >= len(word) // 4
