"""An n-gram model in memory: tables of n-grams by their keys, and how they score a word.

    context, word  ->  log10 P(word | context), and the context of the next word

A model is one array of 32-bit cells, laid out as KenLM's probing model is: unigrams by word id, then for every order a
hash table with open addressing. ARPA files are brought into this layout, probing files have it.

    unigram   [log10 P, back-off, ...]                    `unigram_stride` cells
    entry     [key low, key high, log10 P, back-off, ...]   without back-off for the highest order

The key of an n-gram is folded from its last word backwards (`fold`). Signs carry what look-ups need to stop early: the
probability, never positive, has its sign cleared where a longer n-gram ends with this one; a back-off of zero is -0.0
where no longer n-gram begins with it. Word 0 is <unk>.

Source: Kenneth Heafield, "KenLM: Faster and Smaller Language Model Queries", 2011, and the behaviour of its programs.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tritone.errors import LanguageModelError
from tritone.search.compiled.addresses import address_of, float32s, int64s, uint32s
from tritone.search.compiled.compiler import compiled, inlined

MAX_ORDER = 6
NO_EXTENSION = np.uint32(0x80000000)  # the bits of -0.0: a back-off that no longer n-gram will ever charge
UNKNOWN = "<unk>"
FOLD_NODE = np.uint64(8978948897894561157)  # KenLM's constants
FOLD_WORD = np.uint64(17894857484156487943)
FILL = 1.5  # hash slots per entry

Cells = npt.NDArray[np.uint32]
Ids = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


class Tables(NamedTuple):
    """The cells and where things lie in them. Types are always the same, so jitted functions compile once."""

    cells: Cells
    values: Floats  # the same memory
    tables: npt.NDArray[np.int64]  # (MAX_ORDER - 1, 3): first cell, slots and stride of the tables of orders 2, 3, ...
    unigrams: int  # first cell
    unigram_stride: int
    order: int
    num_words: int


# Where `Tables` lie in memory, for look-ups: the addresses of the cells and of `tables`, and the numbers of the rest.
TABLES_AT = np.dtype(
    [(name, np.int64) for name in ("cells", "tables", "unigrams", "unigram_stride", "order")], align=True
)


class Words(NamedTuple):
    """The words by their ids: `text[first[id]:last[id]]` in UTF-8, and a hash table of ids, -1 where it is empty."""

    text: Bytes
    first: npt.NDArray[np.int64]
    last: npt.NDArray[np.int64]
    slots: Ids


@inlined
def fold(node: Any, word: Any) -> Any:
    """The key of an n-gram, from that of its last words and the word before them; of a single word it is the id."""
    return (np.uint64(node) * FOLD_NODE) ^ (np.uint64(word + 1) * FOLD_WORD)


def place_of(tables: Tables) -> Any:
    """(1,) `TABLES_AT` of tables; keep the tables as long as it is used."""
    addresses = address_of(tables.cells), address_of(tables.tables)
    return np.array([(*addresses, tables.unigrams, tables.unigram_stride, tables.order)], dtype=TABLES_AT)


@inlined
def find_entry(at: Any, order: Any, key: Any) -> Any:
    """The first cell of an n-gram's entry, -1 if there is none."""
    cells, tables = uint32s(at.cells), int64s(at.tables)
    first = tables[3 * (order - 2)]
    slots = tables[3 * (order - 2) + 1]
    stride = tables[3 * (order - 2) + 2]
    if slots == 0:
        return np.int64(-1)
    low = np.uint32(key & np.uint64(0xFFFFFFFF))
    high = np.uint32(key >> np.uint64(32))
    slot = np.int64(key % np.uint64(slots))
    for _ in range(slots):  # a damaged table may be full
        cell = first + slot * stride
        if cells[cell] == low and cells[cell + 1] == high:
            return cell
        if cells[cell] == 0 and cells[cell + 1] == 0:
            return np.int64(-1)
        slot += 1
        if slot == slots:
            slot = np.int64(0)
    return np.int64(-1)


@inlined
def score_word(at: Any, context: Ids, word: Any, next_context: Ids) -> Any:
    """log10 P(word | context), and the context for the word after it.

    Args:
        context: MAX_ORDER - 1 ids of the words before, the latest first; -1 from where there are no more. What comes
            after them is not looked at.
        next_context: is written; as short as it can be without changing any score. May be `context` itself.
    """
    cells, values = uint32s(at.cells), float32s(at.cells)
    length = 0
    while length < at.order - 1 and context[length] >= 0:
        length += 1
    cell = at.unigrams + word * at.unigram_stride
    score = -abs(np.float64(values[cell]))
    extends = cells[cell] < NO_EXTENSION  # is the sign clear?
    keep = 1 if at.order > 1 and cells[cell + 1] != NO_EXTENSION else 0
    matched = 1
    node = np.uint64(word)
    for i in range(length):
        if not extends:
            break
        node = fold(node, context[i])
        cell = find_entry(at, i + 2, node)
        if cell < 0:
            break
        score = -abs(np.float64(values[cell + 2]))
        matched = i + 2
        if matched < at.order:
            extends = cells[cell + 2] < NO_EXTENSION
            if cells[cell + 3] != NO_EXTENSION:
                keep = matched
    # The back-offs of those contexts that are too long for what matched.
    node = np.uint64(context[0]) if length else np.uint64(0)
    for i in range(length):
        if i:
            node = fold(node, context[i])
        if i + 1 < matched:
            continue
        if i == 0:
            score += values[at.unigrams + context[0] * at.unigram_stride + 1]
        else:
            cell = find_entry(at, i + 1, node)
            if cell < 0:
                break
            score += values[cell + 3]
    for i in range(keep - 1, 0, -1):
        next_context[i] = context[i - 1]
    if keep:
        next_context[0] = word
    for i in range(keep, MAX_ORDER - 1):
        next_context[i] = -1
    return score


@compiled
def find_word(words: Words, text: Bytes, first: Any, last: Any) -> Any:
    """The id of the word text[first:last]; -1 if it is unknown."""
    return words.slots[_word_slot(words, text, first, last)]


@inlined
def _word_slot(words: Words, text: Bytes, first: Any, last: Any) -> Any:
    """Where in `slots` the word text[first:last] is, or would be. There is always an empty slot."""
    code = np.uint64(14695981039346656037)  # FNV-1a
    for i in range(first, last):
        code = (code ^ np.uint64(text[i])) * np.uint64(1099511628211)
    mask = len(words.slots) - 1
    slot = np.int64((code ^ (code >> np.uint64(32))) & np.uint64(mask))
    while words.slots[slot] >= 0:
        known = words.first[words.slots[slot]]
        if words.last[words.slots[slot]] - known == last - first:
            same = True
            for i in range(last - first):
                if words.text[known + i] != text[first + i]:
                    same = False
                    break
            if same:
                return slot
        slot = (slot + 1) & mask
    return slot


@compiled
def _fill(words: Words) -> Any:
    """Enter all words into the hash table; returns the first id whose word is there already, -1 if none is."""
    for id in range(len(words.first)):
        slot = _word_slot(words, words.text, words.first[id], words.last[id])
        if words.slots[slot] >= 0:
            return id
        words.slots[slot] = id
    return -1


def index_words(text: Bytes, first: npt.NDArray[np.int64], last: npt.NDArray[np.int64]) -> tuple[Words, int]:
    """Make a `Words`; also the id of a word that is there twice, -1 if none is."""
    slots = np.full(1 << max(4, (2 * len(first)).bit_length()), -1, dtype=np.int32)
    words = Words(text, first, last, slots)
    return words, _fill(words)


def empty_tables(counts: Sequence[int], spare: Sequence[int], path: Path, max_bytes: int) -> Tables:
    """Tables for `counts` n-grams of orders 1, 2, ...; all unigrams and entries zero.

    Args:
        spare: how many n-grams more of each order there is room for.

    Raises:
        LanguageModelError: they need more than `max_bytes`.
    """
    order = len(counts)
    places = np.zeros((MAX_ORDER - 1, 3), dtype=np.int64)
    total = 2 * counts[0]
    for n in range(2, order + 1):
        size = counts[n - 1] + spare[n - 1]
        stride = 4 if n < order else 3
        places[n - 2] = total, max(size + 1, int(FILL * size)), stride
        total += int(places[n - 2, 1]) * stride
    if total * 4 > max_bytes:
        raise LanguageModelError(
            f"{path} needs {total * 4 / 1e6:.0f} MB in memory, more than the limit of {max_bytes / 1e6:.0f} MB. "
            "Prune the model, or raise the limit."
        )
    cells = np.zeros(total, dtype=np.uint32)
    return Tables(cells, cells.view(np.float32), places, 0, 2, order, counts[0])


@inlined
def insert(tables: Tables, order: Any, key: Any) -> Any:
    """Make an entry with value 0 and return its first cell; -1 if it is there already, -2 if the table is full."""
    first = tables.tables[order - 2, 0]
    slots = tables.tables[order - 2, 1]
    stride = tables.tables[order - 2, 2]
    slot = np.int64(key % np.uint64(slots))
    low = np.uint32(key & np.uint64(0xFFFFFFFF))
    high = np.uint32(key >> np.uint64(32))
    for _ in range(slots):
        cell = first + slot * stride
        if tables.cells[cell] == 0 and tables.cells[cell + 1] == 0:
            tables.cells[cell] = low
            tables.cells[cell + 1] = high
            return cell
        if tables.cells[cell] == low and tables.cells[cell + 1] == high:
            return np.int64(-1)
        slot += 1
        if slot == slots:
            slot = np.int64(0)
    return np.int64(-2)
