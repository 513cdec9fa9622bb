"""Running plans with a fake generator, judging reports, joining them."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from tritone.errors import OperatorError, ServerUnreachableError
from tritone.loadtest.findings.result import Latency, Measurement, Report
from tritone.loadtest.pages.compare import compare
from tritone.loadtest.pages.gate import complaints, slowdowns
from tritone.loadtest.plans.plan import Duration, Plan, Point, duration_text
from tritone.loadtest.plans.ramp import Limit
from tritone.loadtest.plans.run import Header, run_plan, run_ramp
from tritone.loadtest.requests.offline import Interrupted
from tritone.report.stamp import Stamp

STAMP = Stamp(
    command="c", date="d", commit="", processor="p", cores=2, memory_gib=4.0, system="s", versions={}, load=0.0
)
HEADER = Header(stamp=STAMP, title="t", labels={"runtime": "toy"})
PLAN = Plan(loop="closed", loads=[1, 2, 4], batch_sizes=[1, 8], audio=["2", "5"])
LIMIT = Limit(limit_ms=100)


def measured(point: Point, p95_ms: float | None = 10.0, **changes: object) -> Measurement:
    latency = None
    if p95_ms is not None:
        latency = Latency(
            count=9, mean_ms=p95_ms, p50_ms=p95_ms, p90_ms=p95_ms, p95_ms=p95_ms, p99_ms=p95_ms, max_ms=p95_ms
        )
    found = Measurement(
        model="m",
        protocol="grpc",
        loop=point.loop,
        load=point.load,
        batch_size=point.batch_size,
        seconds=point.audio,
        wall_s=10.0,
        requests=100,
        utterances=100,
        audio_s=500.0,
        latency=latency,
    )
    return replace(found, **changes)  # type: ignore[arg-type]


class Watch:
    """An observer that writes everything down."""

    def __init__(self) -> None:
        self.started: list[tuple[int, int | None]] = []
        self.found: list[Measurement] = []
        self.notes: list[str] = []

    def starting(self, point: Point, place: int, total: int | None) -> None:
        self.started.append((place, total))

    def measured(self, measurement: Measurement) -> None:
        self.found.append(measurement)

    def note(self, text: str) -> None:
        self.notes.append(text)


def failing_at(load: float, error: BaseException) -> Callable[[Point], Measurement]:
    def measure(point: Point) -> Measurement:
        if point.load == load:
            raise error
        return measured(point)

    return measure


def report(measurements: Sequence[Measurement], **changes: object) -> Report:
    return replace(Report(stamp=STAMP, measurements=measurements, title="t"), **changes)  # type: ignore[arg-type]


def loads(run_report: Report) -> list[float]:
    return [each.load for each in run_report.measurements]


A, B = Point(loop="closed", load=1, audio="5"), Point(loop="closed", load=2, audio="5")


def test_every_load_is_measured_with_every_batch_size_and_audio_by_growing_load():
    watch = Watch()
    run = run_plan(PLAN, measured, watch, HEADER)
    assert run.ended_by is None
    assert run.report.complete
    assert [(each.seconds, each.batch_size, each.load) for each in run.report.measurements] == [
        (audio, size, load) for audio in ("2", "5") for size in (1, 8) for load in (1, 2, 4)
    ]
    assert watch.started == [(place, 12) for place in range(1, 13)]
    assert watch.found == run.report.measurements
    assert all(each.labels == {"runtime": "toy"} for each in run.report.measurements)


def test_a_series_ends_at_the_limit_and_the_next_one_begins_anew():
    watch = Watch()

    def measure(point: Point) -> Measurement:
        return measured(point, p95_ms=150 if point.load >= 2 and point.batch_size == 8 else 50)

    run = run_plan(PLAN, measure, watch, HEADER, limit=LIMIT)
    assert loads(run.report) == [1, 2, 4, 1, 2] * 2
    assert [place for place, _ in watch.started] == [1, 2, 3, 4, 5, 7, 8, 9, 10, 11]
    assert len(run.report.notes) == 2
    assert "2 requests in flight, batch size 8, 2 s: p95 latency 150.0 ms" in run.report.notes[0]
    assert run.report.notes[0].endswith("1 higher loads were not tried")
    assert run.report.complete


def test_where_nothing_is_answered_no_higher_load_is_tried_even_without_a_limit():
    run = run_plan(replace(PLAN, batch_sizes=[1], audio=["2"]), lambda point: measured(point, None), Watch(), HEADER)
    assert loads(run.report) == [1]


def test_failed_requests_are_a_result_and_do_not_end_a_run_without_a_limit():
    plan = replace(PLAN, batch_sizes=[1], audio=["2"])
    run = run_plan(plan, lambda point: measured(point, errors={"busy": 3}), Watch(), HEADER)
    assert loads(run.report) == [1, 2, 4]


def test_ctrl_c_leaves_a_report_with_what_the_point_under_way_had_seen():
    interrupt = Interrupted(measured(Point(loop="closed", load=4), requests=7))
    run = run_plan(PLAN, failing_at(4, interrupt), Watch(), HEADER)
    assert run.ended_by is interrupt
    assert not run.report.complete
    assert [(each.load, each.requests) for each in run.report.measurements] == [(1, 100), (2, 100), (4, 7)]
    assert run.report.measurements[-1].labels == {"runtime": "toy"}
    assert run.report.notes == ["interrupted, at point 3 of 12"]


def test_ctrl_c_before_anything_was_seen_leaves_the_points_that_are_done():
    for error in (KeyboardInterrupt(), Interrupted(None)):
        assert loads(run_plan(PLAN, failing_at(2, error), Watch(), HEADER).report) == [1]


def test_a_server_that_goes_away_leaves_a_report_and_its_error():
    error = ServerUnreachableError("nobody answers")
    run = run_plan(PLAN, failing_at(2, error), Watch(), HEADER)
    assert (run.ended_by, loads(run.report), run.report.complete) == (error, [1], False)
    assert run.report.notes == ["ended by an error: nobody answers, at point 2 of 12"]


def test_a_defect_of_our_own_is_not_hidden_in_a_report():
    with pytest.raises(ZeroDivisionError):
        run_plan(PLAN, failing_at(2, ZeroDivisionError()), Watch(), HEADER)


def test_a_search_finds_the_largest_load_within_the_limit_and_reports_every_step():
    watch = Watch()
    run, ramp = run_ramp(A, 64, LIMIT, lambda point: measured(point, p95_ms=10 * point.load), watch, HEADER)
    assert ramp is not None
    assert ramp.best is not None
    assert ramp.best.load == 10
    assert loads(run.report)[:5] == [1, 2, 4, 8, 16]
    assert run.report.notes[0].startswith("search for the largest load with p95 <= 100 ms: 10 is the largest load")
    assert watch.notes == list(run.report.notes)
    assert watch.started[0] == (1, None)


def test_a_search_that_is_interrupted_keeps_what_it_has():
    interrupt = Interrupted(measured(Point(loop="closed", load=4), requests=7))
    run, _ = run_ramp(A, 64, LIMIT, failing_at(4, interrupt), Watch(), HEADER)
    assert run.ended_by is interrupt
    assert [(each.load, each.requests) for each in run.report.measurements] == [(1, 100), (2, 100), (4, 7)]
    assert not run.report.complete


def test_a_search_that_an_error_ends_keeps_what_it_has():
    error = OperatorError("out of memory")
    run, ramp = run_ramp(A, 64, LIMIT, failing_at(2, error), Watch(), HEADER)
    assert (run.ended_by, loads(run.report), ramp) == (error, [1], None)


@pytest.mark.parametrize("wrong", [{"loads": []}, {"batch_sizes": []}, {"audio": []}])
def test_a_plan_of_nothing_is_refused(wrong: dict[str, object]):
    with pytest.raises(ValueError, match="at least one"):
        replace(PLAN, **wrong)  # type: ignore[arg-type]


def test_a_plan_of_too_many_points_is_refused_before_it_runs_for_weeks():
    with pytest.raises(ValueError, match="3000 points are more than one run measures"):
        Plan(loop="closed", loads=range(1, 1001), batch_sizes=[1, 2, 3])


def test_equal_points_are_measured_once():
    assert len(Plan(loop="closed", loads=[2, 1, 2], batch_sizes=[1, 1], audio=["5", "5"])) == 2


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.2, "1 s"), (99, "99 s"), (120, "2 min"), (3601, "1 h 1 min"), (7200, "2 h")]
)
def test_times_are_told_in_words(seconds: float, words: str):
    assert duration_text(seconds) == words


def test_a_duration_says_what_is_usual_and_what_is_the_most():
    assert str(Duration(10, 60) * 3) == "about 30 s, at most 3 min"
    assert str(Duration(10, 10)) == "about 10 s"


def test_a_report_without_failures_has_nothing_to_complain_of():
    assert complaints(report([measured(A)])) == []
    assert complaints(report([measured(A, wer=0.05)]), max_wer=0.05) == []


def test_complaints_name_the_failures_with_their_most_frequent_reason():
    found = [measured(A, errors={"busy": 2}), measured(B, errors={"timeout": 3, "busy": 2})]
    assert complaints(report(found)) == ["7 of 200 requests failed, 4 of them with: busy"]


@pytest.mark.parametrize(
    ("measurements", "complaint"),
    [
        ([], "nothing was measured"),
        ([measured(A, None)], "at some loads no request was answered"),
        ([measured(A, wer=0.2), measured(B, wer=0.05)], "WER up to 20.00 % in 1 of 2 measurements, at most 10.00 %"),
        ([measured(A)], "the limit on the WER was not checked"),
    ],
)
def test_what_cannot_pass_is_told(measurements: list[Measurement], complaint: str):
    assert complaint in "; ".join(complaints(report(measurements), max_wer=0.1))


def test_a_report_that_was_interrupted_at_once_is_not_blamed_for_being_empty():
    assert complaints(report([], complete=False), max_wer=0.1) == []


def slow(before: list[Measurement], after: list[Measurement], most: float = 0.1) -> list[str]:
    return slowdowns(compare(report(before), report(after)), most)


def test_less_throughput_or_a_higher_p95_than_allowed_is_a_slowdown():
    assert slow([measured(A)], [measured(A, utterances=91)]) == []
    assert slow([measured(A)], [measured(A, utterances=89)]) == [
        "1 request in flight: throughput -11.0 % (10.0 to 8.9 utterances/s)"
    ]
    assert slow([measured(A)], [measured(A, p95_ms=10.9)]) == []
    assert slow([measured(A)], [measured(A, p95_ms=12)]) == ["1 request in flight: p95 +20.0 % (10.0 to 12.0 ms)"]


def test_a_faster_server_does_not_pass_when_it_is_wrong_or_fails_more():
    fast = {"utterances": 1000, "p95_ms": 1.0}
    assert slow([measured(A, wer=0.05)], [measured(A, wer=0.06, **fast)]) == [  # type: ignore[arg-type]
        "1 request in flight: WER 5.00 to 6.00 %"
    ]
    (told,) = slow([measured(A)], [measured(A, errors={"busy": 1}, **fast)])  # type: ignore[arg-type]
    assert "1 of 100 requests failed, before 0 of 100" in told
    assert slow([measured(A)], [measured(A, None)]) == ["1 request in flight: nothing was answered"]


def test_of_streams_only_latency_counts_because_they_are_sent_as_fast_as_they_are_spoken():
    point = Point(loop="streaming", load=4, audio="files")
    assert slow([measured(point)], [measured(point, utterances=80)]) == []
    assert slow([measured(point)], [measured(point, p95_ms=12)]) != []


def test_reports_without_a_common_point_do_not_pass():
    assert "No operating point is in both" in slow([measured(A)], [measured(B)])[0]


@pytest.mark.parametrize("share", [-0.1, 1.0])
def test_a_slowdown_is_a_share(share: float):
    with pytest.raises(ValueError, match="from 0 to below 100 %"):
        slow([measured(A)], [measured(A)], share)
