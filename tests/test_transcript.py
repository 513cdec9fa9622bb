"""Times and confidences of transcripts: segments at words, and nothing that nobody measured."""

import pytest

from tritone.transcript import Segment, Span, Transcript, at_words, continued, mean_confidence, within


def words(*texts: str, sure: float | None = 0.5) -> tuple[Span, ...]:
    """Words of half a second each, the first at 1 s."""
    return tuple(Span(text, 1 + place, 1.5 + place, sure) for place, text in enumerate(texts))


def test_segments_begin_and_end_at_their_words() -> None:
    segments = (Segment("Well, I", 0.0, 2.0), Segment("am  here.", 2.0, 30.0))
    found = at_words(segments, words("Well,", "I", "am", "here."))
    assert [(each.start_s, each.end_s) for each in found] == [(1.0, 2.5), (3.0, 4.5)]
    assert [each.text for each in found] == ["Well, I", "am  here."]


def test_a_word_in_two_segments_is_of_the_first_and_a_mark_alone_is_in_the_word_before_it() -> None:
    segments = (Segment("one twen", 0.0, 2.0), Segment("ty three", 2.0, 3.0), Segment("...", 3.0, 4.0))
    found = at_words(segments, words("one", "twenty", "three"))
    assert [(each.start_s, each.end_s) for each in found] == [(1.0, 2.5), (3.0, 3.5), (3.0, 3.5)]


@pytest.mark.parametrize("other", [(), ("one",), ("one", "two", "three", "four")])
def test_segments_of_other_words_stay(other: tuple[str, ...]) -> None:
    segments = (Segment("one two", 0.0, 2.0), Segment("three", 2.0, 3.0))
    assert at_words(segments, words(*other)) == segments
    assert at_words((), words(*other)) == ()


def test_scripts_without_spaces_have_their_words_in_segments_too() -> None:
    segments = (Segment("你好。", 0.0, 2.0), Segment("再见", 2.0, 9.0))
    found = at_words(segments, words("你", "好。", "再", "见"))
    assert [(each.start_s, each.end_s) for each in found] == [(1.0, 2.5), (3.0, 4.5)]


def test_times_after_the_end_are_the_end() -> None:
    spans = (Span("a", 0.0, 1.0, 0.5), Span("b", 0.9, 2.0, 0.5), Span("c", 3.0, 4.0, 0.5))
    assert [(each.start_s, each.end_s) for each in within(spans, 1.5)] == [(0.0, 1.0), (0.9, 1.5), (1.5, 1.5)]
    assert within(spans, 4.0) is spans


def test_a_confidence_that_nobody_measured_is_none_and_travels_so() -> None:
    assert mean_confidence(()) is None
    assert mean_confidence((*words("a"), *words("b", sure=None))) is None
    assert mean_confidence((*words("a"), *words("b", sure=1.0))) == 0.75
    found = Transcript("a", words=words("a", sure=None), segments=(Segment("a", 1.0, 1.5),))
    sent = found.to_dict()
    assert (sent["confidence"], sent["words"][0]["confidence"], sent["segments"][0]["avg_log_prob"]) == (None,) * 3
    assert Transcript.from_dict(sent) == found
    assert continued(found, found).confidence is None
