"""Where a server listens: "localhost:8001", "grpc://host:8001", "http://host:8000/prefix"  ->  Endpoint."""

import ipaddress
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

Protocol = Literal["grpc", "http"]

DEFAULT_URL = "localhost:8001"

SCHEMES: dict[str, tuple[Protocol, bool, int]] = {
    # scheme: protocol, TLS, port when the URL names none (Triton's own; a TLS front usually sits on 443)
    "grpc": ("grpc", False, 8001),
    "grpcs": ("grpc", True, 443),
    "http": ("http", False, 8000),
    "https": ("http", True, 443),
}


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """A server address: protocol, whether TLS is used, host, port, and for HTTP a path prefix ("" or "/asr")."""

    protocol: Protocol
    tls: bool
    host: str
    port: int
    path: str = ""

    @classmethod
    def parse(cls, url: str, protocol: str | None = None) -> "Endpoint":
        """Read a URL. Without a scheme it means gRPC, unless `protocol` says "http".

        Raises:
            ValueError: the URL has no host, an unknown scheme, a bad port, or contradicts `protocol`.
        """
        if protocol not in (None, "grpc", "http"):
            raise ValueError(f"protocol must be 'grpc' or 'http', got {protocol!r}")
        full = url if "://" in url else f"{protocol or 'grpc'}://{url}"
        parts = urlsplit(full)
        if parts.scheme not in SCHEMES:
            raise ValueError(f"{url!r}: unknown scheme {parts.scheme!r}; use one of {', '.join(SCHEMES)}, or host:port")
        found, tls, default_port = SCHEMES[parts.scheme]
        if protocol is not None and found != protocol:
            raise ValueError(f"{url!r} speaks {found}, but protocol={protocol!r} was asked for; drop one of them")
        if not parts.hostname:
            raise ValueError(f"{url!r} names no host; write for example {DEFAULT_URL} or http://localhost:8000")
        try:
            port = parts.port
        except ValueError as error:
            raise ValueError(f"{url!r}: the port must be a number from 0 to 65535") from error
        path = parts.path.rstrip("/")
        if parts.query or parts.fragment or parts.username or (path and found == "grpc"):
            raise ValueError(f"{url!r}: only scheme, host and port are understood (and a path after http)")
        return cls(protocol=found, tls=tls, host=parts.hostname, port=default_port if port is None else port, path=path)

    @property
    def address(self) -> str:
        """host:port with an HTTP path prefix, as tritonclient takes it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}{self.path}"

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"{self.protocol}{'s' if self.tls else ''}://{self.address}"
