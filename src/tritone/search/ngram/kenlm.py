"""Reading KenLM's binary files in the layout `probing`, with and without rest costs.

    header, vocabulary, tables, words  ->  Tables, Words

The tables are used as they lie in memory. KenLM's tries are smaller but have to be unpacked for that: they are refused
with advice.

Files are not trusted: every size follows from the header and must lie within the file before anything is read, and
numbers must be finite.

Source: lm/binary_format.cc, lm/search_hashed.hh and lm/vocab.cc of https://github.com/kpu/kenlm, format version 5.
"""

import struct
from pathlib import Path

import numpy as np

from tritone.errors import LanguageModelError
from tritone.search.compiled.compiler import compiled
from tritone.search.ngram.tables import MAX_ORDER, UNKNOWN, Bytes, Tables, Words, index_words

VERSION = 5
FAMILY = b"mmap lm http://kheafield.com/code"
MAGIC = FAMILY + b" format version %d\n"
# The magic with two zero bytes, padded to 8; test values for floats, for words and for 64-bit integers.
SANITY = struct.pack("<56s3f3IQ", MAGIC % VERSION, 0.0, 1.0, -0.5, 1, 2**32 - 1, 0, 1)
FIXED = struct.Struct("<B3xfIB3xI")  # order, probing multiplier, kind, has words, version of the search structure
KINDS = (  # build_binary's names of the layouts, by their numbers in the header
    "probing",
    "probing with rest costs (-r)",
    "trie",
    "trie with quantised values (-q)",
    "trie with compressed pointers (-a)",
    "trie with quantised values and compressed pointers (-q -a)",
)
NUM_READ = 2  # the first of them are read; the second has one cell more in each row
REBUILD = "Build it again from the ARPA file with build_binary probing in.arpa out.bin, or use the ARPA file itself."


def recognises(content: Bytes) -> bool:
    return content[: len(FAMILY)].tobytes() == FAMILY


class _File:
    """The bytes of a file and the fields of its header; `take` goes through the rest in order."""

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
        if self.kind >= len(KINDS):
            raise self.error(f"is of kind {self.kind}, which is not known; 0 to {len(KINDS) - 1} are. {REBUILD}")
        if self.kind >= NUM_READ:
            raise self.error(f"is a {KINDS[self.kind]}; the layout must be probing. {REBUILD}")
        if version != 0:
            raise self.error(f"has version {version} of its tables; 0 is supported. {REBUILD}")
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


def read(content: Bytes, path: Path) -> tuple[Tables, Words]:
    """Read the content of a KenLM binary; `path` is for messages.

    Raises:
        LanguageModelError: it is damaged, of another layout or version, or holds no words.
    """
    file = _File(content, path)
    rest = file.kind  # cells more that a unigram or an entry has
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
