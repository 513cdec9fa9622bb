"""Diarization error rate and Jaccard error rate, as pyannote.metrics 3 counts them.

    score_turns(reference, hypothesis, collar_s=0.25) ->  Errors(total_s, missed_s, ..., der, jer)
    sum_errors(errors)                                ->  Errors of several recordings together

The time line is cut at every start and end, so that nothing changes within a piece. Where several speak at once, each
counts. Source: pyannote.metrics, `DiarizationErrorRate` and `JaccardErrorRate` (diarization.py), `uemify` (utils.py),
`LabelMatcher` (matcher.py); the Jaccard error rate is that of the second DIHARD challenge (2019).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tritone.diarization.assignment import best_pairs
from tritone.formats.rttm import Turn

SHORTEST_S = 1e-6  # pyannote.core's `SEGMENT_PRECISION`: shorter turns and pieces are none

Doubles = npt.NDArray[np.float64]
Stretches = Sequence[tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class Errors:
    """What a hypothesis has wrong, in seconds of speech; where two speak at once, both count.

    `speakers`: of the reference, within the scored time. `jaccard`: the sum of their Jaccard error rates.
    """

    total_s: float = 0.0
    missed_s: float = 0.0
    false_alarm_s: float = 0.0
    confusion_s: float = 0.0
    speakers: int = 0
    jaccard: float = 0.0

    @property
    def der(self) -> float:
        """Diarization error rate: missed, false alarm and confusion by the total; may be above 1."""
        wrong = self.missed_s + self.false_alarm_s + self.confusion_s
        if self.total_s == 0:
            return float(wrong > 0)
        return wrong / self.total_s

    @property
    def jer(self) -> float:
        """Jaccard error rate, the mean over the speakers of the reference; 0 if there are none."""
        return self.jaccard / self.speakers if self.speakers else 0.0


def sum_errors(errors: Iterable[Errors]) -> Errors:
    """The errors of several recordings together: times, speakers and Jaccard error rates are added."""
    every = list(errors)
    return Errors(
        total_s=sum(each.total_s for each in every),
        missed_s=sum(each.missed_s for each in every),
        false_alarm_s=sum(each.false_alarm_s for each in every),
        confusion_s=sum(each.confusion_s for each in every),
        speakers=sum(each.speakers for each in every),
        jaccard=sum(each.jaccard for each in every),
    )


def score_turns(
    reference: Sequence[Turn],
    hypothesis: Sequence[Turn],
    *,
    collar_s: float = 0.0,
    skip_overlap: bool = False,
    scored: Stretches | None = None,
) -> Errors:
    """Compare two descriptions of one recording; labels need not agree, the best pairs of speakers are found.

    Args:
        reference, hypothesis: turns of one recording, in any order.
        collar_s: so much before and after each start and end in the reference is not scored, as of NIST's tools.
            pyannote's `collar` is twice this.
        skip_overlap: leave out where the reference has two turns at once.
        scored: (start_s, end_s) of what is scored; None is from the first start to the last end of both.

    Raises:
        ValueError: `collar_s` is negative.
    """
    if not collar_s >= 0:
        raise ValueError(f"collar_s must be 0 or more, got {collar_s}")
    truth, guess = _kept(reference), _kept(hypothesis)
    if scored is None:
        ends = [(each.start_s, each.end_s) for each in (*truth, *guess)]
        scored = [(min(start for start, _ in ends), max(end for _, end in ends))] if ends else []
    collars = [(edge - collar_s, edge + collar_s) for each in truth for edge in (each.start_s, each.end_s) if collar_s]
    spans = [*((each.start_s, each.end_s) for each in (*truth, *guess)), *scored, *collars]
    edges = np.unique(np.array(spans, dtype=np.float64))
    if len(edges) < 2:
        return Errors()
    ours, theirs = _counts(truth, edges), _counts(guess, edges)
    widths = np.diff(edges)
    widths[widths < SHORTEST_S] = 0  # two edges that differ by rounding
    weights = widths * (_covered(scored, edges) > 0) * (_covered(collars, edges) == 0)
    if skip_overlap:
        weights = weights * (ours.sum(axis=0) < 2)
    together = (ours * weights) @ theirs.T  # seconds, (reference speakers, hypothesis speakers)
    pairs = (
        [(row, column) for row, column in best_pairs(together) if together[row, column] > 0] if together.size else []
    )
    right = sum((np.minimum(ours[row], theirs[column]) for row, column in pairs), np.zeros(len(weights)))
    num_ours, num_theirs = ours.sum(axis=0), theirs.sum(axis=0)
    speakers, jaccard = _jaccard(ours > 0, theirs > 0, weights, pairs)
    return Errors(
        total_s=float(weights @ num_ours),
        missed_s=float(weights @ np.maximum(num_ours - num_theirs, 0)),
        false_alarm_s=float(weights @ np.maximum(num_theirs - num_ours, 0)),
        confusion_s=float(weights @ (np.minimum(num_ours, num_theirs) - right)),
        speakers=speakers,
        jaccard=jaccard,
    )


def _jaccard(
    ours: npt.NDArray[np.bool_], theirs: npt.NDArray[np.bool_], weights: Doubles, pairs: list[tuple[int, int]]
) -> tuple[int, float]:
    partner = dict(pairs)
    speakers, total = 0, 0.0
    for row, times in enumerate(ours):
        if not weights @ times:
            continue
        speakers += 1
        if row not in partner:
            total += 1
            continue
        other = theirs[partner[row]]
        total += 1 - float(weights @ (times & other)) / float(weights @ (times | other))
    return speakers, total


def _kept(turns: Sequence[Turn]) -> list[Turn]:
    return [each for each in turns if each.end_s - each.start_s > SHORTEST_S]


def _counts(turns: Sequence[Turn], edges: Doubles) -> Doubles:
    """How many turns each speaker has in each piece, (speakers, pieces); speakers in the order of their names."""
    names = sorted({each.speaker for each in turns})
    spans: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for each in turns:
        spans[each.speaker].append((each.start_s, each.end_s))
    return np.array([_covered(spans[name], edges) for name in names]).reshape(len(names), len(edges) - 1)


def _covered(spans: Stretches, edges: Doubles) -> Doubles:
    """How many of the spans cover each piece between two edges, (pieces,); the spans begin and end at edges."""
    steps = np.zeros(len(edges))
    if spans:
        starts, ends = np.array(spans, dtype=np.float64).T
        np.add.at(steps, np.searchsorted(edges, starts), 1)
        np.add.at(steps, np.searchsorted(edges, ends), -1)
    return np.cumsum(steps)[:-1]
