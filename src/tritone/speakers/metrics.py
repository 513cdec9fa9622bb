"""How well scores separate speakers: equal error rate, detection costs, error curve, and how sure these numbers are.

    targets (n,) bool, scores (n,)  ->  ErrorCurve  ->  eer(), min_dcf(cost)
    Scores                          ->  evaluate  ->  Evaluation: figures with counts and confidence intervals

A trial is accepted if its score is above the threshold. Equal scores cannot be separated by any threshold, so they are
accepted or refused together: the curve has one point for each distinct score, and the result does not depend on the
order of trials. WeSpeaker's compute_metrics.py has a point for each trial in the order of an unstable sort; both give
the same numbers unless a target and a non-target have one score, where its numbers can move by one trial. Upstream has
no point at which all trials are accepted; here there is one, so that no cost is above 1.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tritone.errors import InputError
from tritone.speakers.archive import some
from tritone.speakers.score_file import Doubles, Scores
from tritone.speakers.trials import Bools, Ints, Trials

DEFAULT_P_TARGETS = (0.01,)
RESAMPLES = 1000
MIN_RESAMPLES = 100
DRAWS = 50_000_000  # trials weighted for one interval; of large lists fewer sets are drawn
RULE_OF_30 = 30  # errors that an error rate needs to be within 30 % of the truth nine times of ten (Doddington 1998)


@dataclass(frozen=True)
class Cost:
    """What errors cost (NIST SRE): `p_target` is how probable a target is before anything was heard."""

    p_target: float = 0.01
    c_miss: float = 1.0
    c_fa: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.p_target < 1:
            raise ValueError(f"p_target is a probability between 0 and 1, got {self.p_target:g}")
        for name in ("c_miss", "c_fa"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ValueError(f"{name} must be above 0, got {getattr(self, name):g}")

    def __str__(self) -> str:
        others = "" if self.c_miss == self.c_fa == 1 else f", c_miss {self.c_miss:g}, c_fa {self.c_fa:g}"
        return f"p_target {self.p_target:g}{others}"

    @property
    def default(self) -> float:
        """The cost of the better of two systems that listen to nothing: one refuses all, the other accepts all."""
        return min(self.c_miss * self.p_target, self.c_fa * (1 - self.p_target))


class Point(NamedTuple):
    """A figure of a curve, and the threshold that it has there: trials with scores above it are accepted."""

    value: float
    threshold: float


class Interval(NamedTuple):
    """Bounds of a confidence interval."""

    low: float
    high: float


@dataclass(frozen=True)
class ErrorCurve:
    """Errors by threshold, one point for each distinct score, rising; the first threshold is -inf, all are accepted.

    `misses` (fraction of targets refused) never falls, `false_alarms` (fraction of non-targets accepted) never rises.
    """

    thresholds: Doubles
    misses: Doubles
    false_alarms: Doubles
    num_targets: int
    num_nontargets: int

    @classmethod
    def of(cls, targets: Bools, scores: npt.ArrayLike) -> "ErrorCurve":
        """The curve of trials.

        Raises:
            InputError: no targets, no non-targets, or a score that is not finite.
            ValueError: not as many labels as scores.
        """
        values, truth = np.asarray(scores, dtype=np.float64), np.asarray(targets, dtype=np.bool_)
        if values.shape != truth.shape or values.ndim != 1:
            raise ValueError(f"{truth.shape} labels and {values.shape} scores; one of each for every trial")
        if not np.isfinite(values).all():
            raise InputError(f"{np.count_nonzero(~np.isfinite(values))} of {len(values)} scores are not finite numbers")
        num_targets = int(np.count_nonzero(truth))
        num_nontargets = len(truth) - num_targets
        if not num_targets or not num_nontargets:
            raise InputError(
                f"{num_targets} target and {num_nontargets} non-target trials: error rates need some of both"
            )
        order = np.argsort(values, kind="stable")
        values = values[order]
        ends = np.append(np.flatnonzero(values[1:] != values[:-1]), len(values) - 1)
        refused_targets = np.cumsum(truth[order])[ends]
        refused = ends + 1
        return cls(
            thresholds=np.concatenate([[-np.inf], values[ends]]),
            misses=np.concatenate([[0.0], refused_targets / num_targets]),
            # 1 - share, as upstream has it: at a crossing the rounding decides which threshold is reported
            false_alarms=np.concatenate([[1.0], 1 - (refused - refused_targets) / num_nontargets]),
            num_targets=num_targets,
            num_nontargets=num_nontargets,
        )

    def eer(self) -> Point:
        """The equal error rate: where the curve, joined by straight lines, crosses misses = false alarms.

        The threshold is the first at which there are at least as many misses as false alarms, as upstream's.
        """
        after = int(np.argmax(self.misses >= self.false_alarms))  # the last point has misses 1 and no false alarms
        return Point(_crossing(self.misses, self.false_alarms, after), float(self.thresholds[after]))

    def min_dcf(self, cost: Cost) -> Point:
        """The least detection cost over all thresholds, as a multiple of `cost.default`; 1 is what deafness costs."""
        costs = _costs(self.misses, self.false_alarms, cost)
        best = int(np.argmin(costs))
        return Point(float(costs[best]), float(self.thresholds[best]))

    def thinned(self, at_most: int = 2000) -> tuple[Doubles, Doubles]:
        """Misses and false alarms of points spread along the whole curve, for a picture."""
        steps = np.abs(np.diff(_probit_like(self.misses))) + np.abs(np.diff(_probit_like(self.false_alarms)))
        along = np.concatenate([[0.0], np.cumsum(steps)])
        wanted = np.linspace(0, along[-1], at_most)
        kept = np.unique(np.concatenate([np.searchsorted(along, wanted), [0, len(along) - 1]]).clip(0, len(along) - 1))
        return self.misses[kept], self.false_alarms[kept]


@dataclass(frozen=True)
class Figure:
    """One number of an evaluation; `interval` is None where resampling cannot tell, as of no errors at all."""

    value: float
    threshold: float
    interval: Interval | None = None

    def to_dict(self) -> dict[str, Any]:
        """See `Evaluation.to_dict`."""
        return {
            "value": self.value,
            "threshold": None if self.threshold == -math.inf else self.threshold,
            "interval": None if self.interval is None else list(self.interval),
        }


@dataclass(frozen=True)
class Evaluation:
    """All figures of one set of scores."""

    curve: ErrorCurve
    eer: Figure
    min_dcfs: Mapping[Cost, Figure]
    level: float = 0.95
    resampled: str = ""

    @property
    def errors_at_eer(self) -> int:
        """How many targets are missed at the EER; with fewer than `RULE_OF_30` the figure is coarse."""
        return round(self.eer.value * self.curve.num_targets)

    def to_dict(self) -> dict[str, Any]:
        """The figures for JSON: rates are fractions, a threshold is None where it is minus infinity."""
        return {
            "targets": self.curve.num_targets,
            "nontargets": self.curve.num_nontargets,
            "eer": self.eer.to_dict(),
            "min_dcf": [
                {"p_target": cost.p_target, "c_miss": cost.c_miss, "c_fa": cost.c_fa, **figure.to_dict()}
                for cost, figure in self.min_dcfs.items()
            ],
            "level": self.level,
            "resampled": self.resampled or None,
        }


def evaluate(
    scores: Scores,
    costs: Sequence[Cost],
    *,
    speakers: Mapping[str, str] | None = None,
    resamples: int = RESAMPLES,
    level: float = 0.95,
    seed: int = 0,
) -> Evaluation:
    """Figures with confidence intervals.

    Args:
        speakers: recording -> its speaker. If given, speakers are drawn for the intervals; else recordings (names).
        resamples: sets to draw, 0 for no intervals. Fewer are drawn from large lists.
        level: of the intervals.

    Raises:
        InputError: trials without labels, no targets or no non-targets, names without a speaker.
    """
    trials = scores.trials
    if trials.targets is None:
        raise InputError("these trials have no labels (target, nontarget), so there are no errors to count")
    curve = ErrorCurve.of(trials.targets, scores.values)
    points = {cost: curve.min_dcf(cost) for cost in costs}
    intervals: list[Interval | None] = [None] * (1 + len(costs))
    if resamples:
        intervals = _intervals(scores, list(costs), speakers, resamples, level, seed)
    return Evaluation(
        curve=curve,
        eer=Figure(*curve.eer(), intervals[0]),
        min_dcfs={cost: Figure(*points[cost], interval) for cost, interval in zip(costs, intervals[1:], strict=True)},
        level=level,
        resampled="" if not resamples else "recordings" if speakers is None else "speakers",
    )


def _crossing(misses: Doubles, false_alarms: Doubles, after: int) -> float:
    """Where the line from the point before `after` to it has misses = false alarms."""
    miss_1, fa_1 = float(misses[after]), float(false_alarms[after])
    miss_2, fa_2 = float(misses[after - 1]), float(false_alarms[after - 1])
    share = (miss_1 - fa_1) / (fa_2 - fa_1 - (miss_2 - miss_1))
    return miss_1 + share * (miss_2 - miss_1)


def _costs(misses: Doubles, false_alarms: Doubles, cost: Cost) -> Doubles:
    return (cost.c_miss * misses * cost.p_target + cost.c_fa * false_alarms * (1 - cost.p_target)) / cost.default


def _intervals(
    scores: Scores, costs: Sequence[Cost], speakers: Mapping[str, str] | None, resamples: int, level: float, seed: int
) -> list[Interval | None]:
    """Percentiles of the figures of resampled sets.

    Trials share recordings and speakers, so they are not drawn one by one: speakers are, with replacement, and a trial
    counts as often as both of its sides were drawn; once if both are the same speaker. Drawn without that, intervals
    are far too narrow. Source: A. Owen, "The pigeonhole bootstrap", Annals of Applied Statistics 1 (2007).
    """
    trials = scores.trials
    assert trials.targets is not None
    left, right, number = _units(trials, speakers)
    order = np.argsort(scores.values, kind="stable")
    values, truth = scores.values[order], trials.targets[order]
    left, right = left[order], right[order]
    begins = np.append(0, np.flatnonzero(values[1:] != values[:-1]) + 1)  # trials of one score are one point
    own = np.flatnonzero(left == right)
    rng = np.random.default_rng(seed)
    drawn_sets = min(resamples, max(MIN_RESAMPLES, DRAWS // len(trials)))
    found: list[list[float]] = []
    for _ in range(drawn_sets):
        drawn = np.bincount(rng.integers(number, size=number), minlength=number).astype(np.float64)
        weights = drawn[left] * drawn[right]
        weights[own] = drawn[left[own]]
        everything = np.cumsum(np.add.reduceat(weights, begins))
        refused_targets = np.cumsum(np.add.reduceat(weights * truth, begins))
        refused_nontargets = everything - refused_targets
        if refused_targets[-1] and refused_nontargets[-1]:
            misses = np.append(0.0, refused_targets / refused_targets[-1])
            false_alarms = np.append(1.0, 1 - refused_nontargets / refused_nontargets[-1])
            after = int(np.argmax(misses >= false_alarms))
            dcfs = [float(_costs(misses, false_alarms, cost).min()) for cost in costs]
            found.append([_crossing(misses, false_alarms, after), *dcfs])
    if len(found) < 0.9 * drawn_sets or number < 3:
        return [None] * (1 + len(costs))
    bounds = np.quantile(np.array(found), [(1 - level) / 2, (1 + level) / 2], axis=0)
    # resampling makes no errors that the trials do not have: that there are none says little of few trials
    return [Interval(float(low), float(high)) if high > 0 else None for low, high in bounds.T]


def _units(trials: Trials, speakers: Mapping[str, str] | None) -> tuple[Ints, Ints, int]:
    """What is drawn, by number: of the enrolled and of the tested side of each trial, and how many there are."""
    names = list(dict.fromkeys((*trials.enrol_names, *trials.test_names)))
    if speakers is None:
        unit_of = {name: name for name in names}
    else:
        # an enrolled model may be called by its speaker's name
        known = set(speakers.values())
        unit_of = {name: speakers.get(name, name if name in known else "") for name in names}
        if absent := [name for name, speaker in unit_of.items() if not speaker]:
            raise InputError(f"{len(absent)} names of the trials are of no speaker in the list: {some(absent)}")
    numbers = {unit: number for number, unit in enumerate(dict.fromkeys(unit_of.values()))}
    enrol = np.array([numbers[unit_of[name]] for name in trials.enrol_names], dtype=np.int32)
    test = np.array([numbers[unit_of[name]] for name in trials.test_names], dtype=np.int32)
    return enrol[trials.enrol], test[trials.test], len(numbers)


def _probit_like(rates: Doubles) -> Doubles:
    """Monotone in a rate, stretched at both ends as the axes of a DET plot are."""
    bounded = rates.clip(1e-5, 1 - 1e-5)
    stretched: Doubles = np.log(bounded / (1 - bounded))
    return stretched
