"""The tables of scored trials.

Evaluation  ->  report.Table
"""

from collections.abc import Mapping

from tritone.report.table import Cell, Column, Table
from tritone.speakers.metrics import RULE_OF_30, Evaluation, Figure


def figures(evaluation: Evaluation, name: str) -> Table:
    """The figures of one list, a row each."""
    curve = evaluation.curve
    rows = [_row("EER (%)", evaluation.eer, 100)]
    for cost, figure in evaluation.min_dcfs.items():
        rows.append(_row(f"minDCF (p_target:{cost.p_target:g} c_miss:{cost.c_miss:g} c_fa:{cost.c_fa:g})", figure, 1))
    notes = [f"{curve.num_targets} target and {curve.num_nontargets} nontarget trials."]
    if evaluation.errors_at_eer < RULE_OF_30:
        errors = evaluation.errors_at_eer
        notes.append(f"The EER rests on about {errors} missed target{'s' * (errors != 1)}: it is coarse.")
    if evaluation.resampled:
        unknown = ""
        if evaluation.eer.interval is None:
            unknown = (
                "; there are too few for intervals" if evaluation.eer.value else "; without an error there is none"
            )
        notes.append(f"Intervals by drawing {evaluation.resampled}{unknown}.")
    columns = [
        Column("figure", ""),
        Column("value", "value", digits=3),
        Column("interval", f"{100 * evaluation.level:g} % interval", align="right"),
        Column("threshold", "threshold", digits=5),
    ]
    return Table(name, columns, rows, note=" ".join(notes))


def figures_of_all(evaluations: Mapping[str, Evaluation]) -> Table:
    """The figures of several lists by name, a row for each; all with the same costs."""
    first = next(iter(evaluations.values()))
    costs = list(first.min_dcfs)
    columns = [
        Column("trials", "trials"),
        Column("targets", "targets"),
        Column("nontargets", "nontargets"),
        Column("eer", "EER (%)", digits=3),
        Column("interval", f"{100 * first.level:g} % interval", align="right"),
        *(Column(f"{n}", f"minDCF ({cost.p_target:g})", digits=3) for n, cost in enumerate(costs)),
    ]
    rows = []
    for name, each in evaluations.items():
        eer = _row("", each.eer, 100)
        counts = {"targets": each.curve.num_targets, "nontargets": each.curve.num_nontargets}
        dcfs = {f"{n}": each.min_dcfs[cost].value for n, cost in enumerate(costs)}
        rows.append({"trials": name, **counts, "eer": eer["value"], "interval": eer["interval"], **dcfs})
    note = f"minDCF by p_target, at c_miss {costs[0].c_miss:g} and c_fa {costs[0].c_fa:g}."
    return Table("", columns, rows, note=note)


def _row(name: str, figure: Figure, scale: int) -> dict[str, Cell]:
    bounds = figure.interval
    return {
        "figure": name,
        "value": scale * figure.value,
        "interval": None if bounds is None else f"{scale * bounds.low:.3f} to {scale * bounds.high:.3f}",
        "threshold": figure.threshold,
    }
