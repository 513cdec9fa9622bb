"""What the rest may know of the protocols of Riva's clients."""

from tritone.gateway.protocol import Protocol

PROTOCOL = Protocol(
    name="riva",
    package=__package__,
    what="NVIDIA Riva's: gRPC on a port of its own, and Realtime sessions over HTTP and a WebSocket.",
    page="docs/applications/gateway-riva.md",
    paths=("/v1/realtime/transcription_sessions", "/v1/realtime"),
    routes=("realtime:routes",),
    serve="server:serve",
    port="Port of Riva's gRPC; none if not given. 0: any that is free.",
)
