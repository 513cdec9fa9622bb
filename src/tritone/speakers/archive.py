"""Kaldi archives of vectors, as `tritone embed`, WeSpeaker and Kaldi write them, read into one matrix.

    xvector.scp ("id path:offset" a line), an .ark itself, a folder  ->  Vectors (keys, matrix (n, dim) float32)

An archive may come from a stranger. What a list names is opened as a file and never run: Kaldi and libraries like it
start a shell for an entry that ends in "|", and kaldiio unpickles an entry that says so. That is why this is read here
and not by a library. Sizes are limited before memory is taken.

Source of the layout: Kaldi, "Kaldi I/O from a C++ level" and src/matrix/kaldi-vector.cc (Write): key, space,
NUL, "B", "FV " (float) or "DV " (double), a byte 4, int32 dimension, values, all little endian. The text form is
`key [ 1 2 3 ]`.
"""

import os
import stat
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from tritone.errors import InputError
from tritone.paths import plain_text
from tritone.report.table import visible

MAX_DIM = 1 << 16  # of a vector; speaker embeddings have some hundred values
MAX_KEY = 4096  # bytes
MAX_LIST_BYTES = 1 << 30  # an .scp of ten million utterances
MAX_VECTORS_BYTES = 16 << 30  # of all vectors together, in memory
BINARY = b"\0B"
HEADER = struct.Struct("<5scI")  # NUL B F V space, the size of an int (4), the dimension
NUMBERS: Mapping[bytes, np.dtype[Any]] = {b"\0BFV ": np.dtype("<f4"), b"\0BDV ": np.dtype("<f8")}
CONTENTS = {b"C": "a compressed matrix", b"M": "a matrix", b"\4": "integers"}  # by what follows "\0B" or "\0BF"
TEXT_PER_NUMBER = 32  # bytes at most
LISTED = 3  # of what is missing, named in a message

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Vectors:
    """Named vectors: `matrix[row]` (dim,) float32 belongs to `keys[row]`; keys are distinct."""

    keys: tuple[str, ...]
    matrix: Floats

    @property
    def dim(self) -> int:
        """The length of each vector."""
        return int(self.matrix.shape[1])

    @cached_property
    def rows(self) -> Mapping[str, int]:
        """Key to row."""
        return {key: row for row, key in enumerate(self.keys)}

    def missing(self, names: Iterable[str]) -> list[str]:
        """Those of the names that have no vector, each once."""
        return [name for name in dict.fromkeys(names) if name not in self.rows]

    def take(self, names: Iterable[str]) -> Floats:
        """The vectors of these names, none of them missing, one row each."""
        return self.matrix[[self.rows[name] for name in names]]


def read_vectors(path: str | os.PathLike[str]) -> Vectors:
    """Read all vectors of a list (`.scp`) or of an archive (any other file), float or double, binary or text.

    Of a folder: `xvector.scp`, or else all of `xvector_000.scp`, `xvector_001.scp` and so on.

    Relative paths in a list count from the current folder, as Kaldi does it; where there is no such file, from the
    folder of the list; and last a file of the same name beside the list is taken, so that folders can be moved.

    Raises:
        InputError: nothing there, not a list or an archive of vectors, cut off, too large, an entry that is a command;
            keys that repeat, vectors of different dimensions, values that are not finite. The message names the entry.
    """
    path = Path(path)
    if path.is_dir():
        keys, matrix = _read_lists(lists_of(path))
    else:
        keys, matrix = _read_lists([path]) if path.suffix == ".scp" else _read_archive(path)
    if not keys:
        raise InputError(f"{path} has no vectors")
    if len(set(keys)) < len(keys):
        seen: set[str] = set()
        twice = next(key for key in keys if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise InputError(f"{path}: {visible(twice)} is there twice; every id must have one vector")
    # a sum is finite only if all of it is, and takes no room for an answer about each value
    with np.errstate(invalid="ignore"):
        bad = np.flatnonzero(~np.isfinite(matrix.sum(axis=1, dtype=np.float64)))
    if bad.size:
        names = some(keys[row] for row in bad[: LISTED + 1])
        raise InputError(
            f"{path}: {bad.size} of {len(keys)} vectors have values that are not finite: {names}. Embed these "
            "recordings again, or take them out"
        )
    return Vectors(tuple(keys), matrix)


def lists_of(folder: Path) -> list[Path]:
    """The lists of a folder of embeddings.

    Raises:
        InputError: it has none.
    """
    if not (found := _lists(folder)):
        raise InputError(f"{folder} has neither xvector.scp nor xvector_000.scp; name the .scp or the .ark")
    return found


def has_lists(folder: Path) -> bool:
    """Whether a folder is one of embeddings."""
    return bool(_lists(folder))


def _lists(folder: Path) -> list[Path]:
    whole = folder / "xvector.scp"
    return [whole] if whole.is_file() else sorted(folder.glob("xvector_[0-9]*.scp"))


def some(names: Iterable[str], number: int = LISTED) -> str:
    """The first few names for a message."""
    names = list(names)
    shown = [text if len(text := visible(name)) <= 80 else text[:79] + "…" for name in names[:number]]
    return ", ".join(shown) + (" and more" if len(names) > number else "")


def read_text(path: Path, limit: int = MAX_LIST_BYTES) -> str:
    """The text of a list in UTF-8.

    Raises:
        InputError: it cannot be read, is larger than `limit` bytes, or is not text.
    """
    with Archive(path) as file:
        if file.size > limit:
            raise InputError(f"{path} has {file.size:,} bytes; at most {limit:,} are read. Is it a list?")
        content = file.read(0, file.size)
    try:
        return plain_text(content)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}:{line}: not UTF-8 (byte 0x{content[error.start]:02x})") from error


class Archive:
    """A file open for reading at places; neither a device nor a pipe, which might never end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror}") from error
        except ValueError as error:  # a name with a NUL character
            raise InputError(f"cannot read {str(path)!r}: {error}") from error
        status = os.fstat(self._file)
        if not stat.S_ISREG(status.st_mode):
            os.close(self._file)
            raise InputError(f"{path} is not a file")
        self.size = status.st_size

    def __enter__(self) -> "Archive":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def read(self, position: int, size: int) -> bytes:
        """So many bytes from a position; fewer at the end of the file."""
        if position >= self.size:
            return b""
        data = os.pread(self._file, size, position)
        while len(data) < size and (more := os.pread(self._file, size - len(data), position + len(data))):
            data += more
        return data


@dataclass(frozen=True)
class _Entry:
    """A line of a list: which vector is where."""

    where: str
    key: str
    position: int


def _read_lists(paths: Iterable[Path]) -> tuple[list[str], Floats]:
    paths = list(paths)
    keys: list[str] = []
    rows: dict[Path, list[tuple[int, _Entry]]] = {}  # by archive
    for path in paths:
        found: dict[str, Path] = {}
        for entry, name in _entries_of(path):
            if name not in found:
                found[name] = _find(name, path, entry.where)
            rows.setdefault(found[name], []).append((len(keys), entry))
            keys.append(entry.key)
    matrix: Floats | None = None
    for target, entries in rows.items():
        with Archive(target) as archive:
            for row, entry in entries:
                vector = _vector_at(archive, entry, 0 if matrix is None else matrix.shape[1])
                if matrix is None:
                    matrix = _room(len(keys), len(vector), paths[0])
                if len(vector) != matrix.shape[1]:
                    _differ(entry.where, entry.key, len(vector), matrix.shape[1])
                _put(matrix, row, vector)
    return keys, np.empty((0, 0), np.float32) if matrix is None else matrix


def _entries_of(path: Path) -> Iterator[tuple[_Entry, str]]:
    """The entries of a list, each with the name of its archive."""
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        fields = line.split(None, 1)
        if not fields:
            continue
        where = f"{path}:{number}"
        if len(fields) < 2:
            raise InputError(f"{where}: {visible(line)[:80]!r} is not 'id path:offset'")
        key, target = fields[0], fields[1].rstrip()
        if target.startswith("|") or target.endswith("|") or target == "-":
            raise InputError(
                f"{where}: {visible(key)} is a command or standard input ({visible(target)[:80]}); commands are not "
                "run. Run it yourself, e.g. with Kaldi's copy-vector, and list the archive that it writes"
            )
        if target.endswith("]"):
            raise InputError(f"{where}: {visible(key)} is a part of a vector ([...]); name whole vectors")
        name, colon, offset = target.rpartition(":")
        is_place = bool(colon) and len(offset) < 19 and offset.isascii() and offset.isdigit()
        yield _Entry(where, key, int(offset) if is_place else 0), name if is_place else target


def _find(name: str, path: Path, where: str) -> Path:
    target = Path(name)
    candidates = [target, path.parent / target, path.parent / target.name]
    try:
        for candidate in candidates:
            if candidate.exists():
                return candidate
    except (OSError, ValueError) as error:
        raise InputError(f"{where}: cannot open {visible(name)[:200]!r}: {error}") from error
    tried = ", ".join(dict.fromkeys(visible(str(each.absolute())) for each in candidates))
    raise InputError(f"{where}: there is no archive {visible(name)}; looked for {tried}")


def _vector_at(archive: Archive, entry: _Entry, likely_dim: int) -> npt.NDArray[np.floating]:
    """The vector whose first byte, after key and space, is at `position`; read at once if its dimension was guessed."""
    position, where = entry.position, entry.where
    data = archive.read(position, HEADER.size + 4 * (likely_dim or MAX_DIM))
    if not data:
        raise InputError(
            f"{where}: offset {position:,} is beyond the end of {archive.path} ({archive.size:,} bytes). The archive "
            "is cut off, or the list belongs to another one"
        )
    if data.startswith(BINARY):
        numbers, size = _header(data, where, archive.path)
        if len(data) < size:
            data = archive.read(position, size)
        if len(data) < size:
            raise InputError(f"{where}: {archive.path} ends within the vector at {position:,}; it is cut off")
        return np.frombuffer(data, numbers, offset=HEADER.size, count=(size - HEADER.size) // numbers.itemsize)
    if not data.lstrip(b" \t").startswith(b"["):
        raise InputError(f"{where}: there is no vector at {position:,} in {archive.path}. Does the list belong to it?")
    data = archive.read(position, TEXT_PER_NUMBER * MAX_DIM)
    return _numbers_of(data, 0, where)[0]


def _read_archive(path: Path) -> tuple[list[str], Floats]:
    with Archive(path) as archive:
        if archive.size > MAX_VECTORS_BYTES:
            raise InputError(f"{path} has {archive.size / 2**30:.0f} GiB; at most {MAX_VECTORS_BYTES >> 30} are read")
        data = archive.read(0, archive.size)
    keys: list[str] = []
    vectors: list[npt.NDArray[np.floating]] = []
    for key, vector in _entries(data, path):
        if vectors and len(vector) != len(vectors[0]):
            _differ(str(path), key, len(vector), len(vectors[0]))
        keys.append(key)
        vectors.append(vector)
    matrix = _room(len(keys), len(vectors[0]) if vectors else 0, path)
    for row, vector in enumerate(vectors):
        _put(matrix, row, vector)
    return keys, matrix


def _entries(data: bytes, path: Path) -> Iterator[tuple[str, npt.NDArray[np.floating]]]:
    position = 0
    while position < len(data):
        end = data.find(b" ", position, position + MAX_KEY + 1)
        where = f"{path}, byte {position:,}"
        try:
            key = data[position:end].decode("utf-8") if end > position else ""
        except UnicodeDecodeError:
            key = ""
        if not key or not key.isprintable():
            if not data[position:].strip():  # a blank line at the end of a text archive
                return
            raise InputError(f"{where}: no id and vector here; is it an archive of vectors?")
        position = end + 1
        if data.startswith(BINARY, position):
            numbers, size = _header(data[position : position + HEADER.size], where, path)
            if position + size > len(data):
                raise InputError(f"{where}: the file ends within the vector of {visible(key)}; it is cut off")
            count = (size - HEADER.size) // numbers.itemsize
            yield key, np.frombuffer(data, numbers, offset=position + HEADER.size, count=count)
            position += size
        else:
            vector, position = _numbers_of(data, position, where)
            yield key, vector
            while data[position : position + 1] in (b"\n", b"\r", b" "):
                position += 1


def _header(data: bytes, where: str, path: Path) -> tuple[np.dtype[Any], int]:
    """The type of the values and the size of the entry in bytes, header included."""
    kind = next((name for mark, name in CONTENTS.items() if mark in (data[2:3], data[3:4])), "")
    numbers = NUMBERS.get(data[:5])
    if numbers is None or len(data) < HEADER.size or data[5:6] != b"\4":
        raise InputError(
            f"{where}: {path} holds {kind or 'something that Kaldi does not write'} here, not a vector"
            + (". Which file has the embeddings?" if kind else "")
        )
    dim = HEADER.unpack_from(data)[2]
    if not 0 < dim <= MAX_DIM:
        raise InputError(f"{where}: a vector of {dim:,} values; at most {MAX_DIM:,} are read, and at least 1")
    return numbers, HEADER.size + dim * numbers.itemsize


def _numbers_of(data: bytes, position: int, where: str) -> tuple[Floats, int]:
    """The vector of `[ 1 2 3 ]` at a position, and where it ends."""
    begin = position
    while data[begin : begin + 1] in (b" ", b"\t"):
        begin += 1
    end = data.find(b"]", begin, begin + TEXT_PER_NUMBER * MAX_DIM)
    fields = data[begin + 1 : end].split(None, MAX_DIM) if data[begin : begin + 1] == b"[" and end > 0 else []
    try:
        with np.errstate(over="ignore"):
            vector = np.array([float(field) for field in fields], dtype=np.float32)
    except ValueError:
        vector = np.empty(0, np.float32)
    if not 0 < len(vector) <= MAX_DIM:
        raise InputError(f"{where}: neither a binary vector nor one written as [ 1 2 3 ]")
    return vector, end + 1


def _put(matrix: Floats, row: int, vector: npt.NDArray[np.floating]) -> None:
    # doubles beyond float32 become infinite, which is complained of afterwards
    with np.errstate(over="ignore"):
        matrix[row] = vector


def _room(number: int, dim: int, path: Path) -> Floats:
    if 4 * number * dim > MAX_VECTORS_BYTES:
        raise InputError(
            f"{path} has {number:,} vectors of {dim} values; at most {MAX_VECTORS_BYTES >> 30} GiB are "
            "read at once. Split the list"
        )
    return np.empty((number, dim), dtype=np.float32)


def _differ(where: str, key: str, found: int, expected: int) -> NoReturn:
    raise InputError(
        f"{where}: the vector of {visible(key)} has {found} values, those before it {expected}; all must come from one "
        "model"
    )
