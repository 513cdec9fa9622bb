"""Where a server listens and what it is shown: "grpcs://host:8001", TLS files, a key  ->  Endpoint."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from tritone.client.tls import TlsFiles
from tritone.keys import GRPC_HEADER, HTTP_HEADER
from tritone.net.address import joined

Protocol = Literal["grpc", "http"]

DEFAULT_URL = "localhost:8001"

SCHEMES: dict[str, tuple[Protocol, bool, int]] = {
    # scheme: protocol, TLS, port when the URL names none (Triton's own; a TLS front usually sits on 443)
    "grpc": ("grpc", False, 8001),
    "grpcs": ("grpc", True, 443),
    "http": ("http", False, 8000),
    "https": ("http", True, 443),
}
KEY_HEADERS: dict[Protocol, str] = {"grpc": GRPC_HEADER, "http": HTTP_HEADER}


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """A server's address: protocol, whether TLS is used, host, port, and for HTTP a path prefix ("" or "/asr").

    `files` are those of TLS; `key` is sent with every request.
    """

    protocol: Protocol
    tls: bool
    host: str
    port: int
    path: str = ""
    files: TlsFiles = field(default_factory=TlsFiles)
    key: str | None = field(default=None, repr=False)

    @classmethod
    def parse(
        cls,
        url: str,
        protocol: str | None = None,
        *,
        ca: str | Path | None = None,
        certificate: str | Path | None = None,
        private_key: str | Path | None = None,
        key: str | None = None,
    ) -> "Endpoint":
        """Read a URL. Without a scheme it means gRPC, unless `protocol` says "http".

        Args:
            ca, certificate, private_key: as of `TlsFiles`; for "grpcs://" and "https://" alone.
            key: what opens a server's restricted functions.

        Raises:
            ValueError: the URL has no host, an unknown scheme, a bad port, or contradicts `protocol`; a file is missing
                or unfit, or there are files and no TLS; the key cannot be sent.
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
        if parts.netloc.count(":") > 1 and "[" not in parts.netloc:
            raise ValueError(f"{url!r}: an address of IPv6 stands in brackets; write [::1]:8001 or http://[::1]:8000")
        if not parts.hostname:
            raise ValueError(f"{url!r} names no host; write for example {DEFAULT_URL} or http://localhost:8000")
        try:
            port = parts.port
        except ValueError as error:
            raise ValueError(f"{url!r}: the port must be a number from 0 to 65535") from error
        files = TlsFiles(*(None if file is None else str(file) for file in (ca, certificate, private_key)))
        if files != TlsFiles() and not tls:
            raise ValueError(
                f"{url!r} uses no TLS, so {', '.join(files.given)} would not be looked at; write {found}s://..., or "
                "leave the files out"
            )
        if key is not None and (not key.isascii() or not key.isprintable() or key != key.strip() or not key):
            raise ValueError("the key must be printable ASCII without spaces at its ends; it is not shown here")
        if tls:
            files.check()
        path = parts.path.rstrip("/")
        if parts.query or parts.fragment or parts.username or (path and found == "grpc"):
            raise ValueError(f"{url!r}: only scheme, host and port are understood (and a path after http)")
        return cls(
            protocol=found,
            tls=tls,
            host=parts.hostname,
            port=default_port if port is None else port,
            path=path,
            files=files,
            key=key,
        )

    @property
    def headers(self) -> Mapping[str, str]:
        """What every request carries: HTTP headers, or gRPC metadata."""
        return {} if self.key is None else {KEY_HEADERS[self.protocol]: self.key}

    @property
    def address(self) -> str:
        """host:port with an HTTP path prefix, as tritonclient takes it."""
        return f"{joined(self.host, self.port)}{self.path}"

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
