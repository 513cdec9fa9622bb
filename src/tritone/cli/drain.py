"""`tritone drain`: take a running server out of service without losing a stream."""

from typing import Annotated

import typer

from tritone.keys import find_key
from tritone.server.drain import Drain, DrainState
from tritone.server.ports import is_loopback


def drain(
    metrics_url: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Its port of metrics; the key is looked up for this machine's own.")
    ] = "127.0.0.1:8002",
    settle_s: Annotated[
        float,
        typer.Option(min=0, help="Take new streams for so long, until balancers know that the server is not ready."),
    ] = 5,
    limit_s: Annotated[float, typer.Option(min=0, help="Wait no longer for open streams, --settle-s included.")] = 600,
    cancel: Annotated[bool, typer.Option("--cancel", help="Take the server into service again.")] = False,
) -> None:
    """Wait until the last open stream of a server has ended.

    The server is not ready at once, and stays alive. New requests and streams are taken for --settle-s, then refused.
    It goes on running: end it after this with SIGTERM, or take it back with --cancel.

    Exit code 1: the limit is over and streams or requests are still open.
    """
    address = metrics_url.removeprefix("http://").rstrip("/").removesuffix("/metrics")
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise typer.BadParameter(f"--metrics-url {metrics_url!r} must be HOST:PORT, such as 127.0.0.1:8002")
    # The key of a server on this machine is for nobody else.
    server = Drain(address, find_key(int(port) if is_loopback(host.strip("[]")) else None))
    if cancel:
        _print_state(server.change("serving"))
        return
    now = server.look()
    if now.idle and now.state == "serving" and not server.is_ready():
        # It has published no key either.
        typer.echo("the server is not ready, since it is being started: nothing is open", err=True)
        return
    left = server.wait(settle_s=settle_s, limit_s=limit_s, report=_print_state)
    if not left.idle:
        typer.echo(f"error: after {limit_s:g} s still {left.streams} streams and {left.requests} requests", err=True)
        raise typer.Exit(1)
    typer.echo("drained: nothing is open", err=True)


def _print_state(state: DrainState) -> None:
    typer.echo(str(state), err=True)
