"""Joining transcripts: every word once, at its time in the recording."""

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from tritone.longform import Cutter, Cutting, Joiner, Piece
from tritone.transcript import Alternative, Segment, Span, Transcript

RATE = 100  # Hz
CUTTING = Cutting(piece_s=6.0, context_s=0.6, search_s=2.0)


def piece(
    index: int, start_s: float, end_s: float, keep_from_s: float | None = None, keep_to_s: float | None = None
) -> Piece:
    start, end = round(start_s * RATE), round(end_s * RATE)
    return Piece(
        index=index,
        start=start,
        keep_from=start if keep_from_s is None else round(keep_from_s * RATE),
        keep_to=end if keep_to_s is None else round(keep_to_s * RATE),
        samples=np.zeros(end - start, np.float32),
        sample_rate=RATE,
    )


def said(*words: tuple[str, float, float], confidence: float = 1.0) -> Transcript:
    spans = tuple(Span(text, start_s, end_s, confidence) for text, start_s, end_s in words)
    return Transcript(" ".join(each.text for each in spans), tokens=spans, words=spans, confidence=confidence)


def hear(part: Piece, spoken: list[Span], delay_s: float = 0.0) -> Transcript:
    """What a perfect model returns of a piece: the words whose middle it hears, times from its start."""
    end_s = part.start_s + part.duration_s
    found = [
        (each.text, each.start_s + delay_s - part.start_s, each.end_s + delay_s - part.start_s)
        for each in spoken
        if part.start_s <= (each.start_s + each.end_s) / 2 < end_s
    ]
    return said(*found)


@st.composite
def speech(draw: st.DrawFn) -> list[Span]:
    now, found = 0, []
    for index in range(draw(st.integers(0, 60))):
        start = now + draw(st.integers(0, 40))
        now = start + draw(st.integers(5, 60))
        # Words that come again soon are the hard ones.
        found.append(Span(draw(st.sampled_from(["one", "two", f"word{index}"])), start / RATE, now / RATE, 0.5))
    return found


@settings(max_examples=examples(60), deadline=None)
@given(speech(), st.randoms(use_true_random=False), st.booleans())
def test_words_of_overlapping_pieces_come_once_each_and_in_order(
    spoken: list[Span], random: Random, details: bool
) -> None:
    length = round((spoken[-1].end_s if spoken else 1.0) * RATE) + 1
    recording = np.random.default_rng(1).normal(size=length).astype(np.float32)
    cutter = Cutter(RATE, CUTTING)
    parts = cutter.push(recording) + cutter.finish()
    joiner = Joiner(details=details)
    order = list(parts)
    random.shuffle(order)
    finished = [each for part in order for each in joiner.add(part, hear(part, spoken))]
    whole = joiner.finish(length / RATE)
    assert whole.text == " ".join(each.text for each in spoken)
    assert whole.audio_s == length / RATE
    assert [each.text for each in whole.segments][: len(finished)] == [each.text for each in finished]
    if details:
        assert [each.text for each in whole.words] == [each.text for each in spoken]
        assert np.allclose([each.start_s for each in whole.words], [each.start_s for each in spoken])
        assert whole.tokens == whole.words
    else:
        assert whole.words == whole.tokens == ()


def test_a_word_that_two_pieces_time_differently_comes_once() -> None:
    joiner = Joiner()
    left, right = piece(0, 0, 6, None, 5), piece(1, 4, 10, 5, None)
    joiner.add(left, said(("a", 4.0, 4.3), ("b", 4.6, 4.9), ("c", 5.3, 5.5)))
    joiner.add(right, said(("b", 1.1, 1.3), ("c", 1.5, 1.7), ("d", 2.5, 2.7)))
    whole = joiner.finish(10.0)
    assert whole.text == "a b c d"
    assert [each.start_s for each in whole.words] == [4.0, 4.6, 5.3, 6.5]


def test_where_pieces_disagree_the_text_passes_over_between_words_near_the_cut() -> None:
    joiner = Joiner()
    left, right = piece(0, 0, 6, None, 5), piece(1, 4, 10, 5, None)
    joiner.add(left, said(("left", 4.5, 5.2), ("x", 5.6, 5.9)))
    joiner.add(right, said(("y", 0.1, 0.4), ("right", 1.25, 1.6)))
    assert joiner.finish().text == "left right"


def test_pieces_at_pauses_keep_their_texts_as_the_model_wrote_them() -> None:
    joiner = Joiner(details=False)
    (part,) = joiner.add(piece(0, 2, 5), Transcript("Hello ,  you"))
    assert (part.text, part.segment, part.audio_s) == ("Hello ,  you", 0, 5.0)
    assert joiner.add(piece(1, 7, 8), Transcript("")) == []
    joiner.add(piece(2, 9, 12), Transcript("there"))
    whole = joiner.finish(20.0)
    assert whole.text == "Hello ,  you there"
    assert whole.segments == (Segment("Hello ,  you", 2.0, 5.0), Segment("there", 9.0, 12.0))
    assert (whole.confidence, whole.audio_s) == (None, 20.0)


def test_the_confidence_of_parts_without_words_is_that_of_their_texts() -> None:
    joiner = Joiner()
    joiner.add(piece(0, 0, 5), Transcript("one two three", confidence=0.9))
    joiner.add(piece(1, 5, 8), Transcript("four", confidence=0.5))
    assert joiner.finish().confidence == pytest.approx((3 * 0.9 + 0.5) / 4)
    joiner = Joiner()
    joiner.add(piece(0, 0, 5), Transcript("one", confidence=0.9))
    joiner.add(piece(1, 5, 8), Transcript("two"))
    assert joiner.finish().confidence is None


def test_scripts_without_spaces_are_joined_without_them() -> None:
    joiner = Joiner()
    for index, text in enumerate(["甚至", "出现", "good", "交易"]):
        joiner.add(piece(index, 3 * index, 3 * index + 2), Transcript(text))
    assert joiner.finish().text == "甚至出现 good 交易"


def test_a_recording_has_the_tags_that_all_its_parts_have_alike() -> None:
    joiner = Joiner()
    moods = ("HAPPY", "HAPPY", "SAD")
    parts = [
        joiner.add(
            piece(index, 2 * index, 2 * index + 2), Transcript("one", tags=(("emotion", mood), ("event", "BGM")))
        )
        for index, mood in enumerate(moods)
    ]
    assert [dict(part.tags)["emotion"] for [part] in parts] == list(moods)
    assert joiner.finish().tags == (("event", "BGM"),)
    assert Joiner().finish().tags == ()


def test_segments_and_language_of_a_model_that_writes_them_are_kept() -> None:
    joiner = Joiner()
    for index in range(2):
        own = (Segment("one", 0.5, 1.0, avg_log_prob=-0.1), Segment("two", 1.0, 1.5))
        joiner.add(piece(index, 10 * index, 10 * index + 2), Transcript("one two", segments=own, language="en"))
    whole = joiner.finish()
    assert [(each.text, each.start_s) for each in whole.segments] == [
        ("one", 0.5),
        ("two", 1.0),
        ("one", 10.5),
        ("two", 11.0),
    ]
    assert (whole.segments[2].avg_log_prob, whole.language) == (-0.1, "en")


def test_other_readings_are_those_of_finished_parts() -> None:
    readings = (Alternative("one", -1.0, words=(Span("one", 0.0, 0.5, 1.0),)), Alternative("won", -2.0))
    joiner = Joiner()
    (part,) = joiner.add(piece(0, 3, 5), Transcript("one", alternatives=readings))
    assert part.alternatives[0].words[0].start_s == 3.0
    assert joiner.finish().alternatives == ()


def test_a_piece_that_was_never_added_is_noticed() -> None:
    joiner = Joiner()
    joiner.add(piece(1, 3, 5), Transcript("one"))
    with pytest.raises(ValueError, match="piece 0 was never added"):
        joiner.finish()


def test_nothing_at_all_is_an_empty_text() -> None:
    assert Joiner().finish(3.0) == Transcript("", audio_s=3.0)
