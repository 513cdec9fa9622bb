"""Times of tokens and words: each lasts until the next one starts, or a little longer than the search found it."""

import copy
import pickle
import re
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritone.bundle import manifest
from tritone.bundle.vocabulary import Vocabulary
from tritone.pipelines.searching.readings import MAX_LINGER_S, Reading, ReadingBuilder, transcript, whole_reading
from tritone.pipelines.searching.search import News, Search
from tritone.pipelines.searching.segment import Segment
from tritone.search.hypothesis import Hypothesis, Token, TokenRow
from tritone.search.options import SearchOptions
from tritone.transcript import Alternative, Span, Transcript

FRAME_S = 0.04
LINGER = round(MAX_LINGER_S / FRAME_S)  # frames
TOKENS = ("<blank>", "▁one", "▁two", "ty")
ONE, TWO, TY = 1, 2, 3
VOCABULARY = Vocabulary(TOKENS, manifest.Vocabulary(size=len(TOKENS), units="bpe", blank_id=0, unk_id=None))


def token(id: int, start: int, end: int | None = None) -> Token:
    return Token(id, start, start + 1 if end is None else end, 0.5)


def frames(spans: tuple[Span, ...]) -> list[tuple[str, int, int]]:
    return [(each.text, round(each.start_s / FRAME_S), round(each.end_s / FRAME_S)) for each in spans]


def written(*tokens: Token, until_frame: float = float("inf")) -> Reading:
    builder = ReadingBuilder(VOCABULARY, FRAME_S)
    builder.add(tokens)
    return builder.reading(until_frame=until_frame)


def test_a_token_lasts_until_the_next_one_starts_and_a_word_as_long_as_its_last_token():
    reading = written(token(ONE, 0), token(TWO, 6), token(TY, 9), token(ONE, 12, 15))
    assert frames(reading.tokens)[:3] == [("▁one", 0, 6), ("▁two", 6, 9), ("ty", 9, 12)]
    assert frames(reading.words)[:2] == [("one", 0, 6), ("twoty", 6, 12)]


def test_a_pause_belongs_to_no_word():
    reading = written(token(ONE, 0, 2), token(TWO, 100))
    assert frames(reading.words) == [("one", 0, 2 + LINGER), ("two", 100, 101 + LINGER)]


def test_tokens_of_one_frame_last_a_frame_each():
    assert frames(written(token(TWO, 4), token(TY, 4)).tokens)[0] == ("▁two", 4, 5)


def test_the_last_token_ends_with_what_was_heard():
    assert frames(written(token(ONE, 0), until_frame=3).words) == [("one", 0, 3)]
    assert frames(written(token(ONE, 0)).within(5 * FRAME_S).words) == [("one", 0, 5)]


@pytest.mark.parametrize("cut", range(1, 6))
def test_times_do_not_depend_on_when_tokens_were_added(cut: int):
    tokens = [token(ONE, 0), token(TWO, 6), token(TY, 8), token(ONE, 30), token(TWO, 33), token(TY, 34)]
    builder = ReadingBuilder(VOCABULARY, FRAME_S)
    builder.add(tokens[:cut])
    assert builder.reading(tokens[cut:]) == written(*tokens)
    assert builder.reading() == written(*tokens[:cut])  # what came after was not kept
    # The last token goes on sounding across the border of two steps.
    longer = tokens[cut - 1]._replace(end_frame=tokens[cut - 1].end_frame + 1)
    builder.add([longer, *tokens[cut:]], replaces_last=True)
    assert builder.reading() == written(*tokens[: cut - 1], longer, *tokens[cut:])
    assert builder.num_tokens == len(tokens)


def nearly(reading: Reading, expected: Reading) -> bool:
    """Whether they are equal but for the last bits of means: `sum` of Python 3.12 compensates for rounding."""
    given = [[made.confidence, *(word.confidence for word in made.words)] for made in (reading, expected)]
    means = [[each or 0.0 for each in values] for values in given]
    exact = [
        replace(made, confidence=0, words=tuple(replace(word, confidence=0) for word in made.words))
        for made in (reading, expected)
    ]
    measured = [[each is not None for each in values] for values in given]
    return exact[0] == exact[1] and measured[0] == measured[1] and means[0] == pytest.approx(means[1], rel=1e-12)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20), st.integers(1, 9), st.floats(0, 1)), max_size=12),
    st.booleans(),
)
def test_a_whole_reading_is_that_of_a_builder(steps: list[tuple[int, int, int, float]], times: bool):
    tokens, frame = [], 0
    for id, pause, length, confidence in steps:
        tokens.append(Token(id, frame + pause, frame + pause + length, confidence))
        frame += pause + length
    expected = ReadingBuilder(VOCABULARY, FRAME_S, times=times).reading(tokens)
    assert nearly(whole_reading(VOCABULARY, tokens, FRAME_S, times=times), expected)
    if tokens:
        row = TokenRow(*(np.array(column) for column in zip(*tokens, strict=True)))
        assert nearly(whole_reading(VOCABULARY, row, FRAME_S, times=times), expected)


MARKED = (*TOKENS, "<de-DE>", "▁<fr-FR>", "<|noise|>")
GERMAN, FRENCH, NOISE = 4, 5, 6


def marked(*, has_marks: bool = True) -> Vocabulary:
    settings = manifest.Vocabulary(size=len(MARKED), units="bpe", blank_id=0, unk_id=None, has_marks=has_marks)
    return Vocabulary(MARKED, settings)


def test_a_tag_names_the_language_of_what_stands_before_it_and_is_no_text():
    tokens = [token(ONE, 0), token(GERMAN, 4), token(TWO, 10), token(TY, 12), token(GERMAN, 14)]
    tokens += [token(NOISE, 18), token(FRENCH, 19), token(ONE, 20), token(FRENCH, 25), token(TWO, 40)]
    reading = whole_reading(marked(), tokens, FRAME_S)
    assert reading.text == "one twoty one two"
    assert [word.text for word in reading.words] == ["one", "twoty", "one", "two"]
    assert [(part.text, part.language) for part in reading.parts] == [("one twoty", "de-DE"), ("one two", "fr-FR")]
    assert [(round(part.start_s / FRAME_S), round(part.end_s / FRAME_S)) for part in reading.parts] == [
        (0, 20),
        (20, 41 + LINGER),
    ]
    builder = ReadingBuilder(marked(), FRAME_S)
    builder.add(tokens[:3])
    assert nearly(builder.reading(tokens[3:]), reading)
    assert [(part.text, part.language) for part in builder.reading().parts] == [("one two", "de-DE")]
    assert whole_reading(marked(), [token(ONE, 0), token(NOISE, 2)], FRAME_S).parts == ()
    assert whole_reading(marked(), [token(GERMAN, 2)], FRAME_S).parts == ()
    plain = whole_reading(marked(has_marks=False), tokens[:2], FRAME_S)
    assert (plain.text, plain.parts) == ("one<de-DE>", ())


def test_a_transcript_has_the_language_of_most_of_it_and_parts_where_there_are_several():
    def written(tokens: list[Token], language: str = "") -> Transcript:
        return transcript(
            [Hypothesis(tokens, 0.0)],
            lambda each: whole_reading(marked(), each.tokens, FRAME_S),
            SearchOptions(),
            audio_s=60 * FRAME_S,
            language=language,
        )

    german = [token(ONE, 0), token(TWO, 30), token(GERMAN, 31)]
    both = [*german, token(ONE, 55), token(FRENCH, 59)]
    assert (written(german).language, written(german, "en").language, written(german).segments) == ("de-DE",) * 2 + (
        (),
    )
    assert written(german[:2], "en").language == "en"
    assert written(both).language == "de-DE"
    assert [(each.text, each.language) for each in written(both).segments] == [("one two", "de-DE"), ("one", "fr-FR")]
    assert written(both).segments[-1].end_s == 60 * FRAME_S


class Script(Search):
    """A search whose news and hypotheses are written down."""

    def __init__(self, hypotheses: list[Hypothesis]) -> None:
        super().__init__(SearchOptions())
        self._hypotheses = hypotheses

    @classmethod
    def advance_all(cls, searches: Any, outputs: Any, rows: Any) -> None: ...

    def news(self) -> News:
        return News()

    def hypotheses(self) -> list[Hypothesis]:
        return self._hypotheses


def test_a_segment_puts_news_at_their_place_and_forgets_the_tail_before():
    search = Script([Hypothesis([token(ONE, 0, 3), token(TWO, 5)], 0.0)])
    segment = Segment(search, ReadingBuilder(VOCABULARY, FRAME_S), first_frame=10)
    assert (segment.has_text, segment.trailing_frames) == (False, 0)
    segment.take(News([token(ONE, 0)], tail=[token(ONE, 2), token(TY, 3)]), 4)
    assert (segment.partial().text, segment.trailing_frames) == ("one onety", 0)
    segment.take(News([token(ONE, 0, 3)], replaces_last=True), 4)
    assert (segment.partial().text, segment.has_text, segment.trailing_frames) == ("one", True, 5)
    assert frames(segment.partial().words) == [("one", 10, 18)]
    (hypothesis,) = search.hypotheses()
    assert frames(segment.reading(hypothesis).words) == [("one", 10, 15), ("two", 15, 16 + LINGER)]
    segment.is_followed = True  # by a segment that begins at frame 18
    assert frames(segment.reading(hypothesis).words) == [("one", 10, 15), ("two", 15, 18)]


def test_a_deferred_transcript_is_the_whole_one_made_when_it_is_read():
    span = Span("a", 0.0, 1.0, 0.5)
    reading = {"text": "a", "tokens": (span,), "words": (span,), "confidence": 0.5}
    whole = Transcript(**reading, audio_s=2.0, alternatives=(Alternative(score=-1.0, **reading),))
    made: list[int] = []

    def details() -> Transcript:
        made.append(1)
        return whole

    def deferred() -> Transcript:
        return Transcript.deferred("a", details, audio_s=2.0)

    text = deferred()
    assert (text.text, text.whole_text, text.audio_s, text.is_final, text.ended, made) == ("a", "a", 2.0, True, (), [])
    assert (text.words, text.confidence, made) == ((span,), 0.5, [1])
    assert deferred() == whole == deferred()
    assert hash(deferred()) == hash(whole)
    assert deferred().to_dict() == whole.to_dict()
    assert repr(deferred()) == repr(whole)
    assert replace(deferred(), segment=1) == replace(whole, segment=1)
    assert pickle.loads(pickle.dumps(deferred())) == copy.copy(deferred()) == whole
    assert pickle.loads(pickle.dumps(whole)) == whole
    with pytest.raises(AttributeError, match="'Transcript' object has no attribute 'wrods'"):
        _ = deferred().wrods
    with pytest.raises(FrozenInstanceError):
        deferred().confidence = 1.0  # type: ignore[misc]  # that is what is tried


def test_the_document_has_a_row_for_each_field_of_details():
    span = Span("a", 0.0, 1.0, 0.5)
    reading = {"text": "a", "tokens": (span,), "words": (span,), "confidence": 0.5}
    ended = Transcript(**reading)
    of_languages = {"language": "en", "languages": (("en", 0.9),), "tags": (("emotion", "HAPPY"),)}
    details = Transcript(
        **reading, alternatives=(Alternative(score=-1.0, **reading),), ended=(ended,), settled=1, **of_languages
    ).to_dict()
    parts = {
        "a transcript": details,
        "a token or word": details["words"][0],
        "an alternative": details["alternatives"][0],
    }
    types = {str: "text", float: "number", int: "whole number", bool: "true, false", list: "list", dict: "object"}
    kinds = {(of, name): types[type(value)] for of, part in parts.items() for name, value in part.items()}
    wanted = {(of, name, f"{kind} or null" if name == "confidence" else kind) for (of, name), kind in kinds.items()}
    page = (Path(__file__).resolve().parents[2] / "docs" / "serving" / "client.md").read_text(encoding="utf-8")
    section = page[page.index("### Details") :]
    rows = re.findall(r"^\| ([^|]*) \| `(\w+)` \| ([^|]*) \|", section[: section.index("\n### ", 4)], re.MULTILINE)
    assert {(of.strip(), name, kind) for of, name, kind in rows} == wanted
    assert len(rows) == len(wanted)
