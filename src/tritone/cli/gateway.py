"""`tritone gateway`: protocols that applications speak, in front of a running Triton."""

import logging
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tritone.cli.shared.option_classes import takes_option_classes
from tritone.cli.shared.punctuation import PunctuationModel, punctuator
from tritone.gateway.options import GatewayOptions
from tritone.net.json_log import JsonLines
from tritone.net.limits import Tls

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
    wyoming_port: Annotated[
        int | None, typer.Option(help="Port for Home Assistant (Wyoming), such as 10300; by TCP, without keys.")
    ] = None,
    cors: Annotated[
        list[str] | None,
        typer.Option(metavar="ORIGIN", help="Pages of this origin may ask, like https://app.example; may be repeated."),
    ] = None,
    alias: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Another name for its own models, like whisper-1; may be repeated."),
    ] = None,
    punctuation_model: PunctuationModel = None,
    upstreams: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="File of models on servers that speak OpenAI's API, such as vLLM: YAML or JSON."
        ),
    ] = None,
    tls_certificate: Annotated[
        Path | None, typer.Option(help="Certificate chain in PEM format: listen with TLS.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key in PEM format.")] = None,
    tls_client_ca: Annotated[
        Path | None, typer.Option(help="Authority in PEM format: clients must show a certificate that it signed.")
    ] = None,
    new_key: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Print a new key, and the lines for the file of --keys; then end."),
    ] = None,
    *,
    options: GatewayOptions,
) -> None:
    """Serve applications in their own protocols, before Triton.

    OpenAI's, Riva's and WebSockets, on one port and some of their own; options say who may ask, and how much.

    Ctrl-C and SIGTERM end it after the live streams that are open, a second time at once.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its lines are about connections whose errors we report
    from tritone.gateway.server import GatewayServer
    from tritone.gateway.upstreams.options import read_upstreams

    if new_key is not None:
        _print_new_key(new_key)
        return
    lines = logging.StreamHandler(sys.stderr)
    lines.setFormatter(JsonLines())
    logging.basicConfig(level=logging.WARNING, handlers=[lines])
    if options.access_log:
        logging.getLogger("tritone.gateway.access").setLevel(logging.INFO)
    if (tls_certificate is None) != (tls_key is None) or (tls_client_ca and not tls_key):
        raise typer.BadParameter("--tls-certificate and --tls-key go together; --tls-client-ca needs both")
    ports = {
        "riva": riva_port,
        "vosk": vosk_port,
        "wenet": wenet_port,
        "sherpa_onnx": sherpa_onnx_port,
        "sherpa_onnx_offline": sherpa_onnx_offline_port,
        "wyoming": wyoming_port,
    }
    try:
        tls = None
        if tls_certificate is not None and tls_key is not None:
            tls = Tls(certificate=tls_certificate, key=tls_key, client_ca=tls_client_ca)
        options = replace(
            options,
            ports={name: port for name, port in ports.items() if port is not None},
            cors=tuple(cors or ()),
            aliases=tuple(alias or ()),
            punctuation=None if punctuation_model is None else punctuator(punctuation_model).transcript,
            upstreams=() if upstreams is None else read_upstreams(upstreams),
            tls=tls,
        )
        server = GatewayServer(options, on_started=_show)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    server.run()


def _show(server: "GatewayServer") -> None:
    address, tls = server.options.address, "s" if server.options.tls else ""
    others = "".join(f"  {name} {address(port)}" for name, port in server.ports.items() if name != "http")
    typer.echo(f"Serving on http{tls}://{address(server.port)}{others}, asking {server.gateway.client.endpoint}")


def _print_new_key(name: str) -> None:
    import json

    from tritone.gateway.callers import new_key

    key, digest = new_key()
    typer.echo(f"{key}\n\nIt is shown this once. Its entry under `keys:` in the file of --keys:\n", err=True)
    typer.echo(f"  - {{name: {json.dumps(name, ensure_ascii=False)}, sha256: {digest}}}")
