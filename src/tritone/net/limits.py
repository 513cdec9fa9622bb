"""Limits that no client of the proxy or the gateway may exceed, how slowly bodies may come, and the files of TLS."""

import math
from dataclasses import dataclass, fields
from pathlib import Path

from tritone.options.fields import option

MEGABYTE = 1 << 20


@dataclass(frozen=True, kw_only=True)
class LeastRate:
    """How slowly a body or a message may come: `bytes_per_s`, with `grace_s` seconds on top."""

    grace_s: float
    bytes_per_s: float

    def allowed_s(self, counted: int) -> float:
        """Seconds from the begin in which so many bytes may come."""
        return self.grace_s + counted / self.bytes_per_s

    def broken(self, what: str, counted: int, took_s: float) -> str:
        """The sentence of a refusal; `what`: came, such as "the body"."""
        return (
            f"only {counted} bytes of {what} came in {took_s:.0f} s; it must come faster than "
            f"{self.bytes_per_s / 1024:g} KB a second"
        )


class _Positive:
    """Limits, which are numbers above 0."""

    def __post_init__(self) -> None:
        for each in fields(self):  # type: ignore[arg-type]
            least = 0 if each.name == "max_connections" else 1e-9
            if not least <= getattr(self, each.name) < math.inf:
                raise ValueError(f"{each.name} must be a number above 0, got {getattr(self, each.name)}")


@dataclass(frozen=True, kw_only=True)
class Limits(_Positive):
    """Limits of the proxy. Each refusal names the limit that was met."""

    max_body_bytes: int = 64 * MEGABYTE  # of one request, after unpacking
    max_json_bytes: int = 16 * MEGABYTE  # of its JSON part; binary tensor data is not JSON
    max_json_depth: int = 32
    max_buffered_bytes: int = 512 * MEGABYTE  # of all requests that are being received; one gRPC connection, half of it
    max_requests: int = 2048  # in flight, both protocols together
    max_waiting: int = 4096  # gRPC calls without a whole message; one takes some 20 KB
    max_connections: int = 0  # of each protocol; 0 derives it from the limit of file descriptors
    idle_s: float = 60.0  # a connection without a request is closed after it
    body_grace_s: float = 10.0  # a body that comes slower than `min_body_bytes_per_s` may take this much longer
    min_body_bytes_per_s: int = 16 << 10
    request_s: float = 600.0  # longest time of one request
    max_streams: int = 16384  # open at once, all models and clients together
    stream_idle_s: float = 60.0  # a stream without a chunk is ended after it
    max_queued_s: float = 3600.0  # audio in flight of a model whose configuration has no `max_queued_s`

    @property
    def body_rate(self) -> LeastRate:
        return LeastRate(grace_s=self.body_grace_s, bytes_per_s=self.min_body_bytes_per_s)


@dataclass(frozen=True, kw_only=True)
class GatewayLimits(_Positive):
    """Limits of the gateway, in the units of its options. Each refusal names the one that was met; those of a key come
    on top."""

    max_body_mb: float = option(512, "Largest request body, in MB.")
    max_message_kb: float = option(1024, "Largest message of a WebSocket, in KB.")
    max_audio_s: float = option(4 * 3600, "Longest recording, in seconds.")
    max_stream_s: float = option(4 * 3600, "Longest audio of a live stream, in seconds.")
    max_streams: int = option(2048, "Live streams open at once.")
    max_requests: int = option(256, "Requests in flight at once.")
    request_s: float = option(600, "Longest time of a request, in seconds.")
    body_grace_s: float = option(10, "Seconds that a body which comes slower than --body-kb-s may take on top.")
    body_kb_s: float = option(16, "Least speed of a body, in KB a second.")
    max_uploads: int = option(128, "Bodies that one address may be sending at once.")
    triton_timeout_s: float = option(60, "Longest time that Triton may take to answer, in seconds.")
    second_pass_s: float = option(10, "Longest time of a segment's second pass, in seconds; then its first text stays.")
    idle_s: float = option(60, "A live stream without audio is ended after so many seconds.")

    @property
    def max_body_bytes(self) -> int:
        return round(self.max_body_mb * MEGABYTE)

    @property
    def body_rate(self) -> LeastRate:
        return LeastRate(grace_s=self.body_grace_s, bytes_per_s=1024 * self.body_kb_s)

    @property
    def max_message_bytes(self) -> int:
        return round(self.max_message_kb * 1024)


@dataclass(frozen=True, kw_only=True)
class Tls:
    """Files in PEM format: the certificate chain of the server, its key, and who signs the certificates of clients."""

    certificate: Path
    key: Path
    client_ca: Path | None = None  # clients must show a certificate that it signed

    def __post_init__(self) -> None:
        for name in ("certificate", "key", "client_ca"):
            path = getattr(self, name)
            if path is not None and not path.is_file():
                raise ValueError(f"TLS: {name} {path} is not a file. Give the path of a PEM file.")
