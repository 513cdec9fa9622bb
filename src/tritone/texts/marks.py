"""Punctuation by a network: texts in words, the words in passages that it looks at, its marks written behind them.

    text  ->  words  ->  a mark of each, found passage by passage  ->  text with marks and capitals

A passage is what the last one left behind the end of its last sentence, and the next `PASSAGE` words; so sentences are
seen whole, and long texts in bounded memory. Method: funasr/models/ct_transformer/model.py.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from tritone.texts.written import places
from tritone.transcript import Alternative, Span, Transcript

PASSAGE = 20  # words
LONGEST = 200  # of a sentence without an end, which is then cut at a comma
MOST = 1000  # of one without any mark, so that no text takes more than its length
ENDS, PAUSES = ("\u3002", "\uff1f"), ("\uff0c", "\u3001")  # of Chinese: . ? and , with the comma of lists
WIDE = {"\uff0c": ",", "\u3002": ".", "\uff1f": "?"}  # behind words of ASCII
MARKED = re.compile(r"[.?!\u3002\uff1f\uff01]\s*$")
PURE = re.compile(r"^[a-zA-Z']+$")

Choose = Callable[[Sequence[str]], Sequence[int]]
Cut = Callable[[str], Sequence[str]]


@dataclass(frozen=True)
class Marker:
    """Writes marks into texts.

    Args:
        marks: what labels stand for, "" for no mark; those of Chinese, in whose place words of ASCII have others.
        full_stop: the label of a sentence's end.
        choose: the label of each of some words.
        cut: divides Chinese into words, for a network that knows some of several characters; None: each is its own.
    """

    marks: Sequence[str]
    full_stop: int
    choose: Choose
    cut: Cut | None = None

    def text(self, text: str) -> str:
        """A text with marks. One that ends with a mark already stays as it is, as does an empty one."""
        return self._written(text, ())[0]

    def transcript(self, transcript: Transcript) -> Transcript:
        """A final transcript with marks in its text, its words, its other readings and its segments."""
        text, words = self._written(transcript.text, transcript.words)
        return replace(
            transcript,
            text=text,
            words=words,
            alternatives=tuple(map(self._alternative, transcript.alternatives)),
            ended=tuple(map(self.transcript, transcript.ended)),
            history=self.text(transcript.history),
            segments=tuple(replace(each, text=self.text(each.text)) for each in transcript.segments),
        )

    def _alternative(self, reading: Alternative) -> Alternative:
        text, words = self._written(reading.text, reading.words)
        return replace(reading, text=text, words=words)

    def _written(self, text: str, words: tuple[Span, ...]) -> tuple[str, tuple[Span, ...]]:
        """A text with marks, and its words with the marks behind them, unless they are not those of the text."""
        if not (pieces := self._pieces(text)):
            return text, words
        written = "".join(f"{' ' if piece.spaced else ''}{piece.text}{piece.mark}" for piece in pieces).strip()
        found = places(text, words)
        if not found:
            return written, words
        ends = {piece.end: piece.mark for piece in pieces}
        begins = {piece.begin: piece.text[:1] for piece in pieces}
        return written, tuple(
            replace(word, text=begins.get(begin, word.text[:1]) + word.text[1:] + ends.get(end, ""))
            for word, (begin, end) in zip(words, found, strict=True)
        )

    def _pieces(self, text: str) -> "list[_Piece]":
        if not text.strip() or MARKED.search(text):
            return []
        words = split_words(text, self.cut)
        labels, firsts = self._labels(words)
        found: list[_Piece] = []
        at = 0
        for index, (word, label) in enumerate(zip(words, labels, strict=True)):
            begin = text.index(word[0], at)
            at = end = _end(text, word, begin)
            is_ascii = word[0].isascii()
            starts = index == 0 or self.marks[labels[index - 1]] in ENDS
            if starts and is_ascii:
                word = word[0].upper() + word[1:]
            spaced = is_ascii and (index in firsts or words[index - 1][0].isascii())
            mark = self.marks[label]
            found.append(_Piece(word, WIDE.get(mark, mark) if is_ascii else mark, begin, end, spaced))
        last = found[-1]
        if last.mark not in (*ENDS, ".", "?"):
            wide = last.mark == PAUSES[1] or not (last.mark or last.text)[-1].isascii()
            found[-1] = replace(last, mark=ENDS[0] if wide else ".")
        return found

    def _labels(self, words: Sequence[str]) -> tuple[list[int], set[int]]:
        """The label of each word, and the indices of the words that passages were written from."""
        labels: list[int] = []
        firsts: set[int] = set()
        left = 0  # words at the end of the last passage whose sentence goes on
        for start in range(0, len(words), PASSAGE):
            passage = words[start - left : start + PASSAGE]
            found = list(self.choose(passage))
            firsts.add(start - left)
            if start + PASSAGE >= len(words):
                return labels + found, firsts
            end = self._sentence_end(found)
            labels += found[: end + 1]
            left = len(passage) - end - 1
        return labels, firsts

    def _sentence_end(self, labels: list[int]) -> int:
        """The last word of a passage behind which a sentence ends, but for its last one; -1 if there is none.

        Of one that is too long it is the last comma, whose label then is that of an end. One without any mark is given
        up at some length.
        """
        comma = -1
        for index in range(len(labels) - 2, 1, -1):
            if self.marks[labels[index]] in ENDS:
                return index
            if comma < 0 and self.marks[labels[index]] == PAUSES[0]:
                comma = index
        if len(labels) > LONGEST and comma >= 0:
            labels[comma] = self.full_stop
            return comma
        return len(labels) - 3 if len(labels) > MOST else -1


@dataclass(frozen=True)
class _Piece:
    """A word as it is written, the mark behind it, where it was in the text, and whether a space is before it."""

    text: str
    mark: str
    begin: int
    end: int
    spaced: bool


def split_words(text: str, cut: Cut | None = None) -> list[str]:
    """The words of a text: runs of ASCII, and of other scripts each character, or what `cut` makes of them."""
    if cut is None:
        return [word for part in text.split() for word in re.findall(r"[\x00-\x7f]+|[^\x00-\x7f]", part)]
    return list(_cut(text.split(), cut))


def _cut(parts: Sequence[str], cut: Cut) -> Iterator[str]:
    other: list[str] = []
    for part in (*parts, ""):
        if not part or PURE.match(part):
            if other:
                yield from cut("".join(other))
            other = []
            if part:
                yield part
        else:
            other.append(part)


def _end(text: str, word: str, begin: int) -> int:
    """Where a word ends that may have spaces of the text between its characters."""
    at = begin
    for sign in word:
        at = text.index(sign, at) + 1
    return at
