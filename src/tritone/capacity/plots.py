"""Figures of a plan: what a replica gives, and days of autoscaling."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tritone.bench.plots import Plot
from tritone.capacity.load import HOUR_S
from tritone.capacity.plan import Day, Plan
from tritone.report import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOAD, READY, PAID, REFUSED = "#555555", "#0072B2", "#9CC7E6", plots.FAILED
MAX_FIGURES = 8


@dataclass(frozen=True)
class _Hours:
    """The horizontal axis of a day."""

    edges: "np.ndarray[tuple[int], np.dtype[np.float64]]"

    @classmethod
    def of(cls, day: Day) -> "_Hours":
        simulated = day.simulated
        return cls(np.linspace(simulated.start_s, simulated.end_s, len(simulated.ready) + 1) / HOUR_S)

    def set(self, axes: "Axes") -> None:
        last = float(self.edges[-1])
        axes.set_xlim(0, last)
        axes.set_xticks(np.arange(0, last + 1, 3 if last <= 24 else 12))


def plots_of(plan: Plan) -> list[Plot]:
    """Draw the days of a plan; nothing of a plan without."""
    return [Plot(name, title, plots.png(figure)) for name, title, figure in _figures(plan)]


def _figures(plan: Plan) -> "Iterator[tuple[str, str, Figure]]":
    for index, day in enumerate(plan.days[:MAX_FIGURES]):
        title = f"Replicas and refusals: {day.name}"
        yield f"day-{index}", title, replicas_of(plan, day, title)
    # Of streams that were all taken there is nothing to draw.
    if plan.days and (plan.replica.kind == "requests" or any(each.simulated.refused for each in plan.days)):
        title = "Latency by the time of day" if plan.replica.kind == "requests" else "Refusals by the time of day"
        yield "by-time", title, by_time(plan, title)


def replicas_of(plan: Plan, day: Day, title: str) -> "Figure":
    """Replicas that take utterances and that cost money, against what the load needs; refusals below."""
    simulated = day.simulated
    subtitle = f"{100 * simulated.refused_share:.2g} % refused, {simulated.replica_s / HOUR_S:.0f} replica-hours"
    figure, (axes,) = plots.new_figure(title, subtitle=subtitle)
    hours = _Hours.of(day)
    axes.stairs(simulated.paid, hours.edges, fill=True, color=PAID, label="running or starting")
    axes.stairs(simulated.ready, hours.edges, color=READY, linewidth=1.8, label="ready")
    needed = simulated.offered / plan.carried_audio
    axes.stairs(needed, hours.edges, color=LOAD, linewidth=1.1, linestyle="--", label="load / what one carries")
    plots.label_axes(axes, "hour of the day", "replicas")
    plots.from_zero(axes, [*simulated.paid, *needed], log=False, headroom=1.25)
    hours.set(axes)
    shares = _refused_percent(day)
    other = plots.second_axis(axes, "refused, % of arrivals")
    other.stairs(shares, hours.edges, fill=True, color=REFUSED, alpha=0.6, label="refused")
    plots.from_zero(other, [5.0, *shares], log=False, headroom=2)
    plots.legend(axes, other, columns=4, below=True)
    return figure


def by_time(plan: Plan, title: str) -> "Figure":
    """What users feel under each setting: of requests the p95 of latency, of streams the share that is refused."""
    first = plan.days[0].simulated
    minutes = (first.end_s - first.start_s) / len(first.ready) / 60
    figure, (axes,) = plots.new_figure(title, subtitle=f"of what arrived in {minutes:g} minutes each")
    found: list[float] = []
    is_latency = plan.replica.kind == "requests"
    for index, day in enumerate(plan.days[:MAX_FIGURES]):
        hours = _Hours.of(day)
        values = 1000 * day.simulated.p95_by_bin if is_latency else _refused_percent(day)
        middles = (hours.edges[:-1] + hours.edges[1:]) / 2
        axes.plot(middles, values, label=plots.plain(day.name), color=plots.COLOURS[index], linewidth=1.4)
        found += values[np.isfinite(values)].tolist()
        hours.set(axes)
    if is_latency and plan.goal.limit_ms is not None:
        axes.axhline(plan.goal.limit_ms, color=plots.SOFT, linewidth=1, linestyle=":", label="limit")
        found.append(plan.goal.limit_ms)
    plots.label_axes(axes, "hour of the day", "p95 latency (ms)" if is_latency else "refused (% of arrivals)")
    plots.from_zero(axes, found, log=is_latency)
    plots.legend(axes, columns=4, below=True)
    return figure


def _refused_percent(day: Day) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    simulated = day.simulated
    percent: np.ndarray[tuple[int], np.dtype[np.float64]] = (
        100 * simulated.refused_by_bin / np.maximum(1, simulated.arrived_by_bin)
    )
    return percent
