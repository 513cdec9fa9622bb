"""Waiting for what another thread, process or event loop does, before something is asserted of it."""

import time
from collections.abc import Callable
from typing import TypeVar

Fact = TypeVar("Fact")
LIMIT_S = 60.0  # many times what it takes on a busy machine
LOOK_S = 0.005


def until(fact: Callable[[], Fact], limit_s: float = LIMIT_S) -> Fact:
    """Look until something is true, and give it; where nothing says when it is: an event or a queue is waited for.

    Raises:
        AssertionError: it was not true within `limit_s` seconds.
    """
    end = time.monotonic() + limit_s
    while not (seen := fact()):
        assert time.monotonic() < end, f"{fact.__qualname__} is {seen!r} after {limit_s:g} s"
        time.sleep(LOOK_S)
    return seen
