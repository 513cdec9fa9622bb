"""What every benchmark shares: conditions, repeats, ratios, and how they are written down.

    Finding (a number, its bar, every repeat, the conditions)  ->  JSON  ->  Markdown

A finding carries its own conditions, so that one of several can be measured again without the others losing theirs.
"""

import json
import math
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np
import psutil

from tritone.report.stamp import Stamp
from tritone.report.table import visible

ROOT = Path(__file__).resolve().parent.parent
CALM_PERCENT = 5.0
MIN_CALM = 3

Cell = str | int | float


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The conditions of one measurement: machine and software, and the bundle that was served."""

    stamp: Stamp
    bundle: str

    @classmethod
    def here(cls, bundle: str, module: str = "benchmarks.serving") -> "Setup":
        """Describe this process, which runs `module`, and this machine."""
        return cls(stamp=Stamp.here(shlex.join(["python", "-m", module, *sys.argv[1:]])), bundle=bundle)

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> "Setup":
        """Read what `save` wrote."""
        stamp = {name: value for name, value in fields.items() if name != "bundle"}
        return cls(stamp=Stamp(**stamp), bundle=fields["bundle"])

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self.stamp), "bundle": self.bundle}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One number and where it came from.

    `value` is compared with `bar` in the `sense` given; `rows` are the repeats as a table, `notes` what else matters.
    """

    key: str
    title: str
    value: float
    bar: float
    sense: Literal["at least", "at most"]
    setup: Setup
    rows: Sequence[Mapping[str, Cell]] = field(default_factory=list)
    notes: Sequence[str] = field(default_factory=list)

    @property
    def is_met(self) -> bool:
        return self.value >= self.bar if self.sense == "at least" else self.value <= self.bar

    def __str__(self) -> str:
        told = [f"{self.title}: {self.value:.3g} ({self.sense} {self.bar:g}: {'met' if self.is_met else 'NOT MET'})"]
        told += [f"  {text_row(row)}" for row in self.rows]
        return "\n".join(told + [f"  {note}" for note in self.notes])


def text_row(row: Mapping[str, Cell]) -> str:
    """One repeat on one line."""
    return ", ".join(f"{name} {_cell(value)}" for name, value in row.items())


def percentiles(values: Iterable[float]) -> dict[str, float]:
    """p50, p95, p99 and the largest."""
    array = np.asarray(list(values))
    p50, p95, p99 = np.percentile(array, [50, 95, 99])
    return {"p50": float(p50), "p95": float(p95), "p99": float(p99), "max": float(array.max())}


def timed(work: Callable[[], object]) -> float:
    """Seconds that `work` takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def alternate(sides: Mapping[str, Callable[[], object]], repeats: int) -> list[dict[str, float]]:
    """Run the sides of a comparison in turn (A B C, A B C, …) after one turn of warm-up.

    Goes on until `repeats` of them were calm (see `is_calm`), at most three times as many in all.

    Returns:
        For each repeat the seconds of each side, and as "others %" how much of the cores foreign processes took.
    """
    for work in sides.values():
        work()
    rows: list[dict[str, float]] = []
    while sum(map(is_calm, rows)) < repeats and len(rows) < 3 * repeats:
        with Bystanders() as bystanders:
            row = {name: timed(work) for name, work in sides.items()}
        rows.append(row | {"others %": bystanders.percent})
    return rows


def timed_in_turn(
    *works: Callable[[], object],
    warm_ups: int = 1,
    repeats: int = 5,
    enough_s: float = 1.0,
    most_s: float = math.inf,
) -> list[float]:
    """The median time of each of some calls, in seconds. They take turns, so that what disturbs one disturbs all.

    Goes on until there are `repeats` of each that together took `enough_s`, or until they took `most_s`.
    """
    for _ in range(warm_ups):
        for work in works:
            work()
    times: list[list[float]] = []
    while (spent := sum(map(sum, times))) < most_s and (len(times) < repeats or spent < enough_s):
        times.append([timed(work) for work in works])
    return [median(each) for each in zip(*times, strict=True)]


def is_calm(row: Mapping[str, Any]) -> bool:
    """Whether foreign processes left a repeat alone. One that came and went favours a side by chance."""
    return float(row["others %"]) <= CALM_PERCENT


def median_ratio(rows: Sequence[Mapping[str, float]], numerator: str, denominator: str) -> tuple[float, str]:
    """The median of `numerator / denominator` over the calm repeats, and a note on how many those are.

    Without three calm repeats all of them count, and the note says that the figure is only indicative.
    """
    calm = [row for row in rows if is_calm(row)]
    enough = len(calm) >= MIN_CALM
    ratio = median(row[numerator] / row[denominator] for row in (calm if enough else rows))
    if enough:
        return ratio, f"Median of {len(calm)} calm repeats of {len(rows)} (others at most {CALM_PERCENT:g} %)."
    return ratio, f"Only indicative: {len(calm)} of {len(rows)} repeats were calm (others at most {CALM_PERCENT:g} %)."


class Bystanders:
    """How busy other processes than this one and its descendants keep its cores, in percent, while inside `with`.

    Descendants are taken to run on the cores of this process, as they do unless they ask for others.
    """

    percent = 0.0

    def __enter__(self) -> "Bystanders":
        self._start = busy_s() - tree_cpu_s(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        spent, start = self._start
        others = busy_s() - tree_cpu_s() - spent
        self.percent = round(max(0.0, 100 * others / ((time.perf_counter() - start) * len(os.sched_getaffinity(0)))), 1)


def tree_cpu_s(pid: int | None = None) -> float:
    """CPU seconds used so far by a process (this one by default) and its descendants, also those that have ended."""
    process = psutil.Process(pid)
    total = 0.0
    for each in [process, *process.children(recursive=True)]:
        try:
            times = each.cpu_times()
        except psutil.Error:  # ended meanwhile
            continue
        # The parent of a process that ended inherits its times.
        total += times.user + times.system + times.children_user + times.children_system
    return total


def save(findings: Sequence[Finding], path: Path) -> list[dict[str, Any]]:
    """Add findings to a JSON file, replacing those of the same key, and return all that it holds now."""
    held = {each["key"]: each for each in (json.loads(path.read_text(encoding="utf-8")) if path.is_file() else [])}
    for finding in findings:
        held[finding.key] = asdict(finding) | {"setup": finding.setup.to_dict(), "met": finding.is_met}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(list(held.values()), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return list(held.values())


def to_markdown(findings: Sequence[Mapping[str, Any]], title: str, introduction: str) -> str:
    """Write findings, as `save` returned them, as a page: a summary, then every repeat with its conditions."""
    lines = [f"# {title}", "", introduction, "", "| measure | value | bar | |", "| --- | --- | --- | --- |"]
    for each in findings:
        verdict = "met" if each["met"] else "**not met**"
        lines.append(f"| {each['title']} | {each['value']:.3g} | {each['sense']} {each['bar']:g} | {verdict} |")
    for each in findings:
        lines += ["", f"## {each['title']}", "", *_table(each["rows"]), *(f"* {note}" for note in each["notes"]), ""]
        lines.append(_conditions(each["setup"]))
    return "\n".join(lines) + "\n"


def _table(rows: Sequence[Mapping[str, Cell]]) -> list[str]:
    if not rows:
        return []
    names = list(rows[0])
    lines = [f"| {' | '.join(names)} |", f"|{' --- |' * len(names)}"]
    lines += [f"| {' | '.join(_cell(row[name]) for name in names)} |" for row in rows]
    return [*lines, ""]


def _conditions(fields: Mapping[str, Any]) -> str:
    setup = Setup.read(fields)
    stamp = setup.stamp
    return (
        f"`{stamp.command}`, {stamp.date}, commit {stamp.commit or 'unknown'}; {stamp.machine()}; "
        f"model {setup.bundle}; load average before: {stamp.load}."
    )


def _cell(value: Cell) -> str:
    return f"{value:.4g}" if isinstance(value, float) else visible(str(value))


def busy_s() -> float:
    """CPU seconds that all processes of the machine together have used on the cores that this one may use."""
    cores = psutil.cpu_times(percpu=True)
    times = [cores[index] for index in os.sched_getaffinity(0)]
    return float(sum(sum(each) - each.idle - getattr(each, "iowait", 0.0) for each in times))
