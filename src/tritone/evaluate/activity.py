"""Voice activity against the truth: speech that was missed, speech that is none, and how far boundaries are off.

    reference segments, found segments, length  ->  ActivityScore; scores of recordings add up

`missed` and `false_alarm` are the rates of NIST's evaluations of speech activity (OpenSAT, there P_miss and P_fa), and
`detection_error` is the detection error rate of pyannote.metrics.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import reduce
from itertools import pairwise
from operator import add

import numpy as np

from tritone.activity import SpeechSegment
from tritone.report.table import Cell, Column, Table

TOLERANCE_S = 0.5  # a boundary that is found farther off than this is another one

Spans = list[tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class ActivityScore:
    """How well speech was found, in seconds; of several recordings the sum.

    `starts` and `ends`: for each boundary of the reference that was found, how much later it was found (negative:
    earlier). `missed_boundaries`, `false_boundaries`: numbers of those of the reference that were not found, and of
    those found where none is.
    """

    speech_s: float
    silence_s: float
    missed_s: float
    false_s: float
    starts: tuple[float, ...] = ()
    ends: tuple[float, ...] = ()
    missed_boundaries: int = 0
    false_boundaries: int = 0

    @property
    def missed(self) -> float:
        """The fraction of speech that was not found; 0 where there is none."""
        return self.missed_s / self.speech_s if self.speech_s else 0.0

    @property
    def false_alarm(self) -> float:
        """The fraction of silence that was taken for speech; 0 where there is none."""
        return self.false_s / self.silence_s if self.silence_s else 0.0

    @property
    def detection_error(self) -> float:
        """Missed and false seconds by seconds of speech; infinite where speech is found and there is none."""
        wrong_s = self.missed_s + self.false_s
        return wrong_s / self.speech_s if self.speech_s else float("inf") if wrong_s else 0.0

    def boundary_error_s(self, percent: float) -> float:
        """A percentile of how far boundaries are off, either way; NaN if none was found."""
        differences = np.abs([*self.starts, *self.ends])
        return float(np.percentile(differences, percent)) if differences.size else float("nan")

    def __add__(self, other: "ActivityScore") -> "ActivityScore":
        return ActivityScore(
            **{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)}
        )


def score_activity(
    reference: Sequence[SpeechSegment],
    found: Sequence[SpeechSegment],
    duration_s: float,
    *,
    collar_s: float = 0.0,
    tolerance_s: float = TOLERANCE_S,
) -> ActivityScore:
    """Compare the speech that was found in a recording with where it is.

    Args:
        reference, found: segments in any order; those that overlap or touch count as one.
        duration_s: length of the recording; what is beyond it is left out.
        collar_s: so much before and after each boundary of the reference is not scored: people who mark boundaries
            differ by some hundredths of a second. pyannote's `collar` is twice this.
        tolerance_s: how far a boundary may be off and still be that of the reference. A boundary of the reference and
            one that was found belong together if each is the nearest of its kind (start or end) to the other.

    Raises:
        ValueError: the duration, the collar or the tolerance is negative or not a number.
    """
    if not (duration_s >= 0 and collar_s >= 0 and tolerance_s >= 0):
        raise ValueError(f"lengths must be at least 0 s, got {duration_s}, {collar_s} and {tolerance_s}")
    true, ours = _merged(reference, duration_s), _merged(found, duration_s)
    collars = _merged([SpeechSegment(at - collar_s, at + collar_s) for span in true for at in span], duration_s)
    scored = _outside(collars, duration_s) if collar_s else [(0.0, duration_s)]
    speech, silence = _common(true, scored), _common(_outside(true, duration_s), scored)
    starts, ends = (
        _matched([span[side] for span in true], [span[side] for span in ours], tolerance_s) for side in (0, 1)
    )
    matched = len(starts) + len(ends)
    return ActivityScore(
        speech_s=_length(speech),
        silence_s=_length(silence),
        missed_s=_length(_common(speech, _outside(ours, duration_s))),
        false_s=_length(_common(silence, ours)),
        starts=tuple(starts),
        ends=tuple(ends),
        missed_boundaries=2 * len(true) - matched,
        false_boundaries=2 * len(ours) - matched,
    )


def activity_table(scores: Mapping[str, ActivityScore]) -> Table:
    """The scores of recordings by their names, at least one, and of all together."""
    columns = (
        Column("recording", "recording"),
        Column("speech_s", "speech", digits=1, unit="s"),
        Column("silence_s", "silence", digits=1, unit="s"),
        Column("missed", "missed", digits=2, scale=100, unit="%"),
        Column("false_alarm", "false alarm", digits=2, scale=100, unit="%"),
        Column("detection_error", "detection error", digits=2, scale=100, unit="%"),
        Column("p50", "boundaries off by, p50", digits=0, scale=1000, unit="ms", spare=1),
        Column("p95", "p95", digits=0, scale=1000, unit="ms", spare=1),
        Column("missed_boundaries", "boundaries missed", spare=2),
        Column("false_boundaries", "boundaries false", spare=2),
    )
    named = dict(scores)
    if len(named) > 1:
        named["all"] = reduce(add, scores.values())
    rows: list[dict[str, Cell]] = []
    for name, score in named.items():
        own = {each.key: getattr(score, each.key) for each in columns if hasattr(score, each.key)}
        percentiles = {"p50": score.boundary_error_s(50), "p95": score.boundary_error_s(95)}
        rows.append({"recording": name, **own, **percentiles})
    return Table("", columns, rows)


def _merged(segments: Iterable[SpeechSegment], duration_s: float) -> Spans:
    """Segments in order, clipped to the recording, without overlaps."""
    found: Spans = []
    for start, end in sorted((max(0.0, each.start_s), min(duration_s, each.end_s)) for each in segments):
        if end <= start:
            continue
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found


def _outside(spans: Spans, duration_s: float) -> Spans:
    edges = [0.0, *(at for span in spans for at in span), duration_s]
    return [(start, end) for start, end in zip(edges[::2], edges[1::2], strict=True) if end > start]


def _common(first: Spans, second: Spans) -> Spans:
    found: Spans = []
    a = b = 0
    while a < len(first) and b < len(second):
        start, end = max(first[a][0], second[b][0]), min(first[a][1], second[b][1])
        if end > start:
            found.append((start, end))
        if first[a][1] < second[b][1]:
            a += 1
        else:
            b += 1
    return found


def _length(spans: Spans) -> float:
    return sum(end - start for start, end in spans)


def _matched(true: Sequence[float], found: Sequence[float], tolerance_s: float) -> list[float]:
    """How much later each boundary was found, of those that were; both in ascending order."""
    if not true or not found:
        return []
    nearest, back = _nearest(true, found), _nearest(found, true)
    return [
        found[ours] - at
        for index, (at, ours) in enumerate(zip(true, nearest, strict=True))
        if back[ours] == index and abs(found[ours] - at) <= tolerance_s
    ]


def _nearest(points: Sequence[float], among: Sequence[float]) -> list[int]:
    """For each point the index of the nearest of others, the earlier of two that are equally near."""
    middles = [(before + after) / 2 for before, after in pairwise(among)]
    return [int(index) for index in np.searchsorted(middles, points, side="left")]
