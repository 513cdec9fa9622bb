"""Warm-up, windows and when they agree, on hand-made series: nothing here waits for a clock."""

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritone.loadtest.findings.result import Latency
from tritone.loadtest.options import LoadOptions, WindowPlan
from tritone.loadtest.requests.windows import MAX_KINDS, End, Event, Recorder, Tick, is_stable

PLAN = WindowPlan(warmup_s=1.0, window_s=2.0, max_window_s=6.0, min_requests=4, max_windows=5)


def window(latencies_s: Sequence[float], wall_s: float = 1.0, begin: float = 0.0) -> Tick:
    return Tick(begin, begin + wall_s, latencies=array("d", latencies_s))


def ticks(*rows: tuple[int, float], tick_s: float = 1.0) -> list[Tick]:
    """One tick for each (requests, latency in seconds), one after the other."""
    return [window([latency] * count, tick_s, index * tick_s) for index, (count, latency) in enumerate(rows)]


def feed(recorder: Recorder, series: Sequence[Tick]) -> list[Event | None]:
    events = []
    for tick in series:
        if recorder.end is not None:
            break
        events.append(recorder.add(tick))
    return events


@pytest.mark.parametrize(
    ("counts", "p95_ms", "stable"),
    [
        ((100, 100, 100), (50, 50, 50), True),
        ((100, 105, 95), (50, 52, 48), True),
        ((100, 100, 125), (50, 50, 50), False),  # 125 is 15 % above the mean of 108.3
        ((100, 100, 100), (50, 50, 75), False),
        ((100, 100, 119), (50, 50, 50), False),  # 106.3: 11.9 % above
        ((100, 100, 114), (50, 50, 50), True),  # 104.7: 8.9 % above
        ((100, 100, 100), (1.0, 1.5, 1.4), True),  # half a millisecond is nothing
    ],
)
def test_three_windows_agree_within_ten_percent_of_their_mean(counts, p95_ms, stable):
    series = [window([ms / 1000] * count) for count, ms in zip(counts, p95_ms, strict=True)]
    assert is_stable(PLAN, series) is stable


def test_only_the_last_windows_have_to_agree_and_there_must_be_enough_of_them():
    cold, warm = window([0.5] * 10), window([0.05] * 100)
    assert is_stable(PLAN, [cold, warm, warm, warm])
    assert not is_stable(PLAN, [cold, warm, warm])
    assert not is_stable(PLAN, [warm, warm])
    assert not is_stable(PLAN, [])


def test_where_arrivals_are_drawn_by_chance_throughput_is_not_judged():
    series = [window([0.05] * count) for count in (40, 60, 50)]
    assert not is_stable(PLAN, series)
    assert is_stable(replace(PLAN, judge_throughput=False), series)


def test_windows_of_different_length_are_compared_by_their_rate():
    assert is_stable(PLAN, [window([0.1] * 50, 1.0), window([0.1] * 100, 2.0), window([0.1] * 150, 3.0)])


def test_windows_in_which_nothing_succeeded_never_agree():
    assert not is_stable(PLAN, [window([])] * 3)


def test_a_recorder_warms_up_then_closes_windows_until_they_agree():
    recorder = Recorder(PLAN, timeout_s=60)
    events = feed(recorder, ticks((1, 0.9), (5, 0.1), (5, 0.1), (5, 0.1), (5, 0.1), (5, 0.1), (5, 0.1), (5, 0.1)))
    assert events == [Event.WARM, None, Event.WINDOW, None, Event.WINDOW, None, Event.WINDOW]
    assert recorder.end is End.STABLE
    assert [len(each.latencies) for each in recorder.windows] == [10, 10, 10]
    assert max(max(each.latencies) for each in recorder.windows) == 0.1, "the warm-up is not part of it"


def test_the_measurement_is_of_the_last_windows_alone():
    recorder = Recorder(PLAN, timeout_s=60)
    slow, fast = [(5, 0.4)] * 2, [(5, 0.1)] * 6
    feed(recorder, ticks((1, 0.9), *slow, *fast))
    assert recorder.end is End.STABLE
    assert recorder.num_windows == 4
    assert {value for each in recorder.windows for value in each.latencies} == {0.1}


def test_a_window_goes_on_until_it_holds_enough_requests_but_not_for_ever():
    recorder = Recorder(PLAN, timeout_s=60)
    events = feed(
        recorder, ticks((1, 0.1), (1, 0.1), (1, 0.1), (2, 0.1), (0, 0), (0, 0), (0, 0), (0, 0), (0, 0), (1, 1))
    )
    assert events[1:4] == [None, None, Event.WINDOW]
    assert events[4:] == [None] * 5 + [Event.WINDOW]


def test_windows_that_never_agree_end_it_after_the_most_that_are_allowed():
    recorder = Recorder(PLAN, timeout_s=60)
    feed(recorder, ticks((1, 0.1), *[(5 + 10 * (index // 2 % 2), 0.1) for index in range(40)]))
    assert recorder.end is End.UNSTABLE
    assert recorder.num_windows == PLAN.max_windows
    assert len(recorder.windows) == PLAN.stable_windows


def test_a_window_full_of_errors_ends_it():
    recorder = Recorder(PLAN, timeout_s=60)
    series = ticks((1, 0.1), (0, 0), (0, 0), (0, 0))
    for tick in series[1:]:
        tick.add_error("server error: out of memory", 3)
    feed(recorder, series)
    assert recorder.end is End.FAILING
    assert recorder.windows[-1].errors == {"server error: out of memory": 6}


def test_silence_ends_it_once_every_request_must_have_timed_out():
    recorder = Recorder(PLAN, timeout_s=10)
    feed(recorder, ticks((1, 0.1), *[(0, 0.0)] * 40))
    assert recorder.end is End.FAILING
    assert recorder.num_windows == 2  # 6 seconds each


def test_an_overrun_ends_it_at_once_even_during_warm_up():
    recorder = Recorder(PLAN, timeout_s=60)
    tick = window([0.5] * 3, 0.2)
    tick.overrun = 70
    assert recorder.add(tick) is Event.WINDOW
    assert recorder.end is End.OVERRUN
    assert recorder.windows[-1].overrun == 70


def test_what_was_seen_before_an_interruption_is_the_full_windows_or_the_one_that_was_begun():
    recorder = Recorder(PLAN, timeout_s=60)
    series = ticks((1, 0.1), (5, 0.1), (5, 0.1), (5, 0.1))
    recorder.add(series[0])
    assert recorder.seen() == []
    recorder.add(series[1])
    assert [len(each.latencies) for each in recorder.seen()] == [5]
    feed(recorder, series[2:])
    assert [len(each.latencies) for each in recorder.seen()] == [10]


def test_warm_up_waits_for_the_first_answers_of_a_cold_server():
    recorder = Recorder(WindowPlan(warmup_s=1.0, warmup_requests=8), timeout_s=60)
    events = feed(recorder, ticks((0, 0), (0, 0), (0, 0), (7, 3.0), (1, 3.0)))
    assert events == [None, None, None, None, Event.WARM]


def test_ticks_of_several_processes_add_up():
    one, other = window([0.1, 0.2], 1.0), window([0.3], 1.1)
    one.add_text(0, "a")
    other.add_text(0, "a")
    other.add_text(1, "b")
    one.add_error("busy")
    other.add_error("busy", 2)
    one.cpu_s, other.cpu_s = {0: 0.5}, {1: 0.25}
    one.absorb(other)
    assert list(one.latencies) == [0.1, 0.2, 0.3]
    assert one.texts == Counter({(0, "a"): 2, (1, "b"): 1})
    assert one.errors == {"busy": 3}
    assert one.cpu_s == {0: 0.5, 1: 0.25}
    assert (one.requests, one.wall_s) == (6, 1.1)


def test_a_server_that_never_says_the_same_twice_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tritone.loadtest.requests.windows.MAX_TEXTS", 3)
    tick = window([])
    for index in range(10):
        tick.add_text(0, f"text {index}")
        tick.add_text(0, "text 0")
    assert tick.texts == {(0, "text 0"): 11, (0, "text 1"): 1, (0, "text 2"): 1}
    assert tick.unscored == 7
    for index in range(3 * MAX_KINDS):
        tick.add_error(f"error {index}")
    assert len(tick.errors) == MAX_KINDS + 1
    assert tick.errors["other errors"] == 2 * MAX_KINDS


@pytest.mark.parametrize(
    "wrong",
    [{"window_s": 0}, {"window_s": 20.0, "max_window_s": 15.0}, {"stable_windows": 0}, {"tolerance": 1.0}],
)
def test_a_plan_that_cannot_work_is_refused(wrong: dict[str, float]):
    with pytest.raises(ValueError, match="must be"):
        WindowPlan(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("window_s", "tick_s", "expected"), [(3, 0.5, 0.5), (0.2, 0.5, 0.2), (0.01, 0.5, 0.1), (1, 0.02, 0.02)]
)
def test_a_short_window_does_not_last_as_long_as_a_report_takes(window_s: float, tick_s: float, expected: float):
    assert LoadOptions(windows=WindowPlan(window_s=window_s), tick_s=tick_s).report_s == expected


@given(st.lists(st.floats(0, 100), min_size=1, max_size=200))
def test_percentiles_interpolate_between_order_statistics(seconds: list[float]):
    latency = Latency.of(seconds)
    assert latency is not None
    ordered = sorted(seconds)
    for name, share in (("p50_ms", 0.5), ("p90_ms", 0.9), ("p95_ms", 0.95), ("p99_ms", 0.99)):
        place = share * (len(ordered) - 1)
        low = int(place)
        high = min(low + 1, len(ordered) - 1)
        expected = ordered[low] + (place - low) * (ordered[high] - ordered[low])
        assert getattr(latency, name) == pytest.approx(1000 * expected, rel=1e-9, abs=1e-9)
    assert latency.max_ms == pytest.approx(1000 * ordered[-1])
    assert latency.mean_ms == pytest.approx(1000 * float(np.mean(seconds)))


def test_the_latency_of_nothing_is_none():
    assert Latency.of([]) is None
