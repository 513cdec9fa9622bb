"""Options of a gateway: where it listens, which Triton it asks, limits, keys; with the help of `tritone gateway`."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tritone.gateway.upstreams.options import UpstreamOptions
from tritone.net.address import joined
from tritone.net.limits import GatewayLimits, Tls
from tritone.options.fields import option
from tritone.transcript import Transcript

DEFAULT_PORT = 9000
NO_TRITON = "none"  # in place of an address
AnyOptions = TypeVar("AnyOptions")
ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s]+")  # as browsers send it


@dataclass(frozen=True, kw_only=True)
class GatewayOptions:
    """Options of one gateway.

    `ports`: protocols that have a port of their own beside `port`, by name: one that is not HTTP, or one whose clients
    cannot name a path. 0 is any free port. `protocols`: options of protocols that have some, by name.
    `cors`: origins of pages elsewhere that may ask, such as "https://app.example"; none by default. `aliases`: names
    that clients may use for the gateway's own models. `punctuation`: writes marks into final transcripts, in place of
    rules, where they are asked for; called in threads. `upstreams`: models of servers that speak OpenAI's API, beside
    those of Triton.
    """

    triton: str = option(
        "http://localhost:8000",
        "The Triton to ask: http://…, https://…, host:port (gRPC, which costs more), grpcs://…; none where models of "
        "--upstreams are all there is.",
        name="url",
        metavar="URL",
    )
    host: str = option("127.0.0.1", "Address to listen on; 0.0.0.0 for every network, :: for those of IPv6, too.")
    port: int = option(DEFAULT_PORT, "Port of HTTP and WebSockets; 0: any that is free.")
    ports: Mapping[str, int] = field(default_factory=dict)
    protocols: Mapping[str, Any] = field(default_factory=dict)
    model: str = option("", "Model for whole recordings; not needed if there is only one.")
    stream_model: str = option(
        "",
        "Model for live streams; not needed if there is only one. One for whole recordings will do: it "
        "writes each utterance at its end.",
    )
    vad_model: str = option("", "Model that finds speech in live streams.")
    speaker_model: str = option("", "Model that tells speakers apart; not needed if there is only one.")
    turn_model: str = option(
        "",
        "Model that says after a pause whether a speaker has finished (docs/applications/turns.md); it needs voice "
        "activity.",
    )
    chunk_ms: float = option(160.0, "Audio of a live stream that is sent at a time, in ms.")
    ping_s: float = option(
        10.0, "Seconds between pings of WebSockets, and for their answer; who does not answer is disconnected."
    )
    drain_s: float = option(10.0, "How long live streams may go on after SIGTERM, in seconds.")
    cors: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    punctuation: Callable[[Transcript], Transcript] | None = None
    upstreams: tuple[UpstreamOptions, ...] = ()
    keys: Path | None = option(
        None, "File that says who may ask: hashes of keys, OpenID, limits. Everybody if not given."
    )
    access_log: bool = option(True, "Write a line for each request to stderr, without audio or text.")
    metrics_port: int | None = option(None, "Port of metrics and health; if not given, metrics are on --port, too.")
    traces: str = option("", "OpenTelemetry collector (OTLP over HTTP), like http://localhost:4318.", metavar="URL")
    tls: Tls | None = None
    limits: GatewayLimits = field(default_factory=GatewayLimits)

    def __post_init__(self) -> None:
        taken: dict[int, str] = {}
        own = {f"{name}_port": port for name, port in self.ports.items()}
        for name, port in {"port": self.port, "metrics_port": self.metrics_port or 0, **own}.items():
            if not 0 <= port <= 65535:
                raise ValueError(f"{name} must be 1 to 65535, or 0 for any, got {port}")
            if port and (other := taken.setdefault(port, name)) != name:
                raise ValueError(f"{other} and {name} are both {port}; each needs a port of its own")
        names = [each.name for each in self.upstreams]
        if twice := {each for each in names if names.count(each) > 1}:
            raise ValueError(f"several upstreams are called {', '.join(sorted(twice))}")
        for origin in self.cors:
            if origin != "*" and not ORIGIN.fullmatch(origin):
                raise ValueError(f"cors takes origins like https://app.example, without a path, got {origin!r}")
        if self.traces and not self.traces.startswith(("http://", "https://")):
            raise ValueError(f"traces takes an address like http://localhost:4318, got {self.traces!r}")
        for name in ("chunk_ms", "drain_s", "ping_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be a number of at least 0, got {getattr(self, name)}")

    def of(self, protocol: str, usual: type[AnyOptions]) -> AnyOptions:
        """The options of a protocol that has some; the usual ones if they are not given."""
        found: AnyOptions = self.protocols.get(protocol) or usual()
        return found

    def address(self, port: int) -> str:
        """Where a port of this gateway is: host:port, IPv6 in brackets."""
        return joined(self.host, port)
