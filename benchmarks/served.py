"""A bundle on a real Triton for the time of a measurement: free loopback ports, nothing left behind."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil

from tritone.bundle import Bundle
from tritone.repository import ModelOptions, build_repository
from tritone.server import ServerOptions, TritonServer, free_ports

MODEL = "measured"


@contextmanager
def serving(
    bundle: Bundle,
    modes: str = "both",
    options: ModelOptions | None = None,
    *,
    beside: Mapping[str, Path] | None = None,
) -> Iterator[TritonServer]:
    """Serve a bundle as `measured` and `measured-streaming`; ready when entered, gone when left.

    Args:
        beside: further bundles, by the names that they are served under.
    """
    http, grpc, metrics = free_ports(3)
    ports = ServerOptions(http_port=http, grpc_port=grpc, metrics_port=metrics, drain_s=1)
    with tempfile.TemporaryDirectory(prefix="tritone-bench-") as folder:
        repository = Path(folder)
        build_repository([bundle.path], repository, names=[MODEL], modes=modes, options=options, link=True)  # type: ignore[arg-type]
        for name, path in (beside or {}).items():
            build_repository([path], repository, names=[name], modes=modes, link=True)  # type: ignore[arg-type]
        with TritonServer(repository, ports) as server:
            yield server


def resident_mib(server: TritonServer) -> float:
    """Resident memory of the server and its stubs, in MiB; pages that they share count for each of them."""
    process = psutil.Process(server.pid)
    return sum(each.memory_info().rss for each in [process, *process.children(recursive=True)]) / 2**20
