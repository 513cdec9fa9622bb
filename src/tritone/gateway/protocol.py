"""What the rest of Tritone may know of a protocol, on one page that imports neither starlette nor grpc.

    gateway/protocols/vosk/protocol.py: PROTOCOL = Protocol(name="vosk", ...)
        ->  its addresses on a gateway, `tritone gateway --vosk-port`

A protocol of another package is named in its entry point of the group `tritone.protocols`.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from tritone.pages import Page

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from tritone.gateway.gateway import Gateway


TAKEN = ("http", "metrics")
"""Ports of a gateway itself, by their names."""


@dataclass(frozen=True, kw_only=True)
class Protocol(Page):
    """One protocol that applications speak.

    `what`: who speaks it, in a sentence. `page`: its document.
    `paths`: its addresses on the port of HTTP and WebSockets.
    `routes`: functions of the gateway that return Starlette's routes at these paths, imported when a gateway starts.
    `serve`: a function of the gateway and an address, host:port, that returns a server of its own (`port`, and
    `await stop(grace_s)`), for what is not HTTP. Without one, a port of its own answers at / as the first of the paths.
    `port`: the help of the option that chooses such a port; none if it has no port of its own.
    `options`: a class of further options of `tritone gateway`, which begin with the protocol's name. `panel`: the title
    over all of them in its help.
    """

    GROUP = "tritone.protocols"
    INTERFACE = 1

    what: str
    page: str = ""
    paths: tuple[str, ...] = ()
    routes: tuple[str, ...] = ()
    serve: str = ""
    port: str = ""
    options: str = ""
    panel: str = "Protocols of applications"

    def __post_init__(self) -> None:
        if not self.name.isidentifier() or self.name in TAKEN:
            raise ValueError(f"{self.name!r} cannot name a protocol: an identifier can, but {' and '.join(TAKEN)}")

    @property
    def port_name(self) -> str:
        """The name of the option that chooses its own port."""
        return f"{self.name}_port"

    def own_options(self) -> Any:
        """The class of its own options, which begin with its name; raises `TypeError` if one does not."""
        found = self.look_up(self.options)
        names = [each.name for each in fields(found)]
        if wrong := [each for each in names if not f"{each}_".startswith(f"{self.name}_") or each == self.port_name]:
            raise TypeError(f"options of {self.name} begin with {self.name}_, got {', '.join(wrong)}")
        return found

    def all_routes(self, gateway: "Gateway") -> "list[BaseRoute]":
        """Its routes on a gateway."""
        return [route for each in self.routes for route in self.look_up(each)(gateway)]

    @property
    def server(self) -> Callable[["Gateway", str], Awaitable[Any]]:
        """The function that starts its own server, see `serve`."""
        found: Callable[[Gateway, str], Awaitable[Any]] = self.look_up(self.serve)
        return found
