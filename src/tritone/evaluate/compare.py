"""Several systems on the same utterances: what changes against the first, and whether that is more than chance.

    evaluations, the baseline first  ->  Comparison  ->  the precision-impact table, a gate

Differences are in rates (fractions); "points" are percentage points of them. p-values are of each difference alone:
of twenty equal systems one is expected below 0.05.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tritone.errors import InputError
from tritone.evaluate.bootstrap import Difference, paired_difference
from tritone.evaluate.result import Evaluation, finite
from tritone.evaluate.score import Counts

ROUNDING = 1e-12  # of a difference of two fractions, far below one error in any set


@dataclass(frozen=True, kw_only=True)
class Change:
    """One system against the baseline, on the utterances that all systems have.

    `words`, `characters`: the differences of the error rates; None for the baseline itself. `changed`: utterances whose
    texts, after normalisation, are others than the baseline's.
    """

    name: str
    evaluation: Evaluation
    words: Difference | None = None
    characters: Difference | None = None
    changed: int = 0

    @property
    def wer(self) -> float:
        return self.evaluation.score.words.rate

    @property
    def cer(self) -> float:
        return self.evaluation.score.characters.rate

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "utterances": len(self.evaluation.rows),
            "failures": len(self.evaluation.failures),
            "wer": finite(self.wer),
            "cer": finite(self.cer),
            "changed": self.changed,
            "words": _difference(self.words),
            "characters": _difference(self.characters),
        }


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """`changes`: the baseline, then the others. `left_out`: utterances that not all of the systems have."""

    changes: Sequence[Change]
    left_out: int = 0

    @property
    def baseline(self) -> Change:
        return self.changes[0]

    def relative(self, change: Change) -> float | None:
        """The relative change of the word error rate; None where the baseline has no errors."""
        if change.words is None or not self.baseline.wer:
            return None
        return change.words.delta / self.baseline.wer

    def to_dict(self) -> list[dict[str, Any]]:
        return [{**change.to_dict(), "relative": self.relative(change)} for change in self.changes]


def compare(evaluations: Sequence[Evaluation]) -> Comparison:
    """Compare systems with the first of them.

    All are scored by the first one's normalisation. Utterances that one of them lacks, because it was interrupted, are
    left out of all.

    Raises:
        InputError: names come twice, nothing is in common, or references differ.
    """
    names = [each.name for each in evaluations]
    if twice := {name for name in names if names.count(name) > 1}:
        raise InputError(
            f"systems to compare need different names, {', '.join(sorted(twice))} comes twice; use NAME=..."
        )
    normalization = evaluations[0].normalization
    same = [each if each.normalization == normalization else each.rescored(normalization) for each in evaluations]
    kept = set.intersection(*({row.id for row in each.rows} for each in same))
    if not kept and any(each.rows for each in same):
        raise InputError(f"{' and '.join(names)} have no utterance in common; evaluate them on the same set")
    held = [each if len(each.rows) == len(kept) else each.only(kept) for each in same]
    # A set that was read from a file may have another order.
    order = {row.id: index for index, row in enumerate(held[0].rows)}
    held = [replace(each, rows=sorted(each.rows, key=lambda row: order[row.id])) for each in held]
    for other in held[1:]:
        for ours, theirs in zip(held[0].rows, other.rows, strict=True):
            if _reference(ours.score.pairs) != _reference(theirs.score.pairs):
                raise InputError(
                    f"{ours.id}: the reference is {ours.score.reference!r} for {names[0]} and "
                    f"{theirs.score.reference!r} for {other.name}; evaluate both with the same references"
                )
    changes = [Change(name=names[0], evaluation=held[0])]
    changes += [_change(held[0], other) for other in held[1:]]
    largest = max(len(each.rows) for each in same)
    return Comparison(changes=changes, left_out=largest - len(kept))


def gate(comparison: Comparison, max_wer_increase: float) -> list[str]:
    """Who gets worse than the baseline by more than that, and what else makes the comparison worthless.

    It is the difference that was measured which counts, be it significant or not: a gate that needs significance lets
    everything through when the set is small.

    Args:
        max_wer_increase: absolute, in percentage points: with 0.5 a word error rate may rise from 4.0 to 4.5 %.

    Returns:
        A sentence for each failure; empty if the gate is passed.
    """
    baseline = comparison.baseline
    length = baseline.evaluation.score.words.reference_length
    if not length:
        return ["the references hold no words, so there is no word error rate to hold against a limit"]
    problems = []
    if count := len(baseline.evaluation.failures):
        problems.append(
            f"the baseline {baseline.name} has {count} failed utterances, which count as deleted: a limit against it "
            "means nothing"
        )
    for change in comparison.changes[1:]:
        assert change.words is not None
        if 100 * change.words.delta > max_wer_increase + ROUNDING * 100:
            failures = len(change.evaluation.failures)
            failed = f", {failures} failed utterances count as deleted" if failures else ""
            problems.append(
                f"{change.name}: WER {100 * change.wer:.2f} % is {100 * change.words.delta:.2f} points above "
                f"{100 * baseline.wer:.2f} % of {baseline.name}; allowed are {max_wer_increase:g}{failed} "
                f"(p = {change.words.p_value:.3g}, {len(baseline.evaluation.rows)} utterances)"
            )
    return problems


def _change(baseline: Evaluation, other: Evaluation) -> Change:
    return Change(
        name=other.name,
        evaluation=other,
        words=_paired(baseline, other, "words"),
        characters=_paired(baseline, other, "characters"),
        changed=sum(
            _hypothesis(ours.score.pairs) != _hypothesis(theirs.score.pairs)
            or (ours.score.error is None) != (theirs.score.error is None)
            for ours, theirs in zip(baseline.rows, other.rows, strict=True)
        ),
    )


def _paired(baseline: Evaluation, other: Evaluation, units: str) -> Difference:
    ours: list[Counts] = [getattr(row.score, units) for row in baseline.rows]
    theirs: list[Counts] = [getattr(row.score, units) for row in other.rows]
    return paired_difference(
        [each.errors for each in ours],
        [each.errors for each in theirs],
        [each.reference_length for each in ours],
        level=baseline.level,
    )


def _reference(pairs: Sequence[Any]) -> list[str]:
    return [pair.reference for pair in pairs if pair.op != "insertion"]


def _hypothesis(pairs: Sequence[Any]) -> list[str]:
    return [pair.hypothesis for pair in pairs if pair.op != "deletion"]


def _difference(difference: Difference | None) -> dict[str, Any] | None:
    if difference is None:
        return None
    return {
        "delta": finite(difference.delta),
        "interval": [finite(each) for each in difference.interval],
        "p_value": finite(difference.p_value),
    }
