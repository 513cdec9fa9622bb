"""Who asks: the name behind a key, what it may use, and what goes with its requests to Triton."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

ANYBODY = "anybody"


@dataclass(kw_only=True)
class Caller:
    """Who asks, for one request or connection.

    `name`: of the key. `door`: the protocol, for metrics. `headers`: what is sent on to Triton, such as a trace's.
    """

    name: str = ANYBODY
    door: str = ""
    headers: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def streaming(self) -> Iterator[None]:
        """Hold one of the caller's live streams; raises `GatewayRefusal` if it has none left."""
        yield

    def heard(self, audio_s: float) -> None:
        """Count audio, in seconds; raises `GatewayRefusal` if it is more than the caller may send."""


class Callers:
    """All who may ask."""

    def admitted(self, headers: Mapping[str, str], query: Mapping[str, str], door: str) -> Caller:
        """Who sent a request with these headers; raises `GatewayRefusal` if it may not ask."""
        return Caller(door=door)
