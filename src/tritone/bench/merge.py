"""Several reports as one: one set of plots then shows static against dynamic batching, or runtime against runtime."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from tritone.bench.series import settings
from tritone.loadtest.findings.result import Measurement, Report

LABEL = "report"


def merge(reports: Sequence[Report], names: Sequence[str], *, title: str | None = None) -> Report:
    """Join reports in their order.

    Args:
        reports: at least one.
        names: what to call them. Where two have the same operating point, all their measurements get the name as a
            label, because nothing else tells them apart.
        title: of the whole; None joins the titles.

    Returns:
        The whole, with the conditions of the first; the notes tell those of the others where they differ.
    """
    if not reports:
        raise ValueError("there is no report to join")
    if len(names) != len(reports):
        raise ValueError(f"{len(reports)} reports need as many names, got {len(names)}")
    names = _unique(names)
    seen = Counter(key for report in reports for key in {_point(each) for each in report.measurements})
    alike = any(count > 1 for count in seen.values())
    measurements = [
        replace(each, labels={**each.labels, LABEL: name}) if alike else each
        for name, report in zip(names, reports, strict=True)
        for each in report.measurements
    ]
    first = reports[0].stamp
    notes = []
    for name, report in zip(names, reports, strict=True):
        notes += [f"{name}: {note}" for note in report.notes]
        if report.stamp != first:
            notes.append(f"{name} was measured apart: {report.stamp.summary()}; {report.stamp.command}")
    return Report(
        stamp=first,
        measurements=measurements,
        title=title or ", ".join(dict.fromkeys(report.title for report in reports)),
        complete=all(report.complete for report in reports),
        notes=notes,
    )


def _point(measurement: Measurement) -> tuple[object, ...]:
    return (measurement.load, *sorted(settings(measurement).items()))


def _unique(names: Sequence[str]) -> list[str]:
    found: list[str] = []
    for name in names:
        count = sum(each == name or each.startswith(f"{name} (") for each in found)
        found.append(f"{name} ({count + 1})" if count else name)
    return found
