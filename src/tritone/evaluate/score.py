"""Word and character errors of texts against references, by the alignment with the fewest errors.

    reference, hypothesis  ->  units (normalize.py)  ->  pairs  ->  Counts  ->  UtteranceScore  ->  SetScore

The alignment is rapidfuzz's: maintained, exact, bit-parallel (64 cells a step) and, unlike a table of all cells, of
memory that grows with the length only, so that an hour of speech is no special case; jiwer rests on it too. Every
error costs 1, as in NIST's definition of the word error rate and in Kaldi's and WeNet's `compute-wer`. Where several
alignments have the fewest errors, tools may divide the same total into substitutions, deletions and insertions
differently.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Literal, NamedTuple

from rapidfuzz.distance import Editop, Levenshtein

from tritone.errors import InputError
from tritone.evaluate.normalize import Normalizer

Op = Literal["hit", "substitution", "deletion", "insertion"]

# What is longer is not aligned, so that a model that talks without end stops neither a run nor a machine.
MAX_UNITS = 1_000_000  # of either side; 18 hours of speech in characters. 50 MB
MAX_CELLS = 160_000_000_000  # reference times hypothesis length; 7 hours in characters. Some 10 s at the worst


class Pair(NamedTuple):
    """A step of an alignment; the side that has no unit is an empty string."""

    op: Op
    reference: str
    hypothesis: str


@dataclass(frozen=True)
class Counts:
    """What an alignment counts; they add up over a set."""

    hits: int = 0
    substitutions: int = 0
    deletions: int = 0
    insertions: int = 0

    @property
    def errors(self) -> int:
        return self.substitutions + self.deletions + self.insertions

    @property
    def reference_length(self) -> int:
        return self.hits + self.substitutions + self.deletions

    @property
    def rate(self) -> float:
        """Errors per reference unit, a fraction. Without reference units: 0 without errors, else infinite."""
        if not self.reference_length:
            return float("inf") if self.errors else 0.0
        return self.errors / self.reference_length

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            self.hits + other.hits,
            self.substitutions + other.substitutions,
            self.deletions + other.deletions,
            self.insertions + other.insertions,
        )


@dataclass(frozen=True, kw_only=True)
class UtteranceScore:
    """One utterance: its texts as given, and what was wrong after normalisation.

    `pairs` aligns the units that word errors are counted in. A failed utterance has an `error`, and everything that
    was to be said in it counts as deleted.
    """

    id: str
    reference: str
    hypothesis: str
    pairs: tuple[Pair, ...]
    words: Counts
    characters: Counts
    error: str | None = None

    @property
    def exact(self) -> bool:
        """Whether the utterance was transcribed without a single error."""
        return self.error is None and not self.words.errors


class Confusion(NamedTuple):
    """A kind of error and how often it occurs; an empty string stands for no unit."""

    op: Op
    reference: str
    hypothesis: str
    times: int


@dataclass(frozen=True, kw_only=True)
class Confusions:
    """The most frequent errors of a set, by kind, most frequent first."""

    substitutions: tuple[Confusion, ...]
    deletions: tuple[Confusion, ...]
    insertions: tuple[Confusion, ...]


@dataclass(frozen=True, kw_only=True)
class SetScore:
    """Many utterances. Rates are pooled: all errors over all reference units, so that long utterances weigh more."""

    utterances: tuple[UtteranceScore, ...]
    words: Counts
    characters: Counts

    @classmethod
    def of(cls, scores: Iterable[UtteranceScore]) -> "SetScore":
        utterances = tuple(scores)
        return cls(
            utterances=utterances,
            words=pool(each.words for each in utterances),
            characters=pool(each.characters for each in utterances),
        )

    @property
    def sentence_accuracy(self) -> float:
        """The share of utterances without a single error, 0..1; a failed one is not right. 1 of none."""
        return sum(each.exact for each in self.utterances) / len(self.utterances) if self.utterances else 1.0

    def confusions(self, n: int = 10) -> Confusions:
        """The `n` most frequent errors of each kind, without what failed utterances count as deleted."""
        found = Counter(pair for each in self.utterances if each.error is None for pair in each.pairs)
        # Equally frequent ones in the order of the alphabet, so that the same run gives the same report.
        ranked = sorted(found.items(), key=lambda item: (-item[1], item[0]))

        def first(op: Op) -> tuple[Confusion, ...]:
            return tuple(islice((Confusion(*pair, times=times) for pair, times in ranked if pair.op == op), n))

        return Confusions(
            substitutions=first("substitution"), deletions=first("deletion"), insertions=first("insertion")
        )

    def worst(self, n: int = 10) -> list[UtteranceScore]:
        """The utterances with the most word errors, at most `n`; neither exact nor failed ones.

        By number and not by rate: these are the ones that make the pooled rate what it is.
        """
        wrong = [each for each in self.utterances if each.error is None and each.words.errors]
        return sorted(wrong, key=lambda each: (-each.words.errors, -each.words.rate, each.id))[:n]


def align(reference: Sequence[str], hypothesis: Sequence[str]) -> list[Pair]:
    """Align two sequences of units with the fewest errors. Either may be empty.

    Raises:
        InputError: they are too long to align (`MAX_UNITS`, `MAX_CELLS`).
    """
    pairs: list[Pair] = []
    at = 0  # in the reference
    for edit in _edits(reference, hypothesis):
        pairs += [_pair("hit", unit, unit) for unit in reference[at : edit.src_pos]]
        at = edit.src_pos
        if edit.tag == "insert":
            pairs.append(_pair("insertion", "", hypothesis[edit.dest_pos]))
            continue
        if edit.tag == "delete":
            pairs.append(_pair("deletion", reference[at], ""))
        else:
            pairs.append(_pair("substitution", reference[at], hypothesis[edit.dest_pos]))
        at += 1
    return pairs + [_pair("hit", unit, unit) for unit in reference[at:]]


def count_errors(reference: Sequence[str], hypothesis: Sequence[str]) -> Counts:
    """Count what `align` aligns, in less time and memory. Raises what `align` raises."""
    found = Counter(edit.tag for edit in _edits(reference, hypothesis))
    substitutions, deletions = found["replace"], found["delete"]
    return Counts(len(reference) - substitutions - deletions, substitutions, deletions, found["insert"])


def pool(counts: Iterable[Counts]) -> Counts:
    """Add up counts, so that the rate is that of the whole set."""
    return sum(counts, Counts())


def score_utterance(
    id: str, reference: str, hypothesis: str | None, normalizer: Normalizer, *, error: str | None = None
) -> UtteranceScore:
    """Score one utterance.

    Args:
        id: its name.
        reference: what was said; may be empty.
        hypothesis: what was recognised; may be empty. None when it failed.
        normalizer: makes units of both.
        error: why it failed, which makes `hypothesis` worthless.

    Returns:
        The score. It is a failed one with `error`, without a hypothesis, or when the texts are too long to align.
    """
    if error is None and hypothesis is None:
        error = "there is no text"
    if error is None and len(hypothesis or "") > MAX_UNITS:
        error = f"the text has {len(hypothesis or ''):,} characters; at most {MAX_UNITS:,} are scored"
    expected, characters = normalizer.words(reference), normalizer.characters(reference)
    if error is None:
        try:
            pairs = align(expected, normalizer.words(hypothesis or ""))
            return UtteranceScore(
                id=id,
                reference=reference,
                hypothesis=hypothesis or "",
                pairs=tuple(pairs),
                words=_counts(pairs),
                characters=count_errors(characters, normalizer.characters(hypothesis or "")),
            )
        except InputError as too_long:
            error = str(too_long)
    return UtteranceScore(
        id=id,
        reference=reference,
        hypothesis="",
        pairs=tuple(_pair("deletion", unit, "") for unit in expected),
        words=Counts(deletions=len(expected)),
        characters=Counts(deletions=len(characters)),
        error=error,
    )


@lru_cache(maxsize=1 << 16)
def _pair(op: Op, reference: str, hypothesis: str) -> Pair:
    # The same words are said again and again: one object for all of them keeps large sets small.
    return Pair(op, reference, hypothesis)


def _edits(reference: Sequence[str], hypothesis: Sequence[str]) -> Iterable[Editop]:
    longest, cells = max(len(reference), len(hypothesis)), len(reference) * len(hypothesis)
    if longest > MAX_UNITS or cells > MAX_CELLS:
        raise InputError(
            f"a reference of {len(reference):,} units and a hypothesis of {len(hypothesis):,} are too long to align; "
            f"at most {MAX_UNITS:,} units each, and the product at most {MAX_CELLS:,}. Cut the recording into parts."
        )
    # rapidfuzz compares hashes; numbers have none that collide
    numbers: dict[str, int] = {}
    return Levenshtein.editops(
        [numbers.setdefault(unit, len(numbers)) for unit in reference],
        [numbers.setdefault(unit, len(numbers)) for unit in hypothesis],
    )


def _counts(pairs: Iterable[Pair]) -> Counts:
    found = Counter(pair.op for pair in pairs)
    return Counts(found["hit"], found["substitution"], found["deletion"], found["insertion"])
