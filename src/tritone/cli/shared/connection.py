"""How commands reach a server: TLS files, its key, and how often they send again."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tritone.client.defaults import DEFAULT_RETRIES
from tritone.keys import find_key

if TYPE_CHECKING:
    from tritone.client import Client

FILES = {"ca": "TRITONE_CA", "certificate": "TRITONE_CERTIFICATE", "private_key": "TRITONE_PRIVATE_KEY"}


@dataclass(frozen=True, kw_only=True)
class Connection:
    """The options of all commands that have --url; None is not given.

    Files may also be named in the environment, where all that use TLS find them. The key is only there, or where a
    server of this user keeps it: a command line can be read by every user of the machine.
    """

    ca: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=f"With grpcs:// or https://: authorities to trust, PEM (or {FILES['ca']}); the system's if not given.",
        ),
    ] = None
    certificate: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help=f"For mutual TLS: the client's certificate, PEM (or {FILES['certificate']})."
        ),
    ] = None
    private_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help=f"Key of the certificate, PEM (or {FILES['private_key']}).")
    ] = None
    retries: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="With a server: how often to send a request again that it could not take, within the limit of one "
            f"request ({DEFAULT_RETRIES} if not given).",
        ),
    ] = None

    pcm: Annotated[
        bool | None,
        typer.Option(
            "--pcm/--no-pcm",
            help="With a server: send all audio as 16-bit samples, rounded; or none. If not given: what has 16 bits.",
        ),
    ] = None
    shared_memory: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="With a server on this machine: pass audio in shared memory: system, cuda, cuda:N; or none.",
        ),
    ] = None

    @property
    def given(self) -> list[str]:
        """The options on the command line, as they are written there."""
        return [f"--{name.replace('_', '-')}" for name, value in vars(self).items() if value is not None]

    def client(self, url: str, **options: Any) -> "Client":
        """A client of this server.

        Args:
            options: others of `Client`.

        Raises:
            ValueError: it is no address of a server, or a file cannot be used.
        """
        # gRPC writes lines of its own to stderr about connections whose errors we report.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        from tritone.client import Client, Endpoint

        server = Endpoint.parse(url, options.get("protocol"))
        shared_memory = None if self.shared_memory == "none" else self.shared_memory
        files = {name: getattr(self, name) for name in FILES}
        if server.tls:
            files = {name: file or os.environ.get(FILES[name]) or None for name, file in files.items()}
        retries = DEFAULT_RETRIES if self.retries is None else self.retries
        # The key of a server on this machine is for nobody else.
        options.setdefault("key", find_key(server.port if server.is_loopback else None))
        options |= {"pcm": self.pcm, "shared_memory": shared_memory}
        return Client(url, **files, retries=retries, **options)
