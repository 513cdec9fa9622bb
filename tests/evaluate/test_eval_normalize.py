"""What counts as the same text, in several scripts."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tritone.evaluate.normalize import Normalization, Normalizer

NORMALIZATIONS = st.builds(
    Normalization,
    case=st.sampled_from(["lower", "upper", "keep"]),
    punctuation=st.sampled_from(["remove", "keep"]),
    units=st.sampled_from(["auto", "words", "characters", "mixed"]),
    unicode=st.sampled_from(["nfkc", "keep"]),
    tags=st.sampled_from(["keep", "remove"]),
    spelling=st.sampled_from(["keep", "english"]),
    count_spaces=st.booleans(),
)
AWKWARD = st.text(
    st.one_of(st.characters(), st.sampled_from("aB9 $£&+'’´`.,-%<>|/ßİΣς\u0301\u200d\ufe0f你カﾞが한ั👍½①ŉ＜ｕ＞"))
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        # English
        ("Don't panic, it's over!", ["don't", "panic", "it's", "over"]),
        ("“Rock ’n’ roll” — dogs’ o’clock", ["rock", "n", "roll", "dogs", "o'clock"]),
        ("a well-known and/or e-mail", ["a", "well", "known", "and", "or", "e", "mail"]),
        ("U.S. troops...Then", ["u", "s", "troops", "then"]),
        # digits and signs that are read aloud
        ("3.14 of 1,000, no. 5.", ["3.14", "of", "1,000", "no", "5"]),
        ("5% of $20 & C++", ["5", "%", "of", "$", "20", "&", "c", "+", "+"]),
        ("x² ① ﬁne", ["x2", "1", "fine"]),
        # German
        ("Größe, „Straße“ – ÄRGER", ["größe", "straße", "ärger"]),
        ("A\u0308rger", ["ärger"]),
        # French
        ("L’été, c´est l`été", ["l'été", "c'est", "l'été"]),
        # Mandarin, mixed
        ("我用 GPU 训练。2022年！", ["我", "用", "gpu", "训", "练", "2022", "年"]),
        ("他说：‘你好’，ＯＫ？", ["他", "说", "你", "好", "ok"]),
        # Japanese
        (
            "東京タワーへ、ｶﾞﾝﾊﾞﾚ〜",
            ["東", "京", "タ", "ワ", "ー", "へ", "ガ", "ン", "バ", "レ"],
        ),
        # Korean, Thai, Hindi, Arabic
        ("안녕하세요, 세계!", ["안녕하세요", "세계"]),
        ("สวัสดี ok", ["ส", "วั", "ส", "ดี", "ok"]),
        ("हिन्दी में।", ["हिन्दी", "में"]),
        ("مرحبا، بالعالم", ["مرحبا", "بالعالم"]),
        # emoji, invisible characters, nothing
        ("ok 👍🏽👩‍💻 1️⃣ ❤️", ["ok", "1"]),
        ("\ufeffso\u00adft\u200b \u2028ly", ["soft", "ly"]),
        ("?! … -", []),
        ("", []),
        # tags
        ("<UNK> so<noise>so <|0.00|> </s>", ["<unk>", "so", "<noise>", "so", "<|0.00|>", "</s>"]),
        ("1 < 2 > 0", ["1", "2", "0"]),
    ],
)
def test_the_defaults_make_these_units(text: str, words: list[str]) -> None:
    assert Normalizer().words(text) == words


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (Normalization(units="words"), ["我用gpu训练", "안녕", "ok"]),
        (Normalization(units="auto"), ["我", "用", "gpu", "训", "练", "안녕", "ok"]),
        (Normalization(units="mixed"), ["我", "用", "gpu", "训", "练", "안", "녕", "ok"]),
        (Normalization(units="characters"), [*"我用gpu训练안녕ok"]),
        (Normalization(case="upper"), ["我", "用", "GPU", "训", "练", "안녕", "OK"]),
        (Normalization(case="keep", punctuation="keep"), ["我", "用", "Gpu", "训", "练", "，", "안녕", "Ok!"]),
    ],
)
def test_every_switch_does_what_it_says(how: Normalization, words: list[str]) -> None:
    found = Normalizer(how).words("我用Gpu训练， 안녕 Ok!")
    assert [word.replace(",", "，") for word in found] == words  # NFKC makes an ASCII comma of it


def test_unicode_can_be_left_alone() -> None:
    assert Normalizer(Normalization(unicode="keep")).words("ＯＫ ﬁ") == ["ｏｋ", "ﬁ"]


def test_tags_can_be_removed() -> None:
    assert Normalizer(Normalization(tags="remove")).words("a<unk>b <noise>") == ["a", "b"]
    assert Normalizer(Normalization(punctuation="keep")).words("<unk>, a") == ["<unk>", ",", "a"]


def test_characters_have_no_spaces_unless_they_are_asked_for() -> None:
    assert Normalizer().characters("Hi,  我 <unk>") == ["h", "i", "我", "<unk>"]
    spaces = Normalizer(Normalization(count_spaces=True))
    assert spaces.characters(" Hi,  我 <unk>") == ["h", "i", " ", "我", " ", "<unk>"]


@example(Normalization(), ".\u0301'a")
@example(Normalization(), "a\u200d\u0301")
@example(Normalization(punctuation="keep", tags="remove"), "<<a>unk>")
@given(NORMALIZATIONS, AWKWARD)
def test_normalising_twice_changes_nothing_more(how: Normalization, text: str) -> None:
    normalizer = Normalizer(how)
    once = normalizer.text(text)
    assert normalizer.text(once) == once
    assert normalizer.words(once) == normalizer.words(text)
    assert normalizer.characters(once) == normalizer.characters(text)


@given(NORMALIZATIONS, AWKWARD)
def test_units_are_never_empty_and_hold_the_whole_text(how: Normalization, text: str) -> None:
    normalizer = Normalizer(how)
    whole = normalizer.text(text).replace(" ", "")
    assert all(normalizer.words(text))
    assert "".join(normalizer.words(text)) == whole
    assert "".join(normalizer.characters(text)).replace(" ", "") == whole


@given(st.text("abcXYZ0189 你好世界我用训练"))
def test_mandarin_and_latin_are_split_as_compute_wer_splits_them(text: str) -> None:
    # WeNet's tools/compute-wer.py --char=1: upper case, a Han character is a unit, a run of Latin is a word
    normalizer = Normalizer(Normalization(case="upper", units="mixed"))
    assert normalizer.words(text) == re.findall(r"[\u4e00-\u9fff]|[A-Z0-9]+", text.upper())


def test_a_normalization_tells_what_it_does() -> None:
    assert Normalization().summary() == "lower case, punctuation removed, NFKC, units: auto"
    other = Normalization(
        case="keep",
        punctuation="keep",
        units="mixed",
        unicode="keep",
        tags="remove",
        spelling="english",
        count_spaces=True,
    )
    assert other.summary() == (
        "case kept, punctuation kept, Unicode as it is, units: mixed, spelled out in English, tags removed, "
        "spaces counted as characters"
    )


def test_an_unknown_choice_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="case must be one of lower, upper, keep, got 'title'"):
        Normalization(case="title")  # type: ignore[arg-type]
