"""What the rest may know of the protocol of the clients of WeNet's server."""

from tritone.gateway.protocol import Protocol

PROTOCOL = Protocol(
    name="wenet",
    package=__package__,
    what="The WebSocket server of WeNet's runtime: live streams.",
    page="docs/applications/gateway-websocket.md",
    paths=("/wenet",),
    routes=("websocket:routes",),
    port="Port for clients of WeNet's server, such as 10086.",
)
