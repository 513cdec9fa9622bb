"""A transcript as people write it: its text and its words, with their times."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby, pairwise

from tritone.texts import chinese, grammar, nemo, numbers
from tritone.texts.options import TextOptions, listed
from tritone.texts.profanity import is_profane, masked
from tritone.texts.punctuation import CAPITALS, capitalized, punctuated
from tritone.texts.written import Written, places
from tritone.transcript import IDEOGRAPH, Alternative, Segment, Span, Transcript, mean_confidence


def tidy(transcript: Transcript, options: TextOptions) -> Transcript:
    """Write the text and the words of a transcript as options ask for, and those of its parts and other readings.

    A written word that stands for several spoken ones ("5:30 p.m.") has the time from the first to the last of them,
    the mean of their confidences and their speaker. Tokens stay, unless a profane word was masked or removed: they
    would spell it. Texts that have capitals or punctuation already, as Whisper's have, are left as they are but for
    `capitals` and profanity, and so are those of languages without rules. `history` has no times, so that its
    sentences are not divided.

    Raises:
        MissingDependencyError: `number_rules` is "nemo", and its package is not installed.
    """
    if options.changes_nothing:
        return transcript
    language = _language(transcript.language or options.text_language or "en")
    text, words, hidden = _written(transcript.text, transcript.words, options, language, transcript.is_final)
    return replace(
        transcript,
        text=text,
        words=words,
        tokens=() if hidden else transcript.tokens,
        alternatives=tuple(
            _alternative(each, options, language, transcript.is_final) for each in transcript.alternatives
        ),
        ended=tuple(tidy(each, options) for each in transcript.ended),
        history=_written(transcript.history, (), options, language, True)[0],
        segments=tuple(_segment(each, options, language) for each in transcript.segments),
        settled=transcript.settled if text == transcript.text else None,
    )


def _alternative(reading: Alternative, options: TextOptions, language: str, is_final: bool) -> Alternative:
    text, words, hidden = _written(reading.text, reading.words, options, language, is_final)
    return replace(reading, text=text, words=words, tokens=() if hidden else reading.tokens)


def _segment(part: Segment, options: TextOptions, language: str) -> Segment:
    text, _, hidden = _written(part.text, (), options, _language(part.language) or language, True)
    return replace(part, text=text, tokens=() if hidden else part.tokens)


def _written(
    text: str, words: tuple[Span, ...], options: TextOptions, language: str, is_final: bool
) -> tuple[str, tuple[Span, ...], bool]:
    """The written text, its words, and whether a word was masked or removed."""
    timed = bool(words)
    spans = words if timed else tuple(Span(each, 0.0, 0.0, None) for each in text.split())
    if not spans or re.search(IDEOGRAPH, text):  # no spaces: its words are not those of lists
        is_chinese = options.numbers and options.number_rules == "own" and language == "zh"
        return (*_chinese(text, words), False) if is_chinese else (text, words, False)
    shown = list(_without_profanity(spans, options))
    hidden = [each.text for each in shown] != [each.text for each in spans]
    names = {each.lower(): each for each in listed(options.capitals)}
    punctuate = options.punctuate and language == "en"
    numbers_too = options.numbers and (language == "en" or language in grammar.STYLES)
    if _is_unwritten(text) and (numbers_too or punctuate):
        if text.isupper():  # as models of LibriSpeech write
            shown = [replace(each, text=each.text.lower()) for each in shown]
        if numbers_too:
            shown = list(_with_numbers(shown, options, language))
        if punctuate:
            shown = punctuated(capitalized(shown, CAPITALS | names), timed=timed, is_final=is_final)
    shown = capitalized(shown, names)
    return " ".join(each.text for each in shown), tuple(shown) if timed else (), hidden


def _is_unwritten(text: str) -> bool:
    """Whether a text has one case and no punctuation, as most recognisers write."""
    return text.islower() or (text.isupper() and not text.endswith((".", "?", "!")))


def _language(code: str) -> str:
    """A code of two letters of what a model reports, such as de-DE."""
    return code.partition("-")[0].lower()


def _with_numbers(words: Sequence[Span], options: TextOptions, language: str) -> Iterator[Span]:
    """Words with numbers written; those of different speakers are never one."""
    for _, group in groupby(words, key=lambda word: word.speaker):
        spoken = list(group)
        for each in _rules([word.text for word in spoken], options, language):
            yield _joined(each, spoken[each.first : each.end])


def _rules(words: Sequence[str], options: TextOptions, language: str) -> list[Written]:
    if options.number_rules == "nemo":
        return nemo.written_numbers(words, language)
    return numbers.written_numbers(words) if language == "en" else grammar.written_numbers(words, language)


def _chinese(text: str, words: tuple[Span, ...]) -> tuple[str, tuple[Span, ...]]:
    """A text without spaces and its words, with numbers; one word has all that is written of any of its characters."""
    spots = places(text, words)
    if spots is None:
        return text, words
    # Numbers are found among the words of one speaker.
    starts = [
        0,
        *(
            place
            for (place, _), (one, two) in zip(spots[1:], pairwise(words), strict=True)
            if one.speaker != two.speaker
        ),
    ]
    pieces = zip(starts, [*starts[1:], len(text)], strict=True)
    found = [
        (start + first, start + end, written)
        for start, stop in pieces
        for first, end, written in chinese.replacements(text[start:stop])
    ]
    shown: list[Span] = []
    index = first = 0
    while first < len(words):
        (begin, stop), last, within = spots[first], first + 1, index
        while index < len(found) and found[index][0] < stop:
            while last < len(words) and spots[last][0] < found[index][1]:
                stop, last = spots[last][1], last + 1
            index += 1
        shown.append(
            _joined(Written(_replaced(text, begin, stop, found[within:index]), first, last), words[first:last])
        )
        first = last
    return _replaced(text, 0, len(text), found), tuple(shown)


def _replaced(text: str, begin: int, stop: int, found: Sequence[tuple[int, int, str]]) -> str:
    """A part of a text with what was written in it."""
    made = ""
    for first, end, written in found:
        made, begin = made + text[begin:first] + written, end
    return made + text[begin:stop]


def _joined(written: Written, spoken: Sequence[Span]) -> Span:
    first, last = spoken[0], spoken[-1]
    return Span(written.text, first.start_s, last.end_s, mean_confidence(spoken), first.speaker)


def _without_profanity(words: Sequence[Span], options: TextOptions) -> Iterator[Span]:
    more = frozenset(each.casefold() for each in listed(options.profane_words))
    for word in words:
        if options.profanity == "keep" or not is_profane(word.text, more):
            yield word
        elif options.profanity == "mask":
            yield replace(word, text=masked(word.text))
