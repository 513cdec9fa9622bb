"""Which searches numba's cache has the code of, on this machine: a mark for each, and a lock for who compiles.

    kept = Kept.here()                             # None: there is no folder that can be written
    with kept.turn() as mine: ...                  # whether this process, and no other, may compile now
    kept.mark("ctc.prefix-beam", files)            # once numba has found all of it in its cache
    kept.has("ctc.prefix-beam")                    # no file of it has been changed or deleted since

A mark is of a state of our sources, of the versions of numba and Python, of the kind of CPU and of numba's settings: of
all that numba's own index asks for. Importing this does not load numba, so that a model that needs no compiled search
need not carry a compiler to know of it.
"""

import hashlib
import json
import os
import platform
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path

from tritone.paths import cache_folder, lock_alone

SOURCES = Path(__file__).parents[1]
FOLDER = "NUMBA_CACHE_DIR"  # numba's environment variable
SETTINGS = "NUMBA_"  # what its other ones begin with, some of which decide what is compiled


@cache
def sources_stamp() -> str:
    """A name for the present state of all files of the search package.

    All of them: compiled code also holds constants, records and tuples of modules that compile nothing themselves.
    """
    digest = hashlib.sha256()
    for path in sorted(SOURCES.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


class Kept:
    """The marks and the lock in one folder."""

    def __init__(self, folder: Path) -> None:
        """Take a folder that can be written."""
        self.folder = folder

    @classmethod
    def here(cls) -> "Kept | None":
        """Those beside numba's cache: in the first place that can be written of those that numba looks at."""
        for folder in _places():
            try:
                folder.mkdir(parents=True, exist_ok=True)
                tempfile.TemporaryFile(dir=folder).close()
            except OSError:
                continue
            return cls(folder)
        return None

    @contextmanager
    def turn(self) -> Iterator[bool]:
        """Whether it is this process's turn to compile: while it is inside, it is nobody else's on this machine.

        The system ends a turn with the process that had it.
        """
        with (self.folder / "tritone-search.lock").open("w", encoding="utf-8") as file:
            yield lock_alone(file)

    def has(self, name: str) -> bool:
        """Whether numba's cache has the code under this name, as it was when it was marked."""
        try:
            states = json.loads(self._mark(name).read_text(encoding="utf-8"))
            return bool(states) and all(_state(path) == state for path, state in states.items())
        except (OSError, ValueError, AttributeError):  # there is no mark, a file of the code is gone, or half a mark
            return False

    def mark(self, name: str, files: Iterable[Path]) -> None:
        """Note that the code under this name is in these files of numba's; raises `OSError`, as on a full disk."""
        states = {str(path): _state(path) for path in files}
        mark = self._mark(name)
        beside = mark.with_name(f"{mark.name}.{os.getpid()}")
        try:
            beside.write_text(json.dumps(states), encoding="utf-8")
            beside.replace(mark)
        finally:
            beside.unlink(missing_ok=True)

    def _mark(self, name: str) -> Path:
        return self.folder / f"tritone-search-{name}-{_machine()}.json"


def _places() -> Iterator[Path]:
    if own := os.environ.get(FOLDER):
        yield Path(own)
    yield SOURCES / "__pycache__"
    with suppress(FileNotFoundError):  # a user without a home folder
        yield cache_folder() / "search"


def _state(path: str | Path) -> list[int]:
    found = os.stat(path)
    return [found.st_size, found.st_mtime_ns]


@cache
def _machine() -> str:
    """A name for all that decides whether numba can use what it has compiled."""
    from llvmlite import binding

    features = binding.get_host_cpu_features()
    settings = {name: value for name, value in os.environ.items() if name.startswith(SETTINGS) and name != FOLDER}
    parts = [
        str(SOURCES),
        sources_stamp(),
        # earlier versions of numba ask for the times of sources in place of their content
        {str(path): _state(path) for path in sorted(SOURCES.rglob("*.py"))},
        version("numba"),
        version("llvmlite"),
        sys.version,
        platform.machine(),
        binding.get_host_cpu_name(),
        features.flatten(),
        settings,
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
