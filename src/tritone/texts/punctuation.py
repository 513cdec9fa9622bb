"""Capitals and punctuation of English by rules: pauses end sentences, first words mark questions.

There is no model behind it: a pause in the middle of a sentence ends it, and a sentence that goes on without one does
not end. Models that write punctuation themselves are better, and their texts stay as they are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tritone.texts.written import row
from tritone.transcript import Span

SENTENCE_PAUSE_S = 0.8
COMMA_PAUSE_S = 0.5
CLAUSE_PAUSE_S = 0.25  # before a word that begins a clause

CLAUSE_WORDS = frozenset(row("and but or so because which although though while whereas unless"))
OPENERS = frozenset(row("well yes no okay however please anyway thanks hello hi"))  # with a pause after them
AUXILIARIES = frozenset(
    row(
        "is are was were am do does did can could will would should shall may might must has have had isn't "
        "aren't wasn't weren't don't doesn't didn't can't couldn't won't wouldn't shouldn't hasn't haven't hadn't"
    )
)
ASKED = frozenset(row("i you he she it we they there this that these those the a an my your his her our their any"))
QUESTION_WORDS = frozenset(row("who what when where why how which whose whom"))
QUESTIONS = frozenset(row("what's who's where's how's when's why's"))
AMOUNTS = frozenset(row("many much long far often old big about come"))  # after "how"
CAPITALS = {
    word: word.capitalize()
    for word in row(
        "monday tuesday wednesday thursday friday saturday sunday january february april june july august september "
        "october november december english french german spanish italian chinese japanese american british european "
        "africa america asia europe england france germany spain italy china japan india london paris christmas easter"
    )
} | {"i": "I", "i'm": "I'm", "i'll": "I'll", "i'd": "I'd", "i've": "I've", "mr": "Mr.", "mrs": "Mrs.", "dr": "Dr."}
MARKS = (".", "?", "!", ",", ";", ":")


def punctuated(words: Sequence[Span], *, timed: bool, is_final: bool) -> list[Span]:
    """Write sentences.

    Args:
        words: with their times, where `timed`; numbers are written already.
        is_final: False leaves the last sentence open, since it goes on.
    """
    made: list[Span] = []
    first = 0
    for index, word in enumerate(words):
        last = index + 1 == len(words)
        ends = is_final if last else _ends_sentence(word, words[index + 1], timed)
        text = word.text
        if index == first and text[:1].islower() and not _is_written(text):
            text = text[0].upper() + text[1:]
        if ends:
            mark = "?" if _is_question([each.text for each in words[first : index + 1]]) else "."
            text += "" if text.endswith(MARKS) else mark
            first = index + 1
        elif not last and timed and _has_comma(words, index, first):
            text += ","
        made.append(replace(word, text=text))
    return made


def capitalized(words: Sequence[Span], names: Mapping[str, str]) -> list[Span]:
    """Write words as `names` (by the lower case) has them; marks behind them stay."""

    def written(text: str) -> str:
        bare = text.rstrip("".join(MARKS))
        return names.get(bare.lower(), bare) + text[len(bare) :]

    return [replace(word, text=written(word.text)) for word in words]


def _is_written(text: str) -> bool:
    """Whether a word has a form that its beginning a sentence does not change, such as an address."""
    return "@" in text or "." in text[:-1]


def _ends_sentence(word: Span, after: Span, timed: bool) -> bool:
    return word.speaker != after.speaker or (timed and after.start_s - word.end_s >= SENTENCE_PAUSE_S)


def _has_comma(words: Sequence[Span], index: int, first: int) -> bool:
    word, after = words[index], words[index + 1]
    pause_s = after.start_s - word.end_s
    if pause_s < CLAUSE_PAUSE_S or not (_is_plain(word.text) and _is_plain(after.text)):
        return False
    opens = index == first and word.text.lower() in OPENERS
    return opens or after.text.lower() in CLAUSE_WORDS or pause_s >= COMMA_PAUSE_S


def _is_plain(text: str) -> bool:
    """Whether it is a word of prose, neither a number nor spelled; these have pauses within them."""
    return text.replace("'", "").isalpha() and not (text.isupper() and text != "I")


def _is_question(sentence: Sequence[str]) -> bool:
    first, second = ([each.lower().rstrip(",") for each in sentence[:2]] + ["", ""])[:2]
    if first in AUXILIARIES:
        return second in ASKED
    if first == "how" and second in AMOUNTS:
        return True
    return first in QUESTIONS or (first in QUESTION_WORDS and second in AUXILIARIES)
