"""Words and segments get the speakers of turns."""

import pytest

from tritone.diarization.words import with_speakers
from tritone.errors import InputError
from tritone.formats.rttm import Turn
from tritone.transcript import Segment, Span, Transcript

TURNS = [Turn("r", 1.0, 3.0, "anna"), Turn("r", 2.5, 4.0, "ben"), Turn("r", 8.0, 9.0, "anna"), Turn("r", 0, 20, "")]


def words(*spans: tuple[float, float]) -> tuple[Span, ...]:
    return tuple(Span("word", start_s, end_s, 0.5) for start_s, end_s in spans)


def labels(*spans: tuple[float, float]) -> list[str]:
    return [word.speaker for word in with_speakers(Transcript("", words=words(*spans)), TURNS).words]


def test_a_word_has_the_speaker_who_talks_longest_in_it() -> None:
    assert labels((1.0, 1.2), (2.4, 2.8), (2.6, 3.3), (3.9, 8.5)) == ["anna", "anna", "ben", "anna"]


def test_a_word_between_turns_is_of_the_nearest_one_up_to_a_second_away() -> None:
    assert labels((4.2, 4.4), (7.5, 7.9), (0.2, 0.4), (5.5, 6.0), (9.9, 10.5)) == ["ben", "anna", "anna", "", "anna"]


def test_text_without_words_cannot_have_speakers() -> None:
    with pytest.raises(InputError, match="no times of words"):
        with_speakers(Transcript("one two", segments=(Segment("one two", 3.1, 4.0),)), TURNS)
    assert with_speakers(Transcript(""), TURNS) == Transcript("")


def test_segments_and_ended_parts_are_labelled_and_all_else_stays() -> None:
    before = Transcript(
        "one two",
        tokens=words((1, 2)),
        words=words((1, 2)),
        segments=(Segment("two", 3.1, 4.0, avg_log_prob=-1),),
        ended=(Transcript("three", words=words((8, 9))),),
    )
    after = with_speakers(before, TURNS)
    assert (after.words[0].speaker, after.segments[0].speaker, after.ended[0].words[0].speaker) == (
        *("anna", "ben", "anna"),
    )
    assert with_speakers(after, []).words[0].speaker == ""
    assert (after.text, after.tokens, after.segments[0].avg_log_prob) == (before.text, before.tokens, -1)
