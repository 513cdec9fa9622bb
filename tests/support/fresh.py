"""Calling a function in a new process, for tests that measure memory.

A test process has tables and caches of everything that ran before; one that grows in the middle of a measurement would
count as the measured code's. A new process has nothing but what the function needs.
"""

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

TIMEOUT_S = 120.0


def in_fresh_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Give what `function`, which must lie at the top of a module, gives of the arguments in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result(TIMEOUT_S)
