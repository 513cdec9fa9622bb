"""What the rest may know of the protocol of vosk-server's clients."""

from tritone.gateway.protocol import Protocol

PROTOCOL = Protocol(
    name="vosk",
    package=__package__,
    what="vosk-server's: live streams by a WebSocket.",
    page="docs/applications/gateway-websocket.md",
    paths=("/vosk",),
    routes=("websocket:routes",),
    port="Port for clients of Vosk's server, such as 2700.",
)
