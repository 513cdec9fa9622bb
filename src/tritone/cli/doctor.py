"""`tritone doctor`: checks what a server needs here, and how to mend what is broken."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tritone.cli.shared.option_classes import takes_option_classes
from tritone.server import ServerOptions, run_checks
from tritone.server.checks import worst

STYLES = {"ok": "green", "warning": "yellow", "broken": "bold red"}


@takes_option_classes(leave_out=("control", "log_level", "start_timeout_s"))
def doctor(
    options: ServerOptions,
    server: Annotated[
        Path | None, typer.Option(help="tritonserver to check; searched as by `serve` if not given.")
    ] = None,
) -> None:
    """Check that a server can run here.

    Reports for each thing that `tritone serve` needs whether it is there, and how to mend it. Exit code 1 if one is
    broken.
    """
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
