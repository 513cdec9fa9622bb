import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritone.loadtest.findings.result import Latency

seconds = st.lists(st.floats(min_value=0, max_value=1e4, allow_nan=False), min_size=2, max_size=200)


def by_hand(values: list[float], percent: float) -> float:
    """The percentile by linear interpolation between order statistics: Hyndman and Fan 1996, definition 7."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


@given(seconds)
def test_percentiles_agree_with_the_standard_library_and_with_the_definition(values: list[float]) -> None:
    found = Latency.of(values)
    assert found is not None
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    for percent, shown in ((50, found.p50_ms), (90, found.p90_ms), (95, found.p95_ms), (99, found.p99_ms)):
        # three ways to the same float64; interpolation may differ in the last bits
        assert shown == pytest.approx(1000 * cuts[percent - 1], rel=1e-9, abs=1e-9)
        assert shown == pytest.approx(1000 * by_hand(values, percent), rel=1e-9, abs=1e-9)
    assert found.mean_ms == pytest.approx(1000 * math.fsum(values) / len(values), rel=1e-9, abs=1e-9)
    assert found.max_ms == 1000 * max(values)
    assert found.count == len(values)


@given(seconds, st.randoms())
def test_the_order_of_answers_does_not_matter(values: list[float], random) -> None:  # type: ignore[no-untyped-def]
    shuffled = list(values)
    random.shuffle(shuffled)
    ours, theirs = Latency.of(values), Latency.of(shuffled)
    assert ours is not None
    assert theirs is not None
    assert (ours.p50_ms, ours.p99_ms, ours.max_ms) == (theirs.p50_ms, theirs.p99_ms, theirs.max_ms)


def test_known_latencies_have_known_percentiles() -> None:
    found = Latency.of(range(101))  # seconds 0 to 100: the nth percentile is n seconds
    assert found == Latency(
        count=101, mean_ms=50_000, p50_ms=50_000, p90_ms=90_000, p95_ms=95_000, p99_ms=99_000, max_ms=100_000
    )


def test_one_latency_is_all_its_percentiles_and_none_has_no_summary() -> None:
    found = Latency.of(np.array([0.25]))
    assert found is not None
    assert {found.mean_ms, found.p50_ms, found.p90_ms, found.p95_ms, found.p99_ms, found.max_ms} == {250.0}
    assert Latency.of([]) is None
