"""A row of written words and the spoken ones that each stands for."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from tritone.transcript import Span


@dataclass(frozen=True, slots=True)
class Written:
    """A written word, in place of the spoken words from index `first` up to but not including `end`."""

    text: str
    first: int
    end: int


def row(words: str) -> list[str]:
    """The words of a text that has nothing else."""
    return words.split()


def matched(spoken: Sequence[str], text: str) -> list[Written]:
    """Find which spoken words each word of a text stands for that was made of them by rules that do not record it.

    Words that both have in common, in order, stand for each other. What lies between is one written word, whatever
    the number of its parts, since nothing says which part is which. Written words without a spoken one join the word
    before them.
    """
    words = text.split()
    made: list[Written] = []
    blocks = SequenceMatcher(None, spoken, words, autojunk=False).get_opcodes()
    for sort, first, end, begin, stop in blocks:
        if sort == "equal":
            made += _alone(words[begin:stop], first)
        elif sort == "delete":  # a spoken word that nothing stands for keeps its time with a neighbour
            _widen(made, end)
        elif sort == "insert" and made:
            made[-1] = Written(" ".join([made[-1].text, *words[begin:stop]]), made[-1].first, made[-1].end)
        elif stop - begin == end - first:
            made += _alone(words[begin:stop], first)
        else:
            made.append(Written(" ".join(words[begin:stop]), min(first, len(spoken)), end))
    return made


def _alone(words: Sequence[str], first: int) -> Iterator[Written]:
    return (Written(word, index, index + 1) for index, word in enumerate(words, start=first))


def _widen(made: list[Written], end: int) -> None:
    if made:
        made[-1] = Written(made[-1].text, made[-1].first, end)


def places(text: str, words: Sequence[Span]) -> list[tuple[int, int]] | None:
    """Where each word is in a text; None if it is not that of the words."""
    found, at = [], 0
    for word in words:
        begin = text.find(word.text, at)
        if begin < 0 or text[at:begin].strip():
            return None
        at = begin + len(word.text)
        found.append((begin, at))
    return None if words and text[at:].strip() else found
