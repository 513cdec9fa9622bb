"""A bundle that is served on free ports for as long as it is measured.

bundle, BuildOptions  ->  temporary repository  ->  Triton  ->  Served
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tritone.bundle.bundle import Bundle
from tritone.errors import OperatorError
from tritone.loadtest.plans.build_options import BuildOptions
from tritone.repository import build_repository
from tritone.repository.build import Modes
from tritone.server import ServerOptions, TritonServer
from tritone.server.layout import ensemble_options


@dataclass(frozen=True, kw_only=True)
class Served:
    """Addresses of a served bundle as host:port, the URL of the server's metrics, and its key."""

    grpc_address: str
    http_address: str
    metrics_url: str
    key: str | None = field(default=None, repr=False)

    def url(self, protocol: str | None) -> str:
        """Where a client finds it."""
        return f"http://{self.http_address}" if protocol == "http" else f"grpc://{self.grpc_address}"


@contextmanager
def serve_bundle(bundle: str | Path, options: BuildOptions, *, mode: Modes = "both") -> Iterator[Served]:
    """Serve a bundle inside a `with` statement; server and repository are gone afterwards.

    How the server ends does not matter: what was measured until then is not worth less.

    Args:
        bundle: a folder, or the name of a shipped bundle. It is linked to, not copied.
        options: how to serve it.
        mode: what to build.

    Raises:
        OperatorError: the bundle cannot be served with these options.
    """
    with tempfile.TemporaryDirectory(prefix="tritone-bench-") as folder:
        repository = Path(folder) / "repository"
        try:
            layout = ensemble_options(
                [bundle],
                options,
                options.layout,
                stages=options.stage,
                acoustic=options.acoustic or None,
                streaming=mode == "streaming",
            )
            # Links lead to a local copy, which stays as long as this process.
            build_repository(
                [Bundle.open(bundle).path], repository, modes=mode, options=options, layout=layout, link=True
            )
        except ValueError as error:
            raise OperatorError(f"{bundle} cannot be served like this: {error}") from error
        addresses = ServerOptions.on_free_ports()
        with TritonServer(repository, addresses) as server:
            yield Served(
                grpc_address=server.grpc_address,
                http_address=server.http_address,
                metrics_url=f"http://{addresses.address('metrics')}/metrics",
                key=addresses.key,
            )
