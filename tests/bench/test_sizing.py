"""Replicas for a load: Erlang's formula, and the table of a report."""

import pytest

from load_reports import failed, measured, report, streams
from tritone.bench.sizing import LOADS, REFUSED, SPARE, UTILISATION, erlang_b, replicas_for_streams, sizing_of


def test_erlangs_formula_is_that_of_the_textbook() -> None:
    assert erlang_b(2.0, 2) == pytest.approx(0.4)  # (2^2 / 2!) / (1 + 2 + 2^2 / 2!)
    assert erlang_b(1.0, 1) == 0.5
    assert erlang_b(0.0, 3) == 0.0
    assert erlang_b(5.0, 0) == 1.0
    with pytest.raises(ValueError, match="0 or more"):
        erlang_b(-1.0, 2)


@pytest.mark.parametrize(("load", "slots"), [(10, 4), (100, 25), (1000, 100), (1000, 1), (3, 1000)])
def test_the_fewest_replicas_that_refuse_few_enough_are_found(load: int, slots: int) -> None:
    count = replicas_for_streams(load, slots)
    assert erlang_b(load, count * slots) <= REFUSED
    assert count == 1 or erlang_b(load, (count - 1) * slots) > REFUSED


def test_requests_take_a_share_of_the_highest_throughput() -> None:
    table = sizing_of(report(measured(1), measured(4)))  # 200 s of audio a second at most
    assert [row["count"] for row in table.rows] == [1 + SPARE, 1 + SPARE, 8 + SPARE, 72 + SPARE]
    assert table.rows[0]["basis"] == f"140.0 hours an hour, {UTILISATION:.0%} of its highest throughput"


def test_streams_count_as_far_as_they_were_in_time() -> None:
    table = sizing_of(report(streams(50), streams(200, in_time=0.9)))
    assert [row["load"] for row in table.rows] == [f"{load} streams" for load in LOADS]
    assert [row["count"] for row in table.rows] == [replicas_for_streams(load, 50) + SPARE for load in LOADS]


def test_nothing_clean_gives_no_table() -> None:
    assert not sizing_of(report(failed(4), measured(8, stable=False))).rows
