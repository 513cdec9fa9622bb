"""Parts of a turn, which the recogniser's own rules ended, as one text."""

import pytest

from tritone.transcript import Span, Transcript, continued


def part(text: str, confidence: float, **more: object) -> Transcript:
    words = tuple(Span(word, 0.1 * index, 0.1 * index + 0.1, confidence) for index, word in enumerate(text.split()))
    return Transcript(text=text, words=words, confidence=confidence, **more)  # type: ignore[arg-type]


def test_two_parts_are_one_text_with_the_words_of_both_and_the_rest_of_the_second() -> None:
    found = continued(part("one two", 0.5, language="en"), part("three", 0.8, segment=1, is_final=False, settled=2))
    assert (found.text, found.segment, found.is_final, found.language) == ("one two three", 1, False, "en")
    assert [word.text for word in found.words] == ["one", "two", "three"]
    assert found.confidence == pytest.approx((0.5 + 0.5 + 0.8) / 3)
    assert found.settled == len("one two ") + 2


def test_nothing_before_or_after_changes_no_text() -> None:
    one = part("one", 0.5)
    assert continued(Transcript(""), one) is one
    assert continued(one, Transcript("", audio_s=3.0)).text == "one"
