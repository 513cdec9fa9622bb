"""Writing Kaldi archives of vectors, so that a process may be killed at any byte and another one go on.

    DIR/xvector_000.ark, xvector_000.scp, xvector_001.ark, ...     vectors, and where each begins
    DIR/xvector.scp                                                all of them
    DIR/embed.json                                                 what made them

The archives are the truth: an entry is there when all its bytes are. What was cut off is removed when the folder is
opened again, and lists are written again from the archives where they differ. An entry is the id in UTF-8, a space,
NUL "B" "FV " 4, the dimension as int32 and the values as float32, little endian; a list has `id path:offset`, where the
offset is that of the NUL (see `archive.py` for reading).
"""

import fcntl
import json
import mmap
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from tritone.errors import InputError, OperatorError
from tritone.report.table import visible
from tritone.speakers.archive import HEADER, MAX_DIM, MAX_KEY

PREFIX = "xvector"  # what WeSpeaker and Kaldi's recipes call them
STATE = "embed.json"
VERSION = 1
SHARD = re.compile(PREFIX + r"_([0-9]{3,9})\.(ark|scp)")
DEFAULT_SHARD_SIZE = 50_000  # utterances, 50 MB of vectors with 256 values
VECTOR, INT_SIZE = b"\0BFV ", b"\4"
PAGE = 1 << 20  # bytes looked at together


def check_key(key: str) -> str:
    """Return an id; raises `InputError` if archives cannot hold it: Kaldi's lists are fields between spaces."""
    try:
        length = len(key.encode())
    except UnicodeEncodeError:
        raise InputError(f"the id {visible(key)[:80]} has half a character, which no file can hold") from None
    if not 0 < length <= MAX_KEY:
        raise InputError(f"an id has 1 to {MAX_KEY} bytes, this one {length:,}: {visible(key)[:80]}")
    if " " in key or not key.isprintable():
        raise InputError(
            f"the id {visible(key)[:80]!r} has a space or a character that cannot be seen; Kaldi's lists cannot hold "
            "it. List the recordings in a wav.scp, under ids without."
        )
    return key


def entry(key: str, vector: npt.NDArray[np.float32]) -> tuple[bytes, int]:
    """The bytes of an entry, and where among them its vector begins."""
    name = key.encode() + b" "
    return name + HEADER.pack(VECTOR, INT_SIZE, len(vector)) + vector.astype("<f4").tobytes(), len(name)


class ArchiveWriter:
    """A folder of archives open for writing, by one process at a time. What `add` returned from is in the files."""

    def __init__(
        self,
        folder: Path,
        *,
        made_by: Mapping[str, str],
        shard_size: int = DEFAULT_SHARD_SIZE,
        force: bool = False,
    ) -> None:
        """Open a folder, which is made if need be, and put what an earlier process left there in order.

        Args:
            folder: lists name the archives by it, as it is given here.
            made_by: what decides the vectors, as `System.describe` returns it.
            shard_size: vectors of one archive.
            force: start again if something else made what is there, which is removed.

        Raises:
            InputError: something else made what is there, another process is writing there, or an archive is damaged.
            OperatorError: it cannot be written there.
        """
        if shard_size < 1:
            raise ValueError(f"shard_size must be at least 1, got {shard_size}")
        if str(folder) != str(folder).strip() or not str(folder).isprintable() or str(folder).startswith("|"):
            raise InputError(
                f"lists of Kaldi cannot hold the folder {visible(str(folder))!r}; name one that neither begins nor "
                "ends with a space, and has no | in front"
            )
        self.folder = folder
        self.dim: int | None = None
        """Values of a vector; None before the first one."""
        self.mended: list[str] = []
        """What had to be put in order, a sentence each."""
        self._made_by = dict(made_by)
        self._positions: dict[str, tuple[int, int]] = {}  # key -> shard, offset
        self._shard_size = shard_size
        self._shard = -1  # the number of the one that is being written
        self._count = 0  # entries in it
        self._ark: _Appended | None = None
        self._scp: _Appended | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = _lock(folder)
        except OSError as error:
            raise _unwritable(folder, error) from error
        try:
            self._open(force)
        except OSError as error:
            self.close()
            raise _unwritable(Path(error.filename or folder), error) from error
        except BaseException:
            self.close()
            raise

    def __contains__(self, key: object) -> bool:
        return key in self._positions

    def __len__(self) -> int:
        return len(self._positions)

    def add(self, key: str, vector: npt.NDArray[np.float32]) -> None:
        """Write a vector (dim,).

        Raises:
            InputError: archives cannot hold the id, or it is there already.
            OperatorError: the vector has another dimension than those before, or the disk is full.
        """
        check_key(key)
        if key in self._positions:
            raise InputError(f"{visible(key)} is in {self._path(self._positions[key][0])} already")
        if vector.ndim != 1 or not 0 < len(vector) <= MAX_DIM or self.dim not in (None, len(vector)):
            wanted = f"1 to {MAX_DIM}" if self.dim is None else str(self.dim)
            raise OperatorError(
                f"the vector of {visible(key)} has shape {vector.shape}, {self.folder} takes {wanted} values. Has the "
                "model been exchanged?"
            )
        data, begin = entry(key, vector)
        try:
            if self._ark is None or self._scp is None or self._count >= self._shard_size:
                self._next_shard()
            assert self._ark is not None
            assert self._scp is not None
            offset = self._ark.end + begin
            self._ark.write(data)
            self._scp.write(self._line(key, self._shard, offset))
        except OSError as error:
            raise _unwritable(self._path(max(self._shard, 0)), error) from error
        self._count += 1
        self.dim = len(vector)
        self._positions[key] = self._shard, offset

    def write_list(self, order: Iterable[str] = ()) -> Path:
        """Write the list of all archives, these ids first where they are there; returns its path."""
        keys = dict.fromkeys(key for key in order if key in self._positions) | dict.fromkeys(self._positions)
        path = self.folder / f"{PREFIX}.scp"
        try:
            _replace(path, b"".join(self._line(key, *self._positions[key]) for key in keys))
        except OSError as error:
            raise _unwritable(path, error) from error
        return path

    def close(self) -> None:
        """Close the files, without what an interrupt may have left half written; closing twice is fine."""
        for file in (self._ark, self._scp):
            if file is not None:
                file.close()
        self._ark = self._scp = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> "ArchiveWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self, force: bool) -> None:
        shards = sorted(self._shards("ark"))
        state = self.folder / STATE
        if state.exists():
            differences = _differences(_read_state(state), self._made_by)
            if differences and not force:
                raise InputError(
                    f"{self.folder} holds embeddings that another model, or other options, made: "
                    f"{'; '.join(differences)}. Name another folder; or --force removes them and starts again."
                )
            if differences:
                self._remove(shards)
                shards = []
        elif shards:
            raise InputError(
                f"{self.folder} has archives, such as {self._path(shards[0]).name}, but no {STATE} that records what "
                "made them. Name another folder."
            )
        for name in (STATE, f"{PREFIX}.scp", *(self._path(shard, "scp").name for shard in self._shards("scp"))):
            (self.folder / _temporary(name)).unlink(missing_ok=True)
        for shard in self._shards("scp") - set(shards):
            self._path(shard, "scp").unlink()
        for shard in shards:
            self._mend(shard)
        if shards and self._count < self._shard_size:
            self._append(shards[-1])
        elif shards:
            self._shard = shards[-1]

    def _mend(self, shard: int) -> None:
        """Take the entries of an archive, remove one that was cut off, and see that its list is of these."""
        path, lines = self._path(shard), []
        with path.open("r+b") as file:
            whole = 0
            for key, offset, whole in _entries(file, path):
                if key in self._positions:
                    other = self._path(self._positions[key][0])
                    raise InputError(f"{visible(key)} is in {other} and again in {path}; remove one of these archives")
                dim = (whole - offset - HEADER.size) // 4
                if self.dim not in (None, dim):
                    raise InputError(
                        f"{path} is damaged: the vector of {visible(key)} has {dim} values, those before it {self.dim}"
                    )
                self.dim = dim
                self._positions[key] = shard, offset
                lines.append(self._line(key, shard, offset))
            if torn := file.seek(0, os.SEEK_END) - whole:
                file.truncate(whole)
                self.mended.append(f"{path} ended in the middle of an entry; removed these {torn} bytes")
        self._count = len(lines)
        content, listed = b"".join(lines), self._path(shard, "scp")
        if not listed.exists() or listed.read_bytes() != content:
            _replace(listed, content)

    def _next_shard(self) -> None:
        for file in (self._ark, self._scp):
            if file is not None:
                file.close()
        # Not before there is a vector: a run that made none, of a model that was misnamed, leaves the folder to others.
        if not (state := self.folder / STATE).exists():
            _replace(state, json.dumps({"embeddings": VERSION, "made_by": self._made_by}, indent=2).encode() + b"\n")
        self._count = 0
        self._append(self._shard + 1)

    def _append(self, shard: int) -> None:
        self._shard = shard
        self._ark = _Appended(self._path(shard))
        self._scp = _Appended(self._path(shard, "scp"))

    def _remove(self, shards: Iterable[int]) -> None:
        """The state goes last: until then it is known whose the rest is."""
        (self.folder / f"{PREFIX}.scp").unlink(missing_ok=True)
        for shard in shards:
            for kind in ("scp", "ark"):
                self._path(shard, kind).unlink(missing_ok=True)
        (self.folder / STATE).unlink()

    def _shards(self, kind: str) -> set[int]:
        found = (SHARD.fullmatch(name) for name in os.listdir(self.folder))
        return {int(match[1]) for match in found if match is not None and match[2] == kind}

    def _path(self, shard: int, kind: str = "ark") -> Path:
        return self.folder / f"{PREFIX}_{shard:03d}.{kind}"

    def _line(self, key: str, shard: int, offset: int) -> bytes:
        return f"{key} {self._path(shard)}:{offset}\n".encode()


class _Appended:
    """A file that grows by whole pieces. Unbuffered: what was written is with the system, should this process die."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self.end = self._file.seek(0, os.SEEK_END)

    def write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self._file.write(rest) :]
        self.end += len(data)

    def close(self) -> None:
        # An interrupt, or a full disk, may have left a part of a piece.
        if not self._file.closed:
            self._file.truncate(self.end)
            self._file.close()


def _entries(file: BinaryIO, path: Path) -> Iterator[tuple[str, int, int]]:
    """Every whole entry of an archive: key, where its vector begins, where it ends.

    Raises:
        InputError: something else than the beginning of an entry is behind the last one; nothing is cut then.
    """
    size = file.seek(0, os.SEEK_END)
    if not size:
        return
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        position = 0
        while position < size:
            begin = data.find(b" ", position, position + MAX_KEY + 1) + 1
            header = data[begin : begin + HEADER.size] if begin else b""
            if len(header) < HEADER.size:
                tail = data[position : min(size, position + MAX_KEY + HEADER.size + 1)]
                if not (_is_blank(data, position) or _is_torn(tail, size - position)):
                    raise _damaged(path, position)
                return
            mark, int_size, dim = HEADER.unpack(header)
            key = _key(data[position : begin - 1])
            if key is None or mark != VECTOR or int_size != INT_SIZE or not 0 < dim <= MAX_DIM:
                raise _damaged(path, position)
            end = begin + HEADER.size + 4 * dim
            if end > size:
                return
            yield key, begin, end
            position = end


def _is_blank(data: mmap.mmap, position: int) -> bool:
    """Whether nothing but zeros is left, as a machine that lost its power may leave them."""
    return all(not data[start : start + PAGE].strip(b"\0") for start in range(position, len(data), PAGE))


def _is_torn(tail: bytes, length: int) -> bool:
    """Whether the last `length` bytes of a file, which are `tail`, are how an entry begins."""
    if length > len(tail):
        return False
    key, _, header = tail.partition(b" ")
    beginning = VECTOR + INT_SIZE
    fits = header[: len(beginning)] == beginning[: len(header)]
    return len(key) <= MAX_KEY and not re.search(rb"[\0-\x1f\x7f]", key) and fits


def _key(name: bytes) -> str | None:
    try:
        return check_key(name.decode())
    except (InputError, UnicodeDecodeError):
        return None


def _damaged(path: Path, position: int) -> InputError:
    return InputError(
        f"{path} is damaged: at byte {position:,} there is something else than a vector. Remove the file, and its "
        "utterances are embedded again."
    )


def _read_state(path: Path) -> Mapping[str, str]:
    try:
        state = json.loads(path.read_bytes())
        made_by = {str(key): str(value) for key, value in state["made_by"].items()}
        known = state["embeddings"] == VERSION
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{path} is not a state of `tritone embed` ({error!r}). Name another folder.") from error
    if not known:
        raise InputError(f"{path} is of another version of `tritone embed`. Name another folder.")
    return made_by


def _differences(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    def shown(value: str | None) -> str:
        return "not given" if value is None else repr(value)

    return [
        f"{key} was {shown(then.get(key))} and is {shown(now.get(key))}"
        for key in {**then, **now}
        if then.get(key) != now.get(key)
    ]


def _temporary(name: str) -> str:
    return f".{name}.part"


def _replace(path: Path, content: bytes) -> None:
    """Write a file so that there is the old one or the new one, and never a part."""
    part = path.with_name(_temporary(path.name))
    with part.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())  # else a machine that stops may have the new name and not what is in it
    os.replace(part, path)


def _lock(folder: Path) -> int | None:
    """Lock a folder until the returned file is closed; two processes would spoil the archives."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(file)
        raise InputError(f"another process is writing in {folder}; wait for it, or name another folder") from error
    except OSError:  # a file system without locks, such as some network folders
        pass
    return file


def _unwritable(path: Path, error: OSError) -> OperatorError:
    return OperatorError(f"cannot write {path}: {error.strerror or error}. What is there so far is whole.")
