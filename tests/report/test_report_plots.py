import struct
import subprocess
import sys

import pytest

from load_reports import HOSTILE
from tritone.report import plots


def size(png: bytes) -> tuple[int, int]:
    """Width and height from the header of a PNG (RFC 2083, 3.2 and 4.1.1)."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    assert png[12:16] == b"IHDR"
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def luminance(colour: str) -> float:
    """WCAG 2, relative luminance of "#rrggbb"."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_a_figure_becomes_a_picture_of_the_size_of_a_slide() -> None:
    figure, (axes,) = plots.new_figure("A title", subtitle="of something")
    axes.plot([1, 2], [3, 4], label="a line")
    plots.label_axes(axes, "x", "y")
    plots.legend(axes)
    assert size(plots.png(figure)) == (1280, 720)


@pytest.mark.slow
def test_hostile_texts_are_drawn_and_not_read_as_formulas() -> None:
    for text in (HOSTILE, "$", "$$", r"$\frac{$", r"\$", "_hidden", "字", "a" * 1000, ""):
        figure, (axes,) = plots.new_figure(text, subtitle=text)
        axes.plot([1], [1], label=plots.plain(text))
        plots.label_axes(axes, text, text)
        plots.remark(axes, text)
        plots.legend(axes, below=True)
        assert plots.png(figure)


def test_a_name_that_begins_with_an_underscore_is_in_the_legend() -> None:
    _, (axes,) = plots.new_figure("t")
    axes.plot([1], [1], label=plots.plain("_name"))
    plots.legend(axes)
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text().strip("\u200b") for text in legend.get_texts()] == ["_name"]


def test_states_of_points_come_last_in_the_legend_and_once() -> None:
    _, (axes,) = plots.new_figure("t")
    for name in ("first", "second"):
        axes.plot([1], [1], label=name)
        plots.crosses(axes, [(1.0, 1.0)], name="failed")
        plots.hollow(axes, [(1.0, 1.0)], colour="#000000", marker="o", name="unstable")
    plots.legend(axes)
    legend = axes.get_legend()
    assert legend is not None
    names = [text.get_text() for text in legend.get_texts()]
    assert names[:2] == ["first", "second"]
    assert sorted(names[2:]) == ["failed", "unstable"]


@pytest.mark.parametrize(
    ("values", "scale"),
    [([], "linear"), ([0.0], "linear"), ([10, 400], "linear"), ([10, 600], "log"), ([0, 9], "linear")],
)
def test_an_axis_starts_at_zero_unless_its_values_span_too_much(values: list[float], scale: str) -> None:
    _, (axes,) = plots.new_figure("t")
    plots.from_zero(axes, values)
    assert axes.get_yscale() == scale
    assert axes.get_ylim()[1] > max([0.0, *values])
    if scale == "linear":
        assert axes.get_ylim()[0] == 0


def test_crowded_ticks_are_thinned_out_and_the_last_one_stays() -> None:
    _, (axes,) = plots.new_figure("t")
    plots.ticks_at(axes, [1, 2, 3, 98, 99, 100], log=False)
    shown = [float(tick) for tick in axes.get_xticks()]
    assert shown[-1] == 100
    assert 99 not in shown
    plots.ticks_at(axes, [])


def test_lines_stand_out_from_the_paper() -> None:
    # WCAG 2.1, 1.4.11 asks for 3:1 of graphics; thick lines with a marker of their own may have less
    contrasts = {colour: 1.05 / (luminance(colour) + 0.05) for colour in plots.COLOURS}
    assert min(contrasts.values()) > 2
    assert len(set(plots.COLOURS)) == len(plots.COLOURS) == len(plots.MARKERS) == len(set(plots.MARKERS))


def test_drawing_starts_no_window_system() -> None:
    code = (
        "import sys; from tritone.report import plots; figure, _ = plots.new_figure('t'); plots.png(figure);"
        "sys.exit('matplotlib.pyplot' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
