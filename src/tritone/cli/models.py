"""`tritone models`: the models of a running server."""

import json
from collections.abc import Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from tritone.cli.shared.connection import Connection
from tritone.cli.shared.help import App
from tritone.cli.shared.option_classes import takes_option_classes
from tritone.client.control import LOAD_TIMEOUT_S
from tritone.client.defaults import DEFAULT_TIMEOUT_S
from tritone.client.endpoint import DEFAULT_URL
from tritone.preparing import READY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tritone.client.control import ModelControl, ModelState

WIDE = 250  # columns

app = App(no_args_is_help=True)
with_connection = takes_option_classes(leave_out=("pcm", "shared_memory", "retries"))

Url = Annotated[str, typer.Option(help="The server: host:port (gRPC), grpc://…, http://…, grpcs://…, https://….")]
Model = Annotated[str, typer.Argument(metavar="MODEL", help="Name of the model.")]


@app.callback()
def commands() -> None:
    """List, load and unload models of a running server.

    All but config and stats need the server's key, which commands of the user who started it on this machine find.
    """


@app.command("list")
@with_connection
def list_models(*, url: Url = DEFAULT_URL, connection: Connection) -> None:
    """List the models of the repository with their versions and states.

    A model that is ready may still prepare its full speed, such as "compiling 2 of 5"; that is listed for servers of
    this user on this machine.
    """
    with _control(url, connection) as control:
        _print(control.states())


@app.command()
@with_connection
def load(
    model: Model,
    *,
    url: Url = DEFAULT_URL,
    timeout_s: Annotated[float, typer.Option(min=1, help="Limit of the request, in seconds.")] = LOAD_TIMEOUT_S,
    connection: Connection,
) -> None:
    """Load a model as its files are now, which may have another version or configuration.

    What was served goes on until the new one is ready; if it does not load, for good. Streams that are open on a
    version end with it.
    """
    with _control(url, connection) as control:
        _print(control.load(model, timeout_s))


@app.command()
@with_connection
def unload(
    model: Model,
    *,
    url: Url = DEFAULT_URL,
    with_stages: Annotated[
        bool, typer.Option("--with-stages", help="Also the models that an ensemble is made of.")
    ] = False,
    connection: Connection,
) -> None:
    """Take a model out of service; requests in flight are answered."""
    with _control(url, connection) as control:
        control.unload(model, stages=with_stages)
        _print(control.states(model))


@app.command()
@with_connection
def config(model: Model, *, url: Url = DEFAULT_URL, connection: Connection) -> None:
    """Print the configuration that a model runs with, as JSON."""
    with _control(url, connection) as control:
        typer.echo(json.dumps(control.config(model), indent=2))


@app.command()
@with_connection
def stats(
    model: Annotated[str, typer.Argument(metavar="[MODEL]", help="Name of the model; all if not given.")] = "",
    *,
    url: Url = DEFAULT_URL,
    connection: Connection,
) -> None:
    """Print what models have done since they were loaded; times are means of a request."""
    table = Table("model", "version", "requests", "failed", "rows", "batches", "rows/batch", box=None)
    for title in ("latency ms", "queue ms", "compute ms"):
        table.add_column(title)
    with _control(url, connection) as control:
        for each in control.counts(model):
            counts = (each.requests, each.failures, each.rows, each.batches)
            times = (each.latency_ms, each.queue_ms, each.compute_ms)
            table.add_row(
                *(each.name, each.version, *map(str, counts), f"{each.rows_per_batch:.1f}"),
                *(f"{time:.1f}" for time in times),
            )
    _show(table)


def _show(table: Table) -> None:
    console = Console()
    (console if console.is_terminal else Console(width=WIDE)).print(table)  # a log or a file: keep rows in one piece


@contextmanager
def _control(url: str, connection: Connection) -> "Iterator[ModelControl]":
    try:
        client = connection.client(url, timeout_s=DEFAULT_TIMEOUT_S)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    with client:
        yield client.control


def _print(states: "Sequence[ModelState]") -> None:
    table = Table("model", "version", "state", "reason", box=None)
    for each in states:
        first = next((line for line in each.reason.splitlines() if line.strip()), "")
        if each.state == "READY":
            first = "" if each.preparing == READY else each.preparing
        table.add_row(each.name, each.version, each.state or "not loaded", first)
    _show(table)
