"""The words of a transcript with their times, and the phrases that they make.

    Transcript  ->  [Span, ...]  ->  [Phrase, ...], which end at pauses, at segments and where the speaker changes

What formats write is one line of printable text: spaces are single ones, and control characters are left out.
"""

import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise

from tritone.errors import InputError
from tritone.transcript import Segment, Span, Transcript, joined

PAUSE_S = 0.8  # between two words of which the later begins a new phrase
SLACK_S = 0.05  # by which times of words of one voice may overlap
NEAR = 16  # characters of a text that no word has, such as marks between two of them
UNPRINTABLE = frozenset({"Cc", "Cs"})  # Unicode categories: control characters, halves of surrogate pairs


@dataclass(frozen=True, slots=True)
class Word(Span):
    """A word. `spaced`: whether a space is before it; None: nobody knows, so that its script says it."""

    spaced: bool | None = None

    def follows(self, before: str) -> str:
        """The space between a text and this word, or ""."""
        if self.spaced is None:
            return " " if len(joined(before, self.text)) > len(before) + len(self.text) else ""
        return " " if self.spaced else ""


@dataclass(frozen=True, slots=True)
class Phrase:
    """Words that one speaker says without a pause; at least one.

    `timed`: whether each has a time of its own. Else they share that of the phrase by their lengths, for whoever lays
    out its text, and nobody else should be given these times.
    """

    words: tuple[Word, ...]
    timed: bool = True

    @property
    def text(self) -> str:
        return reduce(lambda text, word: text + word.follows(text) + word.text, self.words[1:], self.words[0].text)

    @property
    def start_s(self) -> float:
        return self.words[0].start_s

    @property
    def end_s(self) -> float:
        return max(word.end_s for word in self.words)

    @property
    def speaker(self) -> str:
        return self.words[0].speaker


def printable(text: str) -> str:
    """A text as one line: runs of white space are a space, control characters are left out."""
    if text.isascii() and text.isprintable() and "  " not in text:
        return text.strip()
    shown = (letter for letter in text if letter.isspace() or unicodedata.category(letter) not in UNPRINTABLE)
    return " ".join("".join(shown).split())


def words_of(transcript: Transcript) -> list[Word]:
    """The words of a transcript, each without spaces; the parts of one that has some ("5 p.m.") have its times.

    Where the text has them, it says where spaces are: words of Chinese or Thai may be parts of what has none.

    Raises:
        InputError: the transcript has text but no words.
    """
    if not transcript.words and transcript.text.strip():
        raise InputError(
            "the transcript has no times of words; ask the model for them (Whisper: word_times), or choose a format "
            "without"
        )
    text, at = printable(transcript.text), 0
    words: list[Word] = []
    for span in transcript.words:
        parts = _parted(span)
        if parts and (place := text.find(parts[0].text, at, at + len(span.text) + NEAR)) >= 0:
            parts[0] = replace(parts[0], spaced=None if text[at:place].strip() else place > at)
            at = place + len(parts[0].text)
            for part in parts[1:]:
                at = max(at, text.find(part.text, at, at + len(part.text) + NEAR) + len(part.text))
        words += parts
    return words


def phrases_of(transcript: Transcript, *, pause_s: float = PAUSE_S) -> list[Phrase]:
    """The phrases of a transcript, in the order of its words.

    Phrases of speakers who talk at once overlap: a word of another speaker ends a phrase where it stands alone. A
    transcript without words is divided into its segments, or else is one phrase over all of the audio; these are not
    `timed`.
    """
    if transcript.words:
        words, counts = words_of(transcript), [len(each.words) for each in transcript.ended]
        if not transcript.segments and sum(counts) == len(words):  # of a stream: every segment has its own words
            return [Phrase(tuple(each)) for part in transcript.ended for each in _runs(words_of(part), (), pause_s)]
        return [Phrase(tuple(each)) for each in _runs(words, transcript.segments, pause_s)]
    parts: Sequence[Segment] = transcript.segments or (Segment(transcript.text, 0.0, transcript.audio_s),)
    return [Phrase(tuple(_estimated(part)), timed=False) for part in parts if part.text.strip()]


def foreign(transcript: Transcript, phrase: Phrase) -> str:
    """The language of a phrase where it is another than that of the transcript; "" else, and where nobody knows."""
    parts: Sequence[tuple[float, str]] = [(each.end_s, each.language) for each in transcript.segments]
    parts = parts or [(each.audio_s, each.language) for each in transcript.ended]
    middle_s = (phrase.start_s + phrase.end_s) / 2
    at = bisect_right(parts, middle_s, key=lambda part: part[0])
    return parts[at][1] if at < len(parts) and parts[at][1] != transcript.language else ""


def _runs(words: Sequence[Word], segments: Sequence[Segment], pause_s: float) -> list[list[Word]]:
    ends = {word.speaker: _ends(segments, word.speaker) for word in words}
    found: list[list[Word]] = []
    open_runs: dict[str, list[Word]] = {}
    between: dict[str, list[Span]] = {}  # words of others since the last one of a speaker
    for word in words:
        run = open_runs.get(word.speaker)
        if run is None or _begins_again(run[-1], word, between[word.speaker], ends[word.speaker], pause_s):
            run = open_runs[word.speaker] = []
            found.append(run)
        run.append(word)
        between[word.speaker] = []
        for speaker, others in between.items():
            if speaker != word.speaker:
                others.append(word)
        for speaker in [each for each, last in open_runs.items() if word.start_s - last[-1].end_s >= pause_s]:
            del open_runs[speaker], between[speaker]
    return found


def _begins_again(before: Span, word: Span, between: Sequence[Span], ends: Sequence[float], pause_s: float) -> bool:
    in_segment, in_segment_before = (bisect_right(ends, (each.start_s + each.end_s) / 2) for each in (word, before))
    return (
        word.start_s - before.end_s >= pause_s
        or in_segment != in_segment_before
        or any(each.start_s >= before.end_s - SLACK_S and each.end_s <= word.start_s + SLACK_S for each in between)
    )


def _ends(segments: Sequence[Segment], speaker: str) -> list[float]:
    """Where segments end that a speaker's words may be in: where speakers overlap, the own ones."""
    overlap = any(
        before.speaker != after.speaker and after.start_s < before.end_s - SLACK_S
        for before, after in pairwise(segments)
    )
    return [each.end_s for each in segments if not overlap or each.speaker == speaker]


def _parted(span: Span) -> list[Word]:
    """A span as words without spaces, each with its times."""
    word = Word(span.text, span.start_s, span.end_s, span.confidence, span.speaker)
    return [
        replace(word, text=part, spaced=True if index else None)
        for index, part in enumerate(printable(span.text).split())
    ]


def _estimated(part: Segment) -> Iterator[Word]:
    """The words of a segment without times of them, for laying out its text."""
    whole = Word(part.text, part.start_s, part.end_s, None, part.speaker)
    for index, word in enumerate(divided(whole, printable(part.text).split())):
        yield replace(word, spaced=True) if index else word


def divided(span: Word, texts: Iterable[str]) -> Iterator[Word]:
    """Words of these texts, which share the time of one by their lengths."""
    pieces = list(texts)
    total, done = sum(map(len, pieces)), 0
    length_s = max(0.0, span.end_s - span.start_s)
    for text in pieces:
        start_s = span.start_s + length_s * done / total
        done += len(text)
        yield replace(span, text=text, start_s=start_s, end_s=span.start_s + length_s * done / total)
