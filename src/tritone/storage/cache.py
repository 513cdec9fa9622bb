"""Local copies of folders in storage: fetch("s3://bucket/folder")  ->  a folder of this machine.

CACHE/storage/NAME-DIGEST/             one folder in storage; CACHE is $TRITONE_CACHE, or tritone/ in ~/.cache
    lock                               held by who downloads; others wait
    SNAPSHOT/ + SNAPSHOT.json          its files as they were at one time, complete and checked, and a list of them
    SNAPSHOT.partial/                  a download that is not complete

Each fetch lists the folder; what is unchanged is not read again. Beyond `$TRITONE_CACHE_GB` (100 if not set) the copies
that were not used for longest are removed, but for those that a process uses.
"""

import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from tritone.errors import StorageError
from tritone.paths import cache_folder, explained
from tritone.storage.address import Address, parse
from tritone.storage.entry import Entry
from tritone.storage.in_use import hold
from tritone.storage.open import open_store
from tritone.storage.transfer import download

LOGGER = logging.getLogger(__name__)

LIMIT_GB = 100.0
LIMIT, OFFLINE = "TRITONE_CACHE_GB", "TRITONE_OFFLINE"  # in the environment
COMMIT = re.compile(r"[0-9a-f]{40}")


def is_offline() -> bool:
    """Whether copies on this machine are to be used as they are, and nobody is asked (TRITONE_OFFLINE)."""
    return os.environ.get(OFFLINE, "") not in ("", "0")


def fetch(
    where: Address | str | os.PathLike[str],
    *,
    only: str = "*",
    first: str | None = None,
    needed: Callable[[Path], Collection[str]] | None = None,
    choose: Callable[[Collection[str]], Collection[str]] | None = None,
    check: Callable[[Path], None] | None = None,
) -> Path:
    """A local copy of a folder in storage. A path of this machine is returned as it is.

    Args:
        where: an address, or a path.
        only: pattern of the names to read, such as "*/config.pbtxt".
        first: a file that is read first, and must be there.
        needed: called with a folder that has this file; returns the names of all files that are needed, None for all.
        choose: called with the names of all files; returns those to read, or raises what is wrong with them.
        check: called with the complete copy, before it is kept; raises what is wrong with it.

    Returns:
        A folder whose files must not be changed. It stays at least as long as this process.

    Raises:
        StorageError: there is nothing, or it cannot be read, or is larger than the limit or than the disk has room.
        StorageUnreachableError: the storage does not answer.
        MissingDependencyError: the package that reads such storage is not installed.
    """
    address = where if isinstance(where, Address) else parse(where)
    if address is None:
        assert not isinstance(where, Address)
        return Path(where)
    root = cache_folder() / "storage" / _slug(address)
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise explained(error, f"cannot keep a copy of {address} in {root} (TRITONE_CACHE)") from error
    part = hashlib.sha256(
        json.dumps([only, first, *([] if choose is None else [choose.__name__])]).encode()
    ).hexdigest()[:8]
    offline = is_offline()
    if offline or COMMIT.fullmatch(address.revision):
        for index in _newest(root, f"*-{part}.json"):
            if _use(index):
                return index.with_suffix("")
        if offline:
            raise StorageError(f"{OFFLINE} is set, and there is no copy of {address} in {root}")
    store = open_store(address)
    entries = [entry for entry in store.entries() if fnmatchcase(entry.name, only)]
    if not entries:
        raise StorageError(f"{address}: there is nothing. `tritone repo ls` lists a folder")
    if choose is not None:
        chosen = choose({entry.name for entry in entries})
        entries = [entry for entry in entries if entry.name in chosen]
    if first is not None and first not in {entry.name for entry in entries}:
        some = ", ".join(entry.name for entry in entries[:3])
        raise StorageError(f"{address} has no {first}, but {some}{' ...' if len(entries) > 3 else ''}")
    index = root / f"{_digest(entries)}-{part}.json"
    with locked(root / "lock", f"{address} is being downloaded by another process; waiting ..."):
        if _use(index):
            return index.with_suffix("")
        folder, partial = index.with_suffix(""), index.with_suffix(".partial")
        shutil.rmtree(folder, ignore_errors=True)
        files = partial / "files"
        files.mkdir(parents=True, exist_ok=True)
        _reuse(root, entries, files)
        if first is not None and needed is not None:
            one = [entry for entry in entries if entry.name == first]
            download(store, one, files, partial / "parts", task=f"{address}/{first}")
            wanted = {first, *needed(files)}
            entries = [entry for entry in entries if entry.name in wanted]
        _check_room(address, entries, root)
        sums = download(store, entries, files, partial / "parts")
        for path in files.rglob("*"):  # of a larger copy that was never finished
            if path.is_file() and path.relative_to(files).as_posix() not in sums:
                path.unlink()
        if check is not None:
            try:
                check(files)
            except Exception:
                shutil.rmtree(partial, ignore_errors=True)  # nobody knows which of its files are bad
                raise
        os.replace(files, folder)
        shutil.rmtree(partial, ignore_errors=True)
        _write_index(index, address, entries, sums, getattr(store, "commit", ""))
        if not _use(index):
            raise StorageError(f"{folder} was changed by another process; try again")
    _tidy(root.parent, index)
    return folder


@dataclass(frozen=True)
class Copy:
    """What a folder that `fetch` returned is a copy of.

    `commit`: of the hub. `sums`: SHA-256 of its files by name. `bytes`: of all of them.
    """

    address: str
    commit: str
    sums: Mapping[str, str]
    bytes: int


def copy_of(folder: Path) -> Copy | None:
    """What a folder is a copy of, if `fetch` made it."""
    with suppress(OSError, ValueError, KeyError):
        read = json.loads(folder.with_suffix(".json").read_bytes())
        files = read["files"]
        sums = {each["name"]: each["sha256"] for each in files}
        return Copy(read["address"], read.get("commit", ""), sums, sum(each["size"] for each in files))
    return None


def copies() -> list[tuple[Path, Copy]]:
    """The folders that `fetch` keeps, and what they are copies of, the last used first."""
    paths = [index.with_suffix("") for index in _newest(cache_folder() / "storage", "*/*.json")]
    return [(path, copy) for path in paths if (copy := copy_of(path)) is not None]


def clear_copies() -> tuple[int, int]:
    """Remove the copies that no process uses; returns how many are gone, and how many are in use."""
    found = list((cache_folder() / "storage").glob("*/*.json"))
    gone = sum(map(_remove, found))
    return gone, len(found) - gone


def _remove(index: Path) -> bool:
    """Whether no process used a copy, and it is gone."""
    with suppress(OSError), index.open("rb") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while a process uses it
        index.unlink()
        shutil.rmtree(index.with_suffix(""), ignore_errors=True)
        return True
    return False


def _slug(address: Address) -> str:
    name = re.sub(r"[^A-Za-z0-9._-]", "-", address.name).strip(".") or "folder"
    return f"{name[:80]}-{hashlib.sha256(str(address).encode()).hexdigest()[:16]}"


def _digest(entries: Sequence[Entry]) -> str:
    entries_of = [(entry.name, entry.size, entry.etag) for entry in entries]
    return hashlib.sha256(json.dumps(entries_of).encode()).hexdigest()[:32]


def _write_index(index: Path, address: Address, entries: Sequence[Entry], sums: Mapping[str, str], commit: str) -> None:
    folder = index.with_suffix("")
    files = []
    for entry in entries:
        path = folder / entry.name
        path.chmod(0o444)
        files.append(
            {
                "name": entry.name,
                "size": entry.size,
                "etag": entry.etag,
                "sha256": sums[entry.name],
                "mtime_ns": path.stat().st_mtime_ns,
            }
        )
    beside = index.with_suffix(".new")
    beside.write_text(
        json.dumps({"address": str(address), "commit": commit, "files": files}, indent=1), encoding="utf-8"
    )
    os.replace(beside, index)


def _use(index: Path) -> bool:
    """Whether a snapshot is there, as it was written; it is then kept for this process."""
    folder = index.with_suffix("")
    with suppress(OSError, ValueError, KeyError):
        for file in json.loads(index.read_bytes())["files"]:
            seen = (folder / file["name"]).stat()
            if (seen.st_size, seen.st_mtime_ns) != (file["size"], file["mtime_ns"]):
                return False
        hold(index)
        return True
    return False


def _newest(root: Path, pattern: str = "*.json") -> list[Path]:
    return sorted(root.glob(pattern), key=lambda path: path.stat().st_mtime, reverse=True)


def _reuse(root: Path, entries: Sequence[Entry], files: Path) -> None:
    """Link to files of older snapshots that did not change."""
    wanted = {(entry.name, entry.size, entry.etag) for entry in entries if entry.etag}
    for index in _newest(root):
        with suppress(OSError, ValueError, KeyError):
            for file in json.loads(index.read_bytes())["files"]:
                source, target = index.with_suffix("") / file["name"], files / file["name"]
                same = (file["name"], file["size"], file["etag"]) in wanted
                if same and not target.exists() and source.stat().st_mtime_ns == file["mtime_ns"]:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    os.link(source, target)


def _check_room(address: Address, entries: Sequence[Entry], root: Path) -> None:
    total = sum(entry.size for entry in entries)
    if total > limit_bytes():
        raise StorageError(
            f"{address} has {total / 1e9:.1f} GB, more than the {limit_bytes() / 1e9:g} GB that copies may take; set "
            f"{LIMIT}"
        )
    free = shutil.disk_usage(root).free
    if total > free:
        raise StorageError(
            f"{address} has {total / 1e9:.1f} GB, but {root} is on a disk with {free / 1e9:.1f} GB free; TRITONE_CACHE "
            "names another folder"
        )


def limit_bytes() -> float:
    """What copies and exports may take of the disk, each of the two."""
    text = os.environ.get(LIMIT, "")
    try:
        return float(text or LIMIT_GB) * 1e9
    except ValueError:
        raise StorageError(f"{LIMIT} must be a number of GB, got {text!r}") from None


def _tidy(top: Path, current: Path) -> None:
    """Remove the snapshots that were used longest ago, until the rest is within the limit."""
    sizes: dict[Path, int] = {}
    for index in top.glob("*/*.json"):
        with suppress(OSError, ValueError, KeyError):
            sizes[index] = sum(file["size"] for file in json.loads(index.read_bytes())["files"])
    total = sum(sizes.values())
    for index in sorted(sizes, key=lambda path: path.stat().st_mtime if path.exists() else 0):
        if total <= limit_bytes():
            return
        if index == current:
            continue
        if _remove(index):
            total -= sizes[index]


@contextmanager
def locked(path: Path, waiting: str) -> Iterator[None]:
    """Inside, no other process has the lock; `waiting` is logged where one has it."""
    with path.open("ab") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            LOGGER.warning(waiting)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
