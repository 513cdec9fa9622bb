"""The search for the largest load within a limit, against servers whose limit is known."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritone.loadtest.findings.result import Latency, Measurement, Streaming
from tritone.loadtest.plans.ramp import Limit, Ramp, largest_load
from tritone.loadtest.requests.offline import Interrupted

LIMIT = Limit(limit_ms=100)


def latency(milliseconds: float) -> Latency:
    return Latency.of([milliseconds / 1000] * 20)  # type: ignore[return-value]


def streams(
    load: int, milliseconds: float, *, in_time: float = 1.0, sent_late_ms: float = 0.1, **changes
) -> Measurement:
    """A measurement of `load` streams, every answer of which took the same time."""
    streaming = Streaming(
        streams=load,
        chunk_ms=640,
        first_partial=None,
        chunk=latency(milliseconds),
        final=latency(milliseconds),
        in_time=in_time,
        drift_ms=0,
    )
    defaults = {
        "model": "toy",
        "protocol": "grpc",
        "loop": "streaming",
        "load": load,
        "wall_s": 10.0,
        "requests": 20 * load,
        "utterances": load,
        "audio_s": 10.0 * load,
        "latency": latency(milliseconds),
        "streaming": streaming,
        "sent_late": latency(sent_late_ms),
    }
    return Measurement(**(defaults | changes))  # type: ignore[arg-type]


def closed(load: int, milliseconds: float, **changes) -> Measurement:
    return streams(load, milliseconds, loop="closed", streaming=None, sent_late=None, **changes)


def ramp(measure: Callable[[int], Measurement], *, start: int = 1, maximum: int = 1000, **more) -> Ramp:
    return largest_load(measure, LIMIT, start, maximum, **more)


def loads(found: Ramp) -> list[float]:
    return [each.load for each in found.measurements]


def best(found: Ramp) -> float | None:
    return None if found.best is None else found.best.load


def test_loads_are_doubled_until_one_is_too_much_and_then_the_gap_is_halved():
    found = ramp(lambda load: streams(load, 10 if load <= 11 else 1000), precision=0.01)
    assert loads(found) == [1, 2, 4, 8, 16, 12, 10, 11]
    assert best(found) == 11
    assert found.breach_load == 12
    assert "p95 latency 1000.0 ms, at most 100 ms" in str(found)


def test_the_search_ends_at_the_maximum():
    found = ramp(lambda load: streams(load, 10), start=3, maximum=20)
    assert loads(found) == [3, 6, 12, 20]
    assert (best(found), found.breach) == (20, None)
    assert str(found) == "20 is the largest load that did, and the largest to be tried"


def test_a_start_that_is_too_much_is_halved():
    found = ramp(lambda load: streams(load, 10 if load <= 3 else 1000), start=50)
    assert loads(found) == [50, 25, 12, 6, 3, 4]
    assert best(found) == 3


def test_when_not_even_one_is_borne_there_is_no_best():
    found = ramp(lambda load: streams(load, 1000), start=4)
    assert loads(found) == [4, 2, 1]
    assert found.best is None
    assert str(found).startswith("no load kept the limit; 1: ")


@given(capacity=st.integers(0, 5000), start=st.integers(1, 300), more=st.integers(0, 3000), percent=st.integers(1, 20))
def test_a_server_with_a_sharp_limit_is_found_to_the_precision(capacity, start, more, percent):
    maximum = start + more
    found = ramp(
        lambda load: streams(load, 10 if load <= capacity else 1000),
        start=start,
        maximum=maximum,
        precision=percent / 100,
    )
    true = min(capacity, maximum)
    low = int(best(found) or 0)
    assert low <= true
    assert true - low <= max(1, round(percent / 100 * low)) - (low != true and found.breach_load == true + 1)
    assert len(found.measurements) < 30
    assert len(set(loads(found))) == len(found.measurements)  # nothing is measured twice without need


def test_a_narrow_miss_is_measured_again():
    tries = iter([105, 95])
    found = ramp(lambda load: streams(load, next(tries)), start=4, maximum=4)
    assert (loads(found), best(found)) == ([4, 4], 4)


def test_a_clear_miss_is_not_measured_again():
    found = ramp(lambda load: streams(load, 10 if load < 2 else 300), maximum=2)
    assert loads(found) == [1, 2]


def test_two_misses_are_a_miss():
    found = ramp(lambda load: streams(load, 105), start=1, maximum=4)
    assert loads(found) == [1, 1]
    assert found.best is None


def test_a_restless_point_is_measured_again_and_the_better_look_counts():
    tries = iter([False, True])
    found = ramp(lambda load: streams(load, 10, stable=next(tries)), maximum=1)
    assert (loads(found), best(found), found.notes) == ([1, 1], 1, [])


def test_a_point_that_is_restless_twice_but_within_the_limit_counts_and_is_noted():
    found = ramp(lambda load: streams(load, 10, stable=False), maximum=1)
    assert best(found) == 1
    (note,) = found.notes
    assert "was not stable" in note


def test_a_limit_that_is_kept_though_the_generator_was_a_little_late_is_kept():
    # 20 ms of 640 that the generator wastes make latency longer, not shorter.
    found = ramp(lambda load: streams(load, 10, sent_late_ms=20), maximum=2)
    assert best(found) == 2


def test_a_miss_is_not_outweighed_by_a_restless_success():
    tries = iter([(105, True), (95, False)])

    def measure(load: int) -> Measurement:
        milliseconds, stable = next(tries)
        return streams(load, milliseconds, stable=stable)

    assert ramp(measure, maximum=1).best is None


@pytest.mark.parametrize(
    ("measurement", "cause", "words"),
    [
        (streams(8, 10, errors={"busy: full": 30, "timeout": 2}), "errors", "32 of 160 requests failed, 30 with: busy"),
        (streams(8, 10, sent_late_ms=40), "generator", "late by itself (p99 40.0 ms)"),
        (streams(8, 250, sent_late_ms=20), "generator", "p95 latency 250.0 ms, at most 100 ms is allowed, but the"),
        (streams(8, 10, in_time=0.9), "late", "90.00 % of the chunks answered in time, 99 % are needed"),
        (streams(8, 250), "late", "p95 latency 250.0 ms, at most 100 ms"),
        (streams(8, 10, latency=None, streaming=None), "late", "nothing was answered"),
        (streams(8, 10, wer=0.5, wer_words=10), "text", "WER 50.00 %, at most 10.00 %"),
        (closed(8, 250, client_cpu=1.9, client_processes=2), "generator", "1.90 of 2 cores"),
        (closed(8, 250, client_cpu=0.9, client_processes=2), "late", "250.0 ms"),
    ],
)
def test_what_stopped_the_search_is_told(measurement: Measurement, cause: str, words: str):
    limit = Limit(limit_ms=100, max_wer=0.1)
    found = largest_load(lambda load: measurement if load == 8 else streams(load, 10), limit, 4, 8)
    assert found.breach is not None
    assert found.breach.cause == cause
    assert words in found.breach.text
    assert found.best is not None
    assert found.best.load < 8


def test_fast_answers_of_a_failing_server_do_not_win():
    found = ramp(lambda load: closed(load, 1, errors={"refused": load}), maximum=4)
    assert found.best is None


def test_a_busy_generator_does_no_harm_while_the_limit_is_kept():
    found = ramp(lambda load: closed(load, 10, client_cpu=1.0), maximum=4)
    assert best(found) == 4


def test_another_percentile_can_be_the_limit():
    def measure(load: int) -> Measurement:
        spread = Latency.of([0.01] * 96 + [0.5] * 4)
        return closed(load, 10).__class__(**{**vars(closed(load, 10)), "latency": spread})

    p95, p99 = (Limit(limit_ms=100, percentile=name) for name in ("p95", "p99"))
    assert largest_load(measure, p95, 1, 1).best is not None
    assert largest_load(measure, p99, 1, 1).best is None


def test_an_interrupt_keeps_what_was_found():
    def measure(load: int) -> Measurement:
        if load > 4:
            raise KeyboardInterrupt
        return streams(load, 10)

    found = ramp(measure)
    assert (loads(found), best(found), found.complete) == ([1, 2, 4], 4, False)
    assert str(found) == "interrupted; so far 4 is the largest load that did"


def test_what_an_interrupted_measurement_had_seen_is_kept_but_proves_nothing():
    def measure(load: int) -> Measurement:
        if load > 1:
            raise Interrupted(streams(load, 10))
        return streams(load, 10)

    found = ramp(measure)
    assert (loads(found), best(found), found.complete) == ([1, 2], 1, False)


@pytest.mark.parametrize(("start", "maximum"), [(0, 5), (6, 5)])
def test_a_start_beyond_its_bounds_is_refused(start: int, maximum: int):
    with pytest.raises(ValueError, match="start must be from 1 to the maximum of 5"):
        ramp(lambda load: streams(load, 10), start=start, maximum=maximum)
