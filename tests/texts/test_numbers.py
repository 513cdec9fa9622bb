"""Spoken numbers, dates, times and spelled words in written form."""

from itertools import pairwise

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
    "ten pounds": "10 pounds",  # of sugar, or of money
    "he weighs ninety pounds": "he weighs 90 pounds",
    "ten pounds and fifty pence": "£10.50",
    "fifty cents": "50 cents",  # of a dollar, a euro or a half tone
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
    # addresses
    "john dot smith at example dot com": "john.smith@example.com",
    "write to mary dot ann dot lee at example dot org please": "write to mary.ann.lee@example.org please",
    "my email is john underscore smith at example dot co dot uk": "my email is john_smith@example.co.uk",
    "j dot smith ninety nine at mail dot example dot com": "j.smith99@mail.example.com",
    "reach me at john dash smith at example dash shop dot com": "reach me at john-smith@example-shop.com",
    "my email address is anna at example dot com": "my email address is anna@example.com",
    "write to user one two three at example dot com": "write to user123@example.com",
    "r two d two at example dot com": "r2d2@example.com",
    "find it at w w w dot example dot com at noon": "find it at www.example.com at noon",
    "h t t p s colon slash slash www dot example dot com slash a dot html": "https://www.example.com/a.html",
    "meet us at example dot com": "meet us at example.com",
    "visit example dot com twenty times": "visit example.com 20 times",
    "visit example dot com slash news please": "visit example.com/news please",
    # decades
    "the nineteen eighties": "the 1980s",
    "music of the mid nineteen nineties": "music of the mid 1990s",
    "the twenty twenties": "the 2020s",
    "the eighteen hundreds": "the 1800s",
    "the nineteenth and twentieth centuries": "the 19th and 20th centuries",
    "nineteen hundred and eighty four": "1984",
    # fractions and articles
    "a hundred and twenty": "120",
    "a million dollars": "$1 million",
    "twenty to thirty percent": "20 to 30%",
    "a third of two thousand": "a third of 2000",
    "a twentieth century novel": "a 20th century novel",
    "ten minus five": "10 minus five",
    "twenty point lead": "20 point lead",
    # seconds, firsts
    "twenty seconds": "20 seconds",
    "the twenty second of march": "22 March",
    "twenty first birthday": "21st birthday",
    # clocks
    "at eight o clock": "at 8 o'clock",
    "the ten oclock news": "the 10 o'clock news",
    "eight o'clock p m": "8 o'clock p.m.",
    "eight o five p m": "8:05 p.m.",
    "nineteen o five": "1905",
    "flight one o one": "flight 101",
    # doubled digits and letters
    "double oh seven": "007",
    "double o seven": "007",
    "double seven five": "775",
    "triple five": "555",
    "oh seven double nine one two three": "0799123",
    "eight double oh five five five one two one two": "800-555-1212",
    "p i double t s b u r g h": "PITTSBURGH",
}

STAYS = [
    # addresses whose beginning or end nobody can tell
    "write to john smith at example dot com",
    "we are hiring at example dot com",
    "table for two at example dot com",
    "my email is hosted at example dot com",
    "go to my shop dot com",
    "info at example one dot com",
    "visit example dot com slash page two",
    "visit example dot com slash about us",
    "example dot com colon eight thousand eighty",
    "user twelve at example dot museum",
    "the dot com bubble",
    "a dot com company",
    "version twelve dot four",
    # decades
    "nineteen eighties music",
    "in the eighties",
    "the two thousands",
    "the nineteen eighties and nineties",
    "the nineteen eighty's",
    "ten twenties",
    "twenty fives",
    # fractions and articles
    "half a million people",
    "half a thousand",
    "half a million dollars",
    "a quarter of a million dollars",
    "one and a half million",
    "twenty two and a half percent",
    "a hundred and a half",
    "a million and a half dollars",
    "three quarters of an hour",
    "twelve and three quarters",
    "twenty two thirds",
    "six and a tenth",
    "a tenth of a second",
    "twelve hundredths",
    "ten millionth",
    "point five percent",
    "a million",
    "a hundred thanks",
    "several hundred and twenty five",
    "twenty-one hundred",
    "one hundred twenty-five",
    "20 thousand five hundred",
    "two or three hundred people",
    "ten to fifteen thousand dollars",
    "two fifty dollars",
    "nineteen seventy five percent",
    "a dollar fifty",
    "twenty dollars and a half",
    "five hundred euros and fifty",
    # pounds, seconds, firsts
    "five pounds of sugar",
    "it costs ten pounds fifty",
    "two million pounds and fifty pence",
    "a twenty second delay",
    "forty second street",
    "twenty first graders",
    "two hundred first class seats",
    # clocks
    "fourteen o clock",
    "eight thirty o'clock",
    "half past twenty",
    "twenty past five",
    "two oh no",
    "type o negative",
    # doubled digits
    "double five",
    "double twenty",
    "double eight hundred",
    "one double two singles",
    "a double espresso",
    "quadruple five",
    "the double",
]


@pytest.mark.parametrize("spoken", WRITTEN)
def test_written_form(spoken: str) -> None:
    assert " ".join(each.text for each in written_numbers(spoken.split())) == WRITTEN[spoken]


@pytest.mark.parametrize("spoken", STAYS)
def test_what_is_understood_in_part_stays_words(spoken: str) -> None:
    assert " ".join(each.text for each in written_numbers(spoken.split())) == spoken


KNOWN = [*DIGITS, *TEENS, *TENS, *SCALES, *ORDINALS, *MONTHS, *LETTERS, *numbers.TENTHS]
KNOWN += row(
    "hundred and point minus dollars cents percent per cent am of the half quarter past to o'clock o dot com at"
)
KNOWN += row("double triple half quarters thirds eighties hundreds thousands pounds or slash second twenty-one x")


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.sampled_from(KNOWN), max_size=12))
def test_every_spoken_word_is_in_one_written_word(spoken: list[str]) -> None:
    made = written_numbers(spoken)
    assert [index for each in made for index in range(each.first, each.end)] == list(range(len(spoken)))
    assert all(each.text for each in made)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.sampled_from(KNOWN), max_size=10))
def test_what_is_written_stays_so_and_has_no_part_of_a_number_beside_it(spoken: list[str]) -> None:
    made = [each.text for each in written_numbers(spoken)]
    again = [each.text for each in written_numbers(" ".join(made).lower().split())]
    assert " ".join(again).lower() == " ".join(made).lower()
    parts = {*TEENS, *TENS, *SCALES, *row("hundred half quarters thirds eighties hundreds thousands double twenty-one")}
    for one, two in pairwise(made):
        for digits, word in ((one, two), (two, one)):
            assert not (digits[:1].isdigit() and word in parts), made


NUMBERED = st.integers(0, 9999)
AROUND = st.sampled_from(row("x the people dogs it was never again"))


@settings(max_examples=examples(300), deadline=None)
@given(AROUND, NUMBERED, st.sampled_from(["", "dollars", "percent", "decimal", "and"]), AROUND)
def test_numbers_are_read_back_and_words_around_them_stay(before: str, value: int, form: str, after: str) -> None:
    words, wanted = in_words(value), f"{value}"
    if form == "dollars":
        words, wanted = f"{words} dollars", f"${wanted}"
    elif form == "percent":
        words, wanted = f"{words} percent", f"{wanted}%"
    elif form == "decimal":
        words, wanted = f"{words} point zero five", f"{wanted}.05"
    elif form == "and" and value > 100 and value % 100:
        words = f"{in_words(value - value % 100)} and {in_words(value % 100)}"
    made = " ".join(each.text for each in written_numbers(f"{before} {words} {after}".split()))
    is_lone = form in ("", "and") and value < 10 and "x" not in (before, after)
    assert made.lower() == f"{before} {words if is_lone else wanted} {after}"


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 9)), min_size=1, max_size=8))
def test_doubled_digits_are_read_back(said: list[tuple[int, int]]) -> None:
    digits = "".join(str(digit) * times for times, digit in said)
    words = [word for times, digit in said for word in (*row(["", "double", "triple"][times - 1]), in_words(digit))]
    made = " ".join(each.text for each in written_numbers(words)).replace("-", "")
    is_short = len(digits) < 4 and (len(said) == 1 or words[0] not in ("double", "triple"))
    assert made == (" ".join(words) if made.isalpha() or " " in made else digits)
    assert is_short or len(digits) < 2 or made == digits


NAMES = st.lists(st.sampled_from(row("anna lee smith j mail office x7")), min_size=1, max_size=3)


@settings(max_examples=examples(200), deadline=None)
@given(
    st.sampled_from(["", "to ", "email ", "my friend ", "we met "]),
    NAMES,
    st.sampled_from([("dot", "."), ("underscore", "_"), ("dash", "-")]),
    st.sampled_from(["example dot com", "mail dot example dot org", "example dot museum"]),
    st.sampled_from(["", " please", " dot", " and ten"]),
)
def test_an_address_is_written_whole_or_stays_words(
    before: str, names: list[str], sign: tuple[str, str], host: str, after: str
) -> None:
    spoken = f"{before}{f' {sign[0]} '.join(names)} at {host}"
    made = " ".join(each.text for each in written_numbers(f"{spoken}{after}".split()))
    whole = f"{before}{sign[1].join(names)}@{host.replace(' dot ', '.')}"
    ending = after.replace("ten", "10")
    assert made in (f"{whole}{ending}", f"{spoken}{ending}", f"{spoken}{after}")
    if len(names) > 1 and "museum" not in host and before in ("", "to ", "email ") and after != " dot":
        assert made == f"{whole}{ending}"


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
