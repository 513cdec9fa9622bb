"""The simulator against queueing theory: recursions that are exact for one path, and formulas for long runs."""

import math
from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tritone.capacity.simulation import Arrivals, Fleet, ServiceCurve, Simulated, simulate
from tritone.capacity.sizing import erlang_b

FEW = settings(max_examples=25, deadline=None, derandomize=True)
LONG = 30_000  # arrivals of a run whose means are compared; seeds are fixed, so that nothing is left to chance
GAPS = st.lists(st.floats(0.01, 5.0), min_size=1, max_size=40)
WORK = st.lists(st.floats(0.1, 20.0), min_size=40, max_size=40)


def arriving(gaps: list[float], work: list[float]) -> Arrivals:
    return Arrivals(times=np.array(list(accumulate(gaps))), lengths=np.array(work[: len(gaps)]))


def random_arrivals(rate: float, lengths: np.ndarray, seed: int = 0) -> Arrivals:
    gaps = np.random.default_rng(seed).exponential(1 / rate, lengths.size)
    return Arrivals(times=np.cumsum(gaps), lengths=lengths)


def exponential(mean: float, count: int = LONG) -> np.ndarray:
    return np.random.default_rng(1).exponential(mean, count)


def long_run(arrivals: Arrivals, rates: list[float], max_waiting: float = math.inf, replicas: int = 1) -> Simulated:
    end_s = float(arrivals.times[-1])
    curve = ServiceCurve(rates=rates, max_waiting=max_waiting)
    return simulate(arrivals, curve, replicas=replicas, start_s=end_s / 20, end_s=end_s)


@FEW
@given(gaps=GAPS, work=WORK, places=st.integers(1, 4))
def test_servers_that_do_not_slow_each_other_down_follow_kiefer_and_wolfowitz(
    gaps: list[float], work: list[float], places: int
) -> None:
    arrivals = arriving(gaps, work)
    curve = ServiceCurve(rates=[3.0 * count for count in range(1, places + 1)])
    found = simulate(arrivals, curve, replicas=1, end_s=1e9)
    free = [0.0] * places  # when each server is free again
    expected = []
    for time, length in zip(arrivals.times, arrivals.lengths, strict=True):
        free.sort()
        begin = max(time, free[0])
        free[0] = begin + length / 3.0
        expected.append(free[0] - time)
    assert found.latencies_s == pytest.approx(expected)


@FEW
@given(gaps=GAPS, work=WORK)
def test_processor_sharing_gives_everybody_the_same(gaps: list[float], work: list[float]) -> None:
    arrivals = arriving(gaps, work)
    found = simulate(arrivals, ServiceCurve(rates=[2.0] * 50), replicas=1, end_s=1e9)
    # The oracle goes from event to event and takes the same from all that are there.
    left = {}
    ends = {}
    now, index = 0.0, 0
    while index < len(gaps) or left:
        coming = arrivals.times[index] if index < len(gaps) else math.inf
        done = now + min(left.values()) * len(left) / 2.0 if left else math.inf
        step = min(coming, done)
        for each in left:
            left[each] -= (step - now) * 2.0 / len(left)
        now = step
        if coming <= done:
            left[index] = arrivals.lengths[index]
            index += 1
        for each in [each for each, rest in left.items() if rest < 1e-9]:
            ends[each] = now
            del left[each]
    assert found.latencies_s == pytest.approx([ends[each] - arrivals.times[each] for each in sorted(ends)], abs=1e-6)


@FEW
@given(
    gaps=GAPS,
    work=WORK,
    replicas=st.integers(0, 3),
    most=st.sampled_from([0.0, 15.0, math.inf]),
    routing=st.sampled_from(["least", "round-robin", "random"]),
)
def test_nobody_is_lost_and_no_time_is_lost(
    gaps: list[float], work: list[float], replicas: int, most: float, routing: str
) -> None:
    arrivals = arriving(gaps, work)
    end_s = 1000.0
    curve = ServiceCurve(rates=[1.0, 1.5], max_waiting=most)
    found = simulate(arrivals, curve, replicas=replicas, end_s=end_s, fleet=Fleet(routing=routing))
    assert found.arrived == len(gaps) == found.refused + found.latencies_s.size
    assert found.lost == 0
    assert (found.latencies_s >= found.waits_s).all()
    assert found.occupancy_s.sum() == pytest.approx(replicas * end_s)
    assert found.replica_s == pytest.approx(replicas * end_s)
    # Little's law holds for every path: each second of work is a second of somebody.
    assert found.occupancy_s @ range(3) == pytest.approx((found.latencies_s - found.waits_s).sum())
    if not replicas:
        assert found.refused == len(gaps)


@pytest.mark.parametrize(("servers", "busy"), [(1, 0.6), (3, 0.8)])
def test_mean_wait_of_m_m_c_is_erlangs(servers: int, busy: float) -> None:
    rate = busy * servers  # each server works off one a second
    found = long_run(random_arrivals(rate, exponential(1.0)), [float(each) for each in range(1, servers + 1)])
    offered = [rate**count / math.factorial(count) for count in range(servers)]
    waiting = rate**servers / math.factorial(servers) / (1 - busy)
    erlang_c = waiting / (sum(offered) + waiting)
    assert found.waits_s.mean() == pytest.approx(erlang_c / (servers - rate), rel=0.1)


@pytest.mark.parametrize("busy", [0.5, 0.8])
def test_mean_wait_of_m_d_1_is_half_of_m_m_1(busy: float) -> None:
    found = long_run(random_arrivals(busy, np.ones(LONG)), [1.0])
    assert found.waits_s.mean() == pytest.approx(busy / (2 * (1 - busy)), rel=0.1)


@pytest.mark.parametrize("lengths", [np.ones(LONG), exponential(1.0)], ids=["equal", "exponential"])
def test_mean_time_under_processor_sharing_depends_on_the_mean_alone(lengths: np.ndarray) -> None:
    found = long_run(random_arrivals(0.7, lengths), [1.0] * 200)
    assert found.latencies_s.mean() == pytest.approx(1 / (1 - 0.7), rel=0.1)


@pytest.mark.parametrize("lengths", [np.full(LONG, 10.0), exponential(10.0)], ids=["equal", "exponential"])
def test_streams_are_refused_as_often_as_erlang_says(lengths: np.ndarray) -> None:
    found = long_run(random_arrivals(0.8, lengths), [float(each) for each in range(1, 11)], max_waiting=0.0)
    assert found.refused_share == pytest.approx(erlang_b(8.0, 10), rel=0.06)
    assert found.waits_s.max() == 0
    assert found.latencies_s.max() <= lengths.max() + 1e-6  # live: nobody slows them down


def test_streams_that_a_key_spreads_fill_each_replica_for_itself() -> None:
    arrivals = random_arrivals(1.6, exponential(10.0))
    end_s = float(arrivals.times[-1])
    shares = {
        routing: simulate(
            arrivals,
            ServiceCurve(rates=[float(each) for each in range(1, 11)], max_waiting=0.0),
            replicas=2,
            start_s=end_s / 20,
            end_s=end_s,
            fleet=Fleet(routing=routing),
        ).refused_share
        for routing in ("random", "least")
    }
    assert shares["random"] == pytest.approx(erlang_b(8.0, 10), rel=0.06)
    assert shares["least"] == pytest.approx(erlang_b(16.0, 20), rel=0.12)


def test_a_measured_curve_gives_the_birth_and_death_process() -> None:
    rates = [1.0, 1.7, 2.2, 2.4]
    rate = 1.5
    found = long_run(random_arrivals(rate, exponential(1.0)), rates, max_waiting=0.0)
    weights = list(accumulate(rates, lambda weight, served: weight * rate / served, initial=1.0))
    expected = np.array(weights) / sum(weights)
    assert found.occupancy_s / found.occupancy_s.sum() == pytest.approx(expected, abs=0.02)


@given(erlangs=st.floats(0.01, 60), slots=st.integers(1, 60))
@FEW
def test_erlang_b_is_the_share_of_full_states(erlangs: float, slots: int) -> None:
    terms = [erlangs**count / math.factorial(count) for count in range(slots + 1)]
    assert erlang_b(erlangs, slots) == pytest.approx(terms[-1] / sum(terms))


class Steps:
    """An autoscaler that wants what it was told at some times."""

    def __init__(self, *steps: tuple[float, int]) -> None:
        self.steps = steps
        self.seen: list[tuple[float, list[float], int]] = []

    def decide(self, now_s, current, pods, starting):  # type: ignore[no-untyped-def]
        self.seen.append((now_s, [each["open"] for each in pods], starting))
        return next((wanted for when, wanted in reversed(self.steps) if now_s >= when), current)


SLOT = ServiceCurve(rates=[1.0, 2.0], max_waiting=0.0)


def test_a_replica_takes_nobody_until_it_has_started_and_costs_from_the_decision() -> None:
    arrivals = Arrivals(times=np.array([0.0, 1.0, 40.0, 80.0]), lengths=np.full(4, 1000.0))
    scaler = Steps((15.0, 2))
    found = simulate(arrivals, SLOT, replicas=1, end_s=100.0, fleet=Fleet(start_up_s=60.0), autoscaler=scaler)
    assert found.refused == 1  # at 40 s, two were there and the second replica was ready at 75 s
    assert found.replica_s == pytest.approx(100.0 + 85.0)
    assert found.ready[-1] == 2
    # Metrics are a period old, and a replica has none before it is ready.
    assert scaler.seen[:3] == [(15.0, [], 1), (30.0, [2], 1), (45.0, [2], 1)]
    assert scaler.seen[4:] == [(75.0, [2], 1), (90.0, [2, 0], 0)]


@pytest.mark.parametrize(("drain_s", "lost"), [(math.inf, 0), (50.0, 1)])
def test_a_replica_that_goes_takes_nobody_new_and_finishes_or_cuts_what_it_has(drain_s: float, lost: int) -> None:
    arrivals = Arrivals(times=np.array([0.0, 1.0, 20.0]), lengths=np.full(3, 100.0))
    found = simulate(
        arrivals,
        SLOT,
        replicas=2,
        end_s=200.0,
        fleet=Fleet(drain_s=drain_s),
        autoscaler=Steps((15.0, 1)),
    )
    # One each; the third joins that of 1 s, since the other drains.
    assert found.lost == lost
    assert found.latencies_s.size == 3 - lost
    gone_s = 65.0 if lost else 100.0
    assert found.replica_s == pytest.approx(200.0 + gone_s)


def test_a_replica_that_starts_is_the_first_to_go() -> None:
    arrivals = Arrivals(times=np.array([0.0]), lengths=np.array([1000.0]))
    found = simulate(arrivals, SLOT, replicas=1, end_s=100.0, autoscaler=Steps((15.0, 2), (30.0, 1)))
    assert found.replica_s == pytest.approx(100.0 + 15.0)
    assert found.ready.max() == 1


def test_series_add_up_to_the_whole() -> None:
    arrivals = random_arrivals(0.5, exponential(10.0, 2000))
    found = long_run(arrivals, [1.0, 2.0, 3.0], max_waiting=0.0)
    assert found.arrived_by_bin.sum() == found.arrived
    assert found.refused_by_bin.sum() == found.refused > 0
    width = (found.end_s - found.start_s) / len(found.offered)
    assert found.offered.sum() * width == pytest.approx(
        arrivals.lengths[arrivals.times >= found.start_s].sum(), rel=0.01
    )


def test_what_cannot_be_simulated_is_refused() -> None:
    with pytest.raises(ValueError, match="rates must be above 0"):
        ServiceCurve(rates=[1.0, 0.0])
    with pytest.raises(ValueError, match="routing must be one of least"):
        Fleet(routing="sticky")
    with pytest.raises(ValueError, match="start_up_s must be 0 or more"):
        Fleet(start_up_s=math.nan)
    with pytest.raises(ValueError, match=r"but .3,. lengths"):
        Arrivals(times=np.zeros(2), lengths=np.zeros(3))
    assert all(a <= b for a, b in pairwise(random_arrivals(1.0, exponential(1.0, 10)).times))
