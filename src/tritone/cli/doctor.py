"""`tritone doctor`: say what a server needs here, what is broken, and how to mend it."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tritone.server import ServerOptions, run_checks
from tritone.server.checks import worst

DEFAULTS = ServerOptions()
STYLES = {"ok": "green", "warning": "yellow", "broken": "bold red"}


def doctor(
    server: Annotated[
        Path | None, typer.Option(help="tritonserver to look at; found as by `serve` if not given.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = DEFAULTS.host,
    http_port: Annotated[int, typer.Option(help="Port of the HTTP service.")] = DEFAULTS.http_port,
    grpc_port: Annotated[int, typer.Option(help="Port of the gRPC service.")] = DEFAULTS.grpc_port,
    metrics_port: Annotated[int, typer.Option(help="Port of the metrics.")] = DEFAULTS.metrics_port,
) -> None:
    """Check what a server needs here.

    Says of each thing that `tritone serve` needs whether it is there, and how to mend it. Exit code 1 if one is broken.
    """
    try:
        options = ServerOptions(host=host, http_port=http_port, grpc_port=grpc_port, metrics_port=metrics_port)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    checks = run_checks(server, options)
    table = Table("check", "", box=None)
    for title in ("seen", "to do"):
        table.add_column(title, overflow="fold")
    for check in checks:
        table.add_row(check.name, f"[{STYLES[check.status]}]{check.status}[/]", check.seen, check.fix)
    console = Console()
    if not console.is_terminal:
        console = Console(width=200)  # a log or a file: keep paths in one piece
    console.print(table)
    if worst(checks) == "broken":
        raise typer.Exit(1)
