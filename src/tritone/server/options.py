"""Options of a server: addresses, model control, time limits, logging. Their help is that of `tritone serve`."""

import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from tritone.keys import HTTP_HEADER, new_key
from tritone.net.address import joined, numeric
from tritone.options.fields import option
from tritone.server.ports import free_ports

LogLevel = Literal["error", "warning", "info", "verbose"]
# Triton's APIs that ask for the key unless they are opened; their names in its options.
LOCKED_APIS = {"control": "model-repository", "shared-memory": "shared-memory", "trace": "trace", "logging": "logging"}
# Percentiles of each model's requests, and of their time in the queue, over the last minute or so. The numbers behind
# the quantiles are the errors that Triton may make: so much of all requests may be on the wrong side.
PERCENTILES = (
    "--metrics-config=summary_latencies=true",
    "--metrics-config=summary_quantiles=0.5:0.02,0.95:0.005,0.99:0.001",
)
REPOSITORIES = ("--model-repository", "--model-store")
LOCKS = ("--http-restricted-api", "--grpc-restricted-protocol")


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Options of one server process."""

    host: str = option("127.0.0.1", "Address to listen on; 0.0.0.0 for every network, :: for those of IPv6, too.")
    http_port: int = option(8000, "Port of the HTTP service.")
    grpc_port: int = option(8001, "Port of the gRPC service.")
    metrics_port: int = option(8002, "Port of the metrics.")
    # Commas between names, as in "control,trace".
    open: str = option("", f"APIs that need no key, of {', '.join(LOCKED_APIS)}; several with commas.", metavar="API")
    restart: bool = option(True, "Load a model again whose process ended, and restart a server that did.")
    log_level: LogLevel = option("warning", "How much Triton writes to stderr.")
    # From start to ready, model loading and warm-up included.
    start_timeout_s: float = option(300.0, "Time limit for the models to be ready.")
    mps: bool = option(False, "Models on one GPU compute side by side, not in turns: CUDA's Multi-Process Service.")
    overcommit: bool = option(False, "Start also if the models may need more memory than there is.")
    cache_mb: int = option(64, "Memory of the response cache, in MB, where a model has been built with one.")
    drain_s: float = option(10.0, "How long requests in flight and open streams may go on after SIGTERM, in seconds.")
    stop_timeout_s: float = 30.0  # from SIGTERM to SIGKILL, longer than `drain_s`
    extra: tuple[str, ...] = ()  # more arguments for tritonserver, as they are
    key: str = field(default_factory=new_key, repr=False)  # for the APIs that are not open

    def __post_init__(self) -> None:
        for name, port in self.ports.items():
            if not 1 <= port <= 65535:
                raise ValueError(f"{name} port must be 1 to 65535, got {port}")
        if len(set(self.ports.values())) < len(self.ports):
            raise ValueError(f"the ports must differ, got {', '.join(f'{k} {v}' for k, v in self.ports.items())}")
        if not 0 <= self.drain_s < math.inf:
            raise ValueError(f"drain_s must be a number of at least 0, got {self.drain_s}")
        if not 1 <= self.cache_mb <= 2**20:
            raise ValueError(f"cache_mb must be 1 to {2**20}, got {self.cache_mb}")
        if self.log_level not in ("error", "warning", "info", "verbose"):
            raise ValueError(f"log_level must be error, warning, info or verbose, got {self.log_level!r}")
        if unknown := set(self.open_apis) - set(LOCKED_APIS):
            raise ValueError(f"open must name some of {', '.join(LOCKED_APIS)}, got {', '.join(sorted(unknown))}")

    @classmethod
    def on_free_ports(cls, **others: Any) -> "ServerOptions":
        """Options with three ports that are free on the host right now; the rest as of this class."""
        http, grpc, metrics = free_ports(3, others.get("host", cls.host))
        return cls(http_port=http, grpc_port=grpc, metrics_port=metrics, **others)

    @property
    def ports(self) -> dict[str, int]:
        """The three ports by the name of their service."""
        return {"http": self.http_port, "grpc": self.grpc_port, "metrics": self.metrics_port}

    @property
    def open_apis(self) -> list[str]:
        """The APIs that need no key."""
        return [name for part in self.open.split(",") if (name := part.strip())]

    @property
    def has_control(self) -> bool:
        """Whether models can be loaded and unloaded at all; arguments of the caller's own may have chosen otherwise."""
        return not any(argument.startswith("--model-control-mode") for argument in self.extra)

    @property
    def has_grpc(self) -> bool:
        """Whether gRPC is there without TLS, as far as arguments of the caller's own say."""
        return not any(argument.startswith(("--allow-grpc", "--grpc-use-ssl")) for argument in self.extra)

    @property
    def reach(self) -> str:
        """The address under which this machine itself reaches the server."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)

    def address(self, service: str) -> str:
        """Where this machine itself reaches a service, as host:port."""
        return joined(self.reach, self.ports[service])

    def arguments(self) -> list[str]:
        """The arguments that tritonserver understands."""
        level = ("error", "warning", "info", "verbose").index(self.log_level)
        locked = ",".join(api for name, api in LOCKED_APIS.items() if name not in self.open_apis)
        locks = [f"{lock}={locked}:{HTTP_HEADER}={self.key}" for lock in LOCKS] if locked else []
        address = numeric(self.host)  # names are for gRPC alone
        http, grpc = (f"ipv6:{address}", f"[{address}]") if ":" in address else (address, address)
        return [
            *(f"--{service}-address={grpc if service == 'grpc' else http}" for service in self.ports),
            *(f"--{service}-port={port}" for service, port in self.ports.items()),
            f"--log-warning={int(level >= 1)}",
            f"--log-info={int(level >= 2)}",
            f"--log-verbose={int(level >= 3)}",
            f"--exit-timeout-secs={math.ceil(self.drain_s)}",
            *locks,
            *(() if any(each.startswith("--metrics-config") for each in self.extra) else PERCENTILES),
            *(("--model-control-mode=explicit", "--load-model=*") if self.has_control else ()),
            *_whole_paths(self.extra),
        ]


def _whole_paths(arguments: Iterable[str]) -> Iterator[str]:
    """Arguments of tritonserver with absolute paths of repositories: processes of models do not begin where it is."""
    before = ""
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if before in REPOSITORIES and "://" not in argument:
            yield os.path.abspath(argument)
        elif name in REPOSITORIES and equals and "://" not in value:
            yield f"{name}={os.path.abspath(value)}"
        else:
            yield argument
        before = argument
