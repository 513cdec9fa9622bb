"""What the rest may know of the gateway's own WebSocket."""

from tritone.gateway.protocol import Protocol

PROTOCOL = Protocol(
    name="stream",
    package=__package__,
    what="The gateway's own WebSocket: audio in, partial and final texts out.",
    page="docs/applications/gateway-websocket.md",
    paths=("/v1/stream",),
    routes=("websocket:routes",),
)
