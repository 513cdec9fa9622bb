from typing import TYPE_CHECKING

import pytest

from load_reports import HOSTILE, failed, labelled, measured, report, server, streams
from tritone.loadtest.findings.result import Measurement
from tritone.loadtest.findings.series import series_of
from tritone.loadtest.pages.plots import (
    latency_parts,
    open_loop,
    parts_ms,
    plots_of,
    side_by_side,
    stream_latencies,
    throughput_against_latency,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are made but not painted, which takes most of the time."""
    monkeypatch.setattr("tritone.report.plots.png", lambda figure: b"")


def names(*measurements: Measurement) -> list[str]:
    return [plot.name for plot in plots_of(report(*measurements))]


def legend_of(figure: "Figure") -> set[str]:
    legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes)]
    return {text.get_text() for legend in legends if legend is not None for text in legend.get_texts()}


def line(figure: "Figure", label: str, panel: int = 0) -> list[tuple[float, float]]:
    """The points of a line by its name."""
    found = next(each for each in figure.axes[panel].lines if each.get_label() == label)
    return [(float(x), float(y)) for x, y in zip(found.get_xdata(), found.get_ydata(), strict=True)]  # type: ignore[arg-type]


@pytest.mark.usefixtures("no_pictures")
def test_the_data_choose_the_figures() -> None:
    assert names() == []
    assert names(measured(1)) == ["latency"]
    assert names(measured(1), measured(2)) == ["throughput-5", "latency"]
    assert names(measured(10, "poisson"), measured(20, "poisson")) == ["throughput-5", "open-loop"]
    assert names(streams(1), streams(2)) == ["streams"]
    two_runtimes = [measured(load, **labelled(runtime=name)) for name in ("onnx", "torch") for load in (1, 2)]
    assert names(*two_runtimes) == ["throughput-5", "by-runtime-5", "latency-onnx", "latency-torch"]
    sweep = [
        measured(load, batch_size=size, **labelled(batching=batching, **{"max batch": "4", "delay ms": "0"}))
        for batching, size in (("static", 4), ("dynamic", 1))
        for load in (1, 2)
    ]  # the batch of a request goes without saying
    assert names(*sweep) == ["throughput-5", "by-batching-5", "latency-static", "latency-dynamic"]
    matrix = [
        measured(1, batch_size=size, **labelled(where=where, batching="static", **{"max batch": str(size)}))
        for where in ("served", "process")
        for size in (1, 2, 4)
    ]  # a line over the batches for each place
    assert names(*matrix) == ["throughput-5", "by-where-5", "latency-served", "latency-process"]
    together = [
        measured(load, **labelled(runtime=name, threads=threads))
        for name, threads in (("onnx", "1"), ("torch", "2"))
        for load in (1, 2)
    ]  # a figure by threads would be the same once more
    assert [name for name in names(*together) if name.startswith("by-")] == ["by-runtime-5"]
    two_lengths = [measured(load, seconds=seconds) for seconds in ("2", "7") for load in (1, 2)]
    assert names(*two_lengths) == ["throughput-2", "throughput-7", "latency-2-s", "latency-7-s"]


def test_every_report_can_be_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tritone.report.plots.DPI", 20)
    hostile = measured(1, model=HOSTILE, seconds=HOSTILE, errors={HOSTILE: 1}, labels={HOSTILE: HOSTILE, "_a": "$"})
    bare = measured(1, server=None, wer=None)
    nothing = measured(0.0, requests=0, utterances=0, audio_s=0.0, wall_s=0.0, latency=None, server=None)
    silent = streams(2)
    mute = measured(3, "streaming", streaming=None)
    for measurements in ([hostile], [bare], [nothing], [nothing, nothing], [failed(1), failed(2)], [silent, mute]):
        assert plots_of(report(*measurements))
    drawn = plots_of(
        report(hostile, bare, nothing, failed(1), silent, measured(5, "poisson"), failed(7, loop="poisson"))
    )
    assert len({plot.name for plot in drawn}) == len(drawn)
    for plot in drawn:
        assert plot.name.replace("-", "").isalnum()
        assert plot.name.isascii()
        assert plot.png.startswith(b"\x89PNG")


def test_parts_of_the_latency_add_up_to_its_mean() -> None:
    point = measured(1, p50_ms=20.0)  # mean 22 ms: client 0.5, queue 2, input 1, infer 10, output 0.5, the rest between
    assert parts_ms(point) == {
        "client": 0.5,
        "network, send and receive": pytest.approx(8.0),
        "queue": 2.0,
        "compute input": 1.0,
        "compute infer": 10.0,
        "compute output": 0.5,
    }
    assert parts_ms(measured(1, server=None)) == {"client": 0.5, "network and server": pytest.approx(21.5)}


def test_a_server_that_counts_more_than_the_client_saw_leaves_nothing_between() -> None:
    assert parts_ms(measured(1, p50_ms=5.0, server=server(queue_ms=50.0)))["network, send and receive"] == 0.0


def test_bars_have_the_heights_of_the_parts_and_a_mark_at_p95() -> None:
    (series,) = series_of([measured(1, p50_ms=20.0), measured(4, p50_ms=30.0)])
    figure = latency_parts(series, "t")
    axes, right = figure.axes
    tops = [sum(bar.patches[place].get_height() for bar in axes.containers) for place in (0, 1)]  # type: ignore[attr-defined]
    assert tops == pytest.approx([22.0, 33.0])
    assert line(figure, "p95") == [(0, 40.0), (1, 60.0)]
    assert line(figure, "throughput", panel=1) == [(0, 10.0), (1, 40.0)]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "4"]
    assert right.get_ylim()[1] > 40


def test_what_failed_or_did_not_settle_is_marked_in_every_form() -> None:
    def points(loop: str) -> list[Measurement]:
        if loop == "streaming":
            return [streams(1), streams(2, stable=False), streams(3, errors={"x": 1})]
        return [measured(1, loop), measured(2, loop, stable=False), measured(3, loop, errors={"x": 1})]  # type: ignore[arg-type]

    (closed,), (opened,), (streaming,) = (series_of(points(loop)) for loop in ("closed", "poisson", "streaming"))
    figures = [
        latency_parts(closed, "t"),
        throughput_against_latency(closed.measurements, "t"),
        side_by_side(closed.measurements, "runtime", "t"),
        open_loop(opened, "t"),
        stream_latencies(streaming, "t"),
    ]
    for figure in figures:
        assert {"unstable", "some requests failed"} <= legend_of(figure)


def test_where_nothing_was_answered_there_is_a_cross_at_the_foot_and_no_point() -> None:
    (series,) = series_of([measured(1), failed(2)])
    figure = latency_parts(series, "t")
    assert "nothing answered" in legend_of(figure)
    assert line(figure, "p95") == [(0, 40.0)]
    assert line(figure, "throughput", panel=1) == [(0, 10.0)]
    figure = throughput_against_latency(series.measurements, "t")
    assert "not shown: 1 measurement without an answer" in figure.get_supxlabel()


def test_throughput_against_latency_has_one_line_per_series_and_one_point_per_load() -> None:
    points = [
        measured(load, p50_ms=base * load, **labelled(runtime=name))
        for name, base in (("onnx", 20.0), ("torch", 30.0))
        for load in (1, 2)
    ]
    figure = throughput_against_latency(points, "t")
    assert line(figure, "onnx") == [(40.0, 10.0), (80.0, 20.0)]
    assert line(figure, "torch") == [(60.0, 10.0), (120.0, 20.0)]
    assert {text.get_text() for text in figure.axes[0].texts} == {"1", "2"}


def test_mixed_lengths_count_seconds_of_audio_instead_of_utterances() -> None:
    figure = throughput_against_latency([measured(1, seconds="files"), measured(2, seconds="files")], "t")
    assert [y for _, y in line(figure, figure.axes[0].lines[0].get_label())] == [50.0, 100.0]  # type: ignore[arg-type]


@pytest.mark.usefixtures("no_pictures")
def test_static_and_dynamic_batching_meet_at_the_utterances_in_flight() -> None:
    static = [measured(1, batch_size=size, **labelled(batching="static")) for size in (1, 2, 4, 8)]
    dynamic = [measured(load, **labelled(batching="dynamic")) for load in (1, 2, 4, 8)]
    figure = side_by_side([*static, *dynamic], "batching", "t")
    assert [x for x, _ in line(figure, "static")] == [1, 2, 4, 8]
    assert [x for x, _ in line(figure, "dynamic")] == [1, 2, 4, 8]
    titles = [plot.title for plot in plots_of(report(*static, *dynamic))]
    assert "Static against dynamic batching, 5 s" in titles


@pytest.mark.usefixtures("no_pictures")
def test_a_large_sweep_shows_for_each_value_the_best_clean_setting_at_each_load() -> None:
    points = [
        measured(
            load,
            utterances=100 * load * (index + 1),
            stable=index != 9,  # the fastest is not to be trusted
            labels={"runtime": runtime, "delay": f"{index} ms"},
        )
        for runtime in ("onnx", "torch")
        for index in range(10)
        for load in (1, 2)
    ]
    figure = side_by_side(points, "runtime", "t")
    assert line(figure, "onnx") == [(1, 90.0), (2, 180.0)]
    drawn = plots_of(report(*points))
    bars = [plot for plot in drawn if plot.name.startswith("latency")]
    assert len(bars) == 8
    assert all("one of the 8 fastest of 20" in plot.title for plot in bars)


def test_open_loop_shows_percentiles_and_what_was_answered_of_what_was_offered() -> None:
    rates = [measured(10, "poisson", 20, utterances=100), measured(20, "poisson", 50, utterances=150)]
    (series,) = series_of(rates)
    figure = open_loop(series, "t")
    assert line(figure, "p50") == [(10, 20.0), (20, 50.0)]
    assert line(figure, "p99") == [(10, 60.0), (20, 150.0)]
    assert line(figure, "offered", panel=1) == [(0, 0), (20, 20)]
    assert line(figure, "answered", panel=1) == [(10, 10.0), (20, 15.0)]


def test_streams_show_each_latency_under_its_own_name_and_the_share_in_time() -> None:
    (series,) = series_of([streams(1), streams(4, p50_ms=60.0, in_time=0.9)])
    figure = stream_latencies(series, "t")
    assert line(figure, "first partial p95") == [(1, 1400.0), (4, 1400.0)]
    assert line(figure, "chunk p50") == [(1, 30.0), (4, 60.0)]
    assert line(figure, "final p95") == [(1, 120.0), (4, 240.0)]
    in_time = figure.axes[1].lines[0]
    assert list(in_time.get_ydata()) == pytest.approx([100.0, 90.0])  # type: ignore[arg-type]
