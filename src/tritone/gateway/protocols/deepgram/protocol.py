"""What the rest may know of the protocol of Deepgram's clients."""

from tritone.gateway.protocol import Protocol

PROTOCOL = Protocol(
    name="deepgram",
    package=__package__,
    what="Deepgram's: recordings by HTTP, live streams by WebSockets, with turns at `/v2/listen`.",
    page="docs/applications/gateway-deepgram.md",
    paths=("/v1/listen", "/v2/listen"),
    routes=("rest:routes", "live:routes", "flux:routes"),
)
