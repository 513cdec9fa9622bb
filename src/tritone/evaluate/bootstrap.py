"""How sure an error rate is: confidence intervals and tests by resampling utterances.

Utterances are drawn, not words: words of one utterance go wrong together. What utterances share (a speaker, a room)
is not modelled; for sets with few speakers the intervals are too narrow.

Source: M. Bisani, H. Ney, "Bootstrap estimates for confidence intervals in ASR performance evaluation", ICASSP 2004.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

CHUNK = 1 << 20  # draws made at a time, 20 MB
KIND_COST = 16  # how many draws of an utterance take the time of one of a kind

Ints = NDArray[np.int64]


class Interval(NamedTuple):
    """The bounds of a confidence interval; rates are fractions."""

    low: float
    high: float


class Difference(NamedTuple):
    """Two systems on the same utterances.

    `delta`: rate of b minus rate of a, positive when b is worse. `interval`: of `delta`, by the bootstrap. `p_value`:
    how probable a difference at least as large in either direction is if the systems are equally good.
    """

    delta: float
    interval: Interval
    p_value: float


def rate_interval(
    errors: Sequence[int], lengths: Sequence[int], *, level: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> Interval:
    """Confidence interval of a pooled error rate, the percentiles of the rates of resampled sets.

    Args:
        errors, lengths: errors and reference units of every utterance.
        level: of confidence, between 0 and 1.
        resamples: how many sets are drawn, with replacement, each as large as the set.
        seed: of the draws; the same gives the same interval.

    Returns:
        The interval; from 0 to infinity if there are less than two utterances or no reference units at all. Resampling
        makes no errors that the set does not have: without any the interval is 0 to 0, which says little of a small
        set.

    Raises:
        ValueError: lengths of the arguments that do not agree, negative counts, a level or a number out of range.
    """
    counted, units = _checked(errors, lengths, level, resamples)
    if len(units) < 2 or not units.sum():
        return Interval(0.0, float("inf"))
    return _percentiles(_resampled_rates(counted, units, resamples, seed), level)


def paired_difference(
    errors_a: Sequence[int],
    errors_b: Sequence[int],
    lengths: Sequence[int],
    *,
    level: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> Difference:
    """Compare two systems on the same utterances with the same references.

    The interval is the bootstrap's, each draw taking both systems' errors of an utterance together. The p-value is
    that of the permutation test (in NIST's terms: matched pairs, by approximate randomisation): if the systems are
    equally good, the errors of an utterance might as well have been swapped. Unlike a p-value from the bootstrap it
    is valid for small sets too, and never 0: with `resamples` permutations it is at least 1 / (resamples + 1).

    Args:
        errors_a, errors_b, lengths: errors of both systems and reference units of every utterance.
        level, resamples, seed: as in `rate_interval`.

    Returns:
        The difference. With less than two utterances or no reference units at all, nothing is known: interval without
        bounds.

    Raises:
        ValueError: as in `rate_interval`.
    """
    a, units = _checked(errors_a, lengths, level, resamples)
    b, _ = _checked(errors_b, lengths, level, resamples)
    more = b - a
    p_value = _permutation_p(more, resamples, seed)
    if len(units) < 2 or not units.sum():
        delta = float(more.sum() / units.sum()) if units.sum() else 0.0
        return Difference(delta, Interval(-float("inf"), float("inf")), p_value)
    interval = _percentiles(_resampled_rates(more, units, resamples, seed), level)
    return Difference(float(more.sum() / units.sum()), interval, p_value)


def _checked(errors: Sequence[int], lengths: Sequence[int], level: float, resamples: int) -> tuple[Ints, Ints]:
    if len(errors) != len(lengths):
        raise ValueError(f"got errors of {len(errors)} utterances and lengths of {len(lengths)}")
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, got {level}")
    if resamples < 1:
        raise ValueError(f"resamples must be at least 1, got {resamples}")
    counted, units = np.asarray(errors, dtype=np.int64), np.asarray(lengths, dtype=np.int64)
    if (counted < 0).any() or (units < 0).any():
        raise ValueError("errors and lengths must not be negative")
    return counted, units


def _resampled_rates(errors: Ints, lengths: Ints, resamples: int, seed: int) -> NDArray[np.float64]:
    """Pooled rates of resampled sets; those without a single reference unit say nothing and are left out."""
    rng = np.random.default_rng(seed)
    number = len(lengths)
    # Utterances with the same errors and length are alike. If few kinds of them make up the set, it is faster to draw
    # how often each kind occurs than to draw the utterances; the distribution is the same.
    kinds, how_many = np.unique(np.stack([errors, lengths], axis=1), axis=0, return_counts=True)
    by_kind = len(kinds) * KIND_COST < number
    index_type = np.min_scalar_type(number - 1)  # small numbers are drawn several times as fast
    sums = np.empty((resamples, 2))
    rows = max(1, CHUNK // (len(kinds) if by_kind else number))
    for start in range(0, resamples, rows):
        size = min(rows, resamples - start)
        if by_kind:
            sums[start : start + size] = rng.multinomial(number, how_many / number, size=size) @ kinds
        else:
            drawn = rng.integers(number, size=(size, number), dtype=index_type)
            sums[start : start + size, 0] = errors.take(drawn).sum(axis=1)
            sums[start : start + size, 1] = lengths.take(drawn).sum(axis=1)
    kept = sums[sums[:, 1] > 0]
    rates: NDArray[np.float64] = kept[:, 0] / kept[:, 1]
    return rates


def _percentiles(values: NDArray[np.float64], level: float) -> Interval:
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))


def _permutation_p(differences: Ints, resamples: int, seed: int) -> float:
    """How probable a sum as far from 0 is if each difference might as well have the other sign."""
    rng = np.random.default_rng(seed)
    sums = np.zeros(resamples, dtype=np.int64)
    # Utterances that differ by the same number of errors count together: how many of them are swapped is binomial.
    for size, how_many in zip(*np.unique(np.abs(differences[differences != 0]), return_counts=True), strict=True):
        sums += size * (2 * rng.binomial(how_many, 0.5, size=resamples) - how_many)
    as_far = int((np.abs(sums) >= abs(int(differences.sum()))).sum())
    return (as_far + 1) / (resamples + 1)
