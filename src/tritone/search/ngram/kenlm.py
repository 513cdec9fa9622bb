"""Reading KenLM's binary files: probing models, with and without rest costs, and tries of all four kinds.

    header, vocabulary, tables, words  ->  Tables, Words

A probing file is used as it lies in memory. A trie is walked once and entered into tables of the same form, which takes
more memory than the trie has; quantised probabilities and compressed pointers are resolved on the way.

Files are not trusted: every size follows from the header and must lie within the file before anything is read or
allocated, pointers and word ids are checked while a trie is walked, and numbers must be finite.

Source: lm/binary_format.cc, lm/search_hashed.hh, lm/trie.hh, lm/quantize.hh, lm/bhiksha.cc and lm/vocab.cc of
https://github.com/kpu/kenlm, format version 5.
"""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tritone.errors import LanguageModelError
from tritone.search.compiled.compiler import compiled, inlined
from tritone.search.ngram.model import (
    MAX_ORDER,
    NO_EXTENSION,
    UNKNOWN,
    Bytes,
    Cells,
    Floats,
    Ids,
    Tables,
    Words,
    empty_tables,
    fold,
    index_words,
    insert,
)

VERSION = 5
FAMILY = b"mmap lm http://kheafield.com/code"
MAGIC = FAMILY + b" format version %d\n"
# The magic with two zero bytes, padded to 8; test values for floats, for words and for 64-bit integers.
SANITY = struct.pack("<56s3f3IQ", MAGIC % VERSION, 0.0, 1.0, -0.5, 1, 2**32 - 1, 0, 1)
FIXED = struct.Struct("<B3xfIB3xI")  # order, probing multiplier, kind, has words, version of the search structure
PROBING, REST_PROBING, TRIE, QUANTISED_TRIE, ARRAY_TRIE, QUANTISED_ARRAY_TRIE = range(6)
QUANTISED = (QUANTISED_TRIE, QUANTISED_ARRAY_TRIE)
ARRAYS = (ARRAY_TRIE, QUANTISED_ARRAY_TRIE)
REBUILD = "Build it again from the ARPA file with build_binary, or use the ARPA file itself."


def recognises(content: Bytes) -> bool:
    return content[: len(FAMILY)].tobytes() == FAMILY


def read(content: Bytes, path: Path, max_bytes: int) -> tuple[Tables, Words]:
    """Read the content of a KenLM binary; `path` is for messages.

    Raises:
        LanguageModelError: it is damaged or of another version, holds no words, or needs more than `max_bytes`.
    """
    file = _File(content, path)
    if file.kind in (PROBING, REST_PROBING):
        return _read_probing(file)
    return _read_trie(file, max_bytes)


class _File:
    """The bytes of a file and what its header says; `take` goes through the rest in order."""

    def __init__(self, content: Bytes, path: Path) -> None:
        self.content = content
        self.path = path
        self.position = 0
        if self.take(len(SANITY), "header").tobytes() != SANITY:
            raise self.error(
                f"does not have the header of format version {VERSION} on a 64-bit little-endian machine. {REBUILD}"
            )
        fields = FIXED.unpack(self.take(FIXED.size, "header").tobytes())
        self.order, self.multiplier, self.kind, has_words, version = fields
        if not 2 <= self.order <= MAX_ORDER:
            raise self.error(f"is of order {self.order}; 2 to {MAX_ORDER} are supported.")
        if self.kind > QUANTISED_ARRAY_TRIE:
            raise self.error(f"is of kind {self.kind}, which is not known; 0 to {QUANTISED_ARRAY_TRIE} are. {REBUILD}")
        wanted = 0 if self.kind in (PROBING, REST_PROBING) else 1
        if version != wanted:
            raise self.error(f"has version {version} of its tables; {wanted} is supported. {REBUILD}")
        if not 1.0 <= self.multiplier <= 100.0:
            raise self.error(f"is damaged: its probing multiplier is {self.multiplier}. {REBUILD}")
        if not has_words:
            raise self.error("holds no words; build it without -v, or use the ARPA file.")
        self.counts = struct.unpack(f"<{self.order}Q", self.take(8 * self.order, "header").tobytes())
        self.position = -(-self.position // 8) * 8
        if any(count >= 2**31 for count in self.counts) or self.counts[0] == 0:
            raise self.error(f"says that it has {self.counts} n-grams; 1 to {2**31 - 1} of an order are supported.")

    def take(self, size: int, what: str) -> Bytes:
        """The next `size` bytes."""
        begin, self.position = self.position, self.position + size
        if self.position > len(self.content):
            raise self.error(
                f"is cut off: its {what} should end at byte {self.position} of {len(self.content)}. {REBUILD}"
            )
        return self.content[begin : self.position]

    def read_words(self, count: int) -> Words:
        """The words at the end of the file, in the order of their ids."""
        text = self.content[self.position :]
        last = np.flatnonzero(text[: 2**16 * max(count, 1)] == 0)
        if len(last) != count or last[-1] + 1 != len(text) or text[: last[0]].tobytes() != UNKNOWN.encode():
            raise self.error(f"is damaged: it should end with {count} words, the first of them {UNKNOWN}. {REBUILD}")
        first = np.concatenate(([0], last[:-1] + 1))
        words, twice = index_words(text, first, last)
        if twice >= 0:
            raise self.error(f"is damaged: word {twice} is there twice. {REBUILD}")
        return words

    def error(self, message: str) -> LanguageModelError:
        return LanguageModelError(f"the KenLM binary {self.path} {message}")


def _slots(count: int, multiplier: float) -> int:
    return max(count + 1, int(np.float32(multiplier) * np.float32(count)))  # rounded as KenLM rounds


def _read_probing(file: _File) -> tuple[Tables, Words]:
    rest = 1 if file.kind == REST_PROBING else 0  # cells more that a unigram or an entry has
    version, bound = np.frombuffer(file.take(8, "vocabulary").tobytes(), dtype="<u4").tolist()
    if version != 0:
        raise file.error(f"has version {version} of its vocabulary; 0 is supported. {REBUILD}")
    if not 1 <= bound <= file.counts[0] + 1:
        raise file.error(f"is damaged: it has {bound} words, but {file.counts[0]} unigrams. {REBUILD}")
    file.take(12 * _slots(file.counts[0], file.multiplier), "vocabulary")
    places = np.zeros((MAX_ORDER - 1, 3), dtype=np.int64)
    unigrams = file.position // 4
    file.take((file.counts[0] + 1) * (2 + rest) * 4, "unigrams")
    for n in range(2, file.order + 1):
        stride = 4 + rest if n < file.order else 3
        slots = _slots(file.counts[n - 1], file.multiplier)
        places[n - 2] = file.position // 4, slots, stride
        file.take(slots * stride * 4, f"table of {n}-grams")
    cells = file.content[: file.position].view(np.uint32)
    tables = Tables(cells, cells.view(np.float32), places, unigrams, 2 + rest, file.order, bound)
    words = file.read_words(bound)
    if not _is_sound(tables):
        raise file.error(f"is damaged: a probability or back-off is not a number. {REBUILD}")
    return tables, words


@compiled
def _is_sound(tables: Tables) -> bool:
    for i in range(tables.num_words):
        cell = tables.unigrams + i * tables.unigram_stride
        if not (np.isfinite(tables.values[cell]) and np.isfinite(tables.values[cell + 1])):
            return False
    for n in range(2, tables.order + 1):
        first = tables.tables[n - 2, 0]
        stride = tables.tables[n - 2, 2]
        for slot in range(tables.tables[n - 2, 1]):
            cell = first + slot * stride
            if not np.isfinite(tables.values[cell + 2]):
                return False
            if n < tables.order and not np.isfinite(tables.values[cell + 3]):
                return False
    return True


@dataclass(frozen=True)
class _Level:
    """How the n-grams of one order are packed in a trie: a row of bits for each, one more at the end.

    A row: the word, the bits of probability and back-off, and where the longer n-grams begin: `next_bits` of that, the
    upper ones are in `steps`, whose element h is the first row with upper bits h, if there are any.
    """

    rows: Bytes
    count: int
    word_bits: int
    value_bits: int
    next_bits: int
    steps: npt.NDArray[np.uint64]


def _read_trie(file: _File, max_bytes: int) -> tuple[Tables, Words]:
    order, counts = file.order, file.counts
    known = int(file.take(8, "vocabulary").view("<u8")[0])
    if known + 1 != counts[0]:
        raise file.error(f"is damaged: it has {known + 1} words, but {counts[0]} unigrams. {REBUILD}")
    file.take(8 * counts[0], "vocabulary")
    prob_bits, backoff_bits, bins = _read_bins(file)
    unigrams = np.frombuffer(
        file.take((counts[0] + 2) * 16, "unigrams").tobytes(),
        dtype=np.dtype([("prob", "<f4"), ("backoff", "<f4"), ("next", "<u8")]),
    )
    levels = _read_levels(file, prob_bits, backoff_bits)
    tables = empty_tables(counts, [0] * order, file.path, max_bytes)
    words = file.read_words(counts[0])

    nexts = unigrams["next"][: counts[0] + 1]
    _check_pointers(file, nexts, counts[1])
    nexts = nexts.astype(np.int64)
    extends = nexts[1:] > nexts[:-1]
    tables.values[0 : 2 * counts[0] : 2] = _signed(unigrams["prob"][: counts[0]], extends)
    tables.values[1 : 2 * counts[0] : 2] = unigrams["backoff"][: counts[0]]
    keys = np.arange(counts[0], dtype=np.uint64)
    for n, level in enumerate(levels, start=2):
        nobody = np.empty(0, dtype=np.uint32)
        prob_bins, backoff_bins = bins[n - 2] if bins else (nobody, nobody)
        ids, probs, backoffs, following = _unpack(
            level.rows,
            level.count,
            level.word_bits,
            level.value_bits,
            level.next_bits,
            level.steps,
            prob_bits if bins else 0,
            backoff_bits if bins else 0,
            prob_bins,
            backoff_bins,
            n == order,
        )
        if len(ids) and ids.max() >= counts[0]:
            raise file.error(f"is damaged: a {n}-gram has an unknown word. {REBUILD}")
        keys = _descend(keys, nexts, ids)
        if n < order:
            _check_pointers(file, following, counts[n])
            nexts = following.astype(np.int64)
            extends = nexts[1:] > nexts[:-1]
        else:
            extends = np.zeros(level.count, dtype=bool)
        if not _enter(tables, n, keys, _signed(probs.view(np.float32), extends), backoffs.view(np.float32)):
            raise file.error(f"is damaged: a {n}-gram is there twice. {REBUILD}")
    if not _is_sound(tables):
        raise file.error(f"is damaged: a probability or back-off is not a number. {REBUILD}")
    return tables, words


def _read_bins(file: _File) -> tuple[int, int, list[tuple[Cells, Cells]]]:
    """The bits of quantised probabilities and back-offs, and for orders 2, 3, ... their values."""
    if file.kind not in QUANTISED:
        return 31, 32, []
    version, prob_bits, backoff_bits = file.take(8, "quantisation")[:3].tolist()
    if version != 2 or not 1 <= prob_bits <= 25 or not 1 <= backoff_bits <= 25:
        raise file.error(f"has version {version} of quantisation, which is not known, or is damaged. {REBUILD}")
    bins = []
    for n in range(2, file.order + 1):
        sizes = (prob_bits, backoff_bits) if n < file.order else (prob_bits,)
        tables = [file.take(4 << bits, "quantisation").copy().view(np.uint32) for bits in sizes]
        bins.append((tables[0], tables[-1]))
    return prob_bits, backoff_bits, bins


def _read_levels(file: _File, prob_bits: int, backoff_bits: int) -> list[_Level]:
    counts = file.counts
    word_bits = counts[0].bit_length()
    levels = []
    chop_limit = None
    for n in range(2, file.order + 1):
        count = counts[n - 1]
        value_bits = prob_bits + backoff_bits if n < file.order else prob_bits
        next_bits = counts[n].bit_length() if n < file.order else 0
        steps = np.zeros(1, dtype=np.uint64)
        if n < file.order and file.kind in ARRAYS:
            begin = file.position
            head = file.take(2, "pointers").tolist()
            if chop_limit is None:  # the first table tells for all
                if head[0] != 0:
                    raise file.error(f"has version {head[0]} of compressed pointers; 0 is supported. {REBUILD}")
                chop_limit = head[1]
            chopped = _chopped_bits(count + 1, counts[n], next_bits, chop_limit)
            next_bits -= chopped
            num_steps = (counts[n] >> next_bits) + 1
            file.position = -(-begin // 8) * 8 + 8
            steps = file.take(8 * num_steps, "pointers").copy().view("<u8")
            file.position = begin + 8 * (1 + num_steps) + 7
            if np.any(steps[1:] < steps[:-1]) or steps[0] != 0:
                raise file.error(f"is damaged: the pointers of {n}-grams do not ascend. {REBUILD}")
        bits = word_bits + value_bits + next_bits
        rows = file.take(((1 + count) * bits + 7) // 8 + 8, f"{n}-grams")
        levels.append(_Level(rows, count, word_bits, value_bits, next_bits, steps))
    return levels


def _chopped_bits(rows: int, largest: int, bits: int, limit: int) -> int:
    """How many upper bits of pointers KenLM moves into an array: what makes table and array smallest together."""
    return min(range(min(bits, limit) + 1), key=lambda chop: (largest >> (bits - chop)) * 64 - rows * chop)


def _check_pointers(file: _File, nexts: npt.NDArray[np.uint64], count: int) -> None:
    if nexts[0] != 0 or nexts[-1] != count or np.any(nexts[1:] < nexts[:-1]):
        raise file.error(f"is damaged: its pointers to longer n-grams do not ascend to {count}. {REBUILD}")


def _signed(probs: Floats, extends: npt.NDArray[np.bool_]) -> Floats:
    """Probabilities with the sign off where a longer n-gram ends with this one."""
    return np.where(extends, np.abs(probs), -np.abs(probs)).astype(np.float32)


@inlined
def _bits(rows: Bytes, position: Any, count: Any) -> Any:
    """`count` bits, at most 57, from bit `position` on, lowest first; 8 bytes must be there."""
    byte = position >> 3
    value = np.uint64(0)
    for i in range(8):
        value |= np.uint64(rows[byte + i]) << np.uint64(8 * i)
    return (value >> np.uint64(position & 7)) & ((np.uint64(1) << np.uint64(count)) - np.uint64(1))


@compiled
def _unpack(
    rows: Bytes,
    count: Any,
    word_bits: Any,
    value_bits: Any,
    next_bits: Any,
    steps: npt.NDArray[np.uint64],
    prob_bits: Any,
    backoff_bits: Any,
    prob_bins: Cells,
    backoff_bins: Cells,
    highest: bool,
) -> tuple[Ids, Cells, Cells, npt.NDArray[np.uint64]]:
    """The words, the bits of probabilities and back-offs, and where the children of each row begin, one row more."""
    ids = np.zeros(count, dtype=np.int32)
    probs = np.zeros(count, dtype=np.uint32)
    backoffs = np.zeros(count, dtype=np.uint32)
    nexts = np.zeros(count + 1, dtype=np.uint64)
    width = word_bits + value_bits + next_bits
    step = 0
    for i in range(count + 1):
        position = i * width
        if i < count:
            ids[i] = np.int32(_bits(rows, position, word_bits))
            at = position + word_bits
            if prob_bits:
                if not highest:
                    backoffs[i] = backoff_bins[np.int64(_bits(rows, at, backoff_bits))]
                    at += backoff_bits
                probs[i] = prob_bins[np.int64(_bits(rows, at, prob_bits))]
            else:
                probs[i] = np.uint32(_bits(rows, at, 31)) | NO_EXTENSION
                if not highest:
                    backoffs[i] = np.uint32(_bits(rows, at + 31, 32))
        while step + 1 < len(steps) and steps[step + 1] <= np.uint64(i):
            step += 1
        if next_bits:
            nexts[i] = _bits(rows, position + word_bits + value_bits, next_bits)
        nexts[i] |= np.uint64(step) << np.uint64(next_bits)
    return ids, probs, backoffs, nexts


@compiled
def _descend(keys: npt.NDArray[np.uint64], nexts: npt.NDArray[np.int64], ids: Ids) -> npt.NDArray[np.uint64]:
    """The keys of the next level, whose rows nexts[i] to nexts[i + 1] add their words to keys[i]."""
    longer = np.zeros(len(ids), dtype=np.uint64)
    for i in range(len(keys)):
        for k in range(nexts[i], nexts[i + 1]):
            longer[k] = fold(keys[i], ids[k])
    return longer


@compiled
def _enter(tables: Tables, n: Any, keys: npt.NDArray[np.uint64], probs: Floats, backoffs: Floats) -> bool:
    for i in range(len(keys)):
        cell = insert(tables, n, keys[i])
        if cell < 0:
            return False
        tables.values[cell + 2] = probs[i]
        if n < tables.order:
            tables.values[cell + 3] = backoffs[i]
    return True
