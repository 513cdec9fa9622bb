"""The output of `tritone bench`: tables on stdout, and on stderr where a run is.

On a terminal the point under way is one changing line; elsewhere every point is a line when it begins and when it ends.
"""

import sys
from collections.abc import Iterable, Sequence

import numpy as np
import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from tritone.loadtest.findings.result import Measurement
from tritone.loadtest.findings.series import unit, unit_of
from tritone.loadtest.plans.plan import Point
from tritone.loadtest.requests.windows import Tick
from tritone.report.table import Table, visible

PIPE_WIDTH = 220  # a pipe has no width of its own, and a narrow table would cut its columns


class Screen:
    """Shows a run on stderr. It is an `Observer` of `bench.run`, and a context manager around what it watches."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._point = ""
        self._batch_size = 1
        self._windows = 0

    def __enter__(self) -> "Screen":
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def notify(self, text: str) -> None:
        """A line that stays."""
        self._console.print(Text(visible(text)), soft_wrap=True)

    def starting(self, point: Point, index: int, total: int | None) -> None:
        self._point = f"[{index}{f'/{total}' if total else ''}] {point}"
        self._windows, self._batch_size = 0, point.batch_size
        if self._console.is_terminal:
            self._change(f"{self._point}: warming up")
        else:
            self.notify(f"{self._point} ...")

    def window(self, tick: Tick) -> None:
        """A window of the point under way ended."""
        self._windows += 1
        parts = [f"{self._point}: window {self._windows}"]
        counted = unit(bool(tick.audio_s), self._batch_size)
        parts += [f"{tick.utterances / tick.wall_s:.1f} {counted}/s"] if tick.wall_s else []
        parts += [f"p95 {1000 * float(np.percentile(tick.latencies, 95)):.1f} ms"] if tick.latencies else []
        parts += [f"{tick.errors.total()} failed"] if tick.errors else []
        self._change(", ".join(parts))

    def measured(self, measurement: Measurement) -> None:
        self._change("")
        self.notify(f"{self._point}: {figures(measurement)}")
        for note in measurement.notes:
            self.notify(f"    {note}")

    def note(self, text: str) -> None:
        self.notify(text)

    def _change(self, text: str) -> None:
        if self._console.is_terminal:
            self._live.update(Text(visible(text), style="dim"), refresh=True)


def figures(measurement: Measurement) -> str:
    """A measurement in one line."""
    parts = []
    streaming, latency = measurement.streaming, measurement.latency
    if streaming is None:
        parts.append(f"{measurement.throughput:.1f} {unit_of([measurement])}/s")
        if latency is not None:
            parts.append(f"p50 {latency.p50_ms:.1f} ms, p95 {latency.p95_ms:.1f} ms, p99 {latency.p99_ms:.1f} ms")
        if (first := measurement.first_answer) is not None:
            parts.append(f"first answer p50 {first.p50_ms:.1f} ms, p95 {first.p95_ms:.1f} ms")
    else:
        kinds = {"first partial": streaming.first_partial, "chunk": streaming.chunk, "final": streaming.final}
        parts += [f"{name} p95 {each.p95_ms:.0f} ms" for name, each in kinds.items() if each is not None]
        parts.append(f"{100 * streaming.in_time:.1f} % in time")
    parts += [f"WER {100 * measurement.wer:.2f} %"] if measurement.wer is not None else []
    parts += [f"{measurement.failed} of {measurement.requests} requests FAILED"] if measurement.failed else []
    parts += [] if measurement.stable else ["not stable"]
    return ", ".join(parts)


def show(tables: Iterable[Table]) -> None:
    """Print tables on stdout."""
    console = Console() if sys.stdout.isatty() else Console(width=PIPE_WIDTH)
    for table in tables:
        console.print(table)


def fail(problems: Sequence[str]) -> None:
    """Print what went wrong and exit with 1, if anything did."""
    for problem in problems:
        typer.echo(f"error: {visible(problem)}", err=True)
    if problems:
        raise typer.Exit(1)
