"""n-gram language models: the scores of words and sentences, the same for every file format.

    lm.arpa, lm.arpa.gz, lm.bin  ->  NgramModel  ->  ln P(sentence), and tables for compiled look-ups

Probing files of KenLM are mapped as they are, shared by all processes that serve them; ARPA files are read into memory.
"""

import gzip
import math
import mmap
import os
import zlib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tritone.errors import LanguageModelError
from tritone.paths import open_file
from tritone.search.ngram import arpa, kenlm
from tritone.search.ngram.tables import MAX_ORDER, Bytes, Ids, Tables, Words, find_word, place_of

MAX_BYTES = 8 * 2**30  # of a file, and of what it needs in memory
MAX_RATIO = 32  # of what a gzipped file unpacks to and its size; that of text is 10 at most, gzip's own limit 1032
UNPACKED_BYTES = 2**24  # that any gzipped file may unpack to
BEGIN, END = "<s>", "</s>"
LN_10 = math.log(10.0)


class NgramModel:
    """A back-off n-gram model. Logarithms are natural here; the tables hold log10 as the files do."""

    def __init__(self, tables: Tables, words: Words, path: Path) -> None:
        self.tables = tables
        self.place = place_of(tables)
        self.words = words
        self.path = path
        self._begin = self.word_id(BEGIN) or self.word_id(BEGIN.upper())
        self.end = self.word_id(END) or self.word_id(END.upper())  # 0: the model knows no end of sentence

    @classmethod
    def read(cls, path: Path, *, max_bytes: int = MAX_BYTES) -> "NgramModel":
        """Read an ARPA file, gzipped or not, or a probing KenLM binary, recognised by content.

        Args:
            path: the file. A probing binary stays mapped, so do not change it in place while it is used.
            max_bytes: limit of the file, of what it unpacks to, and of the tables made from it.

        Raises:
            LanguageModelError: the file cannot be read, is too large, damaged or of another kind; says where and what
                to do.
        """
        content = _content(path, max_bytes)
        if kenlm.recognises(content):
            return cls(*kenlm.read(content, path), path)
        return cls(*arpa.read(content, path, max_bytes), path)

    @property
    def order(self) -> int:
        return self.tables.order

    def __len__(self) -> int:
        """The number of words, <unk> and the sentence marks included."""
        return self.tables.num_words

    def word_id(self, word: str) -> int:
        """The id of a word; 0 for one that the model does not know."""
        text = np.frombuffer(word.encode("utf-8", "surrogateescape"), dtype=np.uint8)
        return max(0, int(find_word(self.words, text, 0, len(text))))

    def spellings(self) -> Iterator[tuple[int, str]]:
        """All words with their ids, without <unk> and the sentence marks; bytes that are not UTF-8 as U+FFFD."""
        text = memoryview(self.words.text)  # type: ignore[arg-type]
        for id, (first, last) in enumerate(zip(self.words.first.tolist(), self.words.last.tolist(), strict=True)):
            if id not in (0, self._begin, self.end):
                yield id, str(text[first:last], "utf-8", "replace")

    @cached_property
    def start(self) -> Ids:
        """The context at the start of a sentence, (MAX_ORDER - 1,), as `score_word` wants it."""
        context = np.full(MAX_ORDER - 1, -1, dtype=np.int32)
        if self._begin and self.order > 1:
            context[0] = self._begin
        return context


def _content(path: Path, max_bytes: int) -> Bytes:
    """The bytes of a file, unpacked if it is gzipped; else mapped privately: writing to them changes no file."""
    try:
        with open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > max_bytes:
                raise LanguageModelError(
                    f"{path} has {size / 1e6:.0f} MB, more than the limit of {max_bytes / 1e6:.0f} MB. "
                    "Prune the model, or raise the limit."
                )
            if size == 0:
                raise LanguageModelError(f"the language model {path} is empty")
            if file.read(2) == b"\x1f\x8b":
                file.seek(0)
                return _unpacked(file, path, max_bytes)
            # Copy on write makes the array writable, so its type is that of every other model's.
            return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), dtype=np.uint8)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise LanguageModelError(f"cannot read the language model {path}: {reason}") from error


def _unpacked(file: Any, path: Path, max_bytes: int) -> Bytes:
    content = bytearray()
    try:
        with gzip.open(file) as stream:
            while part := stream.read(2**20):
                content += part
                if len(content) > max_bytes:
                    raise LanguageModelError(f"{path} unpacks to more than the limit of {max_bytes / 1e6:.0f} MB")
                if len(content) > max(UNPACKED_BYTES, MAX_RATIO * file.tell()):
                    raise LanguageModelError(
                        f"{path} unpacks to more than {MAX_RATIO} times its size ({len(content) / 1e6:.0f} MB so far), "
                        "which no language model does. If it is one, unpack it (gunzip) and give the result."
                    )
    except (EOFError, OSError, zlib.error) as error:
        raise LanguageModelError(f"{path} is a damaged gzip file: {error}") from error
    return np.frombuffer(content, dtype=np.uint8)
