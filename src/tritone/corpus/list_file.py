"""Text files that come with recordings, read as what strangers wrote: UTF-8, a byte order mark or not, limited."""

import re
from collections.abc import Iterator
from pathlib import Path

from tritone.corpus.utterance import MAX_TEXT, Place
from tritone.errors import InputError
from tritone.paths import local, open_file, plain_text

MAX_LIST_MB = 256  # more than a million utterances
MAX_TEXT_FILE = 4 * MAX_TEXT  # bytes of one reference in a file of its own


def read_list(path: Path) -> str:
    """The text of a list.

    Raises:
        InputError: it cannot be read, is larger than `MAX_LIST_MB`, or is not UTF-8.
    """
    return _read(path, MAX_LIST_MB << 20, f"larger than {MAX_LIST_MB} MB. Is it a list of utterances? If so, split it")


def read_text(path: Path) -> str:
    """A reference that has a file of its own: its words, single spaces between them.

    Raises:
        InputError: as of `read_list`, from `MAX_TEXT_FILE` on.
    """
    return " ".join(_read(path, MAX_TEXT_FILE, f"larger than {MAX_TEXT_FILE:,} bytes; is it one reference?").split())


def entries(path: Path, content: str) -> Iterator[tuple[Place, str, str]]:
    """`id rest` of every line that is not blank; `rest` may be empty."""
    for number, line in enumerate(content.split("\n"), start=1):
        name, _, rest = re.sub(r"[ \t]+", " ", line.strip(" \t\r"), count=1).partition(" ")
        if name:
            yield Place(path, number), name, rest


def _read(path: Path, most: int, complaint: str) -> str:
    local(path)
    try:
        with open_file(path) as file:
            content = file.read(most + 1)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:  # a name with a NUL character
        raise InputError(f"cannot read {str(path)!r}: {error}") from error
    if len(content) > most:
        raise InputError(f"{path} is {complaint}.")
    try:
        return plain_text(content)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}:{line}: not UTF-8 (byte 0x{content[error.start]:02x}); convert the file") from error
