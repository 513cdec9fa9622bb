"""Transcripts as people write them."""

import importlib.util
from dataclasses import replace

import pytest

from tritone.errors import InputError, MissingDependencyError
from tritone.texts import TextOptions, tidy
from tritone.transcript import Alternative, Segment, Span, Transcript

BOTH = TextOptions(numbers=True, punctuate=True)


def spoken(text: str, *, pause_s: float = 0.1, pauses: dict[str, float] | None = None) -> Transcript:
    """A transcript whose words take 0.2 s; `pauses`: after which words there are others."""
    words, at = [], 0.0
    for word in text.split():
        words.append(Span(word, at, at + 0.2, 0.8))
        at += 0.2 + (pauses or {}).get(word, pause_s)
    return Transcript(text, tokens=tuple(words), words=tuple(words), audio_s=at)


def test_numbers_keep_times_confidence_and_tokens() -> None:
    before = spoken("it costs five dollars and twenty cents")
    after = tidy(before, BOTH)
    assert after.text == "It costs $5.20."
    assert [word.text for word in after.words] == ["It", "costs", "$5.20."]
    price = after.words[2]
    assert (price.start_s, price.end_s) == (before.words[2].start_s, before.words[6].end_s)
    assert price.confidence == pytest.approx(0.8)
    assert after.tokens == before.tokens


def test_pauses_end_sentences_and_questions_are_told_by_their_words() -> None:
    before = spoken("is it five thirty p m yes it is well i'm here but late", pauses={"m": 1.0, "is": 0.1, "here": 0.3})
    before = replace(before, words=tuple(moved(before.words, "well", 1.0)))
    after = tidy(before, BOTH)
    assert after.text == "Is it 5:30 p.m. Yes it is. Well I'm here, but late."
    assert tidy(spoken("how many are there"), BOTH).text == "How many are there?"
    assert tidy(spoken("how nice"), BOTH).text == "How nice."
    assert tidy(replace(spoken("how many are"), is_final=False), BOTH).text == "How many are"


def moved(words: tuple[Span, ...], word: str, by_s: float) -> list[Span]:
    first = [each.text for each in words].index(word)
    late = [replace(each, start_s=each.start_s + by_s, end_s=each.end_s + by_s) for each in words[first:]]
    return [*words[:first], *late]


def test_speakers_are_never_joined() -> None:
    words = tuple(replace(w, speaker="ab"[i // 2]) for i, w in enumerate(spoken("one two three four").words))
    after = tidy(Transcript("one two three four", words=words), BOTH)
    assert [(word.text, word.speaker) for word in after.words] == [("12.", "a"), ("34.", "b")]


def test_profane_words_are_masked_or_removed_with_their_tokens() -> None:
    before = spoken("well shit happens Sugar")
    masked = tidy(before, TextOptions(profanity="mask", profane_words="sugar", punctuate=True))
    assert masked.text == "well s*** happens S****"  # text with capitals gets no punctuation
    assert masked.tokens == ()
    removed = tidy(before, TextOptions(profanity="remove"))
    assert removed.text == "well happens Sugar"
    assert [word.text for word in removed.words] == ["well", "happens", "Sugar"]
    assert tidy(spoken("nothing here"), TextOptions(profanity="mask")).tokens


def test_parts_and_readings_are_written_too() -> None:
    before = Transcript(
        "five p m",
        alternatives=(Alternative("five p m", -1.0), Alternative("nine p m", -2.0)),
        ended=(spoken("call nine nine nine"),),
        history="call nine nine nine",
        segments=(Segment("five p m", 0, 1),),
    )
    after = tidy(before, BOTH)
    assert [after.text, after.ended[0].text, after.history] == ["5 p.m.", "Call 999.", "Call 999."]
    assert [each.text for each in after.alternatives] == ["5 p.m.", "9 p.m."]
    assert after.segments[0].text == "5 p.m."
    assert after.words == ()


def test_what_is_written_or_not_english_stays() -> None:
    for text in ("It is five, thirty.", "今天 五 点", "", "..."):
        assert tidy(Transcript(text), BOTH).text == text
    german = Transcript("es ist five", language="de")
    assert tidy(german, BOTH).text == "es ist five"
    assert tidy(Transcript("IT IS FIVE P M"), BOTH).text == "It is 5 p.m."
    before = spoken("stay")
    assert tidy(before, TextOptions()) is before


def test_names_are_written_as_given() -> None:
    options = TextOptions(punctuate=True, capitals="McDonald's, IBM")
    assert tidy(spoken("i like mcdonald's and ibm"), options).text == "I like McDonald's and IBM."


def test_options_of_requests() -> None:
    options = TextOptions().changed({"numbers": "true", "profanity": "mask", "capitals": "Anna"})
    assert options == TextOptions(numbers=True, profanity="mask", capitals="Anna")
    for wrong in (
        {"numbers": "perhaps"},
        {"profanity": "shout"},
        {"capitals": 3},
        {"nothing": 1},
        {"number_rules": "nemo"},
    ):
        with pytest.raises(InputError):
            TextOptions().changed(wrong)
    with pytest.raises(InputError, match="1000 words"):
        TextOptions(capitals="a," * 1001)


@pytest.mark.skipif(importlib.util.find_spec("nemo_text_processing") is not None, reason="it is installed")
def test_a_missing_package_is_an_error_that_names_the_extra() -> None:
    with pytest.raises(MissingDependencyError, match=r"\[texts\]"):
        tidy(spoken("five"), TextOptions(numbers=True, number_rules="nemo"))
