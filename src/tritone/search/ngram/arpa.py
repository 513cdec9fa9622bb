r"""Reading ARPA files, the text format of back-off n-gram models.

    \data\, ngram 1=..., \1-grams:, "log10 P <tab> words <tab> back-off", ..., \end\   ->  Tables, Words

What tools are known to write is read: fields parted by tabs or spaces, "\r\n", <UNK> for <unk>, no <unk> at all (it
gets log10 P = -100, as KenLM gives it), -99 and -inf for zero, probabilities that IRSTLM rounded to just above 1, and
n-grams whose shorter endings were pruned away. Text before `\data\` is skipped.

The counts in the head are compared with the lines and never trusted for memory.
"""

import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tritone.errors import LanguageModelError
from tritone.search.compiled.compiler import compiled, inlined
from tritone.search.ngram.tables import (
    MAX_ORDER,
    NO_EXTENSION,
    UNKNOWN,
    Bytes,
    Floats,
    Ids,
    Tables,
    Words,
    empty_tables,
    find_entry,
    find_word,
    fold,
    index_words,
    insert,
    place_of,
)

HEAD_BYTES = 2**20  # where `\data\` must be
MISSING_UNKNOWN = -100.0  # log10
ZERO = -99.0  # log10 of what cannot be
SLACK = 0.1  # log10; probabilities above 1 by so much are rounding
TAB, NEWLINE, RETURN, BLANK, BACKSLASH = 9, 10, 13, 32, 92
GRAMS = re.compile(rb"\\(\d{1,2})-grams:")
COUNT = re.compile(rb"ngram[ \t]+(\d{1,2})[ \t]*=[ \t]*(\d{1,18})")

# What `_read_lines` finds wrong.
PROBLEMS = {
    1: "a line must begin with log10 of a probability",
    2: "the line has fewer than {n} words",
    3: "log10 of the probability is above 0",
    4: "what follows the words must be one number, the back-off, and nothing after it",
    5: "{word!r} is not among the 1-grams, which must list all words",
    6: "n-grams of the highest order have no back-off",
    7: "this n-gram stands in the file twice",
    8: "its first {m} words are not among the {m}-grams. Write the model without pruning contexts away",
}


def read(content: Bytes, path: Path, max_bytes: int) -> tuple[Tables, Words]:
    """Read the content of an ARPA file; `path` is for messages.

    Raises:
        LanguageModelError: the file is malformed, with the line number; or it needs more than `max_bytes`.
    """
    return _Reader(content, path, max_bytes).read()


class _Section(NamedTuple):
    """The n-grams of one order, a row each, as the file has them."""

    ids: Ids  # (rows, n); of 1-grams (0, 1)
    probs: Floats  # (rows,) log10 of the probability, never positive
    offs: Floats  # (rows,) log10 of the back-off, -0.0 where there is none
    numbers: npt.NDArray[np.int64]  # (rows,) of the lines
    first: npt.NDArray[np.int64]  # (rows,) where in the file the word of a 1-gram begins, and where it ends;
    last: npt.NDArray[np.int64]  # (0,) for longer ones


class _Reader:
    """One pass through a file: the position in it, and errors with the number of the line."""

    def __init__(self, content: Bytes, path: Path, max_bytes: int) -> None:
        self.content = content
        self.path = path
        self.max_bytes = max_bytes
        self.position = 0
        self.number = 0  # of the line before `position`

    def read(self) -> tuple[Tables, Words]:
        counts = self._read_head()
        order = len(counts)
        words, log_probs, backoffs = self._read_unigrams(counts[0], order)
        ngrams = [self._read_ngrams(n, counts[n - 1], order, words) for n in range(2, order + 1)]
        if (line := self._next_line()) != b"\\end\\":
            raise self._error(r"expected \end\, got {line!r}; is the file cut off?", line)
        stored = [len(words.first), *counts[1:]]
        tables = empty_tables(stored, [0] * order, self.path, self.max_bytes)
        self._fill(tables, log_probs, backoffs, ngrams)
        missing = _count_missing_endings(tables, ngrams)
        if missing.any():
            tables = empty_tables(stored, missing.tolist(), self.path, self.max_bytes)
            self._fill(tables, log_probs, backoffs, ngrams)
        for n, section in enumerate(ngrams, start=2):
            wrong = _mark(tables, place_of(tables), n, section.ids)
            if wrong >= 0:
                self.number = int(section.numbers[wrong])
                raise self._error(PROBLEMS[8].format(m=n - 1))
        return tables, words

    def _fill(self, tables: Tables, log_probs: Floats, backoffs: Floats, ngrams: list["_Section"]) -> None:
        tables.values[0 : 2 * len(log_probs) : 2] = log_probs
        tables.values[1 : 2 * len(log_probs) : 2] = backoffs
        for n, section in enumerate(ngrams, start=2):
            wrong = _insert_all(tables, n, section)
            if wrong >= 0:
                self.number = int(section.numbers[wrong])
                raise self._error(PROBLEMS[7])

    def _read_head(self) -> list[int]:
        head = self.content[:HEAD_BYTES].tobytes()
        found = re.search(rb"^(?:\xef\xbb\xbf)?[ \t]*\\data\\[ \t]*\r?$", head, re.MULTILINE)
        if found is None:
            kind = (
                "looks like an IRSTLM file; write it as text with compile-lm --text yes"
                if head[:5] in (b"iARPA", b"blmt ", b"Qblmt")
                else "is neither an ARPA file (it has no \\data\\ line) nor a KenLM binary"
            )
            raise LanguageModelError(f"the language model {self.path} {kind}.")
        self.position = found.end() + 1
        self.number = head.count(b"\n", 0, found.end()) + 1
        counts: list[int] = []
        while match := COUNT.fullmatch(line := self._next_line()):
            if int(match[1]) != len(counts) + 1:
                raise self._error("expected the number of {n}-grams, got {line!r}", line, n=len(counts) + 1)
            counts.append(int(match[2]))
        if not 1 <= len(counts) <= MAX_ORDER:
            raise self._error("the model is of order {n}; 1 to {most} are supported", n=len(counts), most=MAX_ORDER)
        self._expect_section(1, line)
        return counts

    def _read_unigrams(self, count: int, order: int) -> tuple[Words, Floats, Floats]:
        nowhere = np.empty(0, dtype=np.int64)
        nobody = Words(np.empty(0, dtype=np.uint8), nowhere, nowhere, np.empty(0, dtype=np.int32))
        section = self._read_section(1, count, order, nobody)
        first, last = section.first, section.last
        names = {bytes(UNKNOWN, "ascii"), bytes(UNKNOWN.upper(), "ascii")}
        short = np.flatnonzero(last - first == len(UNKNOWN)).tolist()
        unknown = [i for i in short if self.content[first[i] : last[i]].tobytes() in names]
        # Word 0 is <unk>, whether the file has it or not; the others follow as they stand in the file.
        others = np.delete(np.arange(count), unknown)
        size = len(UNKNOWN)
        lengths = np.concatenate(([size], (last - first)[others]))
        ends = np.cumsum(lengths)
        text = np.empty(int(ends[-1]), dtype=np.uint8)
        text[:size] = np.frombuffer(UNKNOWN.encode(), dtype=np.uint8)
        _copy_words(self.content, first[others], last[others], text[size:])
        words, twice = index_words(text, ends - lengths, ends)
        if twice > 0:
            self.number = int(section.numbers[others[twice - 1]])
            raise self._error("{word!r} is among the 1-grams twice", word=_text(text[ends[twice - 1] : ends[twice]]))
        rows = np.concatenate((unknown[:1], others)).astype(np.int64)
        log_probs, backoffs = section.probs[rows], section.offs[rows]
        if not unknown:
            log_probs = np.concatenate((np.asarray([MISSING_UNKNOWN], dtype=np.float32), log_probs))
            backoffs = np.concatenate((np.asarray([-0.0], dtype=np.float32), backoffs))
        self._expect_section(2 if order > 1 else 0)
        return words, log_probs, backoffs

    def _read_ngrams(self, n: int, count: int, order: int, words: Words) -> "_Section":
        section = self._read_section(n, count, order, words)
        self._expect_section(n + 1 if n < order else 0)
        return section

    def _read_section(self, n: int, count: int, order: int, words: Words) -> "_Section":
        lines = int(_count_lines(self.content, self.position))
        if lines != count:
            raise self._error(
                "the section of {n}-grams after this line has {lines} lines, but the head of the file says {count}; is "
                "the file cut off?",
                n=n,
                lines=lines,
                count=count,
            )
        section = _Section(
            ids=np.zeros((count if n > 1 else 0, n), dtype=np.int32),
            probs=np.zeros(count, dtype=np.float32),
            offs=np.zeros(count, dtype=np.float32),
            numbers=np.zeros(count, dtype=np.int64),
            first=np.zeros(count if n == 1 else 0, dtype=np.int64),
            last=np.zeros(count if n == 1 else 0, dtype=np.int64),
        )
        problem, self.position, self.number, start, end = _read_lines(
            self.content, self.position, self.number, n, n == order, words, section
        )
        if problem:
            raise self._error(PROBLEMS[problem], n=n, word=_text(self.content[start:end]))
        return section

    def _expect_section(self, n: int, line: bytes | None = None) -> None:
        if n == 0:
            return
        line = self._next_line() if line is None else line
        match = GRAMS.fullmatch(line)
        if match is None or int(match[1]) != n:
            raise self._error("expected \\{n}-grams:, got {line!r}; is the file cut off?", line, n=n)

    def _next_line(self) -> bytes:
        """The next line that is not blank, without blanks around it; empty at the end of the file."""
        self.position, passed = _skip_empty(self.content, self.position)
        self.number += passed
        if self.position >= len(self.content):
            return b""
        part = self.content[self.position : self.position + 4096].tobytes()
        end = part.find(b"\n")
        line = part if end < 0 else part[:end]
        self.position += len(line) + 1
        self.number += 1
        return line.strip()

    def _error(self, message: str, line: bytes = b"", **values: object) -> LanguageModelError:
        what = message.format(line=line[:80].decode("utf-8", "replace"), **values) if line or values else message
        return LanguageModelError(f"{self.path}, line {self.number}: {what}")


def _text(part: Bytes) -> str:
    return part[:80].tobytes().decode("utf-8", "replace")


@compiled
def _skip_empty(content: Bytes, position: Any) -> Any:
    """The start of the next line that is not empty, and the number of lines before it: there may be billions."""
    start, passed = position, 0
    while position < len(content):
        byte = content[position]
        if byte == NEWLINE:
            start, passed = position + 1, passed + 1
        elif byte != BLANK and not TAB <= byte <= RETURN:
            return start, passed
        position += 1
    return position, passed


@inlined
def _is_blank(byte: Any) -> bool:
    return byte in (BLANK, TAB, RETURN)


@inlined
def _skip_blanks(content: Bytes, position: Any) -> Any:
    while position < len(content) and _is_blank(content[position]):
        position += 1
    return position


@inlined
def _skip_field(content: Bytes, position: Any) -> Any:
    while position < len(content) and content[position] != NEWLINE and not _is_blank(content[position]):
        position += 1
    return position


@compiled
def _count_lines(content: Bytes, position: Any) -> Any:
    """The lines of a section that are not blank; it ends before a line that begins with a backslash."""
    count = 0
    while position < len(content):
        position = _skip_blanks(content, position)
        if position < len(content) and content[position] == BACKSLASH:
            break
        if position < len(content) and content[position] != NEWLINE:
            count += 1
        while position < len(content) and content[position] != NEWLINE:
            position += 1
        position += 1
    return count


@inlined
def _number(content: Bytes, first: Any, last: Any) -> Any:
    """A decimal number; -inf is `ZERO`; NaN if it is none."""
    if last - first == 4 and content[first] == 45 and (content[first + 1] | 32) == 105:  # "-i", and then "nf"
        if (content[first + 2] | 32) == 110 and (content[first + 3] | 32) == 102:
            return ZERO
        return np.nan
    position = first
    sign = 1.0
    if position < last and (content[position] == 45 or content[position] == 43):
        sign = -1.0 if content[position] == 45 else 1.0
        position += 1
    mantissa = 0.0
    digits = 0
    scale = 0
    point = False
    while position < last:
        byte = content[position]
        if 48 <= byte <= 57:
            digits += 1
            if mantissa < 1e17:  # beyond float64's precision digits only move the point
                mantissa = mantissa * 10.0 + (byte - 48)
                scale -= 1 if point else 0
            elif not point:
                scale += 1
        elif byte == 46 and not point:
            point = True
        else:
            break
        position += 1
    if digits == 0:
        return np.nan
    if position < last:
        if (content[position] | 32) != 101:  # "e"
            return np.nan
        position += 1
        negative = position < last and content[position] == 45
        if position < last and (content[position] == 45 or content[position] == 43):
            position += 1
        if position == last:
            return np.nan
        exponent = 0
        while position < last:
            if not 48 <= content[position] <= 57 or exponent > 1000:
                return np.nan
            exponent = exponent * 10 + (content[position] - 48)
            position += 1
        scale += -exponent if negative else exponent
    return sign * (mantissa / 10.0**-scale if scale < 0 else mantissa * 10.0**scale)


@compiled
def _read_lines(
    content: Bytes,
    position: Any,
    number: Any,
    n: Any,
    highest: bool,
    words: Words,
    section: _Section,
) -> tuple[int, int, int, int, int]:
    """Fill the rows of a section with lines from byte `position` on; the line before it has this `number`.

    Returns:
        The key of a problem or 0, the position after the last line read, its number, and where in the file the problem
        begins and ends.
    """
    row = 0
    while row < len(section.probs):
        number += 1
        position = _skip_blanks(content, position)
        if content[position] == NEWLINE:
            position += 1
            continue
        end = _skip_field(content, position)
        prob = _number(content, position, end)
        if not np.isfinite(prob):
            return 1, position, number, position, end
        if prob > SLACK:
            return 3, position, number, position, end
        for i in range(n):
            position = _skip_blanks(content, end)
            end = _skip_field(content, position)
            if end == position:
                return 2, position, number, position, end
            if n == 1:
                section.first[row] = position
                section.last[row] = end
            else:
                id = find_word(words, content, position, end)
                if id < 0:
                    # Only the word for unknown words may be missing from the 1-grams.
                    upper = end - position == 5 and content[position] == 60 and content[position + 1] == 85
                    if not (upper and content[position + 2] == 78 and content[position + 3] == 75):
                        return 5, position, number, position, end
                    id = 0
                section.ids[row, i] = id
        position = _skip_blanks(content, end)
        off = 0.0
        if position < len(content) and content[position] != NEWLINE:
            end = _skip_field(content, position)
            off = _number(content, position, end)
            if not np.isfinite(off):
                return 4, position, number, position, end
            if highest and n > 1 and off != 0:
                return 6, position, number, position, end
            position = _skip_blanks(content, end)
            if position < len(content) and content[position] != NEWLINE:
                return 4, position, number, position, end
        position += 1
        # Both signs are set until a longer n-gram is found.
        section.probs[row] = np.float32(-abs(min(prob, 0.0)))
        section.offs[row] = np.float32(-0.0) if off == 0 else np.float32(off)
        section.numbers[row] = number
        row += 1
    return 0, position, number, 0, 0


@compiled
def _copy_words(content: Bytes, first: npt.NDArray[np.int64], last: npt.NDArray[np.int64], text: Bytes) -> None:
    at = 0
    for i in range(len(first)):
        for k in range(first[i], last[i]):
            text[at] = content[k]
            at += 1


@inlined
def _key(ids: Ids, begin: Any, end: Any) -> Any:
    node = np.uint64(ids[end - 1])
    for i in range(end - 2, begin - 1, -1):
        node = fold(node, ids[i])
    return node


@compiled
def _insert_all(tables: Tables, n: Any, section: _Section) -> Any:
    """Enter all n-grams of an order; the row that was there already, -1 if none was."""
    for row in range(len(section.ids)):
        cell = insert(tables, n, _key(section.ids[row], 0, n))
        if cell < 0:
            return row
        tables.values[cell + 2] = section.probs[row]
        if n < tables.order:
            tables.values[cell + 3] = section.offs[row]
    return -1


def _count_missing_endings(tables: Tables, ngrams: list[_Section]) -> npt.NDArray[np.int64]:
    """For each order, how many n-grams at most are missing although they end a longer one."""
    missing = np.zeros(tables.order, dtype=np.int64)
    for n, section in enumerate(ngrams, start=2):
        _count_missing(place_of(tables), n, section.ids, missing)
    return missing


@compiled
def _count_missing(places: Any, n: Any, ids: Ids, missing: npt.NDArray[np.int64]) -> None:
    at = places[0]
    for row in range(len(ids)):
        for m in range(n - 1, 1, -1):
            if find_entry(at, m, _key(ids[row], n - m, n)) >= 0:
                break
            missing[m - 1] += 1


@compiled
def _mark(tables: Tables, places: Any, n: Any, ids: Ids) -> Any:
    """Mark shorter n-grams as beginnings or endings of these; add the endings that are missing.

    A missing ending gets the probability that backing off gives it, and no back-off of its own: scores stay the same,
    and the look-up, which goes from short to long, finds its way to the longer one.

    Returns:
        The row of an n-gram whose context, its first n - 1 words, is missing; -1 if there is none.
    """
    at = places[0]
    for row in range(len(ids)):
        words = ids[row]
        if not _mark_context(tables, at, words, 0, n - 1):
            return row
        m = n - 1
        while m > 1:
            cell = find_entry(at, m, _key(words, n - m, n))
            if cell >= 0:
                break
            m -= 1
        if m == 1:
            cell = tables.unigrams + 2 * np.int64(words[n - 1])
            place = cell
        else:
            place = cell + 2
        prob = np.float64(-abs(tables.values[place]))
        tables.values[place] = np.float32(abs(prob))  # sign off: a longer n-gram ends with this one
        while m < n - 1:
            m += 1
            prob += _backoff(tables, at, words, n - m, n - 1)
            _mark_context(tables, at, words, n - m, n - 1)
            cell = insert(tables, m, _key(words, n - m, n))
            tables.values[cell + 2] = np.float32(abs(min(prob, 0.0)))
            tables.values[cell + 3] = np.float32(-0.0)
    return -1


@inlined
def _context_cell(at: Any, words: Ids, begin: Any, end: Any) -> Any:
    """The cell with the back-off of the n-gram words[begin:end]; -1 if it is missing."""
    if end - begin == 1:
        return at.unigrams + 2 * np.int64(words[begin]) + 1
    cell = find_entry(at, end - begin, _key(words, begin, end))
    return cell + 3 if cell >= 0 else np.int64(-1)


@inlined
def _mark_context(tables: Tables, at: Any, words: Ids, begin: Any, end: Any) -> bool:
    cell = _context_cell(at, words, begin, end)
    if cell >= 0 and tables.cells[cell] == NO_EXTENSION:
        tables.cells[cell] = 0
    return cell >= 0


@inlined
def _backoff(tables: Tables, at: Any, words: Ids, begin: Any, end: Any) -> Any:
    cell = _context_cell(at, words, begin, end)
    return np.float64(tables.values[cell]) if cell >= 0 else 0.0
