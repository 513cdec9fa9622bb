import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from load_reports import HOSTILE
from tritone.report.table import Cell, Column, Table, escape_markdown, visible

COLUMNS = [Column("id", "id"), Column("p95", "p95", 1, "ms"), Column("wer", "WER", 2, "%", scale=100)]


def printed(table: Table, width: int = 100) -> str:
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("value", "column", "shown"),
    [
        (None, Column("x", "x"), "-"),
        (float("nan"), Column("x", "x", 1), "-"),
        (float("inf"), Column("x", "x"), "∞"),
        (float("-inf"), Column("x", "x"), "-∞"),
        (True, Column("x", "x"), "yes"),
        (False, Column("x", "x"), "no"),
        (7, Column("x", "x"), "7"),
        (7, Column("x", "x", 2), "7.00"),
        (12.345, Column("x", "x", 1), "12.3"),
        (0.0431, Column("x", "x", 2, "%", scale=100), "4.31"),
        (0.0123456, Column("x", "x"), "0.01235"),
        (123456.7, Column("x", "x"), "123457"),
        (0.0, Column("x", "x"), "0"),
        (8.0, Column("x", "x"), "8"),
        (2.5, Column("x", "x"), "2.500"),
        (-1.5, Column("x", "x"), "-1.500"),
        ("text", Column("x", "x", 2), "text"),
    ],
)
def test_a_cell_is_shown_as_its_column_says(value: Cell, column: Column, shown: str) -> None:
    assert column.text(value) == shown


def test_markdown_has_units_alignment_and_a_note() -> None:
    table = Table("Results", COLUMNS, [{"id": "a", "p95": 1.25, "wer": 0.1}, {"id": "b"}], note="Note.")
    assert table.to_markdown() == (
        "### Results\n"
        "\n"
        "| id | p95 (ms) | WER (%) |\n"
        "| --- | ---: | ---: |\n"
        "| a | 1.2 | 10.00 |\n"
        "| b | - | - |\n"
        "\n"
        "Note.\n"
    )


def test_csv_holds_every_digit_and_no_scale() -> None:
    columns = [*COLUMNS, Column("ok", "ok")]
    table = Table("", columns, [{"id": 'a,"b"\nc', "p95": 1.23456789, "wer": 0.1, "ok": True}, {"id": "b"}])
    rows = list(csv.reader(io.StringIO(table.to_csv())))
    assert rows == [["id", "p95", "wer", "ok"], ['a,"b"\nc', "1.23456789", "0.1", "true"], ["b", "", "", ""]]


def test_a_hostile_text_stays_one_cell_in_markdown() -> None:
    lines = Table("", [Column("id", "id"), Column("n", "n")], [{"id": HOSTILE, "n": 1}]).to_markdown().splitlines()
    assert len(lines) == 3
    assert lines[2].replace(r"\|", "").count("|") == 3
    assert "<script>" not in lines[2]


def test_a_hostile_text_reaches_no_terminal_as_it_is() -> None:
    shown = printed(Table("[bold]title[/bold]", [Column("id", "id")], [{"id": HOSTILE + "[red]x[/red]"}]))
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "[bold]title[/bold]" in shown
    assert "[red]x[/red]" in shown


@given(st.text())
def test_what_is_made_visible_is_one_line_that_can_be_written(text: str) -> None:
    shown = visible(text + "\ud800\x9b")
    assert len(shown.splitlines()) <= 1
    assert shown.encode("utf-8")
    assert not set(shown) & {chr(code) for code in [*range(32), *range(127, 160)]}


@given(st.text(alphabet="ab|\\`*[]<>&~$_ "))
def test_escaped_markdown_has_no_bare_bar(text: str) -> None:
    escaped = escape_markdown(text)
    position = 0
    while position < len(escaped):  # as a parser reads it: a backslash takes the next character with it
        assert escaped[position] not in "|<>"
        position += 2 if escaped[position] == "\\" else 1


def test_numbers_are_right_and_texts_left_unless_the_column_says_otherwise() -> None:
    rows = [{"n": 1, "t": "x", "b": True, "e": None, "forced": "5"}]
    columns = [
        Column("n", "n"),
        Column("t", "t"),
        Column("b", "b"),
        Column("e", "e"),
        Column("forced", "f", align="right"),
    ]
    table = Table("", columns, rows)
    assert [table.is_right(column) for column in columns] == [True, False, False, False, True]


def test_a_small_terminal_loses_spare_columns_the_most_spare_first_and_no_digit() -> None:
    columns = [
        Column("name", "name"),
        Column("a", "first", 1, spare=1),
        Column("b", "second", 1, spare=2),
        Column("c", "third", 1),
    ]
    table = Table("", columns, [{"name": "a name", "a": 1111.1, "b": 2222.2, "c": 3333.3}])
    assert all(word in printed(table, 80) for word in ("1111.1", "2222.2", "3333.3"))
    smaller = printed(table, 30)
    assert "2222.2" not in smaller
    assert "1111.1" in smaller
    smallest = printed(table, 20)
    assert "1111.1" not in smallest
    assert "3333.3" in smallest


def test_columns_without_any_value_can_be_left_out() -> None:
    table = Table("", COLUMNS, [{"id": "a", "wer": 0.0}, {"id": "b"}]).without_empty()
    assert [column.key for column in table.columns] == ["id", "wer"]


def test_a_table_without_rows_is_shown_by_every_form() -> None:
    table = Table("Nothing", COLUMNS, [])
    assert table.to_csv() == "id,p95,wer\n"
    assert table.to_markdown().count("\n") == 4
    assert "Nothing" in printed(table)
