"""RTTM: lines as NIST has them, and errors that name the line."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from tritone.errors import InputError
from tritone.formats.rttm import Turn, read_rttm, write_rttm


def test_a_turn_is_a_line_of_ten_fields() -> None:
    assert write_rttm([Turn("meeting", 12.34, 14.84, "alice")]) == (
        "SPEAKER meeting 1 12.340 2.500 <NA> <NA> alice <NA> <NA>\n"
    )


def test_a_speaker_who_is_unknown_is_written_and_read_as_such() -> None:
    text = write_rttm([Turn("a", 0.0, 1.0)])
    assert text == "SPEAKER a 1 0.000 1.000 <NA> <NA> <NA> <NA> <NA>\n"
    assert read_rttm(text) == [Turn("a", 0.0, 1.0)]


def test_other_lines_of_the_format_are_left_out() -> None:
    text = (
        ";; made by hand\n"
        "SPKR-INFO a 1 <NA> <NA> <NA> adult_female alice <NA>\n\n"
        "SPEAKER a 1 0.5 1.25 <NA> <NA> alice <NA>\r\n"
        "LEXEME a 1 0.5 0.2 hello lex alice <NA>\n"
    )
    assert read_rttm("\ufeff" + text) == [Turn("a", 0.5, 1.75, "alice")]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("SPEAKER a 1 zero 1 <NA> <NA> alice <NA> <NA>", "the start must be seconds from 0 to 10000000, got 'zero'"),
        ("SPEAKER a 1 0 -1 <NA> <NA> alice <NA> <NA>", "the duration must be seconds from 0 to 10000000, got '-1'"),
        ("SPEAKER a 1 0 nan <NA> <NA> alice <NA> <NA>", "got 'nan'"),
        ("SPEAKER a 1 0 1", "expected 'SPEAKER recording channel start duration"),
        ("SPEAKER a 1 0 1 <NA> <NA> alice van der berg", "expected 'SPEAKER recording"),
        ("0.0\t1.0\tspeech", "got '0.0 1.0 speech'"),
    ],
)
def test_a_line_that_is_wrong_is_named(line: str, complaint: str) -> None:
    with pytest.raises(InputError) as caught:
        read_rttm("SPEAKER a 1 0 1 <NA> <NA> bob <NA> <NA>\n" + line, source="ref.rttm")
    assert complaint in str(caught.value)
    assert str(caught.value).startswith("ref.rttm:2: ")


@pytest.mark.parametrize("turn", [Turn("two words", 0, 1, "a"), Turn("a", 0, 1, "b c"), Turn("", 0, 1, "a")])
def test_names_that_the_format_cannot_hold_are_refused(turn: Turn) -> None:
    with pytest.raises(InputError, match="cannot be written as RTTM"):
        write_rttm([turn])


NAMES = st.text(st.characters(exclude_categories=["Z", "C"]), min_size=1, max_size=8).filter(str.isprintable)
MILLISECONDS = st.integers(0, 10**7)


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(st.tuples(NAMES, MILLISECONDS, MILLISECONDS, NAMES | st.just("")), max_size=5))
def test_what_was_written_is_read_back(rows: list[tuple[str, int, int, str]]) -> None:
    turns = [Turn(name, start / 1000, (start + length) / 1000, speaker) for name, start, length, speaker in rows]
    back = read_rttm(write_rttm(turns))
    assert [(each.recording, each.speaker) for each in back] == [(each.recording, each.speaker) for each in turns]
    assert [(each.start_s, each.end_s) for each in back] == [
        (pytest.approx(each.start_s, abs=1e-6), pytest.approx(each.end_s, abs=1e-6)) for each in turns
    ]
