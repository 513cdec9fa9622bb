"""`tritone serve`: run Triton on a repository, or on any model, until it ends or is stopped."""

import shlex
import sys
from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path
from signal import SIGKILL
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tritone.cli.export.run import usage_errors
from tritone.cli.shared.option_classes import takes_option_classes
from tritone.cli.shared.what import HELP, Exporting, prepared
from tritone.client import Client
from tritone.errors import StorageError, StorageUnreachableError
from tritone.gateway.options import DEFAULT_PORT as DEFAULT_GATEWAY_PORT
from tritone.keys import HTTP_HEADER, key_file
from tritone.kinds import compile_search
from tritone.net.address import joined
from tritone.repository import ModelOptions, build_repository, compiled_searches, read_repository
from tritone.server import ServerOptions, Supervisor, TritonServer
from tritone.server.installation import find_installation
from tritone.server.options import LOCKED_APIS
from tritone.server.ports import is_loopback
from tritone.server.remote import LocalCopy, Updates, can_read, triton_address
from tritone.storage import open_store, parse
from tritone.storage.cache import OFFLINE, is_offline

if TYPE_CHECKING:
    from collections.abc import Callable

    from tritone.gateway.server import GatewayServer
    from tritone.proxy import Proxy
    from tritone.storage import Store


@takes_option_classes()
def serve(
    what: Annotated[
        str,
        typer.Argument(metavar="WHAT", help=f"Model repository, as `tritone build` writes it, or s3://...; or {HELP}."),
    ],
    extra: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- TRITON_ARG", help="Further arguments for tritonserver, passed unchanged."),
    ] = None,
    *,
    options: ServerOptions,
    server: Annotated[Path | None, typer.Option(help="tritonserver to run; searched if not given.")] = None,
    proxy: Annotated[
        bool | None, typer.Option(help="Put a proxy in front of Triton. If not given: unless --host is this machine.")
    ] = None,
    tls_certificate: Annotated[
        Path | None, typer.Option(help="Certificate chain in PEM format: the proxy listens with TLS.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key in PEM format.")] = None,
    tls_client_ca: Annotated[
        Path | None, typer.Option(help="Authority in PEM format: clients must show a certificate that it signed.")
    ] = None,
    poll_s: Annotated[
        float,
        typer.Option(min=0, help="Look at a repository every so many seconds, and load what changed there; 0: never."),
    ] = 0,
    device: Annotated[str | None, typer.Option(help="Of what is no repository: cpu (if not given) or cuda.")] = None,
    precision: Annotated[
        str | None, typer.Option(help="Of what is no repository: fp32, fp16, bf16 or int8; what suits if not given.")
    ] = None,
    exporting: Exporting,
    gateway: Annotated[
        bool, typer.Option("--gateway", help="Start the gateway, too: OpenAI's endpoints, WebSockets and a page.")
    ] = False,
    gateway_port: Annotated[int, typer.Option(help="With --gateway: its port.")] = DEFAULT_GATEWAY_PORT,
) -> None:
    """Run Triton on a model repository, or on any model.

    What is no repository is exported into the user's cache, once, and built; `tritone inspect WHAT` prints the commands
    that this stands for. With --gateway applications that know OpenAI's interface can ask at once.

    Ctrl-C and SIGTERM end it after what is in flight, a second time at once.
    The exit code is then 0; if the server could not be kept alive, its own.
    """
    options = replace(options, extra=tuple(extra or ()))
    behind, front = options, None
    if proxy or (proxy is None and not is_loopback(options.host)):
        behind = ServerOptions.on_free_ports(**_own(options) | {"host": "127.0.0.1"})
        front = _front(options, behind, tls_certificate, tls_key, tls_client_ca)
    elif tls_certificate or tls_key or tls_client_ca:
        raise typer.BadParameter("TLS needs the proxy: add --proxy.")
    if poll_s and not options.has_control:
        raise typer.BadParameter("--poll-s loads models, which the arguments after -- have switched off")
    lose = front.lose_streams if front is not None else lambda model, reason: None
    beside = _gateway(options, tls_certificate is not None, gateway_port) if gateway else None
    with ExitStack() as stack:
        made = {"--device": device, "--precision": precision, "--trust": exporting.trust, "--cache": exporting.cache}
        repo = _built(what, device, precision, exporting, stack, [name for name, value in made.items() if value])
        code = _serve(repo, options, behind, front, server, poll_s, lose, beside, stack)
    if code:
        typer.echo(f"error: tritonserver ended with exit code {code}.{_why(code)}", err=True)
    raise typer.Exit(code)


def _built(
    what: str, device: str | None, precision: str | None, exporting: Exporting, stack: ExitStack, given: list[str]
) -> Path:
    """The repository that WHAT is, or one of a bundle of it, which is gone with `stack`."""
    from tritone.prepare import is_repository

    if is_repository(what):
        if given:
            raise typer.BadParameter(f"{', '.join(given)} is for what is no repository: `tritone build` has these")
        return Path(what)
    found = prepared(what, exporting, device=device, precision=precision)
    repository = Path(stack.enter_context(TemporaryDirectory(prefix="tritone-serve-")), "repository")
    options = ModelOptions(device="cpu" if device in (None, "cpu") else "gpu", precision=precision or "")
    with usage_errors():
        build_repository([found.path], repository, options=options, link=True)
    return repository


def _gateway(options: ServerOptions, tls: bool, port: int) -> "Callable[[], GatewayServer]":
    """What makes a gateway in front of a Triton; its packages are there, and its port is free."""
    from tritone.gateway.options import GatewayOptions
    from tritone.gateway.server import GatewayServer, listen

    if tls:
        raise typer.BadParameter("--gateway asks this Triton without TLS; run `tritone gateway` with --url https://…")
    listen(options.host, port, "--gateway-port").close()  # fails now and not when an export is done
    front = GatewayOptions(triton=f"http://{options.address('http')}", host=options.host, port=port)
    return lambda: GatewayServer(front)


def _serve(
    repo: Path,
    options: ServerOptions,
    behind: ServerOptions,
    front: "Proxy | None",
    server: Path | None,
    poll_s: float,
    lose: "Callable[[str | None, str], None]",
    gateway: "Callable[[], GatewayServer] | None",
    stack: ExitStack,
) -> int:
    """Serve a repository until a signal comes; the exit code. The gateway begins when models answer."""
    served, updates, copy = _found(repo, poll_s, server, lose)
    modes = {}
    if isinstance(served, Path):
        modes = {model.name: model.mode for model in read_repository(served)}
        for kind, search in sorted(compiled_searches(served)):
            compile_search(kind, search)  # once on a machine: else each model would do it while the server waits

    def show(running: TritonServer) -> None:
        table = Table("model", "version", "mode", "state", box=None)
        for model in running.models():
            state = model.get("state") or "not loaded"
            table.add_row(model["name"], model.get("version", ""), modes.get(model["name"], ""), state)
        console = Console(soft_wrap=True)
        console.print(table)
        addresses = [
            f"{service} {joined(options.host, port)}" for service, port in options.ports.items() if service != "metrics"
        ]
        metrics = f"metrics http://{joined(options.host, options.metrics_port)}/metrics"
        console.print(f"Serving on {'  '.join([*addresses, metrics])}", highlight=False)
        console.print(_locks(options), highlight=False)
        if gateway is not None:
            beside = stack.enter_context(gateway().background())
            address = f"http://{beside.options.address(beside.port)}"
            console.print(f"The page: {address}/  Applications: {address}/v1  Try it:", highlight=False)
            console.print(_request(beside.options.triton, address), highlight=False)

    supervisor = Supervisor(served, behind, server=server, log=sys.stderr, on_ready=show, front=front, updates=updates)
    try:
        return supervisor.run()
    finally:
        if copy is not None:
            copy.close()


def _found(
    repo: Path, poll_s: float, server: Path | None, changed: "Callable[[str, str], None]"
) -> tuple[Path | str, Updates | None, LocalCopy | None]:
    """What Triton is started with, a folder or an address in its own form, what watches it, and its copy here.

    The copy belongs to this server until it is closed.
    """

    def watched(store: "Store", copy: LocalCopy | None) -> Updates | None:
        return Updates(store, poll_s, _notify, copy=copy, changed=changed) if poll_s else None

    address = parse(repo)
    if address is None:
        return repo, watched(open_store(repo), None) if repo.is_dir() else None, None
    installation, store = find_installation(server), open_store(address)
    if can_read(installation, address):
        served = triton_address(address)
        _notify(f"Triton reads {served} by its own client; memory and runtimes are not checked in advance")
        return served, watched(store, None), None
    copy = LocalCopy(address)
    if is_offline():
        if not copy.models:
            copy.close()
            raise StorageError(f"{OFFLINE} is set, and there is no copy of {address} in {copy.folder}")
        _notify(f"{OFFLINE} is set: {address} is not looked at, its copy {copy.folder} is served as it is")
        return copy.folder, None, copy
    try:
        updates = watched(store, copy)  # before the copy is made: what changes meanwhile is seen at the first look
        copy.refresh(store)
    except BaseException as error:
        copy.close()
        if not isinstance(error, StorageUnreachableError) or not copy.models:
            raise
        raise StorageUnreachableError(
            f"{error} {OFFLINE}=1 serves the copy of an earlier start, {', '.join(copy.models)} in {copy.folder}"
        ) from error
    _notify(
        f"{installation.executable} has no client of its own for {address.scheme}://: it serves a local copy of "
        f"{address} in {copy.folder}"
    )
    return copy.folder, updates, copy


def _request(triton: str, gateway: str) -> str:
    """A line of curl that works: the first model that takes whole recordings answers it, if there is one."""
    with Client(triton) as client:
        models = [model.name for model in client.models() if model.kind == "offline"]
    if not models:
        return f"curl {shlex.quote(f'{gateway}/v1/models')}"
    which = f"-F model={models[0]} " if len(models) > 1 else ""
    address = shlex.quote(f"{gateway}/v1/audio/transcriptions")  # in brackets shells would see a pattern
    return f"curl -F file=@YOUR.wav {which}{address}"


def _notify(text: str) -> None:
    typer.echo(f"tritone: {text}", err=True)


def _own(options: ServerOptions) -> dict[str, Any]:
    """The options but for addresses."""
    where = ("host", "http_port", "grpc_port", "metrics_port")
    return {each.name: getattr(options, each.name) for each in fields(options) if each.name not in where}


def _front(
    options: ServerOptions, behind: ServerOptions, certificate: Path | None, key: Path | None, client_ca: Path | None
) -> "Proxy":
    from tritone.proxy import Proxy, ProxyOptions, Tls  # gRPC and uvicorn take half a second to load

    tls = None
    if certificate and key:
        try:
            tls = Tls(certificate=certificate, key=key, client_ca=client_ca)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
    elif certificate or key or client_ca:
        raise typer.BadParameter("TLS needs both --tls-certificate and --tls-key.")
    return Proxy(
        ProxyOptions(
            host=options.host,
            http_port=options.http_port,
            grpc_port=options.grpc_port,
            metrics_port=options.metrics_port,
            upstream_http=behind.address("http"),
            upstream_grpc=behind.address("grpc"),
            upstream_metrics=behind.address("metrics"),
            key_header=HTTP_HEADER,
            key=options.key,
            tls=tls,
            drain_hint_s=options.drain_s or 1.0,
            open_apis=frozenset(options.open_apis),
        )
    )


def _locks(options: ServerOptions) -> str:
    opened = options.open_apis
    note = (
        f"Open to everybody: inference, metadata, statistics, health, metrics{''.join(f', {each}' for each in opened)}."
    )
    closed = [each for each in LOCKED_APIS if each not in opened]
    if closed:
        note += f" With the key in {key_file(options.grpc_port)}: {', '.join(closed)}."
    return note


def _why(code: int) -> str:
    if code == 128 + SIGKILL:
        return " It was killed; if nobody did it, the system may have run out of memory (see dmesg)."
    return ""
