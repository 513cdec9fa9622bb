"""Subtitles: the words of a transcript in cues that people can read.

    Transcript  ->  [Cue(start_ms, end_ms, lines, speaker), ...]   in order; only those of two speakers may overlap

A cue ends at a pause, at the end of a sentence or clause if there is one, and where it would be too long otherwise.
The limits are those that broadcasters and streaming services have in common (BBC "Subtitle Guidelines", Netflix "Timed
Text Style Guide"): two lines of 42 characters, 1 to 7 seconds, 20 characters a second.
"""

import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise

from tritone.formats.breaks import units
from tritone.formats.phrases import SLACK_S, Phrase, Word, divided, foreign, phrases_of, printable
from tritone.transcript import Transcript

SENTENCE_ENDS = (".", "!", "?", "…", "。", "！", "？", "．", "｡", "។", "။", "།")
CLAUSE_ENDS = (",", ";", ":", "，", "、", "；", "：", "､", "၊")
CLOSING = "\"'”’»)]}」』）】》〉〕"  # that may be behind them
SLACK_MS = round(1000 * SLACK_S)
PLAIN = 0.7  # cost of a break within a phrase
BALANCE = 1.0  # cost of a cue that is as long as it may be; by its square, so that cues are of like lengths
LEAST_PART = 4  # columns of a part of a word, so that hours without spaces take seconds
SHORT_WORD = 3  # letters; words so short mostly belong to the next one, as "the" and "of" do


@dataclass(frozen=True, kw_only=True)
class CueOptions:
    """Limits of cues. Wide characters, as of Chinese, count as two."""

    line_chars: int = 42
    lines: int = 2
    most_s: float = 7.0  # on screen
    least_s: float = 1.0  # as far as the next cue leaves room
    chars_per_s: float = 20.0  # reading speed, as far as the next cue leaves room
    gap_s: float = 0.08  # left before the next cue by one that stays longer than it is spoken; two frames

    def __post_init__(self) -> None:
        if self.line_chars < 2 or self.lines not in (1, 2):
            raise ValueError(f"cues have 1 or 2 lines of at least 2, got {self.lines} of {self.line_chars} characters")
        if not 0 < self.least_s <= self.most_s or not self.chars_per_s > 0:
            raise ValueError(f"cues need 0 < least_s <= most_s and chars_per_s > 0, got {self}")


@dataclass(frozen=True, slots=True)
class Cue:
    """A subtitle: when it is on screen, its lines, who speaks, and its language, if it is another ("": unknown)."""

    start_ms: int
    end_ms: int
    lines: tuple[str, ...]
    speaker: str = ""
    language: str = ""


def cues_of(transcript: Transcript, options: CueOptions | None = None, *, named: bool = False) -> list[Cue]:
    """The cues of a transcript.

    Args:
        named: whether the first cue of each speaker in turn begins with the name ("Anna: ...").
    """
    chosen = options or CueOptions()
    found: list[Cue] = []
    speaker = ""
    for phrase in phrases_of(transcript):
        language = foreign(transcript, phrase)
        if named and phrase.speaker and phrase.speaker != speaker:
            first = phrase.words[0]
            named_words = [replace(first, text=each) for each in f"{printable(phrase.speaker)}:".split()]
            name = [replace(each, end_s=first.start_s, spaced=True) for each in named_words]
            phrase = Phrase((*name, replace(first, spaced=True), *phrase.words[1:]))
        speaker = phrase.speaker
        found += (replace(cue, language=language) for cue in _cut(phrase, chosen))
    return list(_timed(_by_time(found), chosen, round(transcript.audio_s * 1000)))


def width(text: str) -> int:
    """How many columns a text takes: two for wide characters, none for marks that combine with another."""
    if text.isascii():
        return len(text)
    return sum(
        2 if unicodedata.east_asian_width(letter) in ("W", "F") else 0 if unicodedata.combining(letter) else 1
        for letter in text
    )


class _Row:
    """The words of a phrase, and how wide any stretch of them is."""

    def __init__(self, phrase: Phrase, most: int) -> None:
        pieces = [(word, index) for each in phrase.words for index, word in enumerate(_fitting(each, most))]
        self.words = [word for word, _ in pieces]
        self._is_rest = [index > 0 for _, index in pieces]  # of the word before
        # Whether a space is before each word, and where it begins and ends if all are written in one line.
        self._spaces = [0] + [len(after.follows(before.text)) for before, after in pairwise(self.words)]
        self._begins, self._ends = [0], [width(self.words[0].text)]
        for word, space in zip(self.words[1:], self._spaces[1:], strict=True):
            self._begins.append(self._ends[-1] + space)
            self._ends.append(self._begins[-1] + width(word.text))
        self.break_costs = [self._break_cost(index) for index in range(len(self.words) - 1)]
        """How bad it is to break after a word: 0 at the end of a sentence, 1 after a short word, 2 within one."""

    def width(self, start: int, end: int) -> int:
        return self._ends[end - 1] - self._begins[start]

    def text(self, start: int, end: int) -> str:
        return "".join(
            (" " if self._spaces[index] and index > start else "") + self.words[index].text
            for index in range(start, end)
        )

    def _break_cost(self, after: int) -> float:
        word, following = self.words[after], self.words[after + 1]
        if not self._spaces[after + 1] and len(units(word.text[-1] + following.text[0])) == 1:
            return 2.0
        ended = word.text.rstrip(CLOSING)
        if ended.endswith(SENTENCE_ENDS):
            return 0.0
        if ended.endswith(CLAUSE_ENDS):
            return 0.25
        if self._is_rest[after + 1]:
            return 1.0
        pause_s = min(0.5, max(0.0, following.start_s - word.end_s))
        short = 0.3 if self._spaces[after + 1] and len(word.text) <= SHORT_WORD else 0.0
        return PLAIN + short - pause_s

    def lines(self, start: int, end: int, options: CueOptions) -> tuple[int, float] | None:
        """Where a cue of these words is broken into two lines (`end`: nowhere), and the cost; None: it does not fit."""
        most = options.line_chars
        if self.width(start, end) <= most:
            return end, 0.0
        best: tuple[int, float] | None = None
        if options.lines < 2:
            return None
        earliest = max(start + 1, bisect_left(self._begins, self._ends[end - 1] - most, start, end))
        for cut in range(earliest, bisect_right(self._ends, self._begins[start] + most, start, end) + 1):
            uneven = abs(self.width(start, cut) - self.width(cut, end)) / most
            cost = 0.3 * (self.break_costs[cut - 1] - PLAIN + uneven)
            if best is None or cost < best[1]:
                best = cut, cost
        return best


def _fitting(word: Word, most: int) -> list[Word]:
    """A word in pieces between which a line may end: itself, unless it is long and of a script without spaces.

    What is wider than a line, such as an address, is cut into parts of like widths.
    """
    if 2 * width(word.text) <= most:
        return [word]
    pieces = [""]
    for unit in units(word.text):
        if width(pieces[-1]) >= LEAST_PART or pieces[-1].endswith((*SENTENCE_ENDS, *CLAUSE_ENDS)):
            pieces.append("")
        first, at, wide = len(pieces), 0, width(unit)
        for letter in unit:
            is_full = width(pieces[-1] + letter) > most or at * -(-wide // most) >= (len(pieces) - first + 1) * wide
            if is_full and width(letter):
                pieces.append("")
            pieces[-1] += letter
            at += width(letter)
    return [replace(piece, spaced=False) if index else piece for index, piece in enumerate(divided(word, pieces))]


def _cut(phrase: Phrase, options: CueOptions) -> list[Cue]:
    """The cues of a phrase, at the times of their words: the division of least cost over all possible ones."""
    row = _Row(phrase, options.line_chars)
    count, words = len(row.words), row.words
    costs = [0.0] + [float("inf")] * count  # of the best division of the first words
    most = options.lines * options.line_chars
    from_: list[tuple[int, int]] = [(0, 0)] * (count + 1)  # (where its last cue begins, where that is broken)
    for start in range(count):
        for end in range(start + 1, count + 1):
            broken = row.lines(start, end, options)
            seconds = words[end - 1].end_s - words[start].start_s
            if end - start > 1 and (broken is None or seconds > options.most_s):
                break
            at, cost = broken or (end, 0.0)
            cost += costs[start] + 1.0 + (row.break_costs[end - 1] if end < count else 0.0)
            cost += BALANCE * max(seconds / options.most_s, row.width(start, end) / most) ** 2
            if count > end - start and (seconds < options.least_s or end - start == 1):
                cost += 0.5  # a flash, or a word alone
            if cost < costs[end]:
                costs[end], from_[end] = cost, (start, at)
    found: list[Cue] = []
    end = count
    while end:
        start, at = from_[end]
        lines = (row.text(start, at), row.text(at, end)) if at < end else (row.text(start, end),)
        found.append(Cue(_ms(words[start].start_s), _ms(words[end - 1].end_s), lines, phrase.speaker))
        end = start
    return found[::-1]


def _by_time(cues: Sequence[Cue]) -> list[Cue]:
    """Cues by their starts; those of one speaker stay in their order."""
    latest: dict[str, int] = {}
    starts = [latest.setdefault(cue.speaker, 0) for cue in cues]
    for index, cue in enumerate(cues):
        starts[index] = latest[cue.speaker] = max(latest[cue.speaker], cue.start_ms)
    return [cues[index] for index in sorted(range(len(cues)), key=starts.__getitem__)]


def _timed(cues: Sequence[Cue], options: CueOptions, audio_ms: int) -> Iterator[Cue]:
    """The cues long enough to be read where there is room. They overlap where speakers talk at once, and only there."""
    most, least, gap = (round(1000 * each) for each in (options.most_s, options.least_s, options.gap_s))
    free: dict[str, int] = {}  # end of the cue before, by speaker
    for index, cue in enumerate(cues):
        start = max(cue.start_ms, free.get(cue.speaker, 0))
        spoken = min(max(cue.end_ms, start + 1), start + most)
        readable = start + max(least, round(1000 * sum(map(width, cue.lines)) / options.chars_per_s))
        behind = next(
            (
                each.start_ms
                for each in islice(cues, index + 1, None)
                if each.speaker == cue.speaker or each.start_ms >= spoken - SLACK_MS
            ),
            None,
        )
        following = max(audio_ms, spoken) if behind is None else behind - gap
        end = max(spoken, min(readable, start + most, following))
        if behind is not None:  # words may overlap a little
            end = max(start + 1, min(end, behind))
        free[cue.speaker] = end
        yield replace(cue, start_ms=start, end_ms=end)


def _ms(seconds: float) -> int:
    return max(0, round(1000 * seconds))
