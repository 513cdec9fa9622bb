"""Numbers, signs and abbreviations in English words. What `inflect` says was written down by hand."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritone.evaluate.normalize import Normalization, Normalizer
from tritone.evaluate.spelling import MOST_DIGITS, number_words, ordinal_words, spell_out

SPELLED = Normalizer(Normalization(spelling="english"))
AWKWARD = st.text(st.sampled_from("mMrRdDsStTnh019$£%&+.,'é½５²ﬁ你İ\u0301 <|>"), max_size=12)


@pytest.mark.parametrize(
    ("digits", "words"),
    [
        ("0", "zero"),
        ("13", "thirteen"),
        ("40", "forty"),
        ("99", "ninety nine"),
        ("100", "one hundred"),
        ("1000", "one thousand"),
        # read as years
        ("1001", "ten oh one"),
        ("1100", "eleven hundred"),
        ("1905", "nineteen oh five"),
        ("1984", "nineteen eighty four"),
        ("2000", "two thousand"),
        ("2009", "two thousand nine"),
        ("2010", "twenty ten"),
        ("2999", "twenty nine ninety nine"),
        # and not
        ("3000", "three thousand"),
        ("12345", "twelve thousand three hundred forty five"),
        ("7000001", "seven million one"),
        ("1" + 15 * "0", "one quadrillion"),
        ("1" + MOST_DIGITS * "0", "one" + MOST_DIGITS * " zero"),
        ("007", "seven"),
    ],
)
def test_numbers_are_read_as_english_reads_them(digits: str, words: str) -> None:
    assert number_words(digits) == words


@pytest.mark.parametrize(
    ("digits", "words"),
    [
        ("1", "first"),
        ("2", "second"),
        ("3", "third"),
        ("4", "fourth"),
        ("8", "eighth"),
        ("9", "ninth"),
        ("12", "twelfth"),
        ("20", "twentieth"),
        ("21", "twenty first"),
        ("100", "one hundredth"),
        ("1905", "one thousand nine hundred fifth"),
    ],
)
def test_places_in_a_row_have_their_own_words(digits: str, words: str) -> None:
    assert ordinal_words(digits) == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Dr. Bell paid $250 on the 2ND.", "doctor bell paid two hundred fifty dollars on the second"),
        ("$1,250.50, $1, $0.05 or £20", "twelve fifty dollars fifty cents one dollar five cents or twenty pounds"),
        ("5% of AT&T, C++ at 3.14", "five percent of at and t c plus plus at three point fourteen"),
        ("1,234,567", "one million two hundred thirty four thousand five hundred sixty seven"),
        ("Café, naïve, ５ x²", "cafe naive five x two"),
        ("at 10:30, 1-2; R2D2", "at ten thirty one two r two d two"),
        ("St. Paul is first. Don't!", "saint paul is first don't"),
        ("<|0.00|> 7 <unk>", "<|0.00|> seven <unk>"),
        ("हिन्दी か\u3099 5", "हिन्दी が five"),
        ("$ and 1.2.3 $", "$ and one point two three $"),
    ],
)
def test_a_text_is_written_in_words(text: str, words: str) -> None:
    assert SPELLED.text(text) == words
    assert Normalizer(Normalization(spelling="english", case="upper")).text(text) == words.upper()


@given(AWKWARD)
def test_no_digit_is_left_and_plain_words_stay_as_they_are(text: str) -> None:
    assert not re.search("[0-9£%&+]", re.sub("£(?![0-9])", "", spell_out(text)))
    plain = re.sub("[^mMrRdDsStTnh ]", "", text)
    assert spell_out(plain) == plain


@pytest.mark.parametrize("text", ["$" + "9" * 5000, "$1." + "9" * 5000, "£" + "9" * 5000, "9" * 5000 + "th"])
def test_numbers_of_any_length_are_read(text: str) -> None:
    assert spell_out(text).count("nine") >= 4999


def test_long_rows_of_digits_take_no_quadratic_time() -> None:
    start = time.process_time()
    assert spell_out("1," * 60_000).split() == ["one"] * 60_000 + [","]
    assert time.process_time() - start < 10  # 0.2 s, or two minutes
