import math
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritone.loadtest.findings.result import Latency, Measurement, Streaming
from tritone.loadtest.plans.plan import MOST_VALUES, Point, parse_counts, parse_numbers
from tritone.loadtest.plans.ramp import Limit


def latency(p95_ms: float) -> Latency:
    return Latency(
        count=100, mean_ms=p95_ms / 2, p50_ms=p95_ms / 2, p90_ms=p95_ms, p95_ms=p95_ms, p99_ms=2 * p95_ms, max_ms=900
    )


def measured(p95_ms: float | None = 100.0) -> Measurement:
    return Measurement(
        model="m",
        protocol="grpc",
        loop="closed",
        load=4,
        wall_s=10.0,
        requests=100,
        utterances=100,
        audio_s=500.0,
        latency=None if p95_ms is None else latency(p95_ms),
    )


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("1:64:8", [1, 9, 17, 25, 33, 41, 49, 57]),  # as `perf_analyzer --concurrency-range 1:64:8`
        ("8:64:8", [8, 16, 24, 32, 40, 48, 56, 64]),
        ("1:4", [1, 2, 3, 4]),
        ("3:3:5", [3]),
        ("1,2,4,8", [1, 2, 4, 8]),
        ("8, 1,2 , 2", [1, 2, 8]),
        ("1,2,4:16:4", [1, 2, 4, 8, 12, 16]),
    ],
)
def test_loads_are_lists_ranges_or_both_in_ascending_order(text: str, numbers: list[int]) -> None:
    assert parse_counts(text) == numbers


def test_rates_may_have_fractions_and_a_range_of_them_is_exact() -> None:
    assert parse_numbers("0.1:0.5:0.1,10") == [0.1, 0.2, 0.3, 0.4, 0.5, 10]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "'' is not a number"),
        ("1,,2", "'' is not a number"),
        ("1:2:3:4", "'1:2:3:4' is not a number, start:end or start:end:step"),
        ("a", "'a' is not a number"),
        ("1e3", "'1e3' is not a number"),
        ("nan", "'nan' is not a number"),
        ("-1", "'-1' is not a number"),
        ("1.5", "'1.5': 1.5 is not a whole number"),
        ("0:4", "'0:4' holds 0, it must be 1 or more"),
        ("1:8:0", "'1:8:0': the step must be above 0"),
        ("8:1", "'8:1' ends (1) before it starts (8)"),
        ("1:1000000", "'1:1000000' means 1000000 values"),
        ("1:900,1001:1900", "means more than 1000 values"),
    ],
)
def test_what_is_no_list_of_loads_is_refused_with_the_part_that_is_wrong(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(complaint)):
        parse_counts(text)


@given(st.integers(1, 500), st.integers(0, 400), st.integers(1, 50))
def test_a_range_holds_its_start_stays_within_its_end_and_leaves_no_step_out(start: int, width: int, step: int) -> None:
    found = parse_counts(f"{start}:{start + width}:{step}")
    assert found == list(range(start, start + width + 1, step))


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=50))
def test_a_list_gives_each_of_its_numbers_once(numbers: list[int]) -> None:
    assert parse_counts(",".join(map(str, numbers))) == sorted(set(numbers))


@given(st.text("0123456789:,. -e", max_size=12))
def test_any_text_is_either_a_bounded_list_of_numbers_or_refused(text: str) -> None:
    try:
        found = parse_numbers(text)
    except ValueError:
        return
    assert 1 <= len(found) <= MOST_VALUES
    assert found == sorted(set(found))
    assert all(0 <= number < math.inf for number in found)


def test_a_latency_limit_looks_at_the_percentile_that_was_asked_for() -> None:
    found = latency(100.0)
    assert Limit(limit_ms=1).latency_ms(measured(100.0)) == found.p95_ms == 100.0
    assert Limit(limit_ms=1, percentile="p50").latency_ms(measured(100.0)) == found.p50_ms < 100
    assert Limit(limit_ms=1, percentile="p99").latency_ms(measured(100.0)) == found.p99_ms > 100


def test_a_server_that_fails_fast_or_answers_nothing_keeps_no_limit() -> None:
    limit = Limit(limit_ms=1000)
    assert limit.breach(measured(1.0)) is None
    assert str(limit.breach(replace(measured(1.0), errors={"busy": 1}))).endswith("requests failed, 1 with: busy")
    assert limit.latency_ms(measured(None)) == math.inf
    assert str(limit.breach(measured(None))) == "nothing was answered"


def test_of_streams_the_worse_of_chunks_and_final_texts_counts() -> None:
    streaming = Streaming(
        streams=4, chunk_ms=100, first_partial=latency(900), chunk=latency(40), final=latency(80), in_time=1, drift_ms=0
    )
    both = replace(measured(), loop="streaming", streaming=streaming)
    assert Limit(limit_ms=80).latency_ms(both) == 80
    assert Limit(limit_ms=80).latency_ms(replace(both, streaming=replace(streaming, final=None))) == 40


@pytest.mark.parametrize("limit_ms", [0, -1, math.inf, math.nan])
def test_a_latency_limit_is_a_positive_number(limit_ms: float) -> None:
    with pytest.raises(ValueError, match="must be above 0 ms"):
        Limit(limit_ms=limit_ms)


def test_an_unknown_percentile_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match="mean, p50, p90, p95, p99, max, got 'p42'"):
        Limit(limit_ms=1, percentile="p42")  # type: ignore[arg-type]


def test_a_point_says_in_words_what_it_is() -> None:
    assert str(Point(loop="closed", load=8, batch_size=4, audio="5")) == "8 requests in flight, batch size 4, 5 s"
    assert str(Point(loop="poisson", load=2.5, audio="files")) == "2.5 requests/s, files"
