"""`tritone gateway`: protocols that applications speak, in front of a running Triton."""

import logging
import os
import sys
from dataclasses import field, fields, make_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from tritone.cli.shared.option_classes import takes_option_classes
from tritone.cli.shared.punctuation import PunctuationModel, punctuator
from tritone.gateway.options import GatewayOptions
from tritone.gateway.protocols import all_protocols
from tritone.net.json_log import JsonLines
from tritone.net.limits import Tls
from tritone.options.fields import option

if TYPE_CHECKING:
    from tritone.gateway.server import GatewayServer


PROTOCOLS = all_protocols().values()


def _option_classes() -> dict[str, Any]:
    """The classes of the options that protocols have beside their ports, by the protocol's name."""
    found = {}
    for each in PROTOCOLS:
        try:
            if each.options:
                found[each.name] = each.own_options()
        except Exception as error:
            if not each.interface:
                raise
            logging.getLogger(__name__).warning(
                f"{each.package}, which has the protocol {each.name!r}, has options that cannot be used: "
                f"{type(error).__name__}: {str(error)[:200]}. They are left out; notify its makers"
            )
    return found


def _protocol_options() -> type:
    """The ports of all protocols, and these options, as one class."""
    found: list[tuple[str, Any, Any]] = []
    for each in PROTOCOLS:
        if each.port:
            found.append((each.port_name, int | None, option(None, each.port, panel=each.panel)))
        for own in fields(OPTIONS[each.name]) if each.name in OPTIONS else ():
            usual: Any = {"default": own.default, "default_factory": own.default_factory}
            described = field(**usual, metadata={**own.metadata, "panel": each.panel})
            found.append((own.name, get_type_hints(OPTIONS[each.name])[own.name], described))
    return make_dataclass("ProtocolOptions", found, frozen=True, kw_only=True)


OPTIONS = _option_classes()


@takes_option_classes(protocols=_protocol_options())
def gateway(
    protocols: Any,
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
    chosen = {each.name: getattr(protocols, each.port_name) for each in PROTOCOLS if each.port}
    try:
        tls = None
        if tls_certificate is not None and tls_key is not None:
            tls = Tls(certificate=tls_certificate, key=tls_key, client_ca=tls_client_ca)
        options = replace(
            options,
            ports={name: port for name, port in chosen.items() if port is not None},
            protocols={name: _own(each, protocols) for name, each in OPTIONS.items()},
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


def _own(options: type, given: Any) -> Any:
    """The options of a protocol among those of all."""
    return options(**{each.name: getattr(given, each.name) for each in fields(options)})


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
