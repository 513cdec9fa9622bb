"""Options of a proxy: where it listens, where Triton listens, the key of locked APIs, TLS, and limits."""

from dataclasses import dataclass, field

from tritone.net.limits import Limits, Tls


@dataclass(frozen=True, kw_only=True)
class ProxyOptions:
    """Options of one proxy. Addresses of Triton are host:port."""

    host: str = "0.0.0.0"
    http_port: int = 8000
    grpc_port: int = 8001
    metrics_port: int | None = None  # None: metrics are not passed on
    upstream_http: str
    upstream_grpc: str
    upstream_metrics: str | None = None
    # Triton's `--http-restricted-api=...:NAME=VALUE`. gRPC clients send it as `triton-grpc-protocol-NAME`.
    key_header: str = "tritone-key"
    key: str = field(default="", repr=False)  # "": locked APIs are refused to everybody
    # APIs that Triton does not lock: of "control", "shared-memory", "trace", "logging".
    open_apis: frozenset[str] = frozenset()
    tls: Tls | None = None
    limits: Limits = field(default_factory=Limits)
    retry_after_s: float = 1.0  # hint of a refusal for which nothing better is known
    drain_hint_s: float = 5.0  # hint of a refusal while the server ends or restarts
