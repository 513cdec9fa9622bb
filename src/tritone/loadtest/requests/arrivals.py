"""When requests are due in an open loop: constant or Poisson arrivals, in shares for several processes."""

from collections.abc import Iterator
from typing import Literal

import numpy as np

Arrivals = Literal["constant", "poisson"]

BLOCK = 1024  # drawn at a time


def arrival_times(
    rate: float, arrivals: Arrivals, *, seed: int = 0, share: int = 0, shares: int = 1
) -> Iterator[float]:
    """Times at which requests are due, in seconds from the start, without end.

    Args:
        rate: requests per second of all shares together.
        arrivals: "constant": evenly spaced. "poisson": independent of each other, as from many users; the gaps are
            exponential.
        seed: of the gaps.
        share, shares: which part this is of how many. Constant arrivals take turns, so that all of them together are
            evenly spaced; independent Poisson processes add up to one.
    """
    if not 0 < rate < float("inf"):
        raise ValueError(f"rate must be a number of requests per second above 0, got {rate}")
    if not 0 <= share < shares:
        raise ValueError(f"share must be 0 to {shares - 1}, got {share}")
    if arrivals == "constant":
        return _constant(rate, share, shares)
    if arrivals == "poisson":
        return _poisson(rate / shares, np.random.default_rng([seed, share]))
    raise ValueError(f"arrivals must be constant or poisson, got {arrivals!r}")


def _constant(rate: float, share: int, shares: int) -> Iterator[float]:
    index = share
    while True:
        yield index / rate
        index += shares


def _poisson(rate: float, rng: np.random.Generator) -> Iterator[float]:
    now = 0.0
    while True:
        for gap in rng.exponential(1 / rate, BLOCK):
            now += float(gap)
            yield now
