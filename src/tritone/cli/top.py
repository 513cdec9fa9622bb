"""`tritone top`: what each model of a running server does now, in the terminal."""

import json
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tritone.cli.shared.connection import Connection
from tritone.cli.shared.option_classes import takes_option_classes
from tritone.cli.shared.where import Protocol
from tritone.errors import RetryError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tritone.monitor import Activity, ModelActivity, Monitor, Snapshot

COLUMNS = (
    *("req/s", "fail/s", "latency", "p50", "p95", "p99", "queue", "queue p95", "compute", "batch", "fill"),
    *("proxy p50", "proxy p95", "proxy p99"),
    *("padding", "audio"),
    *("waiting", "streams", "memory"),
)
# Where the terminal is narrow.
DROPPED = (
    *("proxy p50", "proxy p99", "p50", "proxy p95", "queue p95", "compute", "audio", "fill", "padding", "memory"),
    *("waiting", "batch"),
)
NONE = "-"
WIDE = 200  # characters, where the output is no terminal
FULL = 0.9  # share of a batch that is shown as full


@takes_option_classes(leave_out=("retries", "pcm", "shared_memory"))
def top(
    url: Annotated[
        str, typer.Option(help="The server: host:port (gRPC), grpc://…, http://…, grpcs://…, https://….")
    ] = "localhost:8001",
    protocol: Protocol = None,
    metrics_url: Annotated[
        str | None, typer.Option(metavar="URL", help="Its metrics page; port 8002 of the same host if not given.")
    ] = None,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 2.0,
    count: Annotated[int, typer.Option(min=0, help="End after so many tables; 0: at Ctrl-C.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON for each table.")] = False,
    *,
    connection: Connection,
) -> None:
    """Show what each model of a server does, live.

    Throughput, latency, queue, batches, padding, streams and memory.

    Times are means over the interval, percentiles those of the last minute or so; the proxy's are over the interval.
    On a server of this machine, memory is that of the model's processes.
    Where the output is no terminal, one table follows the other.
    """
    from tritone.monitor import Monitor, activity

    console = Console(width=None if sys.stdout.isatty() else WIDE)
    endpoint = connection.client(url, protocol=protocol).endpoint
    with Monitor(endpoint, metrics_url) as monitor:
        before, shown = monitor.look(), 0
        live = console.is_terminal and not as_json
        with Live(console=console, screen=False, auto_refresh=False, transient=False) as screen:
            try:
                while not count or shown < count:
                    time.sleep(interval)
                    after = _look(monitor)
                    if after is None:
                        problem = f"{endpoint} does not answer; waiting for it"
                        if live:
                            screen.update(Text(problem, style="red"), refresh=True)
                        else:
                            typer.echo(problem, err=True)
                        continue
                    found = activity(before, after)
                    before, shown = after, shown + 1
                    if as_json:
                        typer.echo(json.dumps(found.to_dict()))
                    elif live:
                        screen.update(_screen(found, after, str(endpoint), console.width), refresh=True)
                    else:
                        console.print(_screen(found, after, str(endpoint), console.width))
            except KeyboardInterrupt:
                return  # which is how it is meant to end


def _look(monitor: "Monitor") -> "Snapshot | None":
    """The counters now, or None where the server is away for the moment."""
    try:
        return monitor.look()
    except RetryError:
        return None


def _screen(found: "Activity", now: "Snapshot", endpoint: str, width: int) -> Group:
    lines: list[Text | Table] = [Text(f"{endpoint}  {time.strftime('%H:%M:%S')}  over {found.seconds:.1f} s")]
    if found.restarted:
        lines.append(Text("the server was started again meanwhile", style="yellow"))
    if not now.has_metrics:
        lines.append(Text("no metrics page: audio, padding and streams are not known (--metrics-url)", style="yellow"))
    for uuid, (used, memory, total) in found.gpus.items():
        lines.append(Text(f"{uuid[:12]}  {used:.0%} busy  {memory / 1e9:.1f} of {total / 1e9:.1f} GB"))
    return Group(*lines, _table(found.models, width))


def _table(models: "Sequence[ModelActivity]", width: int) -> Table:
    """The models' rows; columns without any value are left out, and the less important ones where there is no room."""
    rows = [_cells(each) for each in models]
    columns = [name for name in COLUMNS if any(row[name].plain != NONE for row in rows)]
    while True:
        table = Table("model", box=None, pad_edge=False)
        for name in columns:
            table.add_column(name, justify="right", no_wrap=True)
        for each, row in zip(models, rows, strict=True):
            table.add_row(each.model, *(row[name] for name in columns))
        dropped = next((name for name in DROPPED if name in columns), None)
        if dropped is None or Console(width=10 * WIDE).measure(table).maximum <= width:
            return table
        columns.remove(dropped)


def _cells(each: "ModelActivity") -> dict[str, Text]:
    return {
        "req/s": _text(each.requests_per_s, _number),
        "fail/s": _text(each.failures_per_s, _number, "red" if each.failures_per_s else ""),
        "latency": _text(each.latency_ms, _milliseconds),
        "p50": _text(each.p50_ms, _milliseconds),
        "p95": _text(each.p95_ms, _milliseconds),
        "p99": _text(each.p99_ms, _milliseconds),
        "queue": _text(each.queue_ms, _milliseconds),
        "queue p95": _text(each.queue_p95_ms, _milliseconds),
        "proxy p50": _text(each.proxy_p50_ms, _milliseconds),
        "proxy p95": _text(each.proxy_p95_ms, _milliseconds),
        "proxy p99": _text(each.proxy_p99_ms, _milliseconds),
        "compute": _text(each.compute_ms, _milliseconds),
        "batch": _text(each.batch, "{:.1f}".format),
        "fill": _text(each.fill, "{:.0%}".format, "yellow" if (each.fill or 0) >= FULL else ""),
        "padding": _text(each.padding, "{:.0%}".format),
        "audio": _text(each.audio_rate, "{:.1f} x".format),
        "waiting": _text(each.waiting, str),
        "streams": _text(each.streams, str),
        "memory": _text(each.memory, lambda value: f"{value / 1e6:.0f} MB"),
    }


def _text(value: Any, shown: "Callable[[Any], str]", style: str = "") -> Text:
    return Text(NONE if value is None else shown(value), style=style)


def _number(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _milliseconds(value: float) -> str:
    return f"{_number(value)} ms"
