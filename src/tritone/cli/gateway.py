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
    vosk_port: Annotated[int | None, typer.Option(help="Port for clients of Vosk's server, such as 2700.")] = None,
    wenet_port: Annotated[int | None, typer.Option(help="Port for clients of WeNet's server, such as 10086.")] = None,
    sherpa_onnx_port: Annotated[
        int | None, typer.Option(help="Port for clients of sherpa-onnx's online WebSocket server, such as 6006.")
    ] = None,
    sherpa_onnx_offline_port: Annotated[
        int | None, typer.Option(help="Port for clients of sherpa-onnx's offline WebSocket server.")
    ] = None,
    *,
    options: GatewayOptions,
) -> None:
    """Serve speech applications: HTTP, WebSockets and gRPC in their own protocols, answered by a Triton.

    Ctrl-C and SIGTERM end it after the live streams that are open, a second time at once.
    """
    from tritone.gateway.server import GatewayServer

    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    ports = {
        "riva": riva_port,
        "vosk": vosk_port,
        "wenet": wenet_port,
        "sherpa_onnx": sherpa_onnx_port,
        "sherpa_onnx_offline": sherpa_onnx_offline_port,
    }
    try:
        options = replace(options, ports={name: port for name, port in ports.items() if port is not None})
        server = GatewayServer(options, told=_show)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    server.run()


def _show(server: "GatewayServer") -> None:
    host = server.options.host
    others = "".join(f"  {name} {host}:{port}" for name, port in server.ports.items() if name != "http")
    typer.echo(f"Serving on http://{host}:{server.port}{others}, asking {server.gateway.client.endpoint}")
