"""A transcript as people write it: its text and its words, with their times."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from tritone.texts import nemo, numbers
from tritone.texts.options import TextOptions, listed
from tritone.texts.profanity import is_profane, masked
from tritone.texts.punctuation import CAPITALS, capitalized, punctuated
from tritone.texts.written import Written
from tritone.transcript import IDEOGRAPH, Alternative, Segment, Span, Transcript


def tidy(transcript: Transcript, options: TextOptions) -> Transcript:
    """Write the text and the words of a transcript as options ask for, and those of its parts and other readings.

    A written word that stands for several spoken ones ("5:30 p.m.") has the time from the first to the last of them,
    the mean of their confidences and their speaker. Tokens stay, unless a profane word was masked or removed: they
    would spell it. Texts that have capitals or punctuation already, as Whisper's have, and other languages than
    English are left as they are but for `capitals` and profanity. `history` has no times, so that its sentences
    are not divided.

    Raises:
        MissingDependencyError: `number_rules` is "nemo", and its package is not installed.
    """
    if options.changes_nothing:
        return transcript
    english = transcript.language in ("", "en")
    text, words, hidden = _written(transcript.text, transcript.words, options, english, transcript.is_final)
    return replace(
        transcript,
        text=text,
        words=words,
        tokens=() if hidden else transcript.tokens,
        alternatives=tuple(
            _alternative(each, options, english, transcript.is_final) for each in transcript.alternatives
        ),
        ended=tuple(tidy(each, options) for each in transcript.ended),
        history=_written(transcript.history, (), options, english, True)[0],
        segments=tuple(_segment(each, options, english) for each in transcript.segments),
        settled=transcript.settled if text == transcript.text else None,
    )


def _alternative(reading: Alternative, options: TextOptions, english: bool, is_final: bool) -> Alternative:
    text, words, hidden = _written(reading.text, reading.words, options, english, is_final)
    return replace(reading, text=text, words=words, tokens=() if hidden else reading.tokens)


def _segment(part: Segment, options: TextOptions, english: bool) -> Segment:
    text, _, hidden = _written(part.text, (), options, english, True)
    return replace(part, text=text, tokens=() if hidden else part.tokens)


def _written(
    text: str, words: tuple[Span, ...], options: TextOptions, english: bool, is_final: bool
) -> tuple[str, tuple[Span, ...], bool]:
    """The written text, its words, and whether a word was masked or removed."""
    timed = bool(words)
    spans = words if timed else tuple(Span(each, 0.0, 0.0, 1.0) for each in text.split())
    if not spans or re.search(IDEOGRAPH, text):  # no spaces: its words are not those of English rules, nor of lists
        return text, words, False
    shown = list(_without_profanity(spans, options))
    hidden = [each.text for each in shown] != [each.text for each in spans]
    names = {each.lower(): each for each in listed(options.capitals)}
    if english and _is_unwritten(text) and (options.numbers or options.punctuate):
        if text.isupper():  # as models of LibriSpeech write
            shown = [replace(each, text=each.text.lower()) for each in shown]
        if options.numbers:
            shown = list(_with_numbers(shown, options))
        if options.punctuate:
            shown = punctuated(capitalized(shown, CAPITALS | names), timed=timed, is_final=is_final)
    shown = capitalized(shown, names)
    return " ".join(each.text for each in shown), tuple(shown) if timed else (), hidden


def _is_unwritten(text: str) -> bool:
    """Whether a text has one case and no punctuation, as most recognisers write."""
    return text.islower() or (text.isupper() and not text.endswith((".", "?", "!")))


def _with_numbers(words: Sequence[Span], options: TextOptions) -> Iterator[Span]:
    """Words with numbers written; those of different speakers are never one."""
    rules = nemo.written_numbers if options.number_rules == "nemo" else numbers.written_numbers
    for _, group in groupby(words, key=lambda word: word.speaker):
        spoken = list(group)
        for each in rules([word.text for word in spoken]):
            yield _joined(each, spoken[each.first : each.end])


def _joined(written: Written, spoken: Sequence[Span]) -> Span:
    first, last = spoken[0], spoken[-1]
    confidence = sum(each.confidence for each in spoken) / len(spoken)
    return Span(written.text, first.start_s, last.end_s, confidence, first.speaker)


def _without_profanity(words: Sequence[Span], options: TextOptions) -> Iterator[Span]:
    more = frozenset(each.casefold() for each in listed(options.profane_words))
    for word in words:
        if options.profanity == "keep" or not is_profane(word.text, more):
            yield word
        elif options.profanity == "mask":
            yield replace(word, text=masked(word.text))
