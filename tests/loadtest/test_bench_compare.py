import io
from dataclasses import replace

import pytest
from rich.console import Console

from load_reports import HOSTILE, STAMP, failed, labelled, measured, report, streams
from tritone.loadtest.findings.result import Measurement, Report
from tritone.loadtest.pages.compare import Pair, compare
from tritone.report.table import Table


def table_of(a: Report, b: Report, title: str) -> Table:
    return next(table for table in compare(a, b).tables() if table.title.startswith(title))


def column(table: Table, heading: str) -> list[str]:
    place = [each.title for each in table.columns].index(heading)
    return [cells[place] for cells in table.texts()]


def test_ratios_are_the_second_over_the_first() -> None:
    a, b = report(measured(4, p50_ms=20.0)), report(measured(4, p50_ms=10.0, utterances=600, wer=0.06))
    (pair,) = compare(a, b).pairs
    assert pair.throughput == pytest.approx(1.5)
    assert pair.latency("p50") == pytest.approx(0.5)
    assert pair.wer_difference == pytest.approx(0.01)
    table = table_of(a, b, "Closed loop")
    assert column(table, "throughput") == ["1.50"]
    assert column(table, "p95") == ["0.50"]
    assert column(table, "p99") == ["0.50"]
    assert column(table, "WER change") == ["1.00"]
    assert column(table, "A utt/s") == ["40.0"]
    assert column(table, "B utt/s") == ["60.0"]


def test_a_report_against_itself_is_all_ones_and_differs_in_nothing() -> None:
    whole = report(measured(1), measured(2, batch_size=4), streams(3))
    comparison = compare(whole, whole)
    assert [(pair.throughput, pair.latency("p99"), pair.wer_difference, pair.tone) for pair in comparison.pairs] == [
        (1.0, 1.0, 0.0, None)
    ] * 3
    assert (comparison.conditions, list(comparison.only_a), list(comparison.only_b)) == ([], [], [])
    assert comparison.is_same_machine
    assert comparison.notices() == []


@pytest.mark.parametrize(
    "change",
    [
        {"load": 2.0},
        {"protocol": "http"},
        {"loop": "constant"},
        {"batch_size": 2},
        {"seconds": "7"},
        {"labels": {"runtime": "torch"}},
    ],
)
def test_points_that_were_measured_otherwise_are_no_pair(change: dict[str, object]) -> None:
    point = measured(1, **labelled(runtime="onnx"))
    other = replace(point, **change)  # type: ignore[arg-type]
    comparison = compare(report(point), report(other))
    assert (list(comparison.pairs), list(comparison.only_a), list(comparison.only_b)) == ([], [point], [other])
    assert "No operating point is in both" in comparison.notices()[0][0]
    assert [table.title for table in comparison.tables()] == ["Only in A", "Only in B"]


def test_models_of_other_names_are_compared_unless_both_reports_know_one_of_them() -> None:
    comparison = compare(report(measured(1, model="old")), report(measured(1, model="new")))
    assert len(comparison.pairs) == 1
    assert ("model", "old", "new") in comparison.conditions
    both = report(measured(1, model="old"), measured(1, model="new"))
    comparison = compare(both, report(measured(1, model="new")))
    assert [pair.a.model for pair in comparison.pairs] == ["new"]
    assert [each.model for each in comparison.only_a] == ["old"]


def test_samples_that_travel_otherwise_are_compared_unless_both_reports_have_a_way_in_common() -> None:
    before, after = measured(1), replace(measured(1), samples="int16 in system memory")
    whole = compare(report(before), report(after))
    assert len(whole.pairs) == 1
    assert ("samples", "float32", "int16 in system memory") in whole.conditions
    both = compare(report(before), report(before, after))
    assert len(both.pairs) == 1
    assert list(both.only_b) == [after]
    assert table_of(report(before), report(before, after), "Only in B").texts()[0][0].endswith("int16 in system memory")


def test_repeats_of_a_point_pair_in_their_order() -> None:
    comparison = compare(report(measured(1, p50_ms=10), measured(1, p50_ms=20)), report(measured(1, p50_ms=30)))
    assert [(pair.latency("p50"), len(comparison.only_a)) for pair in comparison.pairs] == [(3.0, 1)]


def test_another_machine_comes_before_other_versions_and_is_warned_of() -> None:
    other = replace(
        STAMP, processor="Another", gpus=("GPU",), commit="5e6f7a8", versions={"tritone": "0.1.0", "numpy": "2.0"}
    )
    comparison = compare(report(measured(1)), replace(report(measured(1)), stamp=other))
    assert comparison.conditions == [
        ("processor", "A processor", "Another"),
        ("GPUs", "-", "GPU"),
        ("commit", "1a2b3c4", "5e6f7a8"),
        ("onnxruntime", "1.20.0", "-"),
        ("numpy", "-", "2.0"),
    ]
    assert not comparison.is_same_machine
    assert comparison.notices()[0][1] == "bad"
    assert comparison.tables()[0].title == "Conditions that differ"


def test_the_same_machine_at_another_time_differs_in_nothing() -> None:
    later = replace(STAMP, date="2027-01-01 00:00 UTC", load=7.0)
    assert compare(report(measured(1)), replace(report(measured(1)), stamp=later)).conditions == []


@pytest.mark.parametrize(
    ("changes", "tone"),
    [
        ({}, None),
        ({"utterances": 103}, None),
        ({"utterances": 110}, "good"),
        ({"utterances": 90}, "bad"),
        ({"p50_ms": 10.0}, "good"),
        ({"p50_ms": 30.0}, "bad"),
        ({"utterances": 150, "p50_ms": 30.0}, None),
        ({"utterances": 150, "wer": 0.08}, "bad"),
        ({"utterances": 150, "wer": None}, "good"),
        ({"utterances": 150, "stable": False}, "warn"),
        ({"utterances": 150, "errors": {"x": 1}}, "warn"),
    ],
)
def test_a_fast_wrong_or_shaky_server_does_not_win(changes: dict[str, object], tone: str | None) -> None:
    assert Pair(measured(1), measured(1, **changes)).tone == tone  # type: ignore[arg-type]


def test_streams_win_by_latency_and_answers_in_time_and_not_by_throughput() -> None:
    assert Pair(streams(4), streams(4, utterances=4000)).tone is None
    assert Pair(streams(4, in_time=0.8), streams(4)).tone == "good"
    table = table_of(report(streams(4)), report(streams(4, p50_ms=60.0, in_time=0.9)), "Streams")
    assert column(table, "final p95") == ["2.00"]
    assert column(table, "first partial p95") == ["1.00"]
    assert column(table, "B in time") == ["90.0"]


@pytest.mark.parametrize(
    "point",
    [
        failed(1),
        measured(1, wall_s=0.0, utterances=0),
        measured(1, wer=None, server=None),
        measured(1, "streaming", streaming=None),
        measured(1, model=HOSTILE, labels={HOSTILE: HOSTILE}, errors={HOSTILE: 3}),
    ],
    ids=["only errors", "no time", "no references", "no streams", "hostile"],
)
def test_every_pair_can_be_shown(point: Measurement) -> None:
    for a, b in ((point, point), (point, measured(1)), (measured(1), point)):
        comparison = compare(report(a), report(b, complete=False), names=("old", HOSTILE))
        page, markdown = comparison.to_html(), "".join(each.to_markdown() for each in comparison.tables())
        assert "<script>alert" not in page
        assert "<script>" not in markdown
        console = Console(width=100, file=io.StringIO())
        for table in comparison.tables():
            console.print(table)
        assert "\x1b" not in console.file.getvalue()  # type: ignore[attr-defined]


def test_nothing_compares_with_nothing() -> None:
    comparison = compare(report(), report())
    assert comparison.tables() == []
    assert comparison.to_html()
    assert compare(report(), report(measured(1))).only_b
