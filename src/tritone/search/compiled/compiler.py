"""Compiling numeric loops with numba, once per machine.

Machine code is kept in numba's cache: in the folder that `NUMBA_CACHE_DIR` names, else beside the source, else in the
user's cache folder, whichever can be written first. Where none can, every process compiles anew.

Importing this loads numba, which takes half a second: import it where something is searched, not before.
"""

import hashlib
import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba

LOG = logging.getLogger(__name__)
SOURCES = Path(__file__).parents[1]


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a helper that other compiled functions call; their cached code holds it."""
    no_entries: Any = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}  # nobody else calls it
    return numba.njit(function, **no_entries)


def merged(function: Callable[..., Any]) -> Callable[..., Any]:
    """As `inlined`, for what has tuples of arrays as arguments: always part of the code that calls it.

    A call would copy each of these arrays, of some nine words, which takes longer than many a helper itself.
    """
    options: Any = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "forceinline": True}
    return numba.njit(function, **options)


def summing(function: Callable[..., Any]) -> Callable[..., Any]:
    """As `inlined`, and sums may be taken in another order, as vector instructions do; NaN and infinities stay so."""
    loose: Any = {"fastmath": {"reassoc", "contract", "nsz"}, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return numba.njit(function, **loose)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function that Python calls: it runs without the interpreter's lock, and its code is cached.

    Several processes may compile and cache the same function at once.
    """
    # numba compiles again when the file of a cached function has changed, but not when one has whose functions it
    # calls; and it fails to read what was cached with classes that are no longer there. Its files are named after the
    # function, so each state of the sources has files of its own.
    function.__qualname__ += f"_{sources_stamp()}"
    try:
        dispatcher = numba.njit(function, nogil=True, cache=True)
    except RuntimeError as error:
        # Never a shared folder such as /tmp instead: anyone who can write there could have us load their code.
        LOG.warning("search is compiled anew in this process; set NUMBA_CACHE_DIR to a folder of yours: %s", error)
        return numba.njit(function, nogil=True)
    kept: Any = dispatcher._cache  # type: ignore[attr-defined]
    save = kept.save_overload

    def save_if_there_is_room(signature: Any, code: Any) -> None:
        try:
            save(signature, code)
        except OSError as error:  # a full disk, as a rule
            _warn_of_the_cache(error.strerror or str(error), kept.cache_path)

    kept.save_overload = save_if_there_is_room
    return dispatcher


@cache
def _warn_of_the_cache(reason: str, folder: str) -> None:
    """Say once that compiled code cannot be kept: it works, but each process compiles for up to 15 s."""
    LOG.warning(
        "search is compiled anew in each process, because compiled code cannot be kept in %s: %s. Free space there, or "
        "set NUMBA_CACHE_DIR to a folder of yours on another disk",
        folder,
        reason,
    )


@cache
def sources_stamp() -> str:
    """A name for the present state of all files of the search package.

    All of them: compiled code also holds constants, records and tuples of modules that compile nothing themselves.
    """
    digest = hashlib.sha256()
    for path in sorted(SOURCES.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
