"""Spoken numbers, dates, times and spelled words in written form."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from tritone.texts import nemo, numbers
from tritone.texts.numbers import DIGITS, LETTERS, MONTHS, ORDINALS, SCALES, TEENS, TENS, written_numbers
from tritone.texts.written import matched, row

WRITTEN = {
    "march twentieth nineteen seventy": "March 20, 1970",
    "the fifth of may two thousand twelve": "5 May 2012",
    "september sixth": "September 6",
    "may five people come": "may five people come",  # no date
    "march ten miles": "march 10 miles",
    "june nineteen oh five": "June 1905",
    "p i t t s b u r g h": "PITTSBURGH",
    "c z d z w eight": "CZDZW 8",
    "i am a man": "i am a man",
    "z eight oh two": "Z 802",
    "r two d two": "R 2 D 2",
    "one five oh one five": "15015",
    "four one two four two two nine two eight two": "412-422-9282",
    "rubout d q t w x five hundred eighty seven": "rubout DQTWX 587",
    "six thousand eight hundred and eighty one": "6881",
    "sixty eight thousand eight hundred and ten": "68,810",
    "two million five hundred thousand": "2,500,000",
    "three point five million": "3.5 million",
    "minus three point one four": "-3.14",
    "one thousand two hundred thousand": "1000 200,000",  # two numbers
    "five hundred six six": "500 66",
    "five six hundred": "5 600",
    "a hundred and one": "101",
    "nineteen seventy": "1970",
    "nineteen hundred": "1900",
    "sixty seven ten": "67 10",
    "twelve twenty one fifty eight": "12 21 58",
    "five dollars and twenty cents": "$5.20",
    "two million dollars": "$2 million",
    "ten pounds": "£10",
    "fifty cents": "$0.50",
    "thirty pence": "£0.30",
    "twenty per cent": "20%",
    "at five thirty p m": "at 5:30 p.m.",
    "ten oh five am": "10:05 a.m.",
    "ten o'clock": "10 o'clock",
    "half past five": "5:30",
    "a quarter to one": "12:45",
    "twenty first century": "21st century",
    "the second of two": "the second of two",
    "i have two dogs and twelve cats": "i have two dogs and 12 cats",
    "three hundred thirty third": "333rd",
    "the three hundred and sixty fifth day": "the 365th day",
    "two thousand and first": "2001st",
    "three hundredth": "three hundredth",
    "nine dollars ninety nine": "nine dollars ninety nine",
    "two million dollars and fifty cents": "two million dollars and fifty cents",
    "thousand two hundred": "thousand two hundred",
    "twenty point twenty five": "twenty point twenty five",
    "oh no": "oh no",
    "enter five": "enter five",
    "anna at example dot com": "anna@example.com",
    "": "",
}


@pytest.mark.parametrize("spoken", WRITTEN)
def test_written_form(spoken: str) -> None:
    assert " ".join(each.text for each in written_numbers(spoken.split())) == WRITTEN[spoken]


KNOWN = [*DIGITS, *TEENS, *TENS, *SCALES, *ORDINALS, *MONTHS, *LETTERS, *numbers.TENTHS]
KNOWN += row("hundred and point minus dollars cents percent per cent am of the half quarter past to o'clock dot com at")


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.sampled_from(KNOWN), max_size=12))
def test_every_spoken_word_is_in_one_written_word(spoken: list[str]) -> None:
    made = written_numbers(spoken)
    assert [index for each in made for index in range(each.first, each.end)] == list(range(len(spoken)))
    assert all(each.text for each in made)


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(0, 10**15 - 1))
def test_whole_numbers_are_read_back(value: int) -> None:
    (made,) = written_numbers(["minus", *in_words(value).split()])
    sign, text = made.text[:1], made.text[1:]
    number, _, scale = text.replace(",", "").partition(" ")
    assert sign == "-"
    assert int(number) * SCALES.get(scale, 1) == value


def in_words(value: int) -> str:
    below_20 = {**{v: k for k, v in DIGITS.items() if k != "oh"}, **{v: k for k, v in TEENS.items()}}
    if value < 20:
        return below_20[value]
    if value < 100:
        tens = next(word for word, of in TENS.items() if of == value // 10 * 10)
        return tens if value % 10 == 0 else f"{tens} {below_20[value % 10]}"
    scale, name = next((v, k) for k, v in reversed([("hundred", 100), *SCALES.items()]) if v <= value)
    rest = value % scale
    return f"{in_words(value // scale)} {name}" + (f" {in_words(rest)}" if rest else "")


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.sampled_from(row("a b c d e")), max_size=8), st.lists(st.sampled_from(row("a b 1 2")), max_size=8))
def test_matched_words_cover_the_spoken_ones_in_order(spoken: list[str], written: list[str]) -> None:
    made = matched(spoken, " ".join(written))
    places = [(each.first, each.end) for each in made]
    assert places == sorted(places)
    assert all(0 <= first <= end <= len(spoken) for first, end in places)
    assert " ".join(each.text for each in made).split() == (written if made else [])


def test_rules_of_nemo() -> None:
    pytest.importorskip("nemo_text_processing", reason="nemo-text-processing is not installed")
    made = nemo.written_numbers(row("it is five thirty p m on twenty first street"))
    assert [(each.text, each.first, each.end) for each in made][:2] == [("it", 0, 1), ("is", 1, 2)]
    assert " ".join(each.text for each in made) == "it is 05:30 p.m. on 21st street"
