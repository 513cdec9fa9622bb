"""Where a command's model runs: on a server (--url), or in this process."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tritone.cli.shared.connection import Connection
from tritone.cli.shared.what import HELP, Exporting, bundle_of
from tritone.client.defaults import DEFAULT_CONCURRENCY, DEFAULT_TIMEOUT_S, EMBEDDING_CONCURRENCY

if TYPE_CHECKING:
    from tritone.client import Client

Url = Annotated[
    str | None, typer.Option(help="Use this server: host:port (gRPC), grpc://…, http://…, grpcs://…, https://….")
]
Protocol = Annotated[
    Literal["grpc", "http"] | None, typer.Option(help="With --url: protocol of host:port without a scheme.")
]
Vad = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Cut recordings longer than the model takes at the pauses that this voice activity model finds: with "
        "--model a bundle, with --url a served model (its only one if not given; '' for none).",
    ),
]
# Options of models on a server.
FOR_SERVERS = ("protocol", "concurrency", "timeout_s", *(each.name for each in fields(Connection)))


@dataclass(frozen=True, kw_only=True)
class Where:
    """A server or a model here, and the options that only one of them has; None is not given."""

    url: Url = None
    model: Annotated[
        str | None,
        typer.Option(
            metavar="WHAT",
            help=f"Run this model here, without a server: {HELP}. With --url: its name there, if several could answer.",
        ),
    ] = None
    protocol: Protocol = None
    concurrency: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"With --url: requests in flight ({DEFAULT_CONCURRENCY} if not given; {EMBEDDING_CONCURRENCY} for "
            "embeddings).",
        ),
    ] = None
    timeout_s: Annotated[
        float | None,
        typer.Option(help=f"With a server: limit of one request, in seconds ({DEFAULT_TIMEOUT_S:g} if not given)."),
    ] = None
    connection: Connection = field(default_factory=Connection)
    device: Annotated[str | None, typer.Option(help="Without --url: cpu (if not given), cuda or cuda:N.")] = None
    runtime: Annotated[
        str | None,
        typer.Option(
            help="Without --url: onnxruntime, torch, torchscript or tensorrt; the first that runs here if not given."
        ),
    ] = None
    precision: Annotated[
        str | None, typer.Option(help="Without --url: fp32, fp16, bf16 or int8; the one that suits if not given.")
    ] = None
    max_audio_s: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Without --url: longest recording accepted (300 if not given, 14400 for segments); streams have no "
            "limit.",
        ),
    ] = None

    exporting: Exporting = field(default_factory=Exporting)

    @property
    def what(self) -> str | None:
        """The model that runs here; None if a server has it."""
        return None if self.url is not None else self.model

    @property
    def limit_s(self) -> float:
        """The limit of one request to a server, in seconds."""
        return DEFAULT_TIMEOUT_S if self.timeout_s is None else self.timeout_s

    def check(self, example: str, *, compared: Sequence[str] | None = None, **others: Any) -> None:
        """Make sure that a server or a model here is given, and no option of the other.

        Args:
            example: a shipped bundle, for the message.
            compared: further systems, each a model here or one on a server, of a command that takes them; one of them
                is enough then.
            others: the command's own options that only models here have; None is not given.

        Raises:
            typer.BadParameter: none is given, or options do not belong together.
        """
        if self.url is None and self.what is None and not compared:
            more = "" if compared is None else ", or --compare NAME=WHAT, once for each system"
            raise typer.BadParameter(
                "give --url (a running server, e.g. --url localhost:8001) or --model (run here, e.g. --model "
                f"{example}){more}; one of them is needed"
            )
        asked = self.url is not None or any("://" in each for each in compared or ())
        own = {**vars(self), **vars(self.connection), **vars(self.exporting), **others}
        given = [name for name, value in own.items() if value is not None and name not in ("connection", "exporting")]
        misplaced = {
            True: [name for name in given if name in FOR_SERVERS and not (self.url if name == "protocol" else asked)],
            False: [name for name in given if name not in ("url", "model", *FOR_SERVERS) and self.what is None],
        }
        for served, names in misplaced.items():
            if names:
                flags = ", ".join(f"--{name.replace('_', '-')}" for name in names)
                where = "--url" if served else "a model that runs here, without --url"
                raise typer.BadParameter(
                    f"{flags} goes with {where}{'; in --compare write NAME=WHAT,KEY=VALUE' if compared else ''}"
                )

    def prepared(self) -> str:
        """The bundle of WHAT, exported where it is none: a path, or what was given."""
        assert self.what is not None
        return bundle_of(self.what, self.exporting, device=self.device, precision=self.precision)

    def connect(self) -> "Client":
        """A client of the server; raises `ValueError` if that is no address of one, or a file cannot be used."""
        assert self.url is not None
        return self.connection.client(self.url, protocol=self.protocol, timeout_s=self.limit_s)

    def loading(self, **others: Any) -> dict[str, Any]:
        """The given options of loading a bundle, with the command's own."""
        own = {name: getattr(self, name) for name in ("device", "runtime", "precision", "max_audio_s")}
        return {name: value for name, value in (own | others).items() if value is not None}
