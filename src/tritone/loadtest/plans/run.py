"""Running a plan: point after point, within the limits, and a report even of a run that was cut short.

    Plan, measure(point)   ->  run_plan  ->  Run: Report, and what ended it early if something did
    start, measure(point)  ->  run_ramp  ->  Run: the largest load within a limit

Nothing here sends a request: `measure` does, see `generator.py`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from tritone.errors import TritoneError
from tritone.loadtest.findings.result import Measurement, Report
from tritone.loadtest.plans.plan import Plan, Point
from tritone.loadtest.plans.ramp import Limit, Ramp, largest_load
from tritone.loadtest.requests.offline import Interrupted
from tritone.report.stamp import Stamp

Measure = Callable[[Point], Measurement]


class Observer(Protocol):
    """Is called while a run goes on."""

    def starting(self, point: Point, index: int, total: int | None) -> None:
        """A point is about to be measured; `index` counts from 1, `total` is None where it is not known."""

    def measured(self, measurement: Measurement) -> None:
        """A point was measured."""

    def note(self, text: str) -> None:
        """A remark that is in the report too, such as loads that were not tried, and why."""


@dataclass(frozen=True, kw_only=True)
class Header:
    """The parts of a report beside its measurements; `labels` go to every one of them."""

    stamp: Stamp
    title: str = "Load test"
    labels: Mapping[str, str] | None = None
    notes: Sequence[str] = ()

    def label(self, measurement: Measurement) -> Measurement:
        return replace(measurement, labels={**measurement.labels, **(self.labels or {})})

    def report(self, measurements: Sequence[Measurement], notes: Sequence[str] = (), complete: bool = True) -> Report:
        notes = [*self.notes, *notes]
        return Report(stamp=self.stamp, measurements=measurements, title=self.title, complete=complete, notes=notes)


@dataclass(frozen=True, kw_only=True)
class Run:
    """The result of a run. `ended_by`: the error or the Ctrl-C because of which the report is not complete."""

    report: Report
    ended_by: TritoneError | KeyboardInterrupt | None = None


def run_plan(plan: Plan, measure: Measure, observer: Observer, header: Header, *, limit: Limit | None = None) -> Run:
    """Measure what a plan holds.

    Args:
        plan: what to measure.
        measure: measures one point. Failed requests are part of its result; an error that it raises ends the run.
        observer: is called meanwhile.
        header: the other parts of the report.
        limit: a series ends with the first load that does not keep it. It always ends where nothing is answered.

    Returns:
        The report of all that was measured before the end, a Ctrl-C or an error.
    """
    found: list[Measurement] = []
    notes: list[str] = []
    place = 0
    try:
        for series in plan.series():
            for index, point in enumerate(series):
                place += 1
                observer.starting(point, place, len(plan))
                found.append(header.label(measure(point)))
                observer.measured(found[-1])
                rest = len(series) - index - 1
                if rest and (reason := _why_stop(found[-1], limit)):
                    notes.append(f"{point}: {reason}; {rest} higher loads were not tried")
                    observer.note(notes[-1])
                    place += rest
                    break
    except (TritoneError, KeyboardInterrupt) as error:
        found += [header.label(each) for each in _partial(error)]
        why = "interrupted" if isinstance(error, KeyboardInterrupt) else f"ended by an error: {error}"
        notes.append(f"{why}, at point {place} of {len(plan)}")
        return Run(report=header.report(found, notes, complete=False), ended_by=error)
    return Run(report=header.report(found, notes))


def run_ramp(
    first: Point, maximum: int, limit: Limit, measure: Measure, observer: Observer, header: Header
) -> tuple[Run, Ramp | None]:
    """Search for the largest load within a limit.

    Args:
        first: where to begin; its load is a whole number.
        maximum: the largest load to try.
        limit: what must be kept.
        measure, observer, header: as for `run_plan`.

    Returns:
        The report of everything that was measured, and what the search says of it; None if an error ended it.
    """
    found: list[Measurement] = []
    ended: list[KeyboardInterrupt] = []

    def one(load: int) -> Measurement:
        point = replace(first, load=load)
        observer.starting(point, len(found) + 1, None)
        try:
            found.append(header.label(measure(point)))
        except KeyboardInterrupt as interrupt:
            ended.append(interrupt)
            found.extend(header.label(each) for each in _partial(interrupt))
            raise
        observer.measured(found[-1])
        return found[-1]

    try:
        ramp = largest_load(one, limit, int(first.load), maximum)
    except TritoneError as error:
        notes = [f"ended by an error: {error}"]
        return Run(report=header.report(found, notes, complete=False), ended_by=error), None
    notes = [*ramp.notes, f"search for the largest load with {limit}: {ramp}"]
    for note in notes:
        observer.note(note)
    run = Run(report=header.report(found, notes, complete=ramp.complete), ended_by=ended[0] if ended else None)
    return run, ramp


def _why_stop(measurement: Measurement, limit: Limit | None) -> str:
    if limit is not None and (breach := limit.breach(measurement)):
        return str(breach)
    return "no request was answered" if measurement.latency is None else ""


def _partial(error: BaseException) -> list[Measurement]:
    return [error.measurement] if isinstance(error, Interrupted) and error.measurement is not None else []
