"""Sharing small pieces of work among threads that outlive the call."""

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from typing import TypeVar

from tritone.container import usable_cpus

Item = TypeVar("Item")
Result = TypeVar("Result")

_lock = threading.Lock()
_pools: dict[int, ThreadPoolExecutor] = {}  # by process id: a fork has none of its parent's threads


def share(work: Callable[[Item], Result], items: Sequence[Item], threads: int) -> list[Result]:
    """Call `work`, which should release the interpreter's lock, with every item; results are in the items' order.

    The caller works too, with up to `threads - 1` helpers that all callers in the process share: where they are busy,
    the caller does it all. Items are taken in order, so large ones should come first. Of errors, the one of the
    earliest item is raised, after all work has come to an end.
    """
    if threads <= 1 or len(items) <= 1:
        return [work(item) for item in items]
    results: dict[int, Result] = {}
    errors: dict[int, BaseException] = {}
    numbers = count()  # next() on it is atomic

    def take() -> None:
        while (number := next(numbers)) < len(items) and not errors:
            try:
                results[number] = work(items[number])
            except BaseException as error:
                errors[number] = error

    helpers = [_pool().submit(take) for _ in range(min(threads, len(items)) - 1)]
    take()
    _join(helpers)
    if errors:
        raise errors[min(errors)]
    return [results[number] for number in range(len(items))]


def _join(helpers: Sequence["Future[None]"]) -> None:
    for helper in helpers:
        if not helper.cancel():  # one that never started has nothing left to do
            helper.result()


def _pool() -> ThreadPoolExecutor:
    with _lock:
        pool = _pools.get(os.getpid())
        if pool is None:
            _pools.clear()
            pool = _pools[os.getpid()] = ThreadPoolExecutor(max(1, usable_cpus() - 1), thread_name_prefix="search")
        return pool
