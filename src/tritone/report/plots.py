"""Figures with one look, for pages and slides. Drawn on paper white, whatever the page around them.

    new_figure(...)  ->  axes to draw on  ->  png(figure)  ->  bytes

matplotlib is used without pyplot: no global state, no window, nothing to close.
"""

import io
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from tritone.report.table import visible

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette (Color Universal Design, 2008), which the colour-blind can tell apart, in an order in which
# neighbours differ in lightness too; its yellow is too pale for lines on white and stands last.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#555555", "#B8A800")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")  # with the colours: a series is known by either
INK, SOFT, GRID = "#1b2430", "#586574", "#e3e7ec"
FAILED = "#C22B11"
STATE = "state"  # marks the state of a point, not its value
CROSS: Mapping[str, Any] = {
    "linestyle": "none",
    "marker": "x",
    "markersize": 10,
    "markeredgewidth": 2.4,
    "color": FAILED,
    "zorder": 5,
    "gid": STATE,
}
WIDTH, HEIGHT = 8.0, 4.5  # inches, 16:9
DPI = 160
LONGEST = 60  # characters of a name in a figure


def new_figure(title: str, *, subtitle: str = "", panels: Sequence[float] = (1,)) -> "tuple[Figure, list[Axes]]":
    """A figure with a title, what was measured, and axes beside one another; `panels` are their shares of its width."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1, wspace=0.06, rect=(0, 0, 1, 0.86))
    figure = Figure(figsize=(WIDTH, HEIGHT), dpi=DPI, facecolor="white", layout=layout)
    figure.text(0.015, 0.965, plain(title, 66), va="top", fontsize=13, fontweight="bold", color=INK)
    figure.text(0.015, 0.885, plain(subtitle, 112), va="top", fontsize=9.5, color=SOFT)
    all_axes = list(figure.subplots(1, len(panels), squeeze=False, width_ratios=list(panels))[0])
    for axes in all_axes:
        _style(axes)
    return figure, all_axes


def second_axis(axes: "Axes", label: str) -> "Axes":
    """Another vertical axis, on the right, without a grid of its own."""
    other = axes.twinx()
    _style(other)
    other.grid(False)
    other.set_ylabel(plain(label))
    return other


def label_axes(axes: "Axes", x: str, y: str) -> None:
    """Name both axes."""
    axes.set_xlabel(plain(x))
    axes.set_ylabel(plain(y))


def legend(axes: "Axes", *others: "Axes", columns: int = 1, below: bool = False) -> None:
    """One legend for what has a name on these axes, states of points last; `below` them where the inside is full."""
    found: dict[str, Artist] = {}
    for each in (axes, *others):
        for handle, name in zip(*each.get_legend_handles_labels(), strict=True):
            found.setdefault(name, handle)
    if not found:
        return
    names = sorted(found, key=lambda name: getattr(found[name], "get_gid", lambda: None)() == STATE)
    handles = [found[name] for name in names]
    style: dict[str, Any] = {"fontsize": 8.5, "labelcolor": INK, "ncols": columns}
    if below:
        axes.figure.legend(handles, names, loc="outside lower center", frameon=False, columnspacing=1.6, **style)
    else:
        # the topmost axes are drawn last; a legend elsewhere would lie under their lines
        box = (others or (axes,))[-1].legend(handles, names, framealpha=0.9, edgecolor=GRID, **style)
        box.get_frame().set_linewidth(0.8)


def remark(axes: "Axes", text: str) -> None:
    """A warning below the axes, e.g. on what could not be drawn."""
    axes.figure.supxlabel(plain(text, 150), x=0.015, ha="left", fontsize=8.5, color=FAILED)


def ticks_at(axes: "Axes", values: Sequence[float], *, log: bool = True) -> None:
    """Ticks on the horizontal axis at the values measured; if `log`, a logarithmic one over more than a decade."""
    from matplotlib.ticker import NullLocator

    shown = sorted(set(values))
    if not shown:
        return
    if log and shown[0] > 0 and shown[-1] / shown[0] > 10:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
        places = [math.log(value) for value in shown]
    else:
        places = shown
    shown = _apart(shown, places, room=0.055 * len(axes.figure.axes))
    axes.set_xticks(shown, [f"{value:g}" for value in shown])


def from_zero(
    axes: "Axes",
    values: Sequence[float],
    *,
    headroom: float = 1.12,
    direction: Literal["x", "y"] = "y",
    log: bool = True,
) -> None:
    """An axis from zero to above the values; if `log`, a logarithmic one where they span more than a factor of 50."""
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    axis = axes.xaxis if direction == "x" else axes.yaxis
    set_limits = axes.set_xlim if direction == "x" else axes.set_ylim
    positive = [value for value in values if value > 0]
    if log and positive and max(positive) / min(positive) > 50:
        (axes.set_xscale if direction == "x" else axes.set_yscale)("log")
        decades = math.log10(max(positive) / min(positive))
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 3 else (1,)))
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.set_minor_locator(NullLocator())
        set_limits(min(positive) / 1.4, max(positive) * 1.6)
    else:
        set_limits(0, max(positive, default=1.0) * headroom)


Points = Sequence[tuple[float, float]]


def hollow(axes: "Axes", points: Points, *, colour: str, marker: str, name: str) -> None:
    """Take the filling out of points that were drawn before: they are only indicative."""
    if points:
        style: dict[str, Any] = {"linestyle": "none", "marker": marker, "markerfacecolor": "white", "zorder": 4}
        axes.plot(*zip(*points, strict=True), color=colour, markersize=7, markeredgewidth=1.6, **style)
        axes.plot([], [], color=SOFT, label=name, gid=STATE, **{**style, "marker": "o"})


def crosses(axes: "Axes", points: Points, *, name: str) -> None:
    """Cross points out: something failed there."""
    if points:
        axes.plot(*zip(*points, strict=True), label=name, **CROSS)


def crosses_at_foot(axes: "Axes", places: Sequence[float], *, name: str) -> None:
    """Crosses at the lower edge for what has no value to be drawn at."""
    if places:
        across = axes.get_xaxis_transform()  # data along x, 0 to 1 along y
        axes.plot(
            places, [0.025] * len(places), label=name, transform=across, clip_on=False, **{**CROSS, "marker": "X"}
        )


def plain(text: str, longest: int = LONGEST) -> str:
    """A text from elsewhere as matplotlib should show it: no formula, one line, cut when it is long, never hidden."""
    shown = visible(text)
    shown = shown if len(shown) <= longest else shown[: longest - 1] + "…"
    shown = shown.replace("$", r"\$")
    return f"\N{ZERO WIDTH SPACE}{shown}" if shown.startswith("_") else shown  # legends leave out names like "_x"


def png(figure: "Figure") -> bytes:
    """The picture, 1280 x 720 for one of the default size; in 256 colours, which take a third of the bytes."""
    from PIL import Image

    stream = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from", category=UserWarning)  # becomes a box
        figure.savefig(stream, format="png", metadata={"Software": None})
    small = io.BytesIO()
    Image.open(stream).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(small, format="png", optimize=True)
    return small.getvalue()


def svg(figure: "Figure") -> bytes:
    """The picture as SVG, letters as outlines; the same figure gives the same bytes."""
    import matplotlib

    stream = io.BytesIO()
    with warnings.catch_warnings(), matplotlib.rc_context({"svg.hashsalt": "tritone"}):
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from", category=UserWarning)  # becomes a box
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    return stream.getvalue()


def _style(axes: "Axes") -> None:
    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(SOFT)
    axes.tick_params(colors=SOFT, labelsize=9, length=0)
    axes.tick_params(axis="x", length=3)
    axes.grid(True, axis="y", color=GRID, linewidth=0.9)
    axes.set_axisbelow(True)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set_color(INK)
        label.set_fontsize(9.5)


def _apart(values: Sequence[float], places: Sequence[float], room: float) -> list[float]:
    """Values whose places, as a share of the span of all, leave room for their text; the last one always."""
    span = places[-1] - places[0] or 1.0
    kept = [len(values) - 1]
    for index in reversed(range(len(values) - 1)):
        if (places[kept[-1]] - places[index]) / span >= room:
            kept.append(index)
    return [values[index] for index in reversed(kept)]
