"""Figures of a load test; which ones, the data decide.

    Report  ->  plots_of  ->  PNG pictures with a name and a title

Latency by part over concurrency, throughput against latency, settings against one another, streams, open loop. A point
with failed requests carries a red cross, one whose windows did not agree is hollow; what failed whole has a cross at
the foot of the figure.

Source of the first two forms: NVIDIA DeepLearningExamples, PyTorch/SpeechRecognition/Jasper/triton, performance.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tritone.loadtest.findings.result import Measurement, Report
from tritone.loadtest.findings.series import (
    LOADS,
    OPEN_LOOPS,
    Series,
    common,
    describe,
    has_merged_batches,
    in_flight,
    is_batch_implied,
    is_clean,
    is_number,
    series_of,
    settings,
    unit_of,
    varying,
)
from tritone.report import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_FIGURES = 8  # of one form; the fastest series are drawn, the tables hold all
MAX_LINES = 8  # in one figure, as many as there are colours
MAX_NUMBERED = 24  # points of one figure that carry their load as a number

# Parts of a request's time from the client outwards, cool and pale around, strong where the server works.
PARTS = {
    "client": "#AEB8C2",
    "network, send and receive": "#D8DEE5",
    "queue": "#E69F00",
    "compute input": "#9AD0F0",
    "compute infer": "#0072B2",
    "compute output": "#009E73",
}
WHOLE_SERVER = "network and server"
THROUGHPUT = "#B0306A"
PERCENTILES = {"p50": "#9CC7E6", "p90": "#4E9BD1", "p95": "#0072B2", "p99": "#0B2F52"}


@dataclass(frozen=True)
class Plot:
    """One picture. `name` is a file name without its ending, unique among those of a report."""

    name: str
    title: str
    png: bytes


def plots_of(report: Report) -> list[Plot]:
    """Draw what the measurements of a report can fill; nothing of none."""
    drawn: list[Plot] = []
    for name, title, figure in _figures(report.measurements):
        slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:80] or "plot"
        taken = {each.name for each in drawn}
        unique = next(
            each for index in range(1, len(drawn) + 2) if (each := slug + f"-{index}" * (index > 1)) not in taken
        )
        drawn.append(Plot(unique, title, plots.png(figure)))
    return drawn


def _figures(measurements: Sequence[Measurement]) -> "Iterator[tuple[str, str, Figure]]":
    """Name, title and figure of each, the most telling first."""
    closed = [each for each in measurements if each.loop == "closed"]
    opened = [each for each in measurements if each.loop in OPEN_LOOPS]
    streams = [each for each in measurements if each.loop == "streaming" and each.streaming is not None]
    for audio, group in _by_audio([*closed, *opened]).items():
        if sum(each.latency is not None for each in group) > 1:
            title = _on_audio("Throughput against latency", audio)
            yield f"throughput-{audio}", title, throughput_against_latency(group, title)
    for audio, group in _by_audio(closed).items():
        for name in _compared(group):
            title = _on_audio(_comparison(name, group), audio)
            yield f"by-{name}-{audio}", title, side_by_side(group, name, title)
    yield from _each_series("latency", "Latency by part and throughput", closed, latency_parts)
    yield from _each_series("open-loop", "Latency over request rate", opened, open_loop)
    yield from _each_series("streams", "Latency of streams", streams, stream_latencies)


def _each_series(
    name: str, title: str, measurements: Sequence[Measurement], draw: "Callable[[Series, str], Figure]"
) -> "Iterator[tuple[str, str, Figure]]":
    """One figure per series; of too many the fastest, in their order."""
    found = series_of(measurements) if measurements else []
    fastest = {id(each) for each in sorted(found, key=lambda each: each.peak, reverse=True)[:MAX_FIGURES]}
    if len(fastest) < len(found):
        title += f" (one of the {len(fastest)} fastest of {len(found)})"
    for series in found:
        if id(series) in fastest:
            yield f"{name}-{series.name}", f"{title}: {series.name}" if series.name else title, draw(series, title)


def _on_audio(title: str, audio: str) -> str:
    words = describe({"audio": audio})
    return f"{title}, {words}" if words.strip() != "audio" else title


def _by_audio(measurements: Iterable[Measurement]) -> dict[str, list[Measurement]]:
    groups: dict[str, list[Measurement]] = {}
    for each in measurements:
        groups.setdefault(each.seconds, []).append(each)
    return groups


def _compared(measurements: Sequence[Measurement]) -> "Iterator[str]":
    """The settings worth a figure; of those that change together, as batching and its delay may, the first."""
    seen = set()
    for name in varying(measurements):
        if name == "batch" and (has_merged_batches(measurements) or is_batch_implied(measurements)):
            continue
        values = [settings(each).get(name) for each in measurements]
        division = tuple(values.index(value) for value in values)  # who goes together, whatever it is called
        if division not in seen:
            seen.add(division)
            yield name


def _comparison(name: str, measurements: Sequence[Measurement]) -> str:
    values = list(dict.fromkeys(settings(each).get(name, "none") for each in measurements))
    if name == "batching" and set(values) == {"static", "dynamic"}:
        return "Static against dynamic batching"
    shown = [value if is_number(value) else plots.plain(value, 24) for value in values]
    return f"{' against '.join(shown)} ({name})" if len(shown) == 2 else f"By {name}: {', '.join(shown)}"


def parts_ms(measurement: Measurement) -> Mapping[str, float]:
    """Where the mean latency goes, in milliseconds by part. What neither side counted is on the way between them."""
    assert measurement.latency is not None
    mean, server = measurement.latency.mean_ms, measurement.server
    if server is None:
        return {"client": measurement.client_ms, WHOLE_SERVER: max(0.0, mean - measurement.client_ms)}
    counted = (server.queue_ms, server.compute_input_ms, server.compute_infer_ms, server.compute_output_ms)
    between = max(0.0, mean - measurement.client_ms - sum(counted))
    return dict(zip(PARTS, (measurement.client_ms, between, *counted), strict=True))


def latency_parts(series: Series, title: str) -> "Figure":
    """Bars of the mean latency by part with a mark at p95, and throughput as a line, over the load."""
    figure, (axes,) = plots.new_figure(title, subtitle=describe(series.settings))
    points = series.measurements
    batched = len({each.batch_size for each in points}) > 1
    places = [float(place) for place in range(len(points))]
    answered = [(place, each) for place, each in zip(places, points, strict=True) if each.latency]
    feet = dict.fromkeys(places, 0.0)
    for part, colour in {**PARTS, WHOLE_SERVER: "#5B8DB8"}.items():
        heights = {place: parts_ms(each)[part] for place, each in answered if part in parts_ms(each)}
        if heights:
            bottoms = [feet[place] for place in heights]
            axes.bar(list(heights), list(heights.values()), 0.62, bottoms, color=colour, label=part)
            feet |= {place: feet[place] + height for place, height in heights.items()}
    p95 = [each.latency.p95_ms if each.latency else None for each in points]
    _points(axes, places, p95, points, colour=plots.INK, marker="_", name="p95", line=False)
    plots.from_zero(axes, [*feet.values(), *(each for each in p95 if each)], headroom=1.4, log=False)
    axes.set_xticks(places, [f"{each.batch_size} × {each.load:g}" if batched else f"{each.load:g}" for each in points])
    axes.set_xlim(-0.6, len(points) - 0.4)
    plots.label_axes(axes, f"batch × {LOADS['closed']}" if batched else LOADS["closed"], "mean latency by part, ms")
    right = plots.second_axis(axes, f"{unit_of(points)}/s")
    throughput = [each.throughput for _, each in answered]
    style = {"color": THROUGHPUT, "marker": "o", "markersize": 5, "linewidth": 2, "label": "throughput"}
    right.plot([place for place, _ in answered], throughput, **style)  # type: ignore[arg-type]
    plots.from_zero(right, throughput, headroom=1.15, log=False)
    plots.legend(axes, right, columns=4, below=True)
    return figure


def throughput_against_latency(measurements: Sequence[Measurement], title: str) -> "Figure":
    """One line per series, one point per load: up is more work, left is less waiting."""
    figure, (axes,) = plots.new_figure(title, subtitle=common(measurements))
    fixed = is_number(measurements[0].seconds) or not measurements[0].has_audio
    lines = series_of(measurements)
    kept = sorted(lines, key=lambda each: each.peak, reverse=True)[:MAX_LINES]
    batched = any(each.batch_size > 1 for each in measurements)
    number = in_flight if batched else lambda each: each.load
    numbered = sum(len(each.measurements) for each in kept) <= MAX_NUMBERED
    xs: list[float] = []
    ys: list[float] = []
    for index, series in enumerate(each for each in lines if any(each is one for one in kept)):
        held = [each for each in series.measurements if each.latency]
        x = [each.latency.p95_ms for each in held if each.latency]
        y = [each.throughput if fixed else each.rtfx for each in held]
        _points(axes, x, y, held, name=series.name, index=index)
        for place in range(len(held) if numbered else 0):
            shift = {"xytext": (6, -10), "textcoords": "offset points", "fontsize": 8, "color": plots.SOFT}
            axes.annotate(f"{number(held[place]):g}", (x[place], y[place]), **shift)  # type: ignore[arg-type]
        xs, ys = xs + x, ys + y
    plots.from_zero(axes, ys)
    plots.from_zero(axes, xs, direction="x")
    loads = " or ".join(dict.fromkeys(_load_name(each, batched) for each in measurements))
    plots.label_axes(
        axes,
        "p95 latency, ms" + (f"; the numbers are {loads}" if numbered else ""),
        f"{unit_of(measurements)}/s" if fixed else "seconds of audio per second (RTFx)",
    )
    remarks = []
    if lost := sum(not each.latency for each in measurements):
        remarks.append(f"not shown: {lost} measurement{'s' * (lost > 1)} without an answer")
    if len(lines) > MAX_LINES:
        remarks.append(f"the {MAX_LINES} fastest of {len(lines)} series")
    plots.remark(axes, "; ".join(remarks))
    plots.legend(axes, columns=1 + (len(kept) > 4), below=len(kept) > 4)
    return figure


def _load_name(measurement: Measurement, batched: bool) -> str:
    return (
        f"{unit_of([measurement])} in flight" if batched and measurement.loop == "closed" else LOADS[measurement.loop]
    )


def side_by_side(measurements: Sequence[Measurement], name: str, title: str) -> "Figure":
    """The values of one setting against one another: throughput and p95 over the utterances in flight.

    With more lines than can be told apart, each value shows the best that its other settings reach at each load.
    """
    lines = series_of(measurements)
    subtitle = common(measurements)
    if len(lines) > MAX_LINES:
        lines = _envelopes(measurements, name)[:MAX_LINES]
        subtitle = ", ".join(filter(None, [subtitle, "the best of all other settings at each load"]))
    figure, (left, right) = plots.new_figure(title, panels=(1, 1), subtitle=subtitle)
    colours = {value: index for index, value in enumerate(dict.fromkeys(each.settings.get(name) for each in lines))}
    latencies: list[float] = []
    for index, series in enumerate(lines):
        held = sorted(series.measurements, key=in_flight)
        x = [in_flight(each) for each in held]
        colour = plots.COLOURS[colours[series.settings.get(name)] % len(plots.COLOURS)]
        marker = plots.MARKERS[index % len(plots.MARKERS)]
        p95 = [each.latency.p95_ms if each.latency else None for each in held]
        _points(left, x, [each.throughput for each in held], held, name=series.name, colour=colour, marker=marker)
        _points(right, x, p95, held, name=series.name, colour=colour, marker=marker)
        latencies += [each for each in p95 if each is not None]
    plots.from_zero(left, [each.throughput for each in measurements])
    plots.from_zero(right, latencies)
    batched = any(each.batch_size > 1 for each in measurements)
    for axes, label in ((left, f"{unit_of(measurements)}/s"), (right, "p95 latency, ms")):
        plots.label_axes(axes, _load_name(measurements[0], batched), label)
        plots.ticks_at(axes, [in_flight(each) for each in measurements])
    plots.legend(left, columns=3, below=True)
    return figure


def _envelopes(measurements: Sequence[Measurement], name: str) -> list[Series]:
    """For each value of a setting the best measurement of each load: a clean one, then the highest throughput."""
    best: dict[str, dict[float, Measurement]] = {}
    for each in measurements:
        held = best.setdefault(settings(each).get(name, ""), {})
        before = held.get(in_flight(each))
        if before is None or (is_clean(each), each.throughput) > (is_clean(before), before.throughput):
            held[in_flight(each)] = each
    return [
        Series(describe({name: value}) or "none", {name: value}, list(held.values())) for value, held in best.items()
    ]


def open_loop(series: Series, title: str) -> "Figure":
    """Percentiles of latency, and what was answered of what was offered, over the request rate."""
    figure, (left, right) = plots.new_figure(title, panels=(1, 1), subtitle=describe(series.settings))
    points = series.measurements
    rates = [each.load for each in points]
    shown: list[float] = []
    for index, (name, colour) in enumerate(PERCENTILES.items()):
        values = [getattr(each.latency, f"{name}_ms") if each.latency else None for each in points]
        _points(left, rates, values, points, name=name, colour=colour, marker=plots.MARKERS[index])
        shown += [value for value in values if value is not None]
    plots.from_zero(left, shown)
    answered = [each.throughput / each.batch_size for each in points]
    limit = max([*rates, *answered], default=1.0)
    right.plot([0, limit], [0, limit], color=plots.SOFT, linewidth=1.2, linestyle=(0, (4, 3)), label="offered")
    _points(right, rates, answered, points, name="answered", index=2)
    right.set_ylim(0, limit * 1.12)
    right.set_xlim(0, limit * 1.05)
    plots.label_axes(left, LOADS[points[0].loop], "latency, ms")
    plots.label_axes(right, LOADS[points[0].loop], "requests/s answered")
    plots.ticks_at(left, rates, log=False)
    plots.legend(left)
    plots.legend(right)
    return figure


def stream_latencies(series: Series, title: str) -> "Figure":
    """Each latency of streams, p95 and p50, and the share of chunks answered in time, over the number of streams."""
    figure, (axes, right) = plots.new_figure(title, subtitle=describe(series.settings), panels=(2, 1))
    points = [each for each in series.measurements if each.streaming]
    numbers = [each.load for each in points]
    shown: list[float] = []
    for index, kind in enumerate(("first_partial", "chunk", "final")):
        latencies = [getattr(each.streaming, kind) for each in points]
        if not any(latencies):
            continue
        for percentile in ("p95", "p50"):
            values = [getattr(each, f"{percentile}_ms") if each else None for each in latencies]
            name = f"{kind.replace('_', ' ')} {percentile}"
            _points(axes, numbers, values, points, name=name, index=index, dashed=percentile == "p50")
            shown += [value for value in values if value is not None]
    plots.from_zero(axes, shown)
    in_time = [100 * each.streaming.in_time for each in points if each.streaming]
    right.plot(numbers, in_time, color=plots.INK, linewidth=2, marker="d", markersize=6)
    right.set_ylim(0, 104)
    plots.label_axes(axes, LOADS["streaming"], "latency, ms")
    plots.label_axes(right, LOADS["streaming"], "chunks answered in time, %")
    for each in (axes, right):
        plots.ticks_at(each, numbers)
    plots.legend(axes, columns=4, below=True)
    return figure


def _points(
    axes: "Axes",
    x: Sequence[float],
    y: Sequence[float | None],
    measurements: Sequence[Measurement],
    *,
    name: str,
    index: int = 0,
    colour: str = "",
    marker: str = "",
    line: bool = True,
    dashed: bool = False,
) -> None:
    """A line with its points and what is wrong with them: hollow, crossed out, or without a value at the foot."""
    colour = colour or plots.COLOURS[index % len(plots.COLOURS)]
    marker = marker or plots.MARKERS[index % len(plots.MARKERS)]
    held = [(place, value, each) for place, value, each in zip(x, y, measurements, strict=True) if value is not None]
    bar = marker == "_"  # a dash has no inside
    look = {"color": colour, "marker": marker, "markersize": 16 if bar else 6, "markeredgewidth": 2.2 if bar else 1.4}
    axes.plot(
        [place for place, _, _ in held],
        [value for _, value, _ in held],
        linestyle=("none" if not line else (0, (3, 2)) if dashed else "solid"),
        linewidth=1.4 if dashed else 2,
        label=plots.plain(name, 40),
        **look,  # type: ignore[arg-type]
    )
    unstable = [(place, value) for place, value, each in held if not each.stable]
    failed = [(place, value) for place, value, each in held if each.failed]
    lost = [place for place, value in zip(x, y, strict=True) if value is None]
    plots.hollow(axes, unstable, colour=colour, marker="o" if bar else marker, name="unstable")
    plots.crosses(axes, failed, name="some requests failed")
    plots.crosses_at_foot(axes, lost, name="nothing answered")
