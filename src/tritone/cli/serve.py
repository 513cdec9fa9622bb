"""`tritone serve`: run Triton on a repository until it is told to stop."""

import sys
from pathlib import Path
from signal import SIGKILL
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tritone.pipelines.kinds import compile_search
from tritone.repository import compiled_searches, read_repository
from tritone.server import ServerOptions, TritonServer
from tritone.server.options import LogLevel

DEFAULTS = ServerOptions()


def serve(
    repo: Annotated[Path, typer.Argument(metavar="REPO", help="Model repository, as `tritone build` writes it.")],
    extra: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- TRITON_ARG", help="Further arguments for tritonserver, as they are."),
    ] = None,
    http_port: Annotated[int, typer.Option(help="Port of the HTTP service.")] = DEFAULTS.http_port,
    grpc_port: Annotated[int, typer.Option(help="Port of the gRPC service.")] = DEFAULTS.grpc_port,
    metrics_port: Annotated[int, typer.Option(help="Port of the metrics.")] = DEFAULTS.metrics_port,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for every network.")] = DEFAULTS.host,
    server: Annotated[Path | None, typer.Option(help="tritonserver to run; found by itself if not given.")] = None,
    log_level: Annotated[LogLevel, typer.Option(help="How much Triton says on stderr.")] = DEFAULTS.log_level,
    start_timeout_s: Annotated[
        float, typer.Option(help="Give up if the models are not ready after this long.")
    ] = DEFAULTS.start_timeout_s,
) -> None:
    """Run Triton on a model repository.

    Ctrl-C and SIGTERM stop it; the exit code is Triton's own.
    """
    try:
        options = ServerOptions(
            host=host,
            http_port=http_port,
            grpc_port=grpc_port,
            metrics_port=metrics_port,
            log_level=log_level,
            start_timeout_s=start_timeout_s,
            extra=tuple(extra or ()),
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    modes = {model.name: model.mode for model in read_repository(repo)}
    for kind, search in sorted(compiled_searches(repo)):
        compile_search(kind, search)  # once on a machine: else each model would do it while the server waits for them
    running = TritonServer(repo, options, server=server, log=sys.stderr)
    with running.forwarding_signals(), running:
        table = Table("model", "version", "mode", "state", box=None)
        for model in running.models():
            state = model.get("state") or "not loaded"
            table.add_row(model["name"], model.get("version", ""), modes.get(model["name"], ""), state)
        console = Console(soft_wrap=True)
        console.print(table)
        addresses = f"http {host}:{http_port}  grpc {host}:{grpc_port}  metrics http://{host}:{metrics_port}/metrics"
        console.print(f"Serving on {addresses}", highlight=False)
        code = running.wait()
    if code:
        typer.echo(f"error: tritonserver ended with exit code {code}.{_why(code)}", err=True)
    raise typer.Exit(code)


def _why(code: int) -> str:
    if code == 128 + SIGKILL:
        return " It was killed; if nobody did it, the system may have run out of memory (see dmesg)."
    return ""
