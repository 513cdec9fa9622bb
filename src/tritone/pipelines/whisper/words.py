"""The words of a window and their times: tokens of its text grouped into words, each with its place in the audio.

    tokens of a text, probabilities and starts of them  ->  Spans, in seconds from the start of the window

Languages that are written without spaces have a word for each character, or for what their tokens join. Punctuation
belongs to the word beside it. A word at the end of a sentence that seems to last through a pause is cut short.
Source: openai/whisper whisper/timing.py and tokenizer.py.
"""

import string
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tritone.bundle.byte_level import ByteLevelBpe
from tritone.transcript import Span

UNSPACED = {"zh", "ja", "th", "lo", "my", "yue"}  # languages
BEFORE_WORDS = "\"'“¿([{-"
AFTER_WORDS = "\"'.。,，!！?？:：”)]}、"
SENTENCE_ENDS = ".。!！?？"
USUAL_S = 0.7  # no word is taken to last longer as a rule
REPLACED = "\ufffd"


@dataclass(frozen=True)
class _Timed:
    text: str
    start_s: float
    end_s: float
    probability: float


def words_of(
    bpe: ByteLevelBpe,
    tokens: Sequence[int],
    probabilities: Sequence[float],
    starts_s: Sequence[float],
    language: str,
) -> list[Span]:
    """The words of a text.

    Args:
        tokens: of the text alone.
        probabilities: of each.
        starts_s: of each, in seconds, and of the end after the last.
        language: its code.
    """
    found, first = [], 0
    for text, count in grouped(bpe, tokens, spaced=language not in UNSPACED):
        last = first + count
        mean = float(np.mean(probabilities[first:last]))
        found.append(_Timed(text, float(starts_s[first]), float(starts_s[last]), mean))
        first = last
    return [
        Span(each.text.strip(), each.start_s, each.end_s, each.probability)
        for each in _with_punctuation(_shortened(found))
        if each.text.strip()
    ]


def grouped(bpe: ByteLevelBpe, tokens: Sequence[int], *, spaced: bool) -> list[tuple[str, int]]:
    """Words as text, the space before them included, each with how many tokens it has."""
    parts = _characters(bpe, tokens)
    if not spaced:
        return parts
    words: list[tuple[str, int]] = []
    for text, count in parts:
        if not words or text.startswith(" ") or text.strip() in string.punctuation:
            words.append((text, count))
        else:
            words[-1] = (words[-1][0] + text, words[-1][1] + count)
    return words


def _characters(bpe: ByteLevelBpe, tokens: Sequence[int]) -> list[tuple[str, int]]:
    """The fewest tokens that make whole characters."""
    whole = bpe.decode(tokens)
    parts: list[tuple[str, int]] = []
    current: list[int] = []
    offset = 0
    for token in tokens:
        current.append(token)
        text = bpe.decode(current)
        place = offset + text.find(REPLACED)
        if REPLACED not in text or (place < len(whole) and whole[place] == REPLACED):
            parts.append((text, len(current)))
            offset += len(text)
            current = []
    if current:
        parts.append((bpe.decode(current), len(current)))
    return parts


def _shortened(words: Sequence[_Timed]) -> list[_Timed]:
    """The same words; those beside the end of a sentence last at most twice as long as usual."""
    lengths = [each.end_s - each.start_s for each in words if each.end_s > each.start_s]
    most = 2 * min(USUAL_S, float(np.median(lengths))) if lengths else 0.0
    found = list(words)
    for index in range(1, len(found)):
        word = found[index]
        if not lengths or word.end_s - word.start_s <= most:
            continue
        if word.text in SENTENCE_ENDS:
            found[index] = replace(word, end_s=word.start_s + most)
        elif found[index - 1].text in SENTENCE_ENDS:
            found[index] = replace(word, start_s=word.end_s - most)
    return found


def _with_punctuation(words: Sequence[_Timed]) -> list[_Timed]:
    """The same words, with the punctuation before and after each as part of it; its times stay those of the word."""
    following: list[_Timed] = []
    for word in reversed(words):
        if following and word.text.startswith(" ") and word.text.strip() in BEFORE_WORDS:
            following[-1] = replace(following[-1], text=word.text + following[-1].text)
        else:
            following.append(word)
    found: list[_Timed] = []
    for word in reversed(following):
        if found and not found[-1].text.endswith(" ") and word.text in AFTER_WORDS:
            found[-1] = replace(found[-1], text=found[-1].text + word.text)
        else:
            found.append(word)
    return found
