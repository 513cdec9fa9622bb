"""`tritone serve`: run Triton on a repository until it ends or is stopped."""

import sys
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tritone.cli.shared.option_classes import takes_option_classes
from tritone.keys import key_file
from tritone.pipelines.kinds import compile_search
from tritone.repository import compiled_searches, read_repository
from tritone.server import ServerOptions, Supervisor, TritonServer
from tritone.server.options import DOORS


@takes_option_classes()
def serve(
    repo: Annotated[Path, typer.Argument(metavar="REPO", help="Model repository, as `tritone build` writes it.")],
    extra: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- TRITON_ARG", help="Further arguments for tritonserver, passed unchanged."),
    ] = None,
    *,
    options: ServerOptions,
    server: Annotated[Path | None, typer.Option(help="tritonserver to run; searched if not given.")] = None,
) -> None:
    """Run Triton on a model repository.

    Ctrl-C and SIGTERM end it after what is in flight, a second time at once.
    The exit code is then 0; if the server could not be kept alive, its own.
    """
    options = replace(options, extra=tuple(extra or ()))
    modes = {model.name: model.mode for model in read_repository(repo)}
    for kind, search in sorted(compiled_searches(repo)):
        compile_search(kind, search)  # once on a machine: else each model would do it while the server waits for them

    def show(running: TritonServer) -> None:
        table = Table("model", "version", "mode", "state", box=None)
        for model in running.models():
            state = model.get("state") or "not loaded"
            table.add_row(model["name"], model.get("version", ""), modes.get(model["name"], ""), state)
        console = Console(soft_wrap=True)
        console.print(table)
        addresses = [
            f"{service} {options.host}:{port}" for service, port in options.ports.items() if service != "metrics"
        ]
        metrics = f"metrics http://{options.host}:{options.metrics_port}/metrics"
        console.print(f"Serving on {'  '.join([*addresses, metrics])}", highlight=False)
        console.print(_doors(options), highlight=False)

    code = Supervisor(repo, options, server=server, log=sys.stderr, on_ready=show).run()
    if code:
        typer.echo(f"error: tritonserver ended with exit code {code}.{_why(code)}", err=True)
    raise typer.Exit(code)


def _doors(options: ServerOptions) -> str:
    opened = options.open_doors
    told = (
        f"Open to everybody: inference, metadata, statistics, health, metrics{''.join(f', {each}' for each in opened)}."
    )
    closed = [each for each in DOORS if each not in opened]
    if closed:
        told += f" With the key in {key_file(options.grpc_port)}: {', '.join(closed)}."
    return told


def _why(code: int) -> str:
    if code == 128 + SIGKILL:
        return " It was killed; if nobody did it, the system may have run out of memory (see dmesg)."
    return ""
