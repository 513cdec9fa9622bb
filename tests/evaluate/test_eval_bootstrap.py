"""Confidence intervals and tests, against the binomial distribution, all resampled sets and simulated systems."""

import math
import tracemalloc
from itertools import product

import numpy as np
import pytest

from tritone.evaluate import bootstrap
from tritone.evaluate.bootstrap import Interval, paired_difference, rate_interval


def binomial_quantile(number: int, probability: float, share: float) -> int:
    """The smallest count whose cumulated probability reaches `share`."""
    cumulated = 0.0
    for count in range(number + 1):
        cumulated += math.comb(number, count) * probability**count * (1 - probability) ** (number - count)
        if cumulated >= share:
            return count
    return number


@pytest.mark.parametrize("level", [0.8, 0.95])
@pytest.mark.parametrize("wrong", [20, 60])
def test_one_word_utterances_have_the_interval_of_the_binomial_distribution(wrong: int, level: float) -> None:
    # A resampled set of n one-word utterances, k of them wrong, has Binomial(n, k / n) errors.
    errors = [1] * wrong + [0] * (200 - wrong)
    low, high = rate_interval(errors, [1] * 200, level=level, resamples=20_000)
    expected = [binomial_quantile(200, wrong / 200, share) / 200 for share in ((1 - level) / 2, (1 + level) / 2)]
    assert [low, high] == pytest.approx(expected, abs=1.01 / 200)  # one word, the distribution has steps of it


def test_utterances_of_different_lengths_have_the_interval_of_all_resampled_sets() -> None:
    errors, lengths = [0, 1, 5, 2, 0, 3], [4, 7, 11, 5, 13, 17]
    sets = product(range(6), repeat=6)
    rates = sorted(sum(errors[each] for each in drawn) / sum(lengths[each] for each in drawn) for drawn in sets)
    for level in (0.5, 0.95):
        expected = [rates[int(share * len(rates))] for share in ((1 - level) / 2, (1 + level) / 2)]
        assert rate_interval(errors, lengths, level=level, resamples=50_000) == pytest.approx(expected, abs=0.003)


def test_an_interval_holds_the_true_rate_as_often_as_it_says() -> None:
    rng = np.random.default_rng(7)
    trials, held = 400, 0
    for trial in range(trials):
        lengths = rng.integers(1, 25, 120)
        # some utterances are harder than others; the expected pooled rate is 0.1 all the same
        errors = rng.binomial(lengths, rng.beta(1, 9, 120))
        low, high = rate_interval(errors, lengths, resamples=600, seed=trial)
        held += low <= 0.1 <= high
    # 95 % of 400 is 380 with a standard deviation of 4.4; percentile intervals are known to be a little narrow
    assert 0.91 <= held / trials <= 0.98


def test_both_ways_of_drawing_draw_from_the_same_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    lengths = rng.integers(1, 6, 1000)
    errors = rng.binomial(lengths, 0.2)
    intervals = []
    for cost in (0, 10**9):  # always by kind, always by utterance
        monkeypatch.setattr(bootstrap, "KIND_COST", cost)
        intervals.append(rate_interval(errors, lengths, resamples=20_000))
    assert intervals[0] != intervals[1]
    assert intervals[0] == pytest.approx(intervals[1], abs=0.001)


def test_the_same_seed_gives_the_same_interval_in_pieces_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    errors, lengths = [0, 1, 2, 0, 5], [3, 4, 5, 6, 7]
    first = rate_interval(errors, lengths, resamples=500, seed=1)
    assert rate_interval(errors, lengths, resamples=500, seed=1) == first
    assert rate_interval(errors, lengths, resamples=500, seed=2) != first
    monkeypatch.setattr(bootstrap, "CHUNK", 35)
    piecewise = rate_interval(errors, lengths, resamples=500, seed=1)
    assert piecewise == pytest.approx(first, abs=0.1)


def test_the_interval_lies_around_the_rate_and_grows_with_the_level() -> None:
    errors, lengths = [0, 1, 2, 0, 5, 1, 0, 0], [3, 4, 5, 6, 7, 8, 9, 10]
    narrow, wide = (rate_interval(errors, lengths, level=level) for level in (0.5, 0.99))
    assert wide.low <= narrow.low <= 9 / 52 <= narrow.high <= wide.high


@pytest.mark.parametrize(("errors", "lengths"), [([], []), ([1], [10]), ([3, 0], [0, 0])])
def test_where_nothing_can_be_known_the_interval_has_no_bounds(errors: list[int], lengths: list[int]) -> None:
    assert rate_interval(errors, lengths) == Interval(0.0, float("inf"))
    assert paired_difference(errors, errors, lengths).interval == Interval(-float("inf"), float("inf"))
    assert paired_difference(errors, errors, lengths).p_value == 1.0


def test_utterances_without_reference_count_and_a_draw_of_nothing_else_is_left_out() -> None:
    low, high = rate_interval([1, 0, 1], [0, 0, 4], resamples=2000)
    assert 0 < low <= high < float("inf")


def test_no_errors_leave_no_room_for_doubt() -> None:
    assert rate_interval([0, 0, 0], [4, 5, 6]) == Interval(0.0, 0.0)


def test_a_big_set_takes_little_memory() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.permutation(50_000)  # no two alike
    tracemalloc.start()
    rate_interval(lengths // 10, lengths, resamples=100)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 60e6


def test_equal_systems_do_not_differ() -> None:
    found = paired_difference([1, 0, 2], [1, 0, 2], [5, 5, 5])
    assert found == (0.0, Interval(0.0, 0.0), 1.0)


def test_the_p_value_is_that_of_all_permutations() -> None:
    # b has one error more in each of 8 utterances: of 2^8 ways to swap them, 2 are as far from 0
    found = paired_difference([0] * 8, [1] * 8, [10] * 8, resamples=200_000)
    assert found.delta == 0.1
    assert found.p_value == pytest.approx(2 / 2**8, rel=0.1)
    # differences 1, 1, 3 sum to 5 only if all have one sign; 3 - 1 + 1 is nearer to 0
    assert paired_difference([0, 0, 0], [1, 1, 3], [9] * 3, resamples=200_000).p_value == pytest.approx(2 / 8, rel=0.05)


def test_the_p_value_is_the_same_from_either_side_and_never_zero() -> None:
    a, b, lengths = [0] * 40, [2] * 40, [10] * 40
    forth, back = paired_difference(a, b, lengths), paired_difference(b, a, lengths)
    assert forth.delta == -back.delta == 0.2
    assert forth.p_value == back.p_value == 1 / 10_001
    assert forth.interval.low > 0 > back.interval.high


def test_systems_that_are_equally_good_seldom_look_different() -> None:
    rng = np.random.default_rng(11)
    trials, small, missed = 400, 0, 0
    for trial in range(trials):
        lengths = rng.integers(1, 25, 80)
        hard = rng.beta(1, 9, 80)
        a, b = rng.binomial(lengths, hard), rng.binomial(lengths, hard)
        found = paired_difference(a, b, lengths, resamples=600, seed=trial)
        small += found.p_value <= 0.05
        missed += not found.interval.low <= 0 <= found.interval.high
    # 5 % of 400 is 20 with a standard deviation of 4.4
    assert small / trials <= 0.08
    assert 0.02 <= missed / trials <= 0.09


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"errors": [1], "lengths": [1, 2]}, "errors of 1 utterances and lengths of 2"),
        ({"errors": [-1], "lengths": [1]}, "not be negative"),
        ({"errors": [1], "lengths": [1], "level": 95}, "between 0 and 1, got 95"),
        ({"errors": [1], "lengths": [1], "resamples": 0}, "at least 1, got 0"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        rate_interval(**arguments)  # type: ignore[arg-type]
