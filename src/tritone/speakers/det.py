"""The picture of an evaluation: its DET curve, and how the scores of both kinds of trials are spread.

    Evaluation, Scores  ->  draw_det  ->  a figure  ->  save_picture  ->  .png or .svg

Both axes of the curve are stretched by the normal distribution, so normal scores give a straight line.
Source: A. Martin et al., "The DET curve in assessment of detection task performance", Eurospeech 1997.
"""

from collections.abc import Iterator
from pathlib import Path
from statistics import NormalDist

import numpy as np

from tritone.errors import OperatorError
from tritone.report import plots
from tritone.speakers.metrics import Evaluation
from tritone.speakers.score_file import Doubles, Scores

PICTURES = {".png": plots.png, ".svg": plots.svg}
TICKS = (0.00001, 0.0001, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9)
LEAST, MOST = 0.00001, 0.95  # rates that the axes reach at the utmost
TICK_ROOM = 0.075  # of the axis, between two ticks
TICK_PAD = 8  # points; what lies on the edge must not cover the numbers of the axis
BINS = 60
TARGET_COLOUR, NONTARGET_COLOUR = plots.COLOURS[2], plots.COLOURS[3]
probit = NormalDist().inv_cdf


def draw_det(evaluation: Evaluation, scores: Scores, *, title: str = "Speaker verification") -> "plots.Figure":
    """Draw the curve with its EER and the points of least cost, and the scores of targets and non-targets beside it."""
    curve = evaluation.curve
    subtitle = f"{curve.num_targets:,} target and {curve.num_nontargets:,} non-target trials"
    figure, (left, right) = plots.new_figure(title, subtitle=subtitle, panels=(1, 1))
    _draw_curve(left, evaluation)
    _draw_scores(right, scores, evaluation.eer.threshold)
    plots.legend(left, right, columns=3, below=True)
    return figure


def save_picture(figure: "plots.Figure", path: Path) -> None:
    """Write a figure as its file's ending says.

    Raises:
        OperatorError: it cannot be written.
        ValueError: the ending is none of `PICTURES`.
    """
    check_picture(path)
    picture = PICTURES[path.suffix.lower()](figure)
    try:
        path.write_bytes(picture)
    except OSError as error:
        raise OperatorError(f"cannot write {path}: {error.strerror}") from error


def check_picture(path: Path) -> None:
    """Raises ValueError for a file whose ending names no kind of picture."""
    if path.suffix.lower() not in PICTURES:
        raise ValueError(f"{path} is neither .png nor .svg, the pictures that can be drawn")


def _draw_curve(axes: "plots.Axes", evaluation: Evaluation) -> None:
    curve = evaluation.curve
    marked = list(_marked(evaluation))
    # the axes end at half an error of the more frequent kind: no error at all has no place on them
    floor = max(LEAST, min(0.01, 0.5 / max(curve.num_targets, curve.num_nontargets)))
    top = min(MOST, max(0.2, 1.5 * max(rate for _, point in marked for rate in point)))
    limits = probit(floor), probit(top)
    axes.plot(limits, limits, color=plots.SOFT, linewidth=0.8, linestyle=":")
    misses, false_alarms = curve.thinned()
    axes.plot(_stretched(false_alarms, floor), _stretched(misses, floor), color=plots.COLOURS[0], linewidth=1.8)
    for index, (name, point) in enumerate(marked):
        axes.plot(
            *_stretched(np.array(point), floor),
            linestyle="none",
            marker=plots.MARKERS[index % len(plots.MARKERS)],
            markersize=9 - index,  # of points that fall together, all can be seen
            color=plots.COLOURS[(index + 3) % len(plots.COLOURS)],
            label=plots.plain(name),
            zorder=4,
            clip_on=False,
        )
    ticks: list[float] = []
    for tick in TICKS:
        if floor <= tick <= top and (
            not ticks or probit(tick) - probit(ticks[-1]) > TICK_ROOM * (limits[1] - limits[0])
        ):
            ticks.append(tick)
    names = [f"{100 * tick:g}" for tick in ticks]
    axes.set_xticks([probit(tick) for tick in ticks], names)
    axes.set_yticks([probit(tick) for tick in ticks], names)
    axes.tick_params(pad=TICK_PAD)
    axes.set_xlim(*limits)
    axes.set_ylim(*limits)
    axes.set_aspect("equal")
    axes.grid(True, axis="x", color=plots.GRID, linewidth=0.9)
    plots.label_axes(axes, "false alarms (% of non-targets)", "misses (% of targets)")


def _marked(evaluation: Evaluation) -> Iterator[tuple[str, tuple[float, float]]]:
    """Points to mark: what they are, and false alarms and misses there."""
    curve, eer = evaluation.curve, evaluation.eer.value
    yield f"EER {eer:.2%}", (eer, eer)
    for cost, figure in evaluation.min_dcfs.items():
        index = int(np.searchsorted(curve.thresholds, figure.threshold))
        yield f"minDCF {figure.value:.3f} ({cost})", (float(curve.false_alarms[index]), float(curve.misses[index]))


def _draw_scores(axes: "plots.Axes", scores: Scores, threshold: float) -> None:
    targets, values = scores.trials.targets, scores.values
    assert targets is not None
    edges = np.linspace(values.min(), max(values.max(), values.min() + 1e-6), BINS + 1)
    for chosen, colour, name in ((~targets, NONTARGET_COLOUR, "non-targets"), (targets, TARGET_COLOUR, "targets")):
        shares = np.histogram(values[chosen], edges)[0] / np.count_nonzero(chosen)
        axes.stairs(100 * shares, edges, fill=True, alpha=0.35, color=colour)
        axes.stairs(100 * shares, edges, color=colour, linewidth=1.4, label=name)
    axes.axvline(threshold, color=plots.INK, linewidth=1, linestyle="--", label=f"threshold at EER, {threshold:.3f}")
    axes.set_ylim(bottom=0)
    plots.label_axes(axes, "score", "trials (% of their kind)")


def _stretched(rates: Doubles, floor: float) -> Doubles:
    flat = np.array([probit(rate) for rate in rates.clip(floor, 1 - floor).ravel()])
    return flat.reshape(rates.shape)
