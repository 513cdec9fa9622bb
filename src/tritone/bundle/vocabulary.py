"""The token table of a bundle, and how its tokens join into text and words.

    tokens.txt ("token id" a line)  ->  Vocabulary  ->  text, words

Text is the tokens joined by `connect_symbol` (characters) or by nothing (sentencepiece pieces), with `▁` read as a
space, outer spaces dropped and several spaces in a row, as a CTC model may well emit, written as one. A word is a run
without spaces; every Chinese or Japanese character is a word of its own, because those scripts do not write spaces.
Tokens that stand for bytes (see `bytewise`) are written when a character is complete. Byte-level BPE is trained on text
with spaces between such characters, so there these are not written.
Both come from one pass, `Speller`, which streams drive with a few tokens at a time. Where only the text is wanted,
`Vocabulary.text` joins it from a table, a hundred times as fast.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tritone.bundle import manifest
from tritone.bundle.bytewise import ByteReader, byte_piece, fallback_byte
from tritone.errors import BundleError
from tritone.later import later
from tritone.paths import plain_text
from tritone.transcript import IDEOGRAPH

if TYPE_CHECKING:
    from tritone.bundle import byte_level
else:
    byte_level = later("byte_level")

SPACE = "▁"  # U+2581, sentencepiece's sign for a space; character tables use it as well
UNKNOWN = "<unk>"
MAX_TABLE_BYTES = 64 * 2**20  # a bundle may come from anywhere; the largest real tables are below 10 MB

PARTS = re.compile(f"(?P<space>\\s+)|(?P<ideograph>{IDEOGRAPH})|((?!{IDEOGRAPH})\\S)+")
IDEOGRAPHS = re.compile(f"{IDEOGRAPH}+")
SPACED = ("byte-bpe", "continued")  # units that have spaces between ideographs, which no text has
UNSPACED = re.compile(f"(?<={IDEOGRAPH}) (?={IDEOGRAPH})")
CONTINUED = "@@"  # at the end of a piece after which the word goes on
LOCALE = re.compile(r"▁?<([a-z]{2,3}-[A-Za-z]{2,4})>")  # the tag <de-DE>, which NeMo's models write after what is in it
MARK = re.compile(rf"<\|(.+)\|>|{LOCALE.pattern}")
LINE = re.compile(r"([^ \t]+| )[ \t]+([0-9]+)[ \t]*\r?")  # NeMo's tables of characters have a space as it is


@dataclass(frozen=True)
class Word:
    """A word: its text, and the positions of the first and the last of its tokens in the token sequence."""

    text: str
    first: int
    last: int


class Vocabulary:
    """The tokens of a model and the rules to write them as text."""

    def __init__(self, tokens: Sequence[str], settings: manifest.Vocabulary) -> None:
        """Take `tokens` in the order of their ids.

        Raises:
            BundleError: the number of tokens is not `settings.size`, or a special id is outside the table.
        """
        if len(tokens) != settings.size:
            raise BundleError(
                f"the token table holds {len(tokens)} tokens, but vocabulary.size in the manifest is {settings.size}. "
                "Export the checkpoint again with the table that it was trained with."
            )
        for field in ("blank_id", "unk_id", "sos_id", "eos_id"):
            value = getattr(settings, field)
            if value is not None and value >= len(tokens):
                raise BundleError(f"vocabulary.{field} is {value}, but the largest token id is {len(tokens) - 1}")
        self.tokens = tuple(tokens)
        self.settings = settings

    @classmethod
    def read(cls, path: Path, settings: manifest.Vocabulary) -> "Vocabulary":
        """Read a token table; raises `BundleError` with the line number where it is malformed."""
        return cls(read_tokens(path), settings)

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def silent_ids(self) -> frozenset[int]:
        """Ids that are never written: blank, start and end of sentence, marks."""
        ids = {self.settings.blank_id, self.settings.sos_id, self.settings.eos_id}
        if self.settings.has_marks:
            ids |= {id for id, token in enumerate(self.tokens) if MARK.fullmatch(token)}
        return frozenset(id for id in ids if id is not None)

    def mark(self, id: int) -> str:
        """What a mark says, `laughter` of `<|laughter|>`, `de-DE` of `<de-DE>`; empty if the token is none."""
        found = MARK.fullmatch(self.tokens[id])
        return found[found.lastindex or 0] if found else ""

    @cached_property
    def locales(self) -> Mapping[int, str]:
        """Tags that name the language of what stands before them, `de-DE` of `<de-DE>`, by their ids."""
        return {id: self.mark(id) for id in self.silent_ids if LOCALE.fullmatch(self.tokens[id])}

    @cached_property
    def bytes_of(self) -> tuple[bytes | None, ...]:
        """What each token stands for, if that is bytes."""
        units = self.settings.units
        read = byte_level.piece_bytes if units == "byte-level" else byte_piece if units == "byte-bpe" else fallback_byte
        written = self.silent_ids | {self.settings.unk_id}
        return tuple(None if id in written else read(token) for id, token in enumerate(self.tokens))

    @cached_property
    def byte_ids(self) -> frozenset[int]:
        """Ids of the tokens that stand for bytes."""
        return frozenset(id for id, data in enumerate(self.bytes_of) if data is not None)

    def spelling(self, id: int) -> str:
        """The characters that token `id` adds to a text; empty for blank, start and end of sentence.

        Bytes that are only part of a character are replaced by U+FFFD.
        """
        if id in self.silent_ids:
            return ""
        if id == self.settings.unk_id:
            return f"{UNKNOWN} " if self.settings.units == "continued" else UNKNOWN
        data = self.bytes_of[id]
        if data is not None:
            return data.decode(errors="replace")
        token = self.tokens[id].replace(SPACE, " ")
        if self.settings.units != "continued":
            return token
        if token.endswith(CONTINUED):
            return token.removesuffix(CONTINUED)
        return f" {token} " if IDEOGRAPHS.fullmatch(token) else f"{token} "

    @cached_property
    def spellings(self) -> tuple[str, ...]:
        """What each token adds to a text that goes on, the sign that connects tokens before it."""
        each = (self.spelling(id) for id in range(len(self)))
        return tuple(self._connect + spelling if spelling else "" for spelling in each)

    def text(self, ids: Iterable[int]) -> str:
        """Write token ids as text: the same as that of a `Speller`, joined at once."""
        if self._is_plain:
            return " ".join("".join(map(self.spellings.__getitem__, ids)).split())  # by what PARTS takes for spaces
        if self._connect:
            return self._spelled(ids).text  # only this knows what is written before and after the sign
        text = " ".join("".join(self._runs(ids)).split())
        return UNSPACED.sub("", text) if self.settings.units in SPACED else text

    @cached_property
    def _is_plain(self) -> bool:
        """Whether text is the spellings of tokens in a row, but for spaces."""
        return not self.byte_ids and not self._connect.strip() and self.settings.units not in SPACED

    def words(self, ids: Iterable[int]) -> list[Word]:
        """Group token ids into words; the words stand in `text(ids)` in this order."""
        return self._spelled(ids).words

    @property
    def _connect(self) -> str:
        return self.settings.connect_symbol if self.settings.units == "char" else ""

    def _runs(self, ids: Iterable[int]) -> Iterator[str]:
        """What tokens spell, each run of those that stand for bytes as one."""
        data = b""
        for id in ids:
            if (piece := self.bytes_of[id]) is not None:
                data += piece
                continue
            yield data.decode(errors="ignore")
            yield self.spellings[id]
            data = b""
        yield data.decode(errors="ignore")

    def _spelled(self, ids: Iterable[int]) -> "Speller":
        speller = Speller(self)
        speller.extend(list(ids))
        return speller


class Speller:
    """Writes a growing token sequence as text and words; a token costs always the same, reading the text a copy of it.

    `text` and `words` may be read at any time: only the last word can still change.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.words: list[Word] = []
        self._vocabulary = vocabulary
        self._connect = vocabulary._connect
        self._text = ""
        self._new: list[str] = []  # what comes after `_text`
        self._space = False  # does a space come before what is written next?
        self._open = False  # may the next token continue the last word?
        self._position = 0
        self._bytes = ByteReader()
        self._first_byte_at = 0  # position of the token that the bytes of an incomplete character begin in
        self._ideograph = False  # is the last character written one?
        self._unspaced = vocabulary.settings.units in SPACED

    @property
    def text(self) -> str:
        """The text so far, without outer spaces."""
        if self._new:
            self._text += "".join(self._new)
            self._new.clear()
        return self._text

    def mark(self) -> tuple[Any, ...]:
        """The state, for `rewind`."""
        last = self.words[-1] if self.words else None
        unread = self._bytes.pending, self._first_byte_at, self._ideograph
        return self.text, self._space, self._open, self._position, len(self.words), last, unread

    def rewind(self, mark: tuple[Any, ...]) -> None:
        """Forget what was added since `mark` was taken."""
        self._text, self._space, self._open, self._position, words, last, unread = mark
        pending, self._first_byte_at, self._ideograph = unread
        self._bytes.restore(pending)
        self._new.clear()
        del self.words[words:]
        if words:
            self.words[-1] = last

    def extend(self, ids: Sequence[int]) -> None:
        """Append tokens."""
        vocabulary = self._vocabulary
        if self._connect or self._bytes.pending or not vocabulary.byte_ids.isdisjoint(ids):
            for id in ids:
                self.add(id)
            return
        # All as one string, of which each part is looked up: there are fewer parts than tokens.
        begin, spellings = self._position, [vocabulary.spellings[id] for id in ids]
        self._position += len(ids)
        ends = list(accumulate(map(len, spellings)))
        for part in PARTS.finditer("".join(spellings)):
            start, end = part.span()
            self._write(part, begin + bisect_right(ends, start), begin + bisect_right(ends, end - 1))

    def add(self, id: int) -> None:
        """Append one token."""
        first = position = self._position
        self._position += 1
        data = self._vocabulary.bytes_of[id]
        if data is None:
            spelling = self._vocabulary.spelling(id)
            self._bytes.drop()
        else:
            if self._bytes.pending:
                first = self._first_byte_at
            spelling = self._bytes.read(data)
            self._first_byte_at = position if spelling else first
        if not spelling:
            return
        if self._connect and (self._text or self._new):
            spelling = self._connect + spelling
        for part in PARTS.finditer(spelling):
            self._write(part, first, position)
            if not part["space"]:
                first = position

    def _write(self, part: re.Match[str], first: int, last: int) -> None:
        """Append what PARTS has found, which the tokens from position `first` to `last` spell."""
        if part["space"]:
            self._space = bool(self._text or self._new)
            self._open = False
            return
        if self._unspaced and self._ideograph and part["ideograph"]:
            self._space = False
        self._new.append(f" {part[0]}" if self._space else part[0])
        self._space = False
        self._ideograph = part["ideograph"] is not None
        if part["ideograph"]:
            self.words.append(Word(part[0], first, last))
            self._open = False
        elif self._open:
            word = self.words[-1]
            self.words[-1] = Word(word.text + part[0], word.first, last)
        else:
            self.words.append(Word(part[0], first, last))
            self._open = True


class RunningText:
    """The text of a token sequence that grows: that of a `Speller`, at a tenth of its cost, but without words.

    Not for vocabularies with a sign between tokens or with bytes, see `fits`.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.text = ""
        self._spellings = vocabulary.spellings
        self._space = False  # does a space come before what is written next?

    @staticmethod
    def fits(vocabulary: Vocabulary) -> bool:
        """Whether the text of a vocabulary is what its tokens spell, but for repeated and outer spaces."""
        settings = vocabulary.settings
        has_sign = settings.units == "char" and settings.connect_symbol
        return not (has_sign or vocabulary.byte_ids or settings.units in SPACED)

    def extend(self, ids: Iterable[int]) -> None:
        """Append tokens."""
        self.text, self._space = self._extended(ids)

    def extended(self, ids: Iterable[int]) -> str:
        """The text with further tokens, which are not kept."""
        return self._extended(ids)[0]

    def _extended(self, ids: Iterable[int]) -> tuple[str, bool]:
        text, space = self.text, self._space
        spelled = "".join([self._spellings[id] for id in ids])
        if not spelled:
            return text, space
        # `split` takes the same characters for spaces as PARTS does.
        new = " ".join(spelled.split())
        if not new:
            return text, bool(text)
        new = f"{text} {new}" if text and (space or spelled[0].isspace()) else text + new
        return new, spelled[-1].isspace()


def has_marks(tokens: Iterable[str]) -> bool:
    """Whether there are marks among tokens."""
    return any(MARK.fullmatch(token) for token in tokens)


def read_tokens(path: Path) -> list[str]:
    """Read a token table: one `token id` pair a line, ids 0 to n-1 in any order, each once.

    Raises:
        BundleError: the file is missing, too large or malformed; the message has the line number.
    """
    try:
        if path.stat().st_size > MAX_TABLE_BYTES:
            raise BundleError(f"{path} has {path.stat().st_size} bytes; a token table has at most {MAX_TABLE_BYTES}")
        content = plain_text(path.read_bytes())
    except OSError as error:
        raise BundleError(f"cannot read the token table {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BundleError(f"the token table {path} is not UTF-8: {error.reason} at byte {error.start}") from error
    tokens: dict[int, str] = {}
    # Only "\n" ends a line: tables hold characters that `str.splitlines` and `str.split` would take for white space.
    for number, line in enumerate(content.rstrip("\r\n").split("\n"), start=1):
        match = LINE.fullmatch(line)
        if match is None:
            raise BundleError(f"{path}, line {number}: expected a token and its id, two fields, got {line[:80]!r}")
        id = int(match[2])
        if id in tokens:
            raise BundleError(f"{path}, line {number}: id {id} was already given to {tokens[id]!r}")
        tokens[id] = SPACE if match[1] == " " else match[1]
    if max(tokens) != len(tokens) - 1:
        missing = next(id for id in range(len(tokens)) if id not in tokens)
        raise BundleError(f"{path}: ids must run from 0 to {len(tokens) - 1} without gaps, but {missing} is missing")
    return [tokens[id] for id in range(len(tokens))]


def write_tokens(path: Path, tokens: Sequence[str]) -> None:
    """Write a token table that `read_tokens` reads back to the same list.

    Raises:
        ValueError: a token is empty or holds a blank, a tab or a line break.
    """
    for id, token in enumerate(tokens):
        if not token or any(char in token for char in " \t\r\n"):
            raise ValueError(
                f"token {id} is {token!r}; tokens cannot be empty or hold blanks; write a space as {SPACE!r}"
            )
    path.write_text("".join(f"{token} {id}\n" for id, token in enumerate(tokens)), encoding="utf-8", newline="\n")
