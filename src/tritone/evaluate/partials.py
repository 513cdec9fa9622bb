"""How steady and how quick the partial results of a stream are.

    answers of a stream (when the audio was spoken, when they came, their text)  ->  StreamStability  ->  SetStability

Each answer carries the whole text so far, and a later one may change words that were shown already. From one answer
to the next, words behind the longest common beginning are taken back, and what the new text has there is added.

* Unstable partial word ratio (UPWR): words shown and taken back, over the words of the final text; unstable partial
  segment ratio (UPSR): answers that took words back, over the streams. After Shangguan et al., "Analyzing the Quality
  and Stability of a Streaming End-to-End On-Device Speech Recognizer", Interspeech 2020.
* Edit overhead: the share of edits (words added, words taken back; a changed word is one of each) that the final text
  would not have needed, after Baumann, Atterer and Schlangen, "Assessing and Improving the Performance of Speech
  Recognition for Incremental Systems", NAACL 2009.
* A last word that only grew ("sev", "seven") was not taken back: models that write parts of words show them as they
  come, and no letter that was shown has changed. Grown words are counted on their own.
* Stability lag: from a word's first appearance at its position in the text to the answer from which it stays there, the
  mean over the words of the final text; the "correction time" of Baumann et al. (first occurrence to final decision).
* First partial: from the start of the audio to the first answer with a word. Final: from the end of the audio to the
  final text. Neither says anything unless the audio was sent in real time.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

TOKEN = re.compile(r"\S+")


class Answer(NamedTuple):
    """A text that a stream gave. Times are seconds from when its first sample was spoken.

    `spoken_s`: when the last sample that it could know of was spoken; `answered_s`: when it arrived.
    """

    spoken_s: float
    answered_s: float
    text: str


class _Ratios:
    """What the words of one stream and of many have in common."""

    final_words: int
    unstable_words: int

    @property
    def unstable_ratio(self) -> float:
        """Unstable partial word ratio; can exceed 1, and is infinite if all words were taken back."""
        if not self.final_words:
            return float("inf") if self.unstable_words else 0.0
        return self.unstable_words / self.final_words

    @property
    def edit_overhead(self) -> float:
        """The share of needless edits, 0..1."""
        # Every word of the final text had to be added once; what was taken back had been added in vain.
        needless = 2 * self.unstable_words
        return needless / (self.final_words + needless) if needless else 0.0


@dataclass(frozen=True, kw_only=True)
class StreamStability(_Ratios):
    """One stream.

    `partials`: answers before the final one, of which `changes` brought other words than those before.
    `unstable_words`: words shown and taken back, as often as that happened; `revisions`: answers that took some back,
    the final one too. `grown_words`: how often the last word grew. `first_partial_s`, `final_s`: as above, None if no
    answer had a word, or none came. `lags_s`: the stability lag of each word of the final text.
    """

    partials: int = 0
    changes: int = 0
    final_words: int = 0
    unstable_words: int = 0
    revisions: int = 0
    grown_words: int = 0
    first_partial_s: float | None = None
    final_s: float | None = None
    lags_s: tuple[float, ...] = ()

    @property
    def stability_lag_s(self) -> float | None:
        """Mean stability lag, None without words."""
        return sum(self.lags_s) / len(self.lags_s) if self.lags_s else None


@dataclass(frozen=True, kw_only=True)
class SetStability(_Ratios):
    """Many streams. Counts are pooled, so ratios and lags are those of all words together; times are one per stream."""

    streams: int
    unsteady_streams: int  # with at least one unstable word
    partials: int
    changes: int
    final_words: int
    unstable_words: int
    revisions: int
    grown_words: int
    stability_lag_s: float | None
    first_partials_s: tuple[float, ...]
    finals_s: tuple[float, ...]

    @classmethod
    def of(cls, streams: Iterable[StreamStability]) -> "SetStability":
        each = list(streams)
        lags = [lag for stream in each for lag in stream.lags_s]
        return cls(
            streams=len(each),
            unsteady_streams=sum(stream.unstable_words > 0 for stream in each),
            partials=sum(stream.partials for stream in each),
            changes=sum(stream.changes for stream in each),
            final_words=sum(stream.final_words for stream in each),
            unstable_words=sum(stream.unstable_words for stream in each),
            revisions=sum(stream.revisions for stream in each),
            grown_words=sum(stream.grown_words for stream in each),
            stability_lag_s=sum(lags) / len(lags) if lags else None,
            first_partials_s=tuple(stream.first_partial_s for stream in each if stream.first_partial_s is not None),
            finals_s=tuple(stream.final_s for stream in each if stream.final_s is not None),
        )

    @property
    def revision_ratio(self) -> float:
        """Unstable partial segment ratio: revisions per stream; can exceed 1."""
        return self.revisions / self.streams if self.streams else 0.0


def measure_partials(answers: Sequence[Answer], words: Callable[[str], Sequence[str]] = str.split) -> StreamStability:
    """Measure one stream. Takes time that grows with what the answers change, not with their length.

    Args:
        answers: in the order in which they came; the last one is the final text.
        words: splits a text, looking at nothing beyond white space; `Normalizer.words`, so that a comma that moves is
            no change.
    """
    if not answers:
        return StreamStability()
    shown = _Words(words)
    changes = unstable = revisions = grown = 0
    first_partial_s = None
    seen_s: list[dict[str, float]] = []  # by index in the text: the words shown there, and when first
    since_s: list[float] = []  # by index: since when its present word is there
    for number, answer in enumerate(answers):
        same, before, after = shown.update(answer.text)
        changes += number < len(answers) - 1 and before != after
        grows = len(before) == 1 and bool(after) and after[0].startswith(before[0])
        grown += grows
        if before and not grows:
            unstable += len(before)
            revisions += 1
        for index, word in enumerate(after, start=same):
            if index == len(seen_s):
                seen_s.append({})
                since_s.append(0.0)
            seen_s[index].setdefault(word, answer.answered_s)
            if before[index - same : index - same + 1] != [word]:
                since_s[index] = answer.answered_s
        if first_partial_s is None and shown.units:
            first_partial_s = answer.answered_s
    return StreamStability(
        partials=len(answers) - 1,
        changes=changes,
        final_words=len(shown.units),
        unstable_words=unstable,
        revisions=revisions,
        grown_words=grown,
        first_partial_s=first_partial_s,
        final_s=answers[-1].answered_s - answers[-1].spoken_s,
        lags_s=tuple(since_s[index] - seen_s[index][word] for index, word in enumerate(shown.units)),
    )


def pack_answers(answers: Iterable[Answer]) -> list[list[Any]]:
    """Answers for JSON: `[spoken_s, answered_s, kept, added]`, how much of the text before stays and what comes behind.

    An hour of speech has thousands of answers, and each holds all of the text so far.
    """
    packed: list[list[Any]] = []
    before = ""
    for spoken_s, answered_s, text in answers:
        kept = _common_beginning(before, text)
        packed.append([spoken_s, answered_s, kept, text[kept:]])
        before = text
    return packed


def unpack_answers(packed: Iterable[Sequence[Any]]) -> list[Answer]:
    """The answers that `pack_answers` packed."""
    answers: list[Answer] = []
    text = ""
    for spoken_s, answered_s, kept, added in packed:
        if added or kept < len(text):  # else the same text again, held once
            text = text[:kept] + added
        answers.append(Answer(spoken_s, answered_s, text))
    return answers


class _Words:
    """The units of a text that changes at its end mostly: only what may have changed is split again."""

    def __init__(self, split: Callable[[str], Sequence[str]]) -> None:
        self.units: list[str] = []
        self._split = split
        self._text = ""
        self._ends: list[tuple[int, int]] = []  # of each token between spaces: its end, and the units up to there

    def update(self, text: str) -> tuple[int, list[str], list[str]]:
        """Take the next text; returns the number of units that stay, and the units after them before and now."""
        if text == self._text:
            return len(self.units), [], []
        unchanged = _common_beginning(self._text, text)
        self._text = text
        # A token that reaches to where the texts part may have grown, though its characters are the same.
        while self._ends and self._ends[-1][0] >= unchanged:
            self._ends.pop()
        end, kept = self._ends[-1] if self._ends else (0, 0)
        before, self.units[kept:] = self.units[kept:], []
        for token in TOKEN.finditer(text, end):
            self.units += self._split(token.group())
            self._ends.append((token.end(), len(self.units)))
        after = self.units[kept:]
        same = _common_beginning(before, after)
        return kept + same, before[same:], after[same:]


def _common_beginning(one: Sequence[str], other: Sequence[str]) -> int:
    # By halves: comparing slices is fast, and hours of text have thousands of answers.
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
