"""`tritone gateway`: protocols that applications speak, in front of a running Triton."""

import logging
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from tritone.cli.shared.option_classes import takes_option_classes
from tritone.gateway.options import GatewayOptions

if TYPE_CHECKING:
    from tritone.gateway.server import GatewayServer


@takes_option_classes()
def gateway(
    riva_port: Annotated[
        int | None, typer.Option(help="Port of Riva's gRPC; none if not given. 0: any that is free.")
    ] = None,
    *,
    options: GatewayOptions,
) -> None:
    """Serve speech applications: HTTP, WebSockets and gRPC in their own protocols, answered by a Triton.

    Ctrl-C and SIGTERM end it after the live streams that are open, a second time at once.
    """
    from tritone.gateway.server import GatewayServer

    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    ports = {"riva": riva_port} if riva_port is not None else {}
    try:
        options = replace(options, ports=ports)
        server = GatewayServer(options, told=_show)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    server.run()


def _show(server: "GatewayServer") -> None:
    host = server.options.host
    others = "".join(f"  {name} {host}:{port}" for name, port in server.ports.items() if name != "http")
    typer.echo(f"Serving on http://{host}:{server.port}{others}, asking {server.gateway.client.endpoint}")
