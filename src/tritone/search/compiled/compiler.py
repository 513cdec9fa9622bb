"""Compiling numeric loops with numba, once per machine.

Machine code is kept in numba's cache: in the folder that `NUMBA_CACHE_DIR` names, else beside the source, else in the
user's cache folder, whichever can be written first. Where none can, every process compiles again.

Importing this loads numba, which takes half a second: import it where something is searched, not before.
"""

import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba

from tritone.search.compiled.kept import sources_stamp

LOG = logging.getLogger(__name__)
_functions: list[Any] = []  # all that are kept in the cache
_not_kept: list[str] = []  # names of those that cannot be


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
        LOG.warning("search is compiled again in this process; set NUMBA_CACHE_DIR to a folder of yours: %s", error)
        _not_kept.append(function.__qualname__)
        return numba.njit(function, nogil=True)
    kept: Any = dispatcher._cache  # type: ignore[attr-defined]
    save, load = kept.save_overload, kept.load_overload

    def save_if_there_is_room(signature: Any, code: Any) -> None:
        try:
            save(signature, code)
        except OSError as error:  # a full disk, as a rule
            _warn_of_the_cache(error.strerror or str(error), kept.cache_path)

    def load_or_log(signature: Any, target: Any) -> Any:
        found = load(signature, target)
        if found is None:
            _log_compiling()
        return found

    kept.save_overload, kept.load_overload = save_if_there_is_room, load_or_log
    _functions.append(dispatcher)
    return dispatcher


def not_from_cache() -> list[str]:
    """Names of the functions that this process has compiled, or would have to, rather than load them."""
    return _not_kept + [each.__name__ for each in _functions if sum(each.stats.cache_misses.values())]


def cached_files() -> list[Path]:
    """The files of numba's cache that have the functions which this process has loaded from there."""
    loaded = (each for each in _functions if sum(each.stats.cache_hits.values()))
    return sorted(
        path for each in loaded for path in Path(each.stats.cache_path).glob(f"*.{each.py_func.__qualname__}-*")
    )


@cache
def _log_compiling() -> None:
    """Say once why the first search takes so long."""
    LOG.warning("compiling the search for this machine, once: it takes 2 to 15 s, and is kept in numba's cache")


@cache
def _warn_of_the_cache(reason: str, folder: str) -> None:
    """Say once that compiled code cannot be kept: it works, but each process compiles for up to 15 s."""
    LOG.warning(
        "search is compiled again in each process, as compiled code cannot be kept in %s: %s. Free space there, or "
        "set NUMBA_CACHE_DIR to a folder of yours on another disk",
        folder,
        reason,
    )
