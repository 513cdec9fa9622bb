"""Replicas for a load: Erlang's formula, and the table of a report."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from load_reports import failed, measured, report, streams
from tritone.loadtest.pages.sizing import LOADS, SPARE, UTILISATION, replicas_for_streams, sizing_of, slots_for


@pytest.mark.parametrize(
    ("streams", "slots", "blocked"),
    [(2.0, 2, 0.4), (1.0, 1, 0.5), (5.0, 0, 1.0)],  # (2^2 / 2!) / (1 + 2 + 2^2 / 2!) and 1 / (1 + 1)
)
def test_slots_are_those_of_erlangs_formula(streams: float, slots: int, blocked: float) -> None:
    assert slots_for(streams, blocked * 1.001) == slots
    assert slots_for(streams, blocked * 0.999) == slots + 1


@pytest.mark.parametrize(("streams", "slots"), [(4.46, 10), (12.0, 20), (84.1, 100)])
def test_slots_are_those_of_printed_tables_at_one_percent(streams: float, slots: int) -> None:
    assert slots_for(streams - 0.1, 0.01) == slots  # a table rounds the streams that so many slots carry
    assert slots_for(streams + 0.1, 0.01) == slots + 1


@pytest.mark.parametrize("refused", [0.0, -1.0, float("nan")])
def test_no_number_of_slots_refuses_nobody(refused: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        slots_for(2.0, refused)


@given(streams=st.floats(0, 3000), slots=st.integers(1, 500))
def test_replicas_have_just_enough_slots(streams: float, slots: int) -> None:
    count = replicas_for_streams(streams, slots)
    assert count * slots >= slots_for(streams)
    assert count == 1 or (count - 1) * slots < slots_for(streams)


def test_requests_take_a_share_of_the_highest_throughput() -> None:
    table = sizing_of(report(measured(1), measured(4)))  # 200 s of audio a second at most
    assert [row["count"] for row in table.rows] == [1 + SPARE, 1 + SPARE, 8 + SPARE, 72 + SPARE]
    assert table.rows[0]["basis"] == f"140.0 hours an hour, {UTILISATION:.0%} of its highest throughput"


def test_streams_count_as_far_as_they_were_in_time() -> None:
    table = sizing_of(report(streams(50), streams(200, in_time=0.9)))
    assert [row["load"] for row in table.rows] == [f"{load:,} streams" for load in LOADS]
    assert [row["count"] for row in table.rows] == [replicas_for_streams(load, 50) + SPARE for load in LOADS]


def test_nothing_clean_gives_no_table() -> None:
    assert not sizing_of(report(failed(4), measured(8, stable=False))).rows
