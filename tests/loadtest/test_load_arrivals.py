"""When requests are due in an open loop."""

from itertools import islice

import numpy as np
import pytest

from tritone.loadtest.requests.arrivals import Arrivals, arrival_times


def first(count: int, rate: float, arrivals: Arrivals, seed: int = 0, share: int = 0, shares: int = 1) -> np.ndarray:
    return np.array(list(islice(arrival_times(rate, arrivals, seed=seed, share=share, shares=shares), count)))


def test_constant_arrivals_are_evenly_spaced_for_ever():
    times = first(10_000, 8.0, "constant")
    assert times.tolist() == [index / 8 for index in range(10_000)]


def test_shares_of_constant_arrivals_take_turns():
    together = np.concatenate([first(100, 50.0, "constant", share=share, shares=3) for share in range(3)])
    assert np.sort(together).tolist() == [index / 50 for index in range(300)]


def test_gaps_of_poisson_arrivals_are_exponential():
    gaps = np.diff(first(40_001, 20.0, "poisson", seed=1))
    assert gaps.min() > 0
    # Mean and deviation of an exponential distribution are both 1/rate; 40,000 of them are within 0.5 % or so.
    assert gaps.mean() == pytest.approx(0.05, rel=0.02)
    assert gaps.std() == pytest.approx(0.05, rel=0.03)
    assert float(np.mean(gaps > 0.1)) == pytest.approx(np.exp(-2), abs=0.01)
    assert float(np.corrcoef(gaps[:-1], gaps[1:])[0, 1]) == pytest.approx(0, abs=0.02)


def test_shares_of_poisson_arrivals_add_up_to_one_process_of_the_whole_rate():
    shares = [first(6000, 30.0, "poisson", share=share, shares=4) for share in range(4)]
    until = min(float(times[-1]) for times in shares)
    counts = np.histogram(np.concatenate(shares), bins=np.arange(0.0, until, 1.0))[0]
    # Counts of a Poisson process in a second: mean and variance are both the rate.
    assert counts.mean() == pytest.approx(30, rel=0.03)
    assert counts.var() == pytest.approx(30, rel=0.2)


def test_the_same_seed_gives_the_same_arrivals_and_shares_differ():
    assert first(50, 5.0, "poisson", seed=3).tolist() == first(50, 5.0, "poisson", seed=3).tolist()
    assert first(50, 5.0, "poisson", seed=3).tolist() != first(50, 5.0, "poisson", seed=4).tolist()
    one, other = (first(50, 5.0, "poisson", share=share, shares=2) for share in range(2))
    assert one.tolist() != other.tolist()


@pytest.mark.parametrize("rate", [0.0, -1.0, float("inf"), float("nan")])
def test_a_rate_must_be_a_positive_number(rate: float):
    with pytest.raises(ValueError, match="rate must be"):
        arrival_times(rate, "constant")


def test_unknown_arrivals_and_impossible_shares_are_refused():
    with pytest.raises(ValueError, match="constant or poisson"):
        arrival_times(1.0, "uniform")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="share must be 0 to 1"):
        arrival_times(1.0, "constant", share=2, shares=2)
