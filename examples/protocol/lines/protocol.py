"""What Tritone may know of Lines without starlette: its addresses, its port, its options."""

from tritone.gateway.protocol import Protocol

PROTOCOL = Protocol(
    name="lines",
    package=__package__,
    interface=1,
    what="Lines: recordings by HTTP and live streams by a WebSocket become lines of plain text.",
    paths=("/lines/live", "/lines"),
    routes=("live:routes", "whole:routes"),
    port="Port for clients of Lines, which know a host and a port alone.",
    options="options:LinesOptions",
)
